"""Credentials that fetch their own tokens."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from dragoman.client import Client, ClientCredentials, DeviceCode, RefreshToken, connect
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import Unauthenticated
from tests.client.fakes import Answer, Asked, Site, answer, card, page

BASE, NEW = "http://agent.test", "/.well-known/agent-card.json"


class Login(Site):
    """An agent that wants a token, and the place that gives them, on one origin."""

    def __init__(self, *, flow: str, lasts: Any = 3600, **urls: str) -> None:
        super().__init__()
        self.given = 0
        self.lasts = lasts
        self.valid: set[str] = set()
        self.pages = {NEW: page(self.card(flow, urls)), "/rpc": self.rpc, "/token": self.token}

    def card(self, flow: str, urls: dict[str, str]) -> dict[str, Any]:
        declared = {"tokenUrl": f"{BASE}/token", "scopes": {}, **urls}
        scheme = {"oauth2SecurityScheme": {"flows": {flow: declared}}}
        return card(securitySchemes={"it": scheme}, securityRequirements=[{"schemes": {"it": {"list": []}}}])

    def rpc(self, asked: Asked) -> Answer:
        shown = asked.headers.get("authorization", "").removeprefix("Bearer ")
        return answer(asked) if shown in self.valid else page({}, 401)

    def token(self, asked: Asked) -> Answer:
        self.given += 1
        self.valid = {f"token-{self.given}"}
        more = {} if self.lasts is None else {"expires_in": self.lasts}
        return page({"access_token": f"token-{self.given}", "refresh_token": f"refresh-{self.given}", **more})

    def grants(self) -> list[str]:
        return [asked.form.get("grant_type", "") for asked in self.asked if asked.path == "/token"]


def reach(site: Site, **options: Any) -> Client:
    return connect(BASE, transport=AsgiTransport(site), **options)


async def test_client_credentials_fetch_a_token_where_the_card_says_and_keep_it() -> None:
    site = Login(flow="clientCredentials")
    async with reach(site, credentials=ClientCredentials("me", "s3cret", scopes=["read"])) as agent:
        assert [await agent("hello") for _ in range(3)] == ["fine"] * 3
    (asked,) = [asked for asked in site.asked if asked.path == "/token"]
    assert asked.form == {"grant_type": "client_credentials", "scope": "read"}
    assert asked.headers["authorization"] == "Basic " + base64.b64encode(b"me:s3cret").decode()


@pytest.mark.parametrize("why", ["expired", "refused"])
async def test_a_token_is_renewed_with_its_refresh_token(why: str) -> None:
    site = Login(flow="clientCredentials", lasts=None)
    credentials = ClientCredentials("me", "s3cret")
    async with reach(site, credentials=credentials) as agent:
        await agent("hello")
        if why == "expired":
            credentials._expires = 0.0
        else:
            site.valid = set()
        assert await agent("hello") == "fine"
    assert site.grants() == ["client_credentials", "refresh_token"]


async def test_a_token_that_many_calls_find_refused_is_renewed_once() -> None:
    site = Login(flow="clientCredentials")
    together = asyncio.Barrier(5)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") == b"Bearer token-1":
            await together.wait()
            site.valid.discard("token-1")
        await site(scope, receive, send)

    credentials = ClientCredentials("me", "s3cret")
    transport = AsgiTransport(app)
    async with asyncio.timeout(10), connect(BASE, transport=transport, credentials=credentials) as agent:
        assert await asyncio.gather(*[agent("hello") for _ in range(5)]) == ["fine"] * 5
    assert site.grants() == ["client_credentials", "refresh_token"]


async def test_after_a_refused_refresh_token_a_new_token_is_requested() -> None:
    site = Login(flow="clientCredentials")
    give = site.token
    site.pages["/token"] = lambda asked: (
        page({"error": "invalid_grant"}, 400) if "refresh_token" in asked.form else give(asked)
    )
    async with reach(site, credentials=ClientCredentials("me", "s3cret")) as agent:
        await agent("hello")
        site.valid = set()
        assert await agent("hello") == "fine"
    assert site.grants() == ["client_credentials", "refresh_token", "client_credentials"]


async def test_a_refresh_token_from_earlier_is_used_and_its_successor_handed_over() -> None:
    site = Login(flow="authorizationCode", authorizationUrl=f"{BASE}/login")
    kept: list[str] = []
    credentials = RefreshToken("refresh-0", client_id="me", rotated=kept.append)
    async with reach(site, credentials=credentials) as agent:
        assert await agent("hello") == "fine"
    assert kept == ["refresh-1"]
    (asked,) = [asked for asked in site.asked if asked.path == "/token"]
    assert asked.form == {"grant_type": "refresh_token", "refresh_token": "refresh-0", "client_id": "me"}


async def test_a_device_login_waits_for_the_person() -> None:
    site = Login(flow="deviceCode", deviceAuthorizationUrl=f"{BASE}/device")
    shown: list[tuple[str, str]] = []
    begun = {"device_code": "d", "user_code": "ABCD", "verification_uri": "https://login.test", "interval": 0}
    site.pages["/device"] = page(begun)
    answers = iter(
        [page({"error": "authorization_pending"}, 400), page({"error": "authorization_pending"}, 400)]
    )
    give = site.token
    site.pages["/token"] = lambda asked: next(answers, None) or give(asked)
    credentials = DeviceCode("me", prompt=lambda url, code: shown.append((url, code)))
    async with reach(site, credentials=credentials) as agent:
        assert await agent("hello") == "fine"
    assert shown == [("https://login.test", "ABCD")]
    assert len(site.grants()) == 3


async def test_a_device_login_that_is_denied_ends() -> None:
    site = Login(flow="deviceCode", deviceAuthorizationUrl=f"{BASE}/device")
    site.pages["/device"] = page(
        {"device_code": "d", "verification_uri": "https://login.test", "interval": 0}
    )
    site.pages["/token"] = page({"error": "access_denied", "error_description": "she said no"}, 400)
    async with reach(site, credentials=DeviceCode("me", prompt=lambda *_: None)) as agent:
        with pytest.raises(Unauthenticated, match="she said no"):
            await agent("hello")


async def test_a_card_cannot_send_a_secret_to_another_origin() -> None:
    site = Login(flow="clientCredentials", tokenUrl="http://evil.test/token")
    document = site.card("clientCredentials", {"tokenUrl": "http://evil.test/token"})
    document["supportedInterfaces"][0]["url"] = "http://evil.test/rpc"
    site.pages[NEW] = page(document)
    with pytest.raises(Unauthenticated, match="pass token_url='http://evil"):
        await reach(site, credentials=ClientCredentials("me", "s3cret")).open()
    assert site.paths() == [NEW]


async def test_a_token_endpoint_that_refuses_is_quoted() -> None:
    site = Login(flow="clientCredentials")
    site.pages["/token"] = page({"error": "invalid_client"}, 401)
    async with reach(site, credentials=ClientCredentials("me", "wrong")) as agent:
        with pytest.raises(Unauthenticated, match="invalid_client"):
            await agent("hello")


@pytest.mark.parametrize("token", ["a\r\nX-Admin: 1", "a\nb", "\u0130d", 7, ""])
async def test_a_token_that_does_not_fit_into_a_header_is_refused(token: Any) -> None:
    site = Login(flow="clientCredentials")
    site.pages["/token"] = page({"access_token": token})
    async with reach(site, credentials=ClientCredentials("me", "s3cret")) as agent:
        with pytest.raises(Unauthenticated, match=r"gave (no|a) token"):
            await agent("hello")


@pytest.mark.parametrize("lasts", ["3600", -5, "soon", [], {}])
async def test_expires_in_may_be_a_number_a_string_or_missing(lasts: Any) -> None:
    site = Login(flow="clientCredentials", lasts=lasts)
    async with reach(site, credentials=ClientCredentials("me", "s3cret")) as agent:
        assert await agent("hello") == "fine"
