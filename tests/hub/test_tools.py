"""The commands, with the real things behind them: a database, a process, a server on loopback."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn

from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn
from dragoman.errors import InvalidParams, QuotaExceeded
from dragoman.hub.agents.constitution import Advisor, Constitution
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.settings import Settings
from dragoman.hub.store.artifacts import Artifacts, clean_path
from dragoman.hub.store.database import Database
from dragoman.hub.store.memories import SHARED, Memories, RelationExists, Scratchpads
from dragoman.hub.store.memory_search import MemorySearch
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.todos import Todos
from dragoman.hub.tools import Command, Session, remote_agents
from dragoman.hub.tools.fetcher import HttpFetcher
from dragoman.hub.tools.mcp import McpServers
from dragoman.hub.tools.remote_agents import RemoteAgent, RemoteAgents
from dragoman.hub.tools.toolbox import open_services
from dragoman.hub.tools.web import Hit
from dragoman.mcp.connection import McpServer
from dragoman.model.ops import CancelTask, ListTasks
from dragoman.model.task import TaskState
from dragoman.push.guard import Guard
from tests.hub.conftest import BLOBS, Begin, House, toolbox
from tests.hub.house import house as opened_hub
from tests.hub.house import tables_of
from tests.hub.scripted import ScriptedModel
from tests.ports import free_port
from tests.waiting import until


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await tables_of(tmp_path).open()
    for id in (1, 2):
        await opened.change(
            "insert into tenants (id, name, created_at) values (?, ?, 0)",
            (id, f"t{id}"),
        )
        await opened.change(
            "insert into conversations (id, tenant_id, agent_id, created_at, updated_at) values (?, ?, 'index', 0, 0)",
            (id * 10, id),
        )
    yield opened
    await opened.close()


@asynccontextmanager
async def served(app: Any, port: int = 0) -> AsyncIterator[str]:
    """An ASGI app on loopback."""
    port = port or free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(10):
        await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


async def fed(home: House, reply: str, **metadata: Any) -> str:
    """What the commands of `reply` give back to the model."""
    before = len(home.model.prompts)
    home.model._replies = iter([reply, "Ok."])
    await home.ask("go", **metadata)
    content: str = home.model.prompts[before + 1].messages[-1].content
    return content


@pytest.fixture
async def home(shed: Begin, database: Database) -> House:
    return await shed(ScriptedModel([]), tools=toolbox(database, model=ScriptedModel(["Do it."])))


class Again:
    """A tool whose hub died before what it did was on record: it is run again, and the second result counts."""

    def __init__(self, tool: Any) -> None:
        self._tool = tool
        self.differed: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    async def run(self, command: Command, session: Session) -> str:
        first = await self._tool.run(command, session)
        second: str = await self._tool.run(command, session)
        if first != second:
            self.differed.append((first, second))
        return second


async def test_a_command_that_runs_again_after_a_crash_writes_nothing_twice(
    shed: Begin, database: Database
) -> None:
    tools = [Again(tool) for tool in toolbox(database, model=ScriptedModel([]))]
    home = await shed(ScriptedModel([]), tools=tools)
    await fed(
        home,
        "/mem write a note\n/mem shared write a note for all\n/mem add entry project One\nfirst\n/endmem\n"
        "/mem add entry project Two --supersedes #1\nsecond\n/endmem\n/mem add link #2 supports #1\n"
        "/mem invalidate #2\n/lesson a: b\n/todo add look\n/todo done 1\n/write --persist a.txt\nhello\n/endwrite",
        conversation_id=10,
    )
    assert [pair for tool in tools for pair in tool.differed] == []
    pads, memories = Scratchpads(database), Memories(database)
    assert (await pads.read(1, "index")).count("a note") == 1 and (await pads.read(1, SHARED)).count(
        "note"
    ) == 1
    now = int(time.time())
    entries = [await memories.get(1, id) for id in (1, 2, 3, 4)]
    assert [entry and entry.title for entry in entries] == ["One", "Two", "a", None]
    assert [entry and (entry.valid_to or 0) >= now - 60 for entry in entries[:2]] == [True, True]
    assert [each.relation for each in await memories.relations(1)] == ["supersedes", "supports"]
    assert [todo.state for todo in await Todos(database).list(1, conversation=10, states=("completed",))] == [
        "completed"
    ]
    assert [file.path for file in await Artifacts(database, BLOBS).of_conversation(1, 10)] == ["a.txt"]
    assert len(await memories.list(1, types=("learning",))) == 1
    await fed(home, "/mem write a note", conversation_id=10)
    assert (await pads.read(1, "index")).count("a note") == 2, (
        "another request that says the same is another write"
    )


async def test_memory_is_written_found_linked_and_ended(home: House) -> None:
    said = await fed(
        home,
        "/mem write remember this\n/mem read\n/mem shared read\n"
        "/mem add entry project Rocket launch plan\nThe rocket starts on Monday.\n/endmem\n"
        "/mem add entry learning Fuel\nFuel is expensive, launches need much of it.\n/endmem\n"
        "/mem add link #1 relates_to 2\n/mem add link 1 relates_to 1",
    )
    assert "remember this" in said and "(no memory)" in said
    assert "OK: added entry #1 [project] Rocket launch plan" in said
    assert "OK: added link #1" in said and "ERR: an entry does not relate to itself" in said
    said = await fed(
        home, "/mem search when does the rocket launch\n/mem entry 1\n/mem expand 2\n/mem search zebra"
    )
    assert said.index("- #1  [project]") < said.index("- #2  [learning]")
    assert "relates_to → #2 Fuel" in said and "(no entries match 'zebra')" in said
    said = await fed(
        home,
        "/mem add entry project New plan --supersedes #1\nTuesday.\n/endmem\n/mem entries project\n/mem invalidate 1",
    )
    assert "New plan" in said and "Rocket launch plan" not in said.split("[/mem entries project]")[1]
    assert "ERR: there is no valid entry '1'" in said


async def test_an_unclosed_or_malformed_command_is_an_error_not_a_crash(home: House) -> None:
    said = await fed(
        home,
        "/mem\n/mem entry x\n/fetch\n/search  \n/agent\n/read ../x\n/mcp call\n/a2a\n/todo done z\n/schedule x\n/browse y\n"
        "/exec rm -rf /\n/advise\n/parallel\nnothing\n/endparallel\n/write /etc/passwd\nx\n/endwrite\n/help nothing\n"
        "/mem add entry project T\nno end",
    )
    assert said.count("ERR:") == 17
    assert (
        "ERR: the block was not closed with /endmem" in said
        and "ERR: commands are disabled on this hub" in said
    )


async def test_files_are_stored_only_in_a_conversation(home: House, database: Database) -> None:
    said = await fed(
        home,
        "/write --persist notes/a.md\nhello\n/endwrite\n/list\n/read notes/a.md\n/read #1",
        conversation_id=10,
    )
    assert "OK: persisted 5 bytes (artifact #1)" in said and "#1  notes/a.md  (5 bytes)" in said
    assert said.count("\n| hello\n") == 2
    said = await fed(home, "/write --persist b.md\nhello\n/endwrite\n/read notes/a.md\n/list")
    assert "WARN: --persist requested but artifact store is unavailable" in said and said.count("ERR:") == 2
    assert await Artifacts(database, BLOBS).get("2", 1) is None


async def test_a_file_of_another_conversation_is_reached_through_a_memory(
    home: House, database: Database
) -> None:
    await database.change(
        "insert into conversations (id, tenant_id, agent_id, created_at, updated_at) values (11, 1, 'index', 0, 0)"
    )
    await Artifacts(database, BLOBS).put("1", 10, "a.md", b"secret plan")
    await Memories(database).add("1", "project", "Plan", "see file", artifact_id=1)
    said = await fed(home, "/read #1\n/read #1 via=mem:1\n/mem entry 1", conversation_id=11)
    assert (
        "ERR: #1 is of another conversation" in said
        and "secret plan" in said
        and "/read #1 via=mem:1" in said
    )


async def test_an_agent_cannot_link_a_file_that_it_may_not_read(home: House, database: Database) -> None:
    """A page that an agent obeys would reach the files of every conversation this way."""
    await database.change(
        "insert into conversations (id, tenant_id, agent_id, created_at, updated_at) values (11, 1, 'index', 0, 0)"
    )
    await Artifacts(database, BLOBS).put("1", 10, "a.md", b"secret plan")
    link = "/mem add entry user x --artifact #1\ny\n/endmem\n/read #1 via=mem:1"
    said = await fed(home, link, conversation_id=11)
    assert "ERR: there is no artifact #1" in said and "secret plan" not in said
    said = await fed(home, link, conversation_id=10)
    assert "OK: added entry #1" in said and "secret plan" in said
    said = await fed(home, link.replace("mem:1", "mem:2"), conversation_id=11)
    assert "OK: added entry #2" in said and "secret plan" in said, "an entry has linked it before"


async def test_quotas_and_paths_of_files(database: Database) -> None:
    files = Artifacts(database, BLOBS, file_limit=10, conversation_limit=15)
    assert (await files.put("1", 10, "a//b\\c.txt", b"x" * 10)).path == "a/b/c.txt"
    assert not (await files.put("1", 10, "a/b/c.txt", b"y" * 9)).created
    for path, content in (("big", b"x" * 11), ("more", b"x" * 7)):
        with pytest.raises(QuotaExceeded):
            await files.put("1", 10, path, content)
    with pytest.raises(InvalidParams):
        await files.put("1", 20, "x", b"")  # another tenant's conversation
    for path in ("", "/abs", "a/../b", ".hidden", "c:x", "con.txt", "a\x00b", "x" * 200):
        with pytest.raises(InvalidParams):
            clean_path(path)


async def test_memory_of_one_tenant_is_not_visible_to_another(database: Database) -> None:
    memories, todos = Memories(database), Todos(database)
    entry = await memories.add("1", "user", "Likes tea", "Green tea.")
    other = await memories.add("2", "user", "Likes coffee")
    assert await memories.get("2", entry.id) is None
    assert await memories.search("2", MemorySearch(query="tea")) == []
    assert not await memories.invalidate("2", entry.id)
    assert await memories.change("2", entry.id, title="x") is None
    with pytest.raises(InvalidParams):
        await memories.relate("1", entry.id, "supports", other.id)
    todo = await todos.add("1", "buy tea")
    assert await todos.change("2", todo.id, state="completed") is None
    assert await todos.list("2") == []


async def test_memory_as_of_a_moment_and_double_relations(database: Database) -> None:
    memories = Memories(database)
    old = await memories.add("1", "user", "Lives in Rome", at=1000, tags=("city",))
    new = await memories.add("1", "user", "Lives in Oslo", supersedes=[old.id])
    now = int(time.time())
    assert [e.id for e in await memories.list("1", as_of=2000)] == [old.id]
    assert [e.id for e in await memories.list("1", as_of=now + 1)] == [new.id]
    assert [e.id for e in await memories.search("1", MemorySearch(query="lives"), as_of=2000)] == [old.id]
    assert [e.id for e in await memories.list("1", tag="city", as_of=2000)] == [old.id]
    with pytest.raises(RelationExists) as caught:
        await memories.relate("1", new.id, "supersedes", old.id)
    assert caught.value.existing_id == (await memories.relations("1", old.id))[0].id


async def test_entries_of_the_conversation_come_first(database: Database) -> None:
    memories = Memories(database)
    await memories.add("1", "project", "Budget of the garden")
    ours = await memories.add("1", "project", "Budget of the house", conversation=10)
    elsewhere = await memories.add("1", "project", "Budget of the boat", conversation=11)
    near, wide = (
        MemorySearch(query="budget", conversation=10),
        MemorySearch(query="budget", conversation=10, wide=True),
    )
    found = [e.id for e in await memories.search("1", near)]
    assert found[0] == ours.id and elsewhere.id not in found
    found = [e.id for e in await memories.search("1", wide)]
    assert found[0] == ours.id and elsewhere.id in found


@pytest.mark.parametrize(
    ("title", "queries"),
    [
        ("Ask bob@example.com", ["bob", "example", "bob@example.com"]),
        ("Use node.js, not C++", ["node", "js", "node.js", "c"]),
        ("See https://wiki.corp.org/pages/on-call?x=1", ["wiki", "pages", "call", "on-call", "x"]),
        ("It is in src/foo/bar_baz.txt", ["foo", "bar", "bar_baz", "txt"]),
        ("Ticket GB-4711 of 2026-11-19", ["4711", "gb", "11", "19", "2026-11-19"]),
        ("Version 1.2.3 costs 3.50", ["2", "50", "1.2.3"]),
        ("Who is off now", ["who", "off", "now"]),
        ("“Grüße” – don’t panic…", ["grüße", "don't", "don", "panic"]),
        ("She was running", ["run", "runs"]),
    ],
)
async def test_an_entry_is_found_by_each_of_its_words(
    database: Database, title: str, queries: list[str]
) -> None:
    entry = await Memories(database).add("1", "user", title)
    await Memories(database).add("1", "user", "Quite another thing")
    found = {
        query: [each.id for each in await Memories(database).search("1", MemorySearch(query=query))]
        for query in queries
    }
    assert found == {query: [entry.id] for query in queries}


async def test_open_todos_stand_before_the_next_request(home: House) -> None:
    await fed(home, "/todo add water the plants\n/todo list")
    home.model._replies = iter(["Ok."])
    await home.ask("hi")
    assert "[OPEN TODOS]\n| - #1 [pending] water the plants" in home.model.prompts[-1].messages[-1].content
    assert "OK: #1 is completed" in await fed(home, "/todo done #1")


async def test_todos_are_found_by_their_subject_and_shown_also_when_they_are_done(home: House) -> None:
    await fed(home, "/todo add water the plants\n/todo add water the lawn\n/todo add call home")
    said = await fed(home, "/todo done Water the plants\n/todo start call\n/todo cancel water")
    assert "OK: #1 is completed" in said and "OK: #3 is in_progress" in said
    assert "OK: #2 is canceled" in said, "the other one that begins like this is done"
    assert "- #3" in await fed(home, "/todo list") and "- #1" not in await fed(home, "/todo list")
    everything = await fed(home, "/todo list all")
    assert "- #1 [completed] water the plants" in everything and "- #2 [canceled]" in everything
    said = await fed(
        home, "/todo subject 3: call mum\n/todo describe call mum: before six\n/todo done c\n/todo done x"
    )
    assert said.count("OK: #3 is changed") == 2 and "OK: #3 is completed" in said
    assert "ERR: there is no todo 'x'" in said
    assert "ERR: usage" in await fed(home, "/todo describe 3")


async def test_entries_are_listed_by_type_and_an_unknown_type_is_an_error(home: House) -> None:
    await fed(home, "/mem add entry project Plan\nx\n/endmem\n/mem add entry user Name\ny\n/endmem")
    for listed in ("type=project", "project", "project,learning"):
        said = await fed(home, f"/mem entries {listed}")
        assert "Plan" in said and "Name" not in said
    assert "ERR: there is no type 'plans'" in await fed(home, "/mem entries plans")


async def test_an_advisor_is_asked_without_the_conversation(shed: Begin, database: Database) -> None:
    advisor = ScriptedModel(["Take the train."])
    home = await shed(
        {"Torn": ["/advise plane or train?", "Train."]},
        Constitution(id="torn", name="Torn", advisor=Advisor(model="big/one")),
        tools=toolbox(database, model=advisor),
    )
    task = await home.ask("go", "torn")
    assert [m.content for m in advisor.prompts[0].messages] == ["plane or train?"]
    assert advisor.prompts[0].model == "big/one"
    assert "Take the train." in home.model.prompts[1].messages[-1].content
    notes = [n for kind, n in await home.notes(task.id, "torn") if kind == "advisor"]
    assert notes == [{"agent": "torn", "stream_id": 0, "kind": "consult", "preview": "Take the train."}]


# -- the web -------------------------------------------------------------------------------------------------------


async def web(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    path, status, headers = scope["path"], 200, [(b"content-type", b"text/html; charset=utf-8")]
    body = "<html><head><title>no</title></head><body><h1>Tea</h1><script>x</script><p>Green &amp; good</p></body></html>"
    if path == "/moved":
        status, headers = 302, [(b"location", b"/tea")]
    elif path == "/inward":
        status, headers = 302, [(b"location", b"http://169.254.169.254/secrets")]
    elif path == "/gone":
        status = 404
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})


async def test_pages_are_read_as_text_and_the_guard_decides_where(shed: Begin, database: Database) -> None:
    async with served(web) as url:
        loopback = HttpFetcher(Guard(trust=("127.0.0.0/8",), http=True).dial)
        tools = toolbox(database, model=ScriptedModel([]), fetcher=loopback)
        home = await shed(ScriptedModel([]), tools=tools)
        said = await fed(home, f"/fetch {url}/moved\n/fetch {url}/gone\n/fetch {url}/inward")
        assert "Tea\n| \n| Green & good" in said and "ERR: HTTP 404" in said
        assert said.count("ERR:") == 2 and "its host is not on the internet" in said
        await loopback.close()
        guarded = HttpFetcher(Guard(http=True).dial)
        home = await shed(
            ScriptedModel([]), tools=toolbox(database, model=ScriptedModel([]), fetcher=guarded)
        )
        said = await fed(home, f"/fetch {url}/tea\n/fetch file:///etc/passwd")
        assert said.count("ERR:") == 2
        await guarded.close()


async def test_search_has_a_provider_or_says_that_there_is_none(
    shed: Begin, database: Database, home: House
) -> None:
    assert "ERR: web search unavailable" in await fed(home, "/search tea")

    class Engine:
        async def search(self, query: str, top: int) -> list[Hit]:
            return [Hit(f"{query} {n}", f"https://x/{n}", "snip") for n in range(top)]

    home = await shed(ScriptedModel([]), tools=toolbox(database, model=ScriptedModel([]), search=Engine()))
    assert "1. green tea 0 — snip\n|    https://x/0\n| 2. green tea 1" in await fed(
        home, "/search green tea top=2"
    )


# -- processes -----------------------------------------------------------------------------------------------------


async def test_mcp_servers_are_processes_that_see_no_secrets_and_come_back(
    shed: Begin, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    script = str(Path(__file__).with_name("mcp_server.py"))
    servers = McpServers(
        {
            "adder": McpServer(command=sys.executable, args=(script,), env={"LEVEL": "2"}),
            "missing": McpServer(command="/nowhere/at/all"),
        }
    )
    home = await shed(ScriptedModel([]), tools=toolbox(database, model=ScriptedModel([]), mcp=servers))
    said = await fed(
        home,
        '/mcp tools\n/mcp call adder add {"a": 2, "b": 3}\n/mcp call adder environment {"name": "OPENAI_API_KEY"}\n'
        '/mcp call adder environment {"name": "LEVEL"}\n/mcp call nobody x {}\n/mcp call adder add [1]\n'
        '/mcp call adder add {"a": "x"}',
    )
    assert (
        "adder add {a, b} — Adds two numbers." in said
        and "missing: (the MCP server 'missing' could not" in said
    )
    assert "\n| 5\n" in said and "(unset)" in said and "\n| 2\n" in said and "sk-secret" not in said
    assert "ERR: no MCP server 'nobody' configured. Available: adder, missing" in said
    assert "ERR: the arguments must be a JSON object" in said and said.count("ERR:") == 3
    said = await fed(home, '/mcp call adder die {}\n/mcp call adder add {"a": 4, "b": 4}')
    assert "ERR: the MCP server 'adder'" in said and "\n| 8\n" in said
    await servers.close()


async def test_mcp_servers_are_reached_over_http_too(shed: Begin, database: Database) -> None:
    pytest.importorskip("mcp")
    from tests.hub.mcp_server import server

    async with served(server.streamable_http_app()) as url:
        servers = McpServers({"there": McpServer(url=f"{url}/mcp", headers={"X-Key": "1"})})
        home = await shed(ScriptedModel([]), tools=toolbox(database, model=ScriptedModel([]), mcp=servers))
        assert "\n| 9\n" in await fed(home, '/mcp call there add {"a": 4, "b": 5}')
        await servers.close()


async def test_a_registry_that_is_wrong_leaves_the_other_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a2a_agents.json").write_text("[]")
    (tmp_path / "mcp_servers.json").write_text('{"servers": {"adder": {"command": "nowhere"}}}')
    async with opened_hub(["/a2a list\n/mcp call other add {}", "Ok."], folder=tmp_path) as hub:
        await (await hub.tenant("acme")).ask("go")
        said = hub.model.prompts[-1].messages[-1].content
    assert "A2A unavailable" in said and "Available: adder" in said


async def test_pages_are_opened_in_a_browser_if_there_is_one(
    shed: Begin, database: Database, tmp_path: Path
) -> None:
    pytest.importorskip("mcp")
    script = str(Path(__file__).with_name("mcp_browser.py"))
    servers = McpServers({"playwright": McpServer(command=sys.executable, args=(script,))})

    async def check(url: str) -> None:
        if "private" in url:
            raise OSError("its host is not on the internet")

    tools = toolbox(database, model=ScriptedModel([]), mcp=servers, check=check)
    home = await shed(ScriptedModel([]), tools=tools)
    said = await fed(home, "/browse https://x/a\n/browse https://private/\n/browse file:///etc/passwd")
    assert "[/browse https://x/a]\n| - heading: welcome to https://x/a\n[END BROWSE]" in said
    assert "ERR: refused: its host is not on the internet" in said and "ERR: usage: /browse <url>" in said
    assert "ERR:" in await fed(home, "/browse https://x/broken")
    for arguments in (
        '{"url": "https://private/"}',
        '{"url": "file:///etc/passwd"}',
        '{"url": "private:80"}',
        '{"URL": " http://private/"}',
        '{"tabs": [{"action": "new", "url": "https://private/"}]}',
        '{"where": "https://private/"}',
    ):
        for tool in ("browser_navigate", "browser_tabs"):
            said = await fed(home, f"/mcp call playwright {tool} {arguments}")
            assert "ERR: refused:" in said and "welcome" not in said, arguments
    said = await fed(home, '/mcp call playwright browser_navigate {"url": "https://x/a"}')
    assert "ERR" not in said
    assert "SKIPPED: max 3 pages" in await fed(home, "\n".join(f"/browse https://x/{n}" for n in range(4)))
    await servers.close()
    home = await shed(ScriptedModel([]), tools=toolbox(database, model=ScriptedModel([])))
    assert "ERR: /browse is not available: this hub has no browser" in await fed(home, "/browse https://x/a")


async def test_a_browser_is_sent_only_where_the_guard_lets_it_go(tmp_path: Path, database: Database) -> None:
    for private in (False, True):
        given = Settings(data=str(tmp_path), allow_private=private)
        reach = open_services(given, HubMetrics(), Policies(database))
        assert reach.check is not None
        async with served(neighbour().app(store="memory:")) as url:
            if private:
                await reach.check(f"{url}/page#part")
            else:
                with pytest.raises(OSError, match="not on the internet"):
                    await reach.check(f"{url}/page")
        await reach.close()


# -- agents of others ----------------------------------------------------------------------------------------------


def neighbour(stuck: asyncio.Event | None = None, ended: asyncio.Event | None = None) -> Agent:
    agent = Agent("Weather", "Knows the weather.")

    @agent.skill
    async def forecast(turn: Turn) -> str:
        """Tells the weather."""
        if stuck is not None:
            stuck.set()
            try:
                await asyncio.Event().wait()
            finally:
                if ended is not None:
                    ended.set()
        return f"Sunny. You said: {turn.text!r} and {sorted(turn.metadata)}"

    return agent


def slow(begun: asyncio.Event, go: asyncio.Event) -> Agent:
    agent = Agent("Slow", "Takes its time.")

    @agent.skill
    async def wait(turn: Turn) -> str:
        begun.set()
        await go.wait()
        return "at last"

    return agent


async def test_a_dead_remote_delays_no_other_and_loopback_needs_permission(
    shed: Begin, database: Database
) -> None:
    async with served(neighbour().app(store="memory:")) as url:
        remotes = RemoteAgents(
            {
                "weather": RemoteAgent(url=url, allow_private=True),
                "forbidden": RemoteAgent(url=url),
                "dead": RemoteAgent(url=f"http://127.0.0.1:{free_port()}", allow_private=True),
            },
            guard=Guard(http=True),
        )
        unread = [f"{name}  (card not read yet)" for name in ("weather", "forbidden", "dead")]
        assert remotes.lines() == unread, "at once, whatever the remotes do"
        tools = toolbox(database, model=ScriptedModel([]), remotes=remotes)
        home = await shed(ScriptedModel([]), tools=tools, peers=remotes)
        said = await fed(
            home,
            "/a2a list\n/a2a card weather\n/a2a call weather Rome?\n/a2a call forbidden x\n/a2a call dead x\n/a2a call no x\n"
            "/agent a2a:weather x",
        )
        assert "weather — Knows the weather. (skills:" in said and "dead  (card unavailable" in said
        assert "Sunny. You said: 'Rome?' and []" in said
        assert said.count("ERR:") == 4 and "ERR: no remote agent named 'no' (try /a2a list)" in said
        assert "its host is not on the internet" in said
        assert any(line.startswith("weather — Knows the weather.") for line in remotes.lines())


async def test_agents_do_not_see_the_secrets_in_the_address_of_a_remote(
    shed: Begin, database: Database
) -> None:
    async with served(neighbour().app(store="memory:")) as url:
        secret = f"{url.replace('://', '://ada:hidden1@')}?key=hidden2"
        remotes = RemoteAgents({"weather": RemoteAgent(url=secret, allow_private=True)}, guard=Guard())
        tools = toolbox(database, model=ScriptedModel([]), remotes=remotes)
        home = await shed(ScriptedModel([]), tools=tools, peers=remotes)
        said = await fed(home, "/a2a list\n/a2a card weather\n/a2a call weather Rome?")
        assert "hidden" not in said and url.partition("://")[2] in said
        await remotes.close()
    remotes = RemoteAgents({"dead": RemoteAgent(url=secret, allow_private=True)}, guard=Guard())
    home = await shed(
        ScriptedModel([]), tools=toolbox(database, model=ScriptedModel([]), remotes=remotes), peers=remotes
    )
    said = await fed(home, "/a2a list\n/a2a card dead\n/a2a call dead Rome?")
    assert "hidden" not in said and "unavailable" in said


@pytest.mark.parametrize("status", [200, 302, 401, 500])
async def test_neither_an_agent_nor_the_log_shows_the_key_of_an_mcp_server(
    shed: Begin, database: Database, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mcp")
    asked = []

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["path"])
            headers = [(b"content-type", b"text/plain"), (b"location", b"/elsewhere")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"no"})

    caplog.set_level(logging.DEBUG)
    async with served(refusing) as url:
        server = McpServer(url=f"{url}/mcp?key=hidden1", headers={"Authorization": "Bearer hidden2"})
        servers = McpServers({"it": server})
        tools = toolbox(database, model=ScriptedModel([]), mcp=servers)
        home = await shed(ScriptedModel([]), tools=tools)
        said = await fed(home, "/mcp tools\n/mcp call it x {}")
        await servers.close()
    assert "the MCP server 'it' could not be started" in said and "hidden" not in said
    assert set(asked) == {"/mcp"}, "no redirect is followed with the operator's headers"
    ours = [each.getMessage() for each in caplog.records if not each.name.startswith("uvicorn")]
    assert "hidden" not in "\n".join(ours)


async def test_a_cancel_reaches_the_remote_agent(shed: Begin, database: Database) -> None:
    stuck, ended = asyncio.Event(), asyncio.Event()
    async with served(neighbour(stuck, ended).app(store="memory:")) as url:
        remotes = RemoteAgents({"weather": RemoteAgent(url=url, allow_private=True)}, guard=Guard())
        home = await shed(
            ScriptedModel(["/a2a call weather Rome?"]),
            tools=toolbox(database, model=ScriptedModel([]), remotes=remotes),
            peers=remotes,
        )
        asking = asyncio.create_task(home.ask("go"))
        async with asyncio.timeout(10):
            await stuck.wait()
            (task,) = await tasks(home)
            await until(
                lambda: home.records(task), lambda records: any(record.kind == "child" for record in records)
            )
            await home.engine.call(home.call(), CancelTask(id=(await tasks(home))[0]))
            await ended.wait()
        assert (await asking).state is TaskState.CANCELED


async def test_a_remote_call_over_its_time_limit_is_canceled(shed: Begin, database: Database) -> None:
    stuck, ended = asyncio.Event(), asyncio.Event()
    async with served(neighbour(stuck, ended).app(store="memory:")) as url:
        remotes = RemoteAgents(
            {"weather": RemoteAgent(url=url, allow_private=True, timeout=1.0)}, guard=Guard()
        )
        tools = toolbox(database, model=ScriptedModel([]), remotes=remotes)
        home = await shed(ScriptedModel([]), tools=tools, peers=remotes)
        assert "ERR: weather did not finish within 1 s" in await fed(home, "/a2a call weather Rome?")
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_remote_that_never_stops_answering_is_canceled(
    shed: Begin, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_agents, "MAX_ANSWER_BYTES", 2 << 20)
    agent, ended = Agent("Endless", "Has much to say."), asyncio.Event()

    @agent.skill
    async def talk(turn: Turn) -> str:
        try:
            while True:
                await turn.file(b"x" * 100_000, name="more.bin")
        finally:
            ended.set()

    async with served(agent.app(store="memory:")) as url:
        remotes = RemoteAgents({"it": RemoteAgent(url=url, allow_private=True)}, guard=Guard())
        tools = toolbox(database, model=ScriptedModel([]), remotes=remotes)
        home = await shed(ScriptedModel([]), tools=tools, peers=remotes)
        assert "ERR: it answered with more than 2 MB" in await fed(home, "/a2a call it hello")
        await asyncio.wait_for(ended.wait(), 10)


class OnText:
    """An application, and the requests that it got: method, path and headers."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.got: list[tuple[str, str, dict[str, str]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.got.append((scope["method"], scope["path"], headers))
        await self._app(scope, receive, send)

    def cards(self) -> int:
        return sum("card" in path for _, path, _ in self.got)


