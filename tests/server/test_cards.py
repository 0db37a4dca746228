"""Cards over HTTP: where, which, for how long."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import ExtendedCardNotConfigured, Unauthenticated, UnsupportedOperation
from dragoman.model.card import AgentCard, Interface
from dragoman.server.app import App
from dragoman.server.mount import Mount
from tests.server.wire import CARD, Scripted, app_of, request, rpc

PATHS = ["/.well-known/agent-card.json", "/.well-known/agent.json", "/agent-card.json"]
WELL_KNOWN = PATHS[:2]


def several(*names: str) -> App:
    return App(
        [
            Mount(path=f"/agents/{name}", agent=name, service=Scripted(), card=replace(CARD, name=name))
            for name in names
        ]
    )


@pytest.mark.parametrize("path", PATHS)
async def test_the_card_is_found_wherever_clients_look(path: str) -> None:
    answer = await request(app_of(), "GET", path)
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    assert answer.json["name"] == "Hello"


@pytest.mark.parametrize("path", PATHS)
async def test_one_card_is_readable_in_every_version(path: str) -> None:
    card = (await request(app_of(), "GET", path)).json
    assert card["url"] == card["supportedInterfaces"][0]["url"] == "http://agents.example/"
    assert [(each["protocolVersion"], each["protocolBinding"]) for each in card["supportedInterfaces"]] == [
        ("1.0", "JSONRPC"),
        ("1.0", "HTTP+JSON"),
        ("0.3", "JSONRPC"),
        ("0.3", "HTTP+JSON"),
    ]
    assert [each["transport"] for each in card["additionalInterfaces"]] == ["JSONRPC", "HTTP+JSON"]
    assert card["protocolVersion"] == "0.3.0" and card["preferredTransport"] == "JSONRPC"


@pytest.mark.parametrize("path", WELL_KNOWN)
@pytest.mark.parametrize(
    "more",
    [{"headers": {"A2A-Version": "1.0"}}, {"headers": {"A2A-Version": "1"}}, {"query": "A2A-Version=1.0"}],
)
async def test_card_of_version_1_is_served_to_clients_of_version_1(path: str, more: dict[str, Any]) -> None:
    card = (await request(app_of(), "GET", path, **more)).json
    assert "supportedInterfaces" in card
    assert not {"url", "protocolVersion", "preferredTransport", "authentication"} & set(card)


@pytest.mark.parametrize("path", PATHS)
async def test_an_agent_of_version_1_alone_has_no_other(path: str) -> None:
    card = (await request(app_of(versions=("1.0",)), "GET", path)).json
    assert {each["protocolVersion"] for each in card["supportedInterfaces"]} == {"1.0"}
    assert "url" not in card and "protocolVersion" not in card


async def test_the_card_beside_the_endpoint_has_a_url_in_every_version() -> None:
    answer = await request(app_of(), "GET", "/agent-card.json", headers={"A2A-Version": "1.0"})
    assert answer.json["url"] == "http://agents.example/"


async def test_interfaces_served_elsewhere_stay_on_the_card() -> None:
    elsewhere = Interface(url="agents.example:50051", protocol_binding="GRPC", protocol_version="1.0")
    app = app_of(card=replace(CARD, supported_interfaces=(elsewhere,)))
    card = (await request(app, "GET", PATHS[0])).json
    newest = [each for each in card["supportedInterfaces"] if each["protocolVersion"] == "1.0"]
    assert [each["protocolBinding"] for each in newest] == ["JSONRPC", "HTTP+JSON", "GRPC"]
    assert card["supportedInterfaces"][:3] == newest


# --- caching


async def test_a_card_has_cache_headers() -> None:
    answer = await request(app_of(), "GET", PATHS[0])
    assert answer.headers["cache-control"] == "public, max-age=300"
    assert answer.headers["vary"] == "A2A-Version"
    assert answer.headers["etag"].startswith('"') and answer.headers["last-modified"].endswith("GMT")


@pytest.mark.parametrize("held", ["{}", "W/{}", '"other", {}', "*"])
async def test_client_with_the_current_card_gets_304(held: str) -> None:
    app = app_of()
    etag = (await request(app, "GET", PATHS[0])).headers["etag"]
    answer = await request(app, "GET", PATHS[0], headers={"If-None-Match": held.format(etag)})
    assert answer.status == 304 and answer.body == b""
    assert answer.headers["etag"] == etag and "content-length" not in answer.headers


async def test_client_with_another_card_gets_the_current_one() -> None:
    answer = await request(app_of(), "GET", PATHS[0], headers={"If-None-Match": '"other"'})
    assert answer.status == 200 and answer.json["name"] == "Hello"


async def test_a_date_will_do_where_there_is_no_tag() -> None:
    app = app_of()
    since = (await request(app, "GET", PATHS[0])).headers["last-modified"]
    assert (await request(app, "GET", PATHS[0], headers={"If-Modified-Since": since})).status == 304
    old = formatdate(0, usegmt=True)
    assert (await request(app, "GET", PATHS[0], headers={"If-Modified-Since": old})).status == 200
    both = {"If-Modified-Since": since, "If-None-Match": '"other"'}
    assert (await request(app, "GET", PATHS[0], headers=both)).status == 200


@pytest.mark.parametrize(
    "date", ["yesterday", "", "Mon, 99 Foo 2020 00:00:00 GMT", "Thu, 01 Jan 99999 00:00:00 GMT"]
)
async def test_a_date_that_is_none_is_ignored(date: str) -> None:
    assert (await request(app_of(), "GET", PATHS[0], headers={"If-Modified-Since": date})).status == 200


async def test_the_two_documents_have_two_tags() -> None:
    app = app_of()
    superset = await request(app, "GET", PATHS[0])
    pure = await request(app, "GET", PATHS[0], headers={"A2A-Version": "1.0"})
    assert superset.headers["etag"] != pure.headers["etag"]


async def test_a_card_that_changes_is_served_anew() -> None:
    now: list[AgentCard] = [CARD]
    current: Callable[[], AgentCard] = lambda: now[0]  # noqa: E731
    app = app_of(card=current)
    before = await request(app, "GET", PATHS[0])
    now[0] = replace(CARD)
    assert (await request(app, "GET", PATHS[0])).headers["etag"] == before.headers["etag"]
    now[0] = replace(CARD, version="2")
    after = await request(app, "GET", PATHS[0], headers={"If-None-Match": before.headers["etag"]})
    assert after.status == 200 and after.json["version"] == "2"


async def test_any_number_of_host_names_costs_a_bounded_cache() -> None:
    app = app_of()
    for n in range(500):
        answer = await request(app, "GET", PATHS[0], headers={"host": f"h{n}.example"})
        assert answer.json["url"] == f"http://h{n}.example/"
    assert len(app._cards._documents) <= 64


# --- methods


async def test_head_is_get_without_the_body() -> None:
    app = app_of()
    get, head = await request(app, "GET", PATHS[0]), await request(app, "HEAD", PATHS[0])
    assert head.status == 200 and head.body == b"" and head.headers == get.headers


async def test_a_card_cannot_be_posted_to() -> None:
    answer = await request(app_of(), "POST", PATHS[0], b"{}")
    assert answer.status == 405 and answer.headers["allow"] == "GET, HEAD, OPTIONS"


async def test_pages_of_other_origins_may_read_a_card() -> None:
    answer = await request(app_of(), "GET", PATHS[0], headers={"Origin": "https://console.example"})
    assert answer.headers["access-control-allow-origin"] == "*"
    preflight = await request(app_of(), "OPTIONS", PATHS[0])
    assert preflight.status == 204 and "A2A-Version" in preflight.headers["access-control-allow-headers"]


# --- several agents


@pytest.mark.parametrize("path", PATHS)
async def test_each_agent_has_its_card_below_its_path(path: str) -> None:
    card = (await request(several("ada", "bob"), "GET", f"/agents/bob{path}")).json
    assert card["name"] == "bob" and card["url"] == "http://agents.example/agents/bob"


@pytest.mark.parametrize("path", WELL_KNOWN)
async def test_the_card_at_the_root_is_that_of_the_first(path: str) -> None:
    card = (await request(several("ada", "bob"), "GET", path)).json
    assert card["name"] == "ada" and card["url"] == "http://agents.example/agents/ada"


async def test_two_agents_cannot_share_a_path() -> None:
    with pytest.raises(ValueError, match="one path"):
        several("ada", "ada")


async def test_a_path_that_only_begins_like_a_mount_is_not_below_it() -> None:
    assert (await request(several("ada"), "GET", "/agents/adamant/agent-card.json")).status == 404


async def test_a_card_that_cannot_be_made_is_an_internal_error_without_details() -> None:
    def broken() -> AgentCard:
        raise RuntimeError("hunter2")

    answer = await request(app_of(card=broken), "GET", PATHS[0])
    assert answer.status == 500 and b"hunter2" not in answer.body


# --- the extended card


async def test_the_extended_card_of_0_2_is_a_page() -> None:
    service = Scripted(result=replace(CARD, description="Says more"))
    answer = await request(app_of(service), "GET", "/agent/authenticatedExtendedCard")
    assert answer.status == 200 and "no-store" in answer.headers["cache-control"]
    assert answer.json["description"] == "Says more" and answer.json["url"] == "http://agents.example/"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ExtendedCardNotConfigured("none"), 404),
        (UnsupportedOperation("no"), 404),
        (Unauthenticated("who?"), 401),
    ],
)
async def test_error_of_an_extended_card_has_its_status(error: Exception, status: int) -> None:
    answer = await request(app_of(Scripted(result=error)), "GET", "/agent/authenticatedExtendedCard")
    assert answer.status == status and "error" in answer.json


@pytest.mark.parametrize(
    ("method", "version"), [("GetExtendedAgentCard", "1.0"), ("agent/getAuthenticatedExtendedCard", "0.3")]
)
async def test_the_extended_card_says_where_the_agent_is(method: str, version: str) -> None:
    app = app_of(Scripted(result=CARD))
    card = (await rpc(app, method, headers={"A2A-Version": version})).json["result"]
    found = card["supportedInterfaces"][0]["url"] if version == "1.0" else card["url"]
    assert found == "http://agents.example/"


@pytest.mark.parametrize(
    ("versions", "label"),
    [
        (("1.0", "0.3", "0.2", "0.1"), "0.3.0"),
        (("1.0", "0.2"), "0.2.6"),
        (("0.2", "0.1"), "0.2.6"),
        (("0.1",), None),
    ],
)
async def test_a_card_lists_only_supported_versions(versions: tuple[str, ...], label: str | None) -> None:
    card = (await request(app_of(versions=versions), "GET", "/.well-known/agent.json")).json
    assert card.get("protocolVersion") == label
    assert {each["protocolVersion"] for each in card["supportedInterfaces"]} <= set(versions)
    assert card["url"]
