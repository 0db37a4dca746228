"""Tokens of callers, exchanged for tokens towards another agent (RFC 8693), with a real authorization server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse

from dragoman import Agent, connect
from dragoman.auth import JWT
from dragoman.client import AgentCache, Client, ClientCredentials, Policy, TokenExchange
from dragoman.client.oauth import CannotExchange
from dragoman.client.transport.network import HttpTransport
from dragoman.errors import A2AError, Unauthenticated, Unreachable
from dragoman.model.ops import Principal
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.bridge.oauth_server import OAuthServer, Program

UPSTREAM, BRIDGE = "crew", "bridge"
SECRET = "the-secret-of-the-bridge"


@pytest.fixture
async def oauth() -> AsyncIterator[OAuthServer]:
    server = OAuthServer()
    server.programs = {
        "bridge": Program("bridge", SECRET, (UPSTREAM,)),
        "plain": Program("plain", "its-secret"),
    }
    async with server.running():
        yield server


class Crew:
    """An agent that takes tokens of the authorization server only, and the claims of those that it took."""

    def __init__(self, oauth: OAuthServer) -> None:
        self.seen: list[dict[str, Any]] = []
        self.agent = Agent(
            "crew",
            auth=[JWT(oauth.issuer, audience=UPSTREAM, jwks=oauth.jwks(), algorithms=["ES256"])],
            authorize=self.authorize,
        )

        @self.agent.skill
        async def say(text: str) -> str:
            """Says it."""
            return text

    def authorize(self, principal: Principal, request: Any) -> bool:
        self.seen.append(dict(principal.claims))
        return True


@pytest.fixture
async def crew(oauth: OAuthServer) -> AsyncIterator[tuple[Crew, str]]:
    crew = Crew(oauth)
    async with running(application(crew.agent, store="memory:")) as url:
        yield crew, url


class Caller:
    """Whose token is exchanged now."""

    def __init__(self) -> None:
        self.token = ""

    def __call__(self) -> str:
        return self.token


def exchange_settings(oauth: OAuthServer, **more: Any) -> dict[str, Any]:
    """The credentials of a route that exchanges tokens at `oauth`, which knows the bridge from now on."""
    oauth.programs = {"bridge": Program("bridge", SECRET, (UPSTREAM,))}
    return {
        "type": "token_exchange",
        "token_url": oauth.token_url,
        "client_id": "bridge",
        "client_secret": SECRET,
        "audience": UPSTREAM,
        **more,
    }


def exchange(oauth: OAuthServer, caller: Caller, **options: Any) -> TokenExchange:
    given = {"client_secret": SECRET, "audience": UPSTREAM, "client_id": "bridge", **options}
    return TokenExchange(token_url=oauth.token_url, subject=caller, **given)


def to(url: str, credentials: Any) -> Client:
    return connect(url, credentials=credentials, cache=AgentCache(), policy=Policy(attempts=1))


async def test_the_agent_sees_on_whose_behalf_it_is_called_and_by_whom(
    oauth: OAuthServer, crew: tuple[Crew, str]
) -> None:
    caller = Caller()
    async with to(crew[1], exchange(oauth, caller, scopes=["say"])) as agent:
        caller.token = oauth.token("ada", BRIDGE)
        assert (await agent("hello")).text == "hello"
    (form,) = oauth.exchanges()
    assert form["subject_token"] == caller.token and form["audience"] == UPSTREAM and form["scope"] == "say"
    claims = crew[0].seen[0]
    assert claims["sub"] == "ada" and claims["act"] == {"sub": "bridge"} and claims["aud"] == UPSTREAM


async def test_a_chain_of_actors_is_kept(oauth: OAuthServer, crew: tuple[Crew, str]) -> None:
    caller = Caller()
    caller.token = oauth.token("ada", BRIDGE, act={"sub": "front"})
    async with to(crew[1], exchange(oauth, caller)) as agent:
        await agent("hello")
    assert crew[0].seen[0]["act"] == {"sub": "bridge", "act": {"sub": "front"}}


async def test_an_authorization_server_that_takes_the_client_as_actor_gets_no_actor_token(
    oauth: OAuthServer, crew: tuple[Crew, str]
) -> None:
    caller = Caller()
    caller.token = oauth.token("ada", BRIDGE)
    async with to(crew[1], exchange(oauth, caller, actor=False, audience=(), resource=UPSTREAM)) as agent:
        await agent("hello")
    (form,) = oauth.forms
    assert "actor_token" not in form and form["resource"] == UPSTREAM
    assert crew[0].seen[0]["act"] == {"sub": "bridge"}


async def test_a_token_is_exchanged_once_for_each_caller_and_never_shown_for_another(
    oauth: OAuthServer, crew: tuple[Crew, str]
) -> None:
    caller, ada, bob = Caller(), oauth.token("ada", BRIDGE), oauth.token("bob", BRIDGE)
    async with to(crew[1], exchange(oauth, caller)) as agent:
        for token in (ada, bob, ada, bob, ada):
            caller.token = token
            await agent("hello")
    assert [form["subject_token"] for form in oauth.exchanges()] == [ada, bob]
    assert [claims["sub"] for claims in crew[0].seen] == ["ada", "bob", "ada", "bob", "ada"]


async def test_calls_of_one_caller_at_the_same_time_exchange_its_token_once(
    oauth: OAuthServer, crew: tuple[Crew, str]
) -> None:
    caller = Caller()
    caller.token = oauth.token("ada", BRIDGE)
    async with to(crew[1], exchange(oauth, caller)) as agent:
        await asyncio.gather(*(agent(f"{n}") for n in range(5)))
    assert len(oauth.exchanges()) == 1


async def test_a_token_that_has_expired_or_was_refused_is_exchanged_again(
    oauth: OAuthServer, crew: tuple[Crew, str]
) -> None:
    caller = Caller()
    caller.token = oauth.token("ada", BRIDGE, lasts=100_000)
    credential = exchange(oauth, caller)
    async with to(crew[1], credential) as agent:
        await agent("hello")
        (held,) = credential._exchanged.values()
        held._expires = 0.0
        await agent("hello")
        held._access_token = oauth.token("ada", "another agent")
        await agent("hello")  # 401, and then with a new one
    assert len(oauth.exchanges()) == 3


async def test_a_caller_whose_token_is_refused_is_told_and_the_token_is_not(
    oauth: OAuthServer, crew: tuple[Crew, str], caplog: pytest.LogCaptureFixture
) -> None:
    caller = Caller()
    caller.token = oauth.token("ada", BRIDGE, lasts=-10)
    caplog.set_level(logging.DEBUG)
    async with to(crew[1], exchange(oauth, caller)) as agent:
        with pytest.raises(
            Unauthenticated, match="did not accept the caller's token: invalid_grant"
        ) as raised:
            await agent("hello")
    assert caller.token not in str(raised.value) and caller.token not in caplog.text
    assert caller.token.split(".")[1] not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"client_secret": "wrong"}, "invalid_client"),
        ({"audience": "another"}, "invalid_target"),
        ({"client_id": "plain", "client_secret": "its-secret"}, "unauthorized_client"),
    ],
)
async def test_a_mistake_of_the_operator_is_not_the_callers(
    oauth: OAuthServer, crew: tuple[Crew, str], change: dict[str, str], says: str
) -> None:
    caller = Caller()
    caller.token = oauth.token("ada", BRIDGE)
    async with to(crew[1], exchange(oauth, caller, **change)) as agent:
        with pytest.raises(CannotExchange, match=says) as raised:
            await agent("hello")
    assert SECRET not in str(raised.value) and not crew[0].seen


@pytest.mark.parametrize(
    ("broken", "error", "says"),
    [
        (PlainTextResponse("down", 503), Unreachable, "HTTP 503"),
        (PlainTextResponse("<html>", 200), A2AError, "did not answer like a token endpoint"),
        (JSONResponse({"access_token": "x", "token_type": "DPoP"}), CannotExchange, "not a bearer token"),
        (JSONResponse({"token_type": "Bearer"}), Unauthenticated, "gave no token"),
        (RedirectResponse("http://127.0.0.1:9/token", 307), A2AError, "did not answer like a token endpoint"),
        (PlainTextResponse("x" * 300_000, 200), Unreachable, "more than 256 KB"),
    ],
)
async def test_an_authorization_server_that_is_broken_is_named_and_nothing_is_sent(
    oauth: OAuthServer, crew: tuple[Crew, str], broken: Any, error: type[A2AError], says: str
) -> None:
    caller = Caller()
    caller.token = oauth.token("ada", BRIDGE)
    oauth.broken = broken
    async with to(crew[1], exchange(oauth, caller, actor=False)) as agent:
        with pytest.raises(error, match=says) as raised:
            await agent("hello")
    assert caller.token not in str(raised.value) and SECRET not in str(raised.value)
    assert not crew[0].seen and len(oauth.forms) == 1


async def test_without_a_token_of_the_caller_nothing_is_sent(
    oauth: OAuthServer, crew: tuple[Crew, str]
) -> None:
    async with to(crew[1], exchange(oauth, Caller())) as agent:
        with pytest.raises(Unauthenticated, match="no token of the caller"):
            await agent("hello")
    assert not oauth.forms and not crew[0].seen


async def test_tokens_of_callers_that_left_are_dropped(oauth: OAuthServer, crew: tuple[Crew, str]) -> None:
    caller = Caller()
    credential = exchange(oauth, caller)
    oauth.lasts = 31  # so that it expires at once: tokens are renewed early
    async with to(crew[1], credential) as agent:
        for n in range(4):
            caller.token = oauth.token(f"caller-{n}", BRIDGE)
            await agent("hello")
            for held in credential._exchanged.values():
                held._expires = 0.0
    assert len(credential._exchanged) == 1


async def test_client_credentials_get_a_token_for_an_audience(oauth: OAuthServer) -> None:
    own = ClientCredentials(
        "bridge", SECRET, token_url=oauth.token_url, audience="crew", resource=["https://crew"]
    )
    transport = HttpTransport(proxy="")
    assert (await own.token(transport)).count(".") == 2
    assert await own.token(transport) == await own.token(transport)
    await transport.close()
    (form,) = oauth.forms
    assert form == {"grant_type": "client_credentials", "audience": "crew", "resource": "https://crew"}