async def test_the_card_of_a_remote_is_fetched_again_and_a_dead_one_is_listed_as_such(
    shed: Begin, database: Database
) -> None:
    app, clock = OnText(neighbour().app(store="memory:")), [1000.0]
    async with served(app) as url:
        known = {"weather": RemoteAgent(url=url, allow_private=True)}
        remotes = RemoteAgents(known, guard=Guard(), ttl=300.0, clock=lambda: clock[0])
        tools = toolbox(database, model=ScriptedModel([]), remotes=remotes)
        home = await shed(ScriptedModel([]), tools=tools, peers=remotes)
        assert (await remotes.fetch_lines())[0].startswith("weather — Knows")
        first = app.cards()
        await remotes.fetch_lines()
        assert app.cards() == first >= 1, "it is kept for a while"
        clock[0] += 301
        assert (await remotes.fetch_lines())[0].startswith("weather — Knows")
        assert app.cards() > first, "and then fetched again, whatever HTTP allows to keep"
        assert "Sunny" in await fed(home, "/a2a call weather Rome?"), "over the new connection"
    clock[0] += 301
    assert (await remotes.fetch_lines())[0].startswith("weather  (card unavailable")
    assert remotes.lines()[0].startswith("weather  (card unavailable"), "also in the roster"
    async with served(app, port=int(url.rpartition(":")[2])):
        clock[0] += 31
        assert (await remotes.fetch_lines())[0].startswith("weather — Knows"), "until it is back"
    assert "ERR:" in await fed(home, "/a2a call weather Rome?")
    assert (await remotes.fetch_lines())[0].startswith("weather  (card unavailable"), (
        "a call that fails tells, too"
    )


