"""Tokens that their issuer checks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from dragoman import Agent, Turn, connect
from dragoman.auth import Introspection, Presented, Principal
from dragoman.errors import RateLimited, Unauthenticated, Unavailable, Unreachable
from dragoman.server.application import application
from dragoman.server.runtime import running

URL, ISSUER = "https://login.example/introspect", "https://login.example"
GOOD = {"active": True, "sub": "ada", "aud": "my-agent", "iss": ISSUER, "exp": 2000, "scope": "read write"}


class Issuer:
    """Says what it is told to say of every token, and remembers what it was asked."""

    def __init__(self, said: Any = GOOD) -> None:
        self.said = said
        self.asked: list[tuple[str, Mapping[str, str], str]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(
        self, url: str, form: Mapping[str, str] | None = None, authorization: str = ""
    ) -> bytes:
        assert form is not None
        self.asked.append((url, form, authorization))
        await self.open.wait()
        if isinstance(self.said, Exception):
            raise self.said
        return self.said if isinstance(self.said, bytes) else json.dumps(self.said).encode()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def scheme(**options: Any) -> Introspection:
    options = {"audience": "my-agent", "issuer": ISSUER, "clock": Clock(), **options}
    return Introspection(URL, **options)


async def authenticate(asked: Introspection, issuer: Issuer, token: str = "opaque") -> Principal:
    found = await asked.authenticate(Presented({"authorization": f"Bearer {token}"}), issuer)
    assert found is not None
    return found


async def test_the_issuer_names_the_principal_of_a_token() -> None:
    issuer = Issuer()
    found = await authenticate(scheme(client=("my agent", "a:b")), issuer)
    assert (found.id, found.scopes) == (f"{ISSUER}#ada", frozenset({"read", "write"}))
    assert issuer.asked == [
        (URL, {"token": "opaque", "token_type_hint": "access_token"}, "Basic bXklMjBhZ2VudDphJTNBYg==")
    ]


async def test_without_a_token_the_issuer_is_not_asked() -> None:
    issuer = Issuer()
    assert await scheme().authenticate(Presented({"authorization": "Basic eA=="}), issuer) is None
    assert issuer.asked == []


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"active": False}, id="not active"),
        pytest.param({}, id="says nothing"),
        pytest.param({**GOOD, "active": "true"}, id="a word is not a yes"),
        pytest.param({**GOOD, "active": 1}, id="a number is not a yes"),
        pytest.param({**GOOD, "aud": "another"}, id="for somebody else"),
        pytest.param({**GOOD, "aud": None}, id="for nobody"),
        pytest.param({**GOOD, "iss": "https://evil.example"}, id="by somebody else"),
        pytest.param({**GOOD, "exp": 900}, id="over"),
        pytest.param({**GOOD, "exp": "soon"}, id="over some time"),
        pytest.param({**GOOD, "nbf": 1100}, id="not yet"),
        pytest.param({**GOOD, "sub": ""}, id="names nobody"),
        pytest.param({**GOOD, "sub": 7}, id="names a number"),
    ],
)
async def test_a_token_with_a_wrong_answer_is_refused(said: Any) -> None:
    with pytest.raises(Unauthenticated):
        await authenticate(scheme(), Issuer(said))


@pytest.mark.parametrize("said", [b"", b"[]", b"true", b"<html>", Unreachable("away")], ids=str)
async def test_without_an_answer_of_the_issuer_no_caller_is_accepted(said: Any) -> None:
    issuer, asked = Issuer(said), scheme()
    with pytest.raises(Unavailable):
        await authenticate(asked, issuer)
    issuer.said = GOOD  # and that is not remembered
    assert (await authenticate(asked, issuer)).id == f"{ISSUER}#ada"


async def test_an_answer_is_cached_for_a_limited_time() -> None:
    clock = Clock()
    issuer, asked = Issuer(), scheme(fresh=30, stopwatch=clock)
    for _ in range(3):
        await authenticate(asked, issuer)
    assert len(issuer.asked) == 1
    clock.now += 31
    issuer.said = {"active": False}
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            await authenticate(asked, issuer)
    assert len(issuer.asked) == 2


async def test_a_cached_answer_expires_also_if_the_clock_is_set_back() -> None:
    clock, stopwatch = Clock(), Clock()
    issuer, asked = Issuer(), scheme(fresh=30, clock=clock, stopwatch=stopwatch)
    await authenticate(asked, issuer)
    clock.now -= 7200
    stopwatch.now += 31
    issuer.said = {"active": False}
    with pytest.raises(Unauthenticated):
        await authenticate(asked, issuer)


async def test_a_token_that_expires_while_it_is_remembered_is_refused() -> None:
    clock = Clock()
    issuer, asked = Issuer({**GOOD, "exp": 1010}), scheme(fresh=300, skew=0, clock=clock)
    await authenticate(asked, issuer)
    clock.now += 10
    with pytest.raises(Unauthenticated, match="expired"):
        await authenticate(asked, issuer)


async def test_concurrent_calls_share_an_answer_and_too_many_tokens_are_rate_limited() -> None:
    issuer, asked = Issuer(), scheme()
    issuer.open.clear()
    same = [asyncio.create_task(authenticate(asked, issuer)) for _ in range(5)]
    others = [asyncio.create_task(authenticate(asked, issuer, f"made up {n}")) for n in range(31)]
    await asyncio.sleep(0)
    with pytest.raises(RateLimited):
        await authenticate(asked, issuer, "one too many")
    issuer.open.set()
    assert {each.id for each in await asyncio.gather(*same, *others)} == {f"{ISSUER}#ada"}
    assert len(issuer.asked) == 32


async def test_a_client_is_a_principal_of_its_own() -> None:
    issuer = Issuer({**GOOD, "sub": None, "client_id": "ada"})
    assert (await authenticate(scheme(), issuer)).id == f"{ISSUER}#client:ada"


async def test_introspection_works_over_the_network() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        asked.append(head + await reader.readexactly(length))
        body = json.dumps({"active": True, "sub": "ada"}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        where = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/introspect"
        agent = Agent("Who", auth=[Introspection(where, "", client=("id", "secret"))])

        @agent.skill
        async def who(turn: Turn) -> str:
            return turn.principal

        async with running(application(agent, store="memory:")) as url:
            async with connect(url, credentials="a b+c&d", timeout=5) as client:
                assert (await client("?")).text == f"{where}#ada"
    assert asked[0].startswith(b"POST /introspect ") and b"token=a+b%2Bc%26d&" in asked[0]
    assert b"uthorization: Basic aWQ6c2VjcmV0" in asked[0]
