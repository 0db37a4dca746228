"""Credentials have the form that the card asks for, go to one origin, and are renewed once after a 401."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from dragoman.client import ApiKey, Basic, Bearer, Client, connect
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import Forbidden, Unauthenticated
from tests.client.fakes import Answer, Asked, Site, answer, card, page
from tests.requirements import requirement

BASE, NEW = "http://agent.test", "/.well-known/agent-card.json"


def reach(site: Site, target: Any = BASE, **options: Any) -> Client:
    return connect(target, transport=AsgiTransport(site), **options)


def asks_for(**schemes: Any) -> dict[str, Any]:
    first = next(iter(schemes))
    return card(securitySchemes=schemes, securityRequirements=[{"schemes": {first: {"list": []}}}])


BEARER = {"httpAuthSecurityScheme": {"scheme": "bearer"}}
BASIC = {"httpAuthSecurityScheme": {"scheme": "Basic"}}
LOGIN = "Basic " + base64.b64encode(b"ada:pw").decode()


def key(location: str) -> dict[str, Any]:
    return {"apiKeySecurityScheme": {"location": location, "name": "X-Key"}}


@requirement(36, 211)
@pytest.mark.parametrize(
    ("scheme", "given", "where", "name", "value"),
    [
        (BEARER, "s3cret", "headers", "authorization", "Bearer s3cret"),
        (key("header"), "s3cret", "headers", "x-key", "s3cret"),
        (key("query"), "s3 c/ret", "query", "X-Key", "s3 c/ret"),
        (key("cookie"), "s3cret", "headers", "cookie", "X-Key=s3cret"),
        (BASIC, "ada:pw", "headers", "authorization", LOGIN),
        (BASIC, ("ada", "pw"), "headers", "authorization", LOGIN),
        (BEARER, {"it": "s3cret"}, "headers", "authorization", "Bearer s3cret"),
        (BEARER, ApiKey("k", name="X-Other"), "headers", "x-other", "k"),
        (key("header"), Bearer("t"), "headers", "authorization", "Bearer t"),
        (BEARER, Basic("ada", "pw"), "headers", "authorization", LOGIN),
    ],
)
async def test_a_secret_is_sent_as_the_card_requires(
    scheme: dict[str, Any], given: Any, where: str, name: str, value: str
) -> None:
    site = Site({NEW: page(asks_for(it=scheme)), "/rpc": answer})
    async with reach(site, credentials=given) as agent:
        assert await agent("hello") == "fine"
    assert getattr(site.asked[-1], where)[name] == value
    assert "authorization" not in site.asked[0].headers, "an open card needs no credentials"


async def test_a_secret_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site({NEW: page(asks_for(it=BEARER)), "/rpc": answer})
    monkeypatch.setenv("AGENT_TOKEN", "from the environment")
    async with reach(site, credentials="env:AGENT_TOKEN") as agent:
        await agent("hello")
    assert site.asked[-1].headers["authorization"] == "Bearer from the environment"
    monkeypatch.delenv("AGENT_TOKEN")
    async with reach(site, credentials="env:AGENT_TOKEN") as agent:
        with pytest.raises(Unauthenticated, match="AGENT_TOKEN is not set"):
            await agent("hello")


async def test_several_schemes_are_shown_together() -> None:
    site = Site({NEW: page(asks_for(a=BEARER, b=key("header"))), "/rpc": answer})
    async with reach(site, credentials={"a": "token", "b": "key"}) as agent:
        await agent("hello")
    headers = site.asked[-1].headers
    assert (headers["authorization"], headers["x-key"]) == ("Bearer token", "key")
    with pytest.raises(ValueError, match="no security scheme 'c'; it has a, b"):
        await reach(site, credentials={"c": "x"}).open()


def only(*tokens: str) -> Any:
    def rpc(asked: Asked) -> Answer:
        shown = asked.headers.get("authorization", "").removeprefix("Bearer ")
        return answer(asked) if shown in tokens else page({}, 401)

    return rpc


async def test_a_refused_secret_is_asked_for_again_once() -> None:
    tokens = iter(["old", "new", "newer"])

    async def token() -> str:
        return next(tokens)

    site = Site({NEW: page(asks_for(it=BEARER)), "/rpc": only("new")})
    async with reach(site, credentials=token) as agent:
        assert await agent("hello") == "fine"
        assert await agent("hello") == "fine"
    assert [asked.headers.get("authorization") for asked in site.asked[1:]] == [
        "Bearer old",
        "Bearer new",
        "Bearer new",
    ]


async def test_calls_that_are_refused_together_are_renewed_together() -> None:
    asked_for = 0

    async def token() -> str:
        nonlocal asked_for
        asked_for += 1
        await asyncio.sleep(0)
        return "old" if asked_for == 1 else "new"

    site = Site({NEW: page(asks_for(it=BEARER)), "/rpc": only("new")})
    together = asyncio.Barrier(5)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") == b"Bearer old":
            await together.wait()
        await site(scope, receive, send)

    async with asyncio.timeout(10), connect(BASE, transport=AsgiTransport(app), credentials=token) as agent:
        assert await asyncio.gather(*[agent("hello") for _ in range(5)]) == ["fine"] * 5
    assert asked_for == 2


async def test_a_secret_that_stays_refused_is_an_error_that_says_what_is_asked_for() -> None:
    site = Site({NEW: page(asks_for(it=BEARER)), "/rpc": only("right")})
    async with reach(site, credentials="wrong") as agent:
        with pytest.raises(Unauthenticated, match=r"it asks for HTTP bearer$"):
            await agent("hello")
    assert site.paths() == [NEW, "/rpc"]
    async with reach(site) as agent:
        with pytest.raises(Unauthenticated, match=r"it asks for HTTP bearer, and no credentials were given$"):
            await agent("hello")


async def test_a_refusal_for_good_is_not_taken_for_a_missing_secret() -> None:
    site = Site({NEW: page(card()), "/rpc": lambda asked: page({"error": "not for you"}, 403)})
    async with reach(site, credentials="x") as agent:
        with pytest.raises(Forbidden, match="not for you"):
            await agent("hello")


async def test_credentials_go_only_to_their_origin_whatever_urls_the_card_has() -> None:
    elsewhere = [{"url": "http://evil.test/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
    site = Site({NEW: page(card(supportedInterfaces=elsewhere)), "/rpc": only("token")})
    async with reach(site, credentials="token", headers={"X-Mine": "1"}) as agent:
        with pytest.raises(Unauthenticated, match="pass origin='http://evil"):
            await agent("hello")
    assert "x-mine" in site.asked[0].headers
    assert not {"authorization", "x-mine"} & set(site.asked[-1].headers)


async def test_the_option_origin_sends_credentials_to_another_origin() -> None:
    elsewhere = [{"url": "http://api.test/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
    site = Site({NEW: page(card(supportedInterfaces=elsewhere)), "/rpc": only("token")})
    async with reach(site, credentials="token", origin="http://api.test") as agent:
        assert await agent("hello") == "fine"
    assert "authorization" not in site.asked[0].headers


async def test_keys_in_cookies_go_together_and_a_header_is_sent_once_however_it_is_spelled() -> None:
    schemes = {name: {"apiKeySecurityScheme": {"location": "cookie", "name": name}} for name in ("a", "b")}
    site = Site({NEW: page(asks_for(**schemes)), "/rpc": answer})
    headers = {"cookie": "theme=dark", "ACCEPT": "application/json; q=1"}
    async with reach(site, credentials={"a": "1", "b": "2"}, headers=headers) as agent:
        await agent("hello")
    assert site.asked[-1].headers["cookie"] == "theme=dark; a=1; b=2"
    assert site.asked[-1].headers["accept"] == "application/json; q=1"


async def test_a_key_in_the_query_is_in_no_error() -> None:
    from dragoman.client.transport.network import HttpTransport
    from dragoman.client.transport.transport import NotSent

    transport = HttpTransport()
    with pytest.raises(NotSent) as caught:
        await transport.request("POST", "http://127.0.0.1:9/rpc?key=s3cret", {})
    assert "s3cret" not in str(caught.value)