async def test_cards_of_remotes_are_fetched_again_though_nobody_asks() -> None:
    app = OnText(neighbour().app(store="memory:"))
    async with served(app) as url:
        remotes = RemoteAgents({"weather": RemoteAgent(url=url, allow_private=True)}, guard=Guard(), ttl=0.05)
        remotes.periodic.start()
        await until(app.cards, lambda cards: cards > 2)
        await remotes.close()
        assert not remotes.periodic.running


async def test_a_call_that_goes_on_keeps_its_connection_while_the_card_is_fetched_again(
    shed: Begin, database: Database
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    async with served(slow(begun, go).app(store="memory:")) as url:
        remotes = RemoteAgents({"slow": RemoteAgent(url=url, allow_private=True)}, guard=Guard(), ttl=-1.0)
        tools = toolbox(database, model=ScriptedModel([]), remotes=remotes)
        home = await shed(ScriptedModel([]), tools=tools, peers=remotes)
        asking = asyncio.create_task(fed(home, "/a2a call slow now"))
        await asyncio.wait_for(begun.wait(), 10)
        before = (await remotes._connection("slow")).client
        await remotes.fetch_lines()
        assert (await remotes._connection("slow")).client is not before
        go.set()
        assert "at last" in await asking


async def test_remote_calls_have_no_caller_data_in_headers_and_separate_keys_per_tenant(
    tmp_path: Path,
) -> None:
    app = OnText(neighbour().app(store="memory:"))
    async with served(app) as url:
        registry = {"agents": {"weather": {"url": url, "allow_private": True}}}
        (tmp_path / "a2a_agents.json").write_bytes(msgspec.json.encode(registry))

        def reply(prompt: Any) -> str:
            said = prompt.messages[-1].content
            return said if "Sunny" in said else f"/a2a call weather {said.split()[-1]}"

        async with opened_hub(reply, folder=tmp_path) as hub:
            trace = f"00-{'a' * 32}-{'b' * 16}-01"
            for name, city in (("acme", "Rome"), ("other", "Oslo")):
                caller = await hub.tenant(name)
                said = {
                    "id": "same-id",
                    "message": {"role": "user", "parts": [{"type": "text", "text": city}]},
                }
                answer = await caller.rpc("index", "tasks/send", said, traceparent=trace)
                assert f"You said: '{city}'".encode() in answer.body
    sent = [headers for method, _, headers in app.got if method == "POST"]
    assert len(sent) == 2
    for headers in sent:
        assert not any(word in str(headers) for word in ("same-id", "a" * 32, "acme", "traceparent"))
    assert sent[0]["idempotency-key"] != sent[1]["idempotency-key"]


async def tasks(home: House) -> list[str]:
    found = await home.store.scope(home.call().scope).find(ListTasks(), limit=10)
    return [snapshot.task_id for snapshot in found.snapshots]
