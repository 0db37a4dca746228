"""The audit log: who did what to which task, also when it failed or the caller left."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Turn
from dragoman.auth import Bearer, hashed
from dragoman.cli import main
from dragoman.model.ops import Call, CancelTask, Principal
from dragoman.observe.instrument import Instrumentation, RefusalAudit
from dragoman.push.options import PushOptions
from dragoman.server.application import application
from dragoman.server.limits import Limits
from dragoman.server.runtime import running
from dragoman.stores import open_store
from dragoman.stores.memory import MemoryAudit
from tests import raw
from tests.waiting import until

HELLO = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "x"}]}


def asking() -> Agent:
    agent = Agent("Asks")

    @agent.skill
    async def ask(turn: Turn) -> str:
        return await turn.ask("what?")

    return agent


@pytest.mark.parametrize(
    ("method", "params", "operation"),
    [
        ("SendMessage", {"message": {**HELLO, "taskId": "nobody's"}}, "SendMessage"),
        ("CancelTask", {"id": "nobody's"}, "CancelTask"),
        ("DeleteTaskPushNotificationConfig", {"taskId": "nobody's", "id": "c"}, "DeletePushConfig"),
        ("CreateTaskPushNotificationConfig", {"taskId": "nobody's", "url": "http://a/"}, "CreatePushConfig"),
    ],
)
async def test_a_request_that_failed_is_audited_with_its_task(
    tmp_path: Path, method: str, params: dict[str, Any], operation: str
) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    async with running(application(asking(), store=url, push=PushOptions(allow_private=True))) as here:
        assert "error" in await raw.call(here, method, params)
    store = open_store(url)
    await store.open()
    (entry,) = await store.audit.entries(task="nobody's")
    await store.close()
    assert (entry.operation, entry.outcome) == (operation, "TASK_NOT_FOUND")


async def test_a_task_id_that_a_caller_chose_is_cut_and_cannot_start_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    async with running(application(asking(), store=url)) as here:
        assert "error" in await raw.call(here, "CancelTask", {"id": "x\n\x1b[2Jforged" + "y" * 100_000})
    assert await asyncio.to_thread(main, ["audit", "--store", url]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert len(line) < 500 and "\x1b" not in line and "x\\n\\x1b[2Jforged" in line


@pytest.mark.parametrize("version", ["00-{}-b7ad6b7169203331-01", "01-{}-b7ad6b7169203331-01-more"])
async def test_an_entry_names_the_trace_it_belongs_to(tmp_path: Path, version: str) -> None:
    url, trace = f"sqlite:///{tmp_path / 't.db'}", "0af7651916cd43dd8448eb211c80319c"
    async with running(application(asking(), store=url)) as here:
        await raw.call(here, "CancelTask", {"id": "x"}, traceparent=version.format(trace))
    store = open_store(url)
    await store.open()
    (entry,) = await store.audit.entries()
    await store.close()
    assert entry.trace == trace


async def test_a_streamed_send_is_audited_once_at_its_first_event(tmp_path: Path) -> None:
    url, go_on = f"sqlite:///{tmp_path / 't.db'}", asyncio.Event()
    agent = Agent("Waits")

    @agent.skill
    async def wait(turn: Turn) -> str:
        await go_on.wait()
        return "done"

    store = open_store(url)
    await store.open()
    async with running(application(agent, store=url)) as here:
        async for heard in raw.stream(here, "SendStreamingMessage", {"message": HELLO}):
            if "task" in heard.result:
                task = heard.result["task"]["id"]
                entries = await until(partial(store.audit.entries, task=task))
                go_on.set()
    assert await store.audit.entries() == entries
    await store.close()
    assert [(entry.operation, entry.outcome) for entry in entries] == [("SendStreamingMessage", "OK")]


async def test_a_message_that_is_streamed_is_audited_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    agent = Agent("Replies")

    @agent.skill(reply=True)
    async def reply(turn: Turn) -> str:
        return "at once"

    async with running(application(agent, store=url)) as here:
        heard = [each async for each in raw.stream(here, "SendStreamingMessage", {"message": HELLO})]
    assert "message" in heard[0].result
    store = open_store(url)
    await store.open()
    entries = await store.audit.entries()
    await store.close()
    assert [(entry.operation, entry.outcome) for entry in entries] == [("SendStreamingMessage", "OK")]


async def outcome(url: str, operation: str) -> str:
    """How the one operation of this kind ended, once it has."""

    async def look() -> str:
        async with raw.post(url + "/metrics", b"", {}, method="GET") as response:
            for line in (await raw.read(response)).decode().splitlines():
                if line.startswith("dragoman_requests_total{") and f'operation="{operation}"' in line:
                    return line.partition('outcome="')[2].partition('"')[0]
        return ""

    found: str = await until(look)
    return found


async def test_a_reader_that_leaves_a_stream_is_counted_as_ok() -> None:
    async with running(application(asking(), store="memory:", keepalive=0.2)) as url:
        task = (await raw.result(url, "SendMessage", {"message": HELLO}))["task"]["id"]
        async for _ in raw.stream(url, "SubscribeToTask", {"id": task}):
            break
        assert await outcome(url, "SubscribeToTask") == "OK"


async def test_a_caller_that_leaves_before_the_answer_is_counted_as_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, begun = Agent("Waits"), asyncio.Event()

    @agent.skill
    async def wait(turn: Turn) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    app = application(agent, store="memory:", drain=0, limits=Limits(write_timeout=0.05))
    monkeypatch.setattr(app._waits._timeout, "_interval", 0.001)
    async with running(app) as url:
        sending = asyncio.create_task(raw.call(url, "SendMessage", {"message": HELLO}))
        await begun.wait()
        sending.cancel()
        assert await outcome(url, "SendMessage") == "LEFT"


async def outcomes(audit: MemoryAudit) -> list[str]:
    return [entry.outcome for entry in reversed(await audit.entries(limit=1000))]


async def test_the_first_failed_authentications_are_written_and_the_rest_are_counted() -> None:
    refusals = RefusalAudit(audit := MemoryAudit(), most=2)
    for _ in range(7):
        refusals.record("a", "UNAUTHENTICATED")
    assert await outcomes(audit) == ["UNAUTHENTICATED"] * 2
    refusals.close()
    assert await outcomes(audit) == ["UNAUTHENTICATED"] * 2 + ["UNAUTHENTICATED, 5 more"]
    refusals.record("a", "UNAUTHENTICATED")
    assert (await outcomes(audit))[-1] == "UNAUTHENTICATED"


async def test_the_count_of_failed_authentications_is_written_when_the_minute_ends() -> None:
    refusals = RefusalAudit(audit := MemoryAudit(), most=1, seconds=0.01)
    for _ in range(3):
        refusals.record("a", "UNAUTHENTICATED")
    await until(lambda: outcomes(audit), lambda found: "UNAUTHENTICATED, 2 more" in found)


async def test_the_limit_counts_each_agent_and_reason_apart() -> None:
    refusals = RefusalAudit(audit := MemoryAudit(), most=1)
    for _ in range(5):
        refusals.record("a", "UNAUTHENTICATED")
    refusals.record("b", "UNAUTHENTICATED")
    refusals.record("a", "PERMISSION_DENIED")
    assert await outcomes(audit) == ["UNAUTHENTICATED"] * 2 + ["PERMISSION_DENIED"]


async def test_calls_of_known_callers_are_always_written() -> None:
    instruments = Instrumentation(counts=None, audit=(audit := MemoryAudit()))
    call = Call(principal=Principal(id="ada"))
    for _ in range(100):
        instruments.audit_request(call, "CancelTask", CancelTask(id="t"), "t", "OK")
    assert await outcomes(audit) == ["OK"] * 100


async def test_a_server_writes_the_count_of_failed_authentications_before_it_ends(tmp_path: Path) -> None:
    agent = Agent("A", auth=[Bearer({"ada": hashed("token")})])
    url = f"sqlite:///{tmp_path / 't.db'}"
    async with running(application(agent, store=url)) as here:
        for _ in range(65):
            async with raw.post(here, b"{}", {}) as response:
                assert response.status == 401
    store = open_store(url)
    await store.open()
    entries = await store.audit.entries(operation="authenticate", limit=1000)
    await store.close()
    assert len(entries) == 61 and entries[0].outcome == "UNAUTHENTICATED, 5 more"
