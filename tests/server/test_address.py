"""Under which URL a client sees us."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.server.address import PublicAddress
from tests.server.wire import app_of, request

PROXY = ("10.1.2.3", 4711)


async def url(*, app: dict[str, Any] | None = None, **more: Any) -> str:
    card = (await request(app_of(**(app or {})), "GET", "/.well-known/agent-card.json", **more)).json
    assert isinstance(card["url"], str)
    return card["url"]


async def test_base_url_has_the_host_of_the_request() -> None:
    assert await url() == "http://agents.example/"
    assert await url(headers={"host": "[::1]:8000"}) == "http://[::1]:8000/"


async def test_base_url_includes_the_mount_path() -> None:
    path = "/sub/.well-known/agent-card.json"
    card = (await request(app_of(), "GET", path, root_path="/sub")).json
    assert card["url"] == "http://agents.example/sub/"


async def test_the_public_url_of_the_operator_goes_before_all_headers() -> None:
    app = {"public_url": "https://public.example/a2a/", "trusted_proxies": ["*"]}
    assert await url(app=app, headers={"X-Forwarded-Host": "other"}) == "https://public.example/a2a/"


@pytest.mark.parametrize(
    "host", ["", 'evil"><script>', "a b", "user@host", "host/path", "x:99999999", "[zz]"]
)
async def test_a_host_that_is_none_is_not_repeated(host: str) -> None:
    assert await url(headers={"host": host}) == "http://127.0.0.1:8000/"


FORWARDED = {
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": "public.example:8443",
    "X-Forwarded-Prefix": "/team/agents/",
}


@pytest.mark.parametrize("client", [PROXY, ("::ffff:10.1.2.3", 4711)], ids=["IPv4", "on-a-socket-for-both"])
async def test_a_trusted_proxy_is_believed(client: Any) -> None:
    app = {"trusted_proxies": ["10.0.0.0/8"]}
    assert await url(app=app, client=client, headers=FORWARDED) == "https://public.example:8443/team/agents/"


@pytest.mark.parametrize(
    ("trusted", "client"),
    [
        ([], PROXY),
        (["10.0.0.0/8"], ("192.0.2.1", 1)),
        (["10.0.0.0/8"], None),
        (["10.0.0.0/8"], ("/run/x.sock", 0)),
        (["::1"], PROXY),
    ],
)
async def test_headers_of_an_untrusted_proxy_are_ignored(trusted: list[str], client: Any) -> None:
    assert (
        await url(app={"trusted_proxies": trusted}, client=client, headers=FORWARDED)
        == "http://agents.example/"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("for=1.2.3.4;proto=https;host=public.example", "https://public.example/"),
        ('For="[2001:db8::1]"; Proto=HTTPS; Host="public.example:81"', "https://public.example:81/"),
        ("proto=http;host=forged.example, proto=https;host=public.example", "https://public.example/"),
        ("for=1.2.3.4", "http://agents.example/"),
        ("proto=gopher;host=public.example", "http://public.example/"),
        ("host=;;;,,", "http://agents.example/"),
        ('host="open', "http://agents.example/"),
        ("host=a b", "http://agents.example/"),
    ],
)
async def test_forwarded_is_read_as_the_nearest_proxy_wrote_it(value: str, expected: str) -> None:
    headers = {"Forwarded": value}
    assert await url(app={"trusted_proxies": ["*"]}, client=PROXY, headers=headers) == expected


async def test_of_several_values_the_last_is_the_proxys_own() -> None:
    headers = {"X-Forwarded-Host": "forged.example, public.example", "X-Forwarded-Proto": "http, https"}
    assert await url(app={"trusted_proxies": ["*"]}, headers=headers) == "https://public.example/"


@pytest.mark.parametrize("prefix", ["team", "/a b", "//evil.example", "/a\\b", '/"'])
async def test_a_prefix_that_is_no_path_is_left_out(prefix: str) -> None:
    headers = {"X-Forwarded-Prefix": prefix}
    assert await url(app={"trusted_proxies": ["*"]}, headers=headers) == "http://agents.example/"


def test_a_proxy_that_is_no_address_is_a_mistake() -> None:
    with pytest.raises(ValueError):
        PublicAddress(trusted_proxies=["proxy.example"])


@pytest.mark.parametrize(
    ("client", "status"),
    [
        ("127.0.0.1", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("::ffff:10.1.2.3", 404),
        ("10.1.2.3", 404),
    ],
)
async def test_this_machine_is_known_by_all_its_addresses(client: str, status: int) -> None:
    answer = await request(app_of(metrics=lambda: b"x"), "GET", "/metrics", client=(client, 1))
    assert answer.status == status
