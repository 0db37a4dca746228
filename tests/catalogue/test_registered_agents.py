"""Registered agents: what is learnt of them, when they are looked at, and agents that lie, hang or send too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec import to_builtins

from dragoman.auth.keys import KeyRing, new_key
from dragoman.catalogue import registered_agents
from dragoman.catalogue.entry import (
    MAX_DESCRIPTION_CHARACTERS,
    MAX_NAME_CHARACTERS,
    MAX_SKILLS,
    MAX_TAGS,
    describe,
)
from dragoman.catalogue.registered_agents import RegisteredAgents
from dragoman.catalogue.sources import CatalogueViewer
from dragoman.client.transport.network import HttpTransport
from dragoman.client.transport.transport import Transport
from dragoman.engine.protocols import RegisteredAgent
from dragoman.errors import InvalidParams
from dragoman.model.card import AgentCard, Skill
from dragoman.push.guard import Guard
from dragoman.server.routes import Conflict, NotFound
from dragoman.stores.memory import MemoryStore
from tests.catalogue.elsewhere import CARD, Elsewhere, elsewhere, respond
from tests.growth import assert_linear
from tests.push.net import PUBLIC, Net
from tests.waiting import until

EVERYBODY, OPERATOR = CatalogueViewer(), CatalogueViewer(operator=True)


@pytest.fixture
async def site() -> AsyncIterator[Elsewhere]:
    async with elsewhere() as site:
        yield site


def agents(store: MemoryStore | None = None, **more: Any) -> RegisteredAgents:
    return RegisteredAgents((store or MemoryStore()).catalogue, Guard(allow_private=True), **more)


async def test_a_registered_agent_shows_what_its_card_says(site: Elsewhere) -> None:
    known = agents()
    entry = await known.add(site.url)
    assert (entry.name, entry.title, entry.kind) == ("currency-desk", "Currency desk", "registered")
    assert entry.description.version == "2.1"
    assert entry.description.tags == ("money", "rates")
    assert entry.description.interfaces == ("1.0 JSONRPC",)
    assert entry.health.state == "up" and entry.health.ms is not None and entry.health.checked
    assert entry.signature == "unsigned"
    assert entry.card_url == f"{site.url}/.well-known/agent-card.json"
    assert list(await known.entries(EVERYBODY)) == [entry]
    assert not any(b"authorization" in head.lower() for head in site.heads)


async def test_an_agent_that_is_away_is_registered_as_down_under_the_name_of_its_host() -> None:
    entry = await agents().add("http://127.0.0.1:9")
    assert (entry.name, entry.health.state) == ("127-0-0-1", "down")
    assert entry.health.error


async def test_an_agent_whose_card_needs_credentials_is_alive(site: Elsewhere) -> None:
    site.status = b"401 Unauthorized"
    entry = await agents().add(site.url, name="bank")
    assert (entry.health.state, entry.health.error) == ("up", "its card needs credentials")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x.example",
        "x.example",
        "http://",
        "http://name:secret@x.example",
        "http://x.example/#a",
        "http://x" * 999,
    ],
)
async def test_what_is_not_the_url_of_an_agent_is_refused(url: str) -> None:
    with pytest.raises(InvalidParams):
        await agents().add(url)


@pytest.mark.parametrize("name", ["Über", "a/b", "-x", "a b", "a" * 64, "a\n"])
async def test_what_is_not_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidParams):
        await agents().add("http://127.0.0.1:9", name=name)


async def test_a_name_is_taken_once(site: Elsewhere) -> None:
    known = agents()
    await known.add(site.url, name="desk")
    with pytest.raises(Conflict, match="another name"):
        await known.add(site.url, name="desk")


async def test_a_removed_agent_is_gone(site: Elsewhere) -> None:
    known = agents()
    await known.add(site.url, name="desk")
    await known.remove("desk")
    assert list(await known.entries(OPERATOR)) == []
    with pytest.raises(NotFound):
        await known.remove("desk")
    with pytest.raises(NotFound):
        await known.check("desk")


async def test_a_private_agent_is_only_for_those_who_are_known(site: Elsewhere) -> None:
    known = agents()
    await known.add(site.url, name="desk", private=True)
    friend = CatalogueViewer()
    friend.known = True
    assert list(await known.entries(EVERYBODY)) == []
    assert [each.name for each in await known.entries(friend)] == ["desk"]


async def test_an_agent_of_a_tenant_is_only_for_that_tenant(site: Elsewhere) -> None:
    known = agents()
    await known.add(site.url, name="desk", tenant="acme")
    theirs, others = CatalogueViewer(), CatalogueViewer()
    theirs.tenant, others.tenant, others.known = "acme", "umbrella", True
    assert [each.name for each in await known.entries(theirs)] == ["desk"]
    assert list(await known.entries(others)) == []
    assert [each.name for each in await known.entries(OPERATOR)] == ["desk"]


async def test_what_changes_on_a_card_is_seen_with_the_next_check(site: Elsewhere) -> None:
    known = agents()
    await known.add(site.url, name="desk")
    site.card = {**CARD, "version": "3.0"}
    assert (await known.check("desk")).description.version == "3.0"


async def test_an_agent_that_goes_away_keeps_what_was_known_of_it(site: Elsewhere) -> None:
    known = agents()
    before = await known.add(site.url, name="desk")
    site.status = b"500 Oh No"
    after = await known.check("desk")
    assert (after.health.state, after.description) == ("down", before.description)
    assert after.digest == before.digest
    again = await known.check("desk")
    assert again.health.since == after.health.since


async def test_agents_are_checked_in_the_background_when_they_are_due(site: Elsewhere) -> None:
    now, store = 1000.0, MemoryStore()
    known = agents(store, interval=300.0, clock=lambda: now)
    await known.add(site.url, name="desk")
    site.asked.clear()
    site.come.clear()
    known.start()
    try:
        await asyncio.sleep(0)
        assert not site.asked
        now += 301.0
        known._wake.set()
        await site.come.wait()
        stored = await until(store.catalogue.registered, lambda rows: rows[0].due > now)
        assert stored[0].due == pytest.approx(now + 300.0)
    finally:
        await known.stop()


async def test_an_agent_that_does_not_answer_is_asked_less_and_less_often() -> None:
    store = MemoryStore()
    known = agents(store, interval=300.0, clock=lambda: 0.0)
    await known.add("http://127.0.0.1:9", name="gone")
    due = []
    for _ in range(4):
        await known.check("gone")
        due.append((await store.catalogue.registered())[0].due)
    assert due == [1200.0, 2400.0, 3600.0, 3600.0]


async def test_a_few_agents_are_asked_at_a_time_and_one_that_hangs_stops_nobody_else(
    site: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered_agents, "CHECK_SECONDS", 0.2)
    store = MemoryStore()
    await agents(store).add(site.url, name="a0")
    body = (await store.catalogue.registered())[0].body
    for n in range(1, 12):
        row = RegisteredAgent(name=f"a{n}", url=site.url, body=body)
        await store.catalogue.register(row, limit=99)
    site.hangs = True
    open_now = most = 0

    class Counted(HttpTransport):
        def __init__(self) -> None:
            nonlocal open_now, most
            super().__init__(proxy="")
            open_now += 1
            most = max(most, open_now)

        async def close(self) -> None:
            nonlocal open_now
            open_now -= 1
            await super().close()

    async with elsewhere() as alive:
        row = RegisteredAgent(name="alive", url=alive.url, body=b"{}")
        await store.catalogue.register(row, limit=99)
        known = agents(store, transport=Counted)
        known.start()
        try:
            await alive.come.wait()
            assert most == registered_agents.CHECKS_AT_ONCE
        finally:
            await known.stop()
        assert open_now == 0


async def test_an_agent_that_hangs_is_down(site: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered_agents, "CHECK_SECONDS", 0.1)
    site.hangs = True
    entry = await agents().add(site.url, name="desk")
    assert (entry.health.state, entry.health.error) == ("down", "it did not answer within 0.1 s")


HOSTILE: dict[str, bytes] = {
    "not JSON": b"<html>",
    "a list": b"[1, 2]",
    "nested": b"[" * 100_000,
    "no members of a card": b'{"name": "x"}',
    "members of wrong types": b'{"name": 7, "skills": "all", "supportedInterfaces": {"url": []}}',
    "nothing": b"",
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_what_is_not_a_card_is_down(site: Elsewhere, what: str) -> None:
    site.raw = lambda path: respond(HOSTILE[what])
    assert (await agents().add(site.url, name="desk")).health.state == "down"


async def test_a_large_card_is_not_read(site: Elsewhere) -> None:
    large = (
        b'{"name": "x", "skills": [' + b'{"id": "a", "name": "b"},' * 12_000 + b'{"id": "a", "name": "b"}]}'
    )
    assert len(large) > registered_agents.MAX_CARD_BYTES
    site.raw = lambda path: respond(large)
    entry = await agents().add(site.url, name="desk")
    assert (entry.health.state, entry.description.skills) == ("down", ())
    assert "more than 256 KB" in entry.health.error


def test_describing_a_card_costs_no_more_than_the_card_is_long() -> None:
    def card(n: int) -> AgentCard:
        skill = Skill(id="a", name="b", tags=("",) * n, examples=("x",) * n)
        return AgentCard(name="x" * n, description="y\n" * n, skills=(skill,) * 60)

    assert_linear(describe, card, 1 << 16)


async def test_a_redirect_is_not_followed(site: Elsewhere) -> None:
    async with elsewhere() as other:
        place = f"location: {other.url}/\r\n".encode()
        site.raw = lambda path: respond(b"", b"302 Found", place)
        assert (await agents().add(site.url, name="desk")).health.state == "down"
        assert not other.asked


async def test_texts_of_a_card_are_flat_and_short(site: Elsewhere) -> None:
    site.card = {
        **CARD,
        "name": "Evil\x1b[31m\nline\u202e" + "x" * 5000,
        "description": "a\r\nb\u0000c " * 1000,
        "version": "v" * 9000,
        "skills": [
            {"id": f"s{n}", "name": "n\n" * 200, "description": "d" * 300, "tags": [f"t{n}\x07" * 20]}
            for n in range(150)
        ],
    }
    entry = await agents().add(site.url)
    about = entry.description
    texts = [about.name, about.description, about.version, *about.tags]
    texts += [text for skill in about.skills for text in (skill.id, skill.name, skill.description)]
    assert all(text.isprintable() for text in texts)
    assert about.name.startswith("Evil line") and len(about.name) == MAX_NAME_CHARACTERS
    assert len(about.description) <= MAX_DESCRIPTION_CHARACTERS
    assert (len(about.skills), len(about.tags)) == (MAX_SKILLS, MAX_TAGS)


async def test_what_is_stored_of_a_card_is_small(site: Elsewhere) -> None:
    store = MemoryStore()
    long = "é" * 250
    skill = {"id": long, "name": long, "description": long, "tags": [long], "examples": [long]}
    site.card = {**CARD, "name": long * 9, "description": long * 9, "skills": [skill] * 80}
    assert (await agents(store).add(site.url, name="desk")).health.state == "up"
    assert len((await store.catalogue.registered())[0].body) < 64_000


async def test_a_private_address_is_only_asked_where_the_operator_allows_it(site: Elsewhere) -> None:
    known = RegisteredAgents(MemoryStore().catalogue, Guard(http=True))
    entry = await known.add(site.url, name="desk")
    assert entry.health.state == "down"
    assert not site.asked


async def test_settings_register_agents_and_take_back_what_they_no_longer_list(site: Elsewhere) -> None:
    store = MemoryStore()
    known = agents(store)
    await known.add(site.url, name="by-hand")
    await known.apply_settings({"a": "http://a.example", "b": "http://b.example"})
    await known.apply_settings({"b": "http://b.example", "c": "http://c.example"})
    assert [each.name for each in await store.catalogue.registered()] == ["b", "by-hand", "c"]
    await known.apply_settings({})
    assert [each.name for each in await store.catalogue.registered()] == ["by-hand"]


async def test_a_store_that_fails_does_not_end_the_checks(
    site: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    known = agents(store, interval=0.01)
    taken = store.catalogue.take_due
    asked = 0

    async def fails_first(*given: Any, **more: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked <= registered_agents.CHECKS_AT_ONCE:
            raise OSError("the disk is gone")
        return await taken(*given, **more)

    monkeypatch.setattr(store.catalogue, "take_due", fails_first)
    await known.apply_settings({"desk": site.url})
    known.start()
    try:
        await site.come.wait()
    finally:
        await known.stop()


async def test_every_check_closes_its_connections(site: Elsewhere) -> None:
    closed: list[Transport] = []

    class Counting(HttpTransport):
        async def close(self) -> None:
            closed.append(self)
            await super().close()

    known = agents(transport=lambda: Counting(proxy=""))
    await known.add(site.url, name="desk")
    site.raw = lambda path: respond(b"nonsense")
    await known.check("desk")
    assert len(closed) == 2


def signing(site: Elsewhere, ring: KeyRing, published: KeyRing | None, **changed: Any) -> None:
    """Serve a card that `ring` signed, changed afterwards, and the keys of `published`."""
    signed = {**CARD, "signatures": to_builtins(ring.sign(CARD)), **changed}

    def answer(path: str) -> bytes:
        if path == "/.well-known/jwks.json":
            if published is None:
                return respond(b"{}", b"404 Not Found")
            return respond(msgspec.json.encode(published.public()))
        return respond(msgspec.json.encode(signed))

    site.raw = answer


async def test_a_card_that_its_own_host_signed_is_valid(site: Elsewhere) -> None:
    ring = KeyRing((new_key(),))
    signing(site, ring, ring)
    assert (await agents().add(site.url, name="desk")).signature == "valid"


async def test_a_card_that_was_changed_after_it_was_signed_is_invalid(site: Elsewhere) -> None:
    ring = KeyRing((new_key(),))
    signing(site, ring, ring, description="Gives you money.")
    entry = await agents().add(site.url, name="desk")
    assert (entry.signature, entry.health.state) == ("invalid", "up")


async def test_a_signature_without_a_key_of_the_host_is_unknown(site: Elsewhere) -> None:
    signing(site, KeyRing((new_key(),)), None)
    assert (await agents().add(site.url, name="desk")).signature == "unknown"
    signing(site, KeyRing((new_key(),)), KeyRing((new_key(),)))
    assert (await agents().add(site.url, name="other")).signature == "unknown"


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "169.254.169.254", "::1", "100.64.0.1"])
async def test_a_name_that_leads_to_a_private_address_is_not_dialled(address: str) -> None:
    net = Net(names={"agent.example": [[address]]})
    known = RegisteredAgents(MemoryStore().catalogue, net.guard(http=True))
    entry = await known.add("http://agent.example", name="desk")
    assert entry.health.state == "down" and not net.dialled


async def test_a_name_that_changes_to_a_private_address_later_is_not_dialled_then(site: Elsewhere) -> None:
    net = Net(int(site.url.rpartition(":")[2]), names={"agent.example": [[PUBLIC]]})
    known = RegisteredAgents(MemoryStore().catalogue, net.guard(http=True))
    assert (await known.add("http://agent.example", name="desk")).health.state == "up"
    net.names = {"agent.example": [["10.0.0.7"]]}
    net.dialled.clear()
    assert (await known.check("desk")).health.state == "down"
    assert not net.dialled
