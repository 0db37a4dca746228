"""Connections to remote agents: each is opened once, gets its own credentials, and is closed with the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from dragoman.client.client import ConnectedPeers
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import A2AError
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Call, Scope, SendMessage
from tests.client.fakes import Site, answer, card, page

NEW = "/.well-known/agent-card.json"
SEND = SendMessage(message=Message(message_id="m", role=Role.USER, parts=(Part(text="go"),)))


def site() -> Site:
    return Site({NEW: page(card()), "/agents/x" + NEW: page(card()), "/rpc": answer})


@pytest.mark.parametrize(
    ("named", "called", "shown"),
    [
        ("http://agent.test", "http://agent.test", True),
        ("http://agent.test", "http://agent.test/", True),
        ("http://agent.test", "http://AGENT.test:80/agents/x", True),
        ("http://agent.test/agents/", "http://agent.test/agents/x", True),
        ("http://agent.test/agents/x", "http://agent.test", False),
        ("http://agent.test/agents", "http://agent.test/agents-of-others/x", False),
        ("https://agent.test", "http://agent.test", False),
        ("http://agent.test:8000", "http://agent.test", False),
        ("http://agent", "http://agent.test", False),
        ("agent", "http://agent.test", False),
    ],
)
async def test_a_credential_is_for_a_url_and_what_is_below_it(named: str, called: str, shown: bool) -> None:
    there = site()
    peers = ConnectedPeers(credentials={named: "s3cret"}, transport=AsgiTransport(there))
    service, scope = await peers.find(called, Scope())
    await service.call(Call(scope=scope), SEND)
    await peers.close()
    assert there.asked[-1].headers.get("authorization") == ("Bearer s3cret" if shown else None)


async def test_the_nearest_credential_is_the_one() -> None:
    there = site()
    secrets = {"http://agent.test": "house", "http://agent.test/agents/x": "flat"}
    peers = ConnectedPeers(credentials=secrets, transport=AsgiTransport(there))
    service, _ = await peers.find("http://agent.test/agents/x", Scope())
    await service.call(Call(), SEND)
    await peers.close()
    assert there.asked[-1].headers["authorization"] == "Bearer flat"


class Hanging(AsgiTransport):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.asked, self.closed = asyncio.Event(), False

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Any:
        self.asked.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True
        await super().close()


async def test_close_also_closes_a_connection_that_is_still_opening() -> None:
    transport = Hanging(site())
    peers = ConnectedPeers(transport=transport)
    finding = asyncio.create_task(peers.find("http://agent.test", Scope()))
    async with asyncio.timeout(10):
        await transport.asked.wait()
        await peers.close()
    assert transport.closed
    with pytest.raises(asyncio.CancelledError):
        await finding


async def test_a_connection_that_could_not_be_opened_is_tried_again() -> None:
    there = Site()
    peers = ConnectedPeers(transport=AsgiTransport(there))
    with pytest.raises(A2AError):
        await peers.find("http://agent.test", Scope())
    there.pages = site().pages
    service, _ = await peers.find("http://agent.test", Scope())
    assert await service.call(Call(), SEND)
    await peers.close()


async def test_nothing_is_kept_of_agents_that_could_not_be_found() -> None:
    peers = ConnectedPeers(transport=AsgiTransport(Site()))
    for n in range(3):
        with pytest.raises(A2AError):
            await peers.find(f"http://agent.test/{n}", Scope())
    assert not peers._open
    await peers.close()
