"""What a hub does with long texts: it costs as much as they are long, not on the event loop, and within bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace as NS
from typing import Any

import pytest

from dragoman.engine.records import Record
from dragoman.hub.agents import routing as agent_routing
from dragoman.hub.agents.constitution import MAX_CONSTITUTION_BYTES, Constitution, Intent
from dragoman.hub.agents.event_writer import HubEventWriter
from dragoman.hub.api import about as api_about
from dragoman.hub.conversations.events import HubEventReader
from dragoman.hub.models import ToolCall
from dragoman.hub.models.hosted import _events
from dragoman.hub.store import conversations, memory_search
from dragoman.hub.store.conversations import Conversations
from dragoman.hub.store.database import Database, open_database
from dragoman.hub.store.memories import _NEIGHBOURS, Memories
from dragoman.hub.store.requests import StoredRequest
from dragoman.hub.store.tenants import Tenants
from dragoman.hub.store.todos import Todos
from dragoman.hub.tools.planning import TodoTool
from dragoman.model.content import Artifact, Part
from dragoman.model.task import ArtifactUpdate
from dragoman.server import routes as routing
from tests.growth import assert_linear
from tests.hub.house import house

PIECES = 1 << 16


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    database = await open_database("memory:").open()
    yield database
    await database.close()


def test_reading_a_long_answer_costs_as_much_as_it_is_long() -> None:
    def read(n: int) -> None:
        asked = StoredRequest(request_id="r", agent_id="a", conversation_id=0, via="native")
        reading = HubEventReader(NS(id=1, name="acme"), asked)  # type: ignore[arg-type]
        for _ in range(n):
            chunk = Artifact(artifact_id="r-text-0", parts=(Part(text="word and more "),))
            reading.read(
                Record("artifact", ArtifactUpdate(task_id="r", context_id="c", artifact=chunk, append=True))
            )

    assert_linear(read, lambda n: n, PIECES)


def test_a_long_argument_of_a_tool_costs_as_much_as_it_is_long() -> None:
    def hear(n: int) -> None:
        async def stream() -> AsyncIterator[Any]:
            for at in range(n):
                function = NS(name="write" if not at else None, arguments="{" if not at else "piece of text ")
                delta = NS(
                    content=None, tool_calls=[NS(index=0, id="c1" if not at else None, function=function)]
                )
                yield NS(usage=None, choices=[NS(delta=delta, finish_reason=None)])

        async def read_events() -> list[Any]:
            return [event async for event in _events(stream())]

        call = asyncio.run(read_events())[0]
        assert isinstance(call, ToolCall) and (call.id, call.name) == ("c1", "write")

    assert_linear(hear, lambda n: n, PIECES)


class Writer:
    """The artifact in which an agent tells its asker what it does; `kept` is what it told before a crash."""

    def __init__(self, kept: list[Part]) -> None:
        self.kept, self.written = kept, list[Any]()

    def keep(self) -> list[Part]:
        return self.kept

    async def write(self, part: Part) -> None:
        self.written.append(part.data)


def _event_writer(lines: list[str]) -> tuple[HubEventWriter, Writer]:
    kept = [
        Part(data={"kind": "text", "data": {"delta": line, "agent": "a", "stream_id": 1}}) for line in lines
    ]
    writer = Writer(kept)
    turn = NS(
        n=1,
        task_id="t",
        artifact=lambda name, id: writer,
        _recorded=NS(journal=NS(snapshot=NS(artifacts={}))),
    )
    return HubEventWriter(turn, "a", stream_id=1, relayed=True), writer  # type: ignore[arg-type]


def test_saying_a_long_answer_again_after_a_crash_costs_as_much_as_it_is_long() -> None:
    def again(n: int) -> None:
        async def say() -> list[Any]:
            events, writer = _event_writer([f"line {at}\n" for at in range(n)])
            for at in range(n):
                await events.text(f"line {at}\n")
            await events.close()
            return writer.written

        assert asyncio.run(say()) == []

    assert_linear(again, lambda n: n, PIECES // 2)


@pytest.mark.parametrize(
    ("before", "now", "received"),
    [
        (["a\n", "b\n"], ["a\n", "b\n"], []),
        (["a\n", "b\n"], ["a\n", "b\n", "c\n"], [("c\n", False)]),
        (["a\n", "b\n"], ["a\n", "x\n", "y\n"], [("a\nx\n", True), ("y\n", False)]),
        (["a\n", "b"], ["a\n", "bc\n"], [("c\n", False)]),
        (["a\n", "b\n"], ["a\n"], [("a\n", True)]),
        (["a\n", "b\n"], [], [("", True)]),
        (["a\n"], ["b\n"], [("b\n", True)]),
        ([], ["b\n"], [("b\n", False)]),
    ],
)
async def test_repeated_text_after_a_crash_is_sent_once(
    before: list[str], now: list[str], received: list[tuple[str, bool]]
) -> None:
    events, writer = _event_writer(before)
    for line in now:
        await events.text(line)
    await events.close()
    heard = [(each["data"]["delta"], each["data"].get("replaces", False)) for each in writer.written]
    assert heard == received


async def _talk(database: Database, texts: list[str]) -> int:
    tenant, _ = await Tenants(database).add("acme")
    talk = Conversations(database)
    made = await talk.create(tenant.id)
    for n, text in enumerate(texts):
        await talk.add_question(tenant.id, made.id, f"r{n}", text)
    return made.id


async def test_messages_are_read_in_bounded_pieces(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "MAX_CHARACTERS", 250)
    id = await _talk(database, ["x" * 100, "y" * 100, "z" * 100, "w" * 900, "v"])
    talk, seen, last = Conversations(database), list[str](), 0
    while page := await talk.messages(id, after=last):
        seen.append("".join(each["content"][0] for each in page))
        last = page[-1]["id"]
    assert seen == ["xy", "z", "w", "v"]
    _, said = await talk.before(id, "r4")
    assert [each.content[0] for each in said] == ["w"], "the newest, and no more than fits"
    _, said = await talk.before(id, "r3")
    assert [each.content[0] for each in said] == ["y", "z"]


async def test_unanswered_messages_are_found_without_reading_the_others(database: Database) -> None:
    id = await _talk(database, ["x"] * 3)
    assert await Conversations(database).unanswered(id) == ["r0", "r1", "r2"]
    plan = await database.all(f"explain query plan {conversations._UNANSWERED}", (id,))
    assert "INDEX messages_unanswered" in plan[0]["detail"]


async def test_neighbours_of_an_entry_are_found_with_indexes(database: Database) -> None:
    tenant, _ = await Tenants(database).add("acme")
    memories = Memories(database)
    hub = await memories.add(tenant.id, "user", "hub")
    for n in range(60):
        other = await memories.add(tenant.id, "user", f"n{n}")
        await memories.relate(
            tenant.id, *((hub.id, "refines", other.id) if n % 2 else (other.id, "refines", hub.id))
        )
    near = await memories.related_entries(tenant.id, hub.id, depth=2, limit=50)
    assert len(near) == 50 and {distance for distance, _ in near} == {1}
    first = await memories.related_entries(tenant.id, near[0][1].id, depth=2, limit=10)
    assert first[0] == (1, hub) and {distance for distance, _ in first[1:]} == {2} and len(first) == 10
    plan = await database.all(f"explain query plan {_NEIGHBOURS}", (1, 1))
    assert not [row["detail"] for row in plan if row["detail"].startswith("SCAN")]


async def test_words_are_counted_off_the_event_loop(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []

    def counted(text: str) -> set[str]:
        seen.append((threading.current_thread().name, len(text)))
        return set(text.split())

    monkeypatch.setattr(agent_routing, "_stems", counted)
    monkeypatch.setattr(memory_search, "_words", lambda text: list(counted(text)))
    agents, intent = [Constitution(id="a")], Intent(mode="heuristic")
    await agent_routing.choose_agent("word " * 1_000_000, agents, intent, "", None)  # type: ignore[arg-type]
    tenant, _ = await Tenants(database).add("acme")
    await Memories(database).search(tenant.id, memory_search.MemorySearch(query="word " * 1_000_000))
    assert threading.main_thread().name not in {name for name, _ in seen}
    assert len(seen) == 4 and max(length for _, length in seen) <= 64 * 1024


async def test_a_todo_is_not_called_by_a_book(database: Database) -> None:
    tenant, _ = await Tenants(database).add("acme")
    todos = Todos(database)
    await todos.add(tenant.id, "tea")
    session: Any = NS(tenant=tenant.key, conversation=0)
    assert await TodoTool(todos)._find("tea" * 100_000, session) == 0
    assert await TodoTool(todos)._find("9" * 5_000, session) == 0
    assert await TodoTool(todos)._find("te", session) == 1


async def test_an_agent_definition_is_no_larger_for_what_is_ignored_in_it() -> None:
    async with house(lambda prompt: "Well.") as home:
        ada = await home.tenant("ada")
        large = {"id": "a", "extra": "x" * MAX_CONSTITUTION_BYTES}
        for path, body in (
            ("/v1/conversations", {"agent_def": large}),
            ("/v1/agents", large),
            ("/v1/orchestrate", {"message": "hi", "agent_def": large}),
        ):
            assert (await ada("POST", path, body)).status == 400, path


async def test_a_request_is_described_and_its_query_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"parse_qs": 0, "document": 0}

    def count(module: Any, name: str) -> None:
        real = getattr(module, name)

        def counted(*given: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(*given, **options)

        monkeypatch.setattr(module, name, counted)

    count(routing, "parse_qs")
    count(api_about, "document")
    async with house(lambda prompt: "Well.") as home:
        ada = await home.tenant("ada")
        assert (await ada("GET", "/v1/memory/entries?q=tea&limit=3")).status == 200
        assert counts["parse_qs"] == 1
        first, second = [await home.nobody("GET", "/v1/openapi.json") for _ in range(2)]
        assert first.json == second.json and first.json["servers"] and counts["document"] == 1
