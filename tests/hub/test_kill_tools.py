"""A hub is killed (SIGKILL) while a command of an agent runs, and started again: what must not happen twice does not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn

from dragoman import Agent
from dragoman.hub.agents.dispatch import INTERRUPTED
from tests.hub.house import rows_of
from tests.hub.killing import ADMIN, Process, call, listen, recorded
from tests.ports import free_port
from tests.waiting import until

WORDS = INTERRUPTED.removeprefix("ERR: ")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class Interrupted:
    """A request whose command was running when its hub was killed; the hub is there again."""

    def __init__(self, hub: Process, token: str, heard: list[Any]) -> None:
        self._hub, self._token, self._heard = hub, token, heard

    async def done(self) -> tuple[list[dict[str, Any]], str]:
        """What is told of its commands, and its answer: this model repeats what its commands gave."""
        id = msgspec.json.decode(self._heard[0].data)["request_id"]
        last = [frame.id for frame in self._heard if frame.id][-1]
        path = f"/v1/requests/{id}/events"
        self._heard += await listen(self._hub.url, self._token, "GET", path, None, last, 10_000)
        received = [(frame.event, msgspec.json.decode(frame.data)) for frame in self._heard]
        assert received[-1][0] == "done" and received[-1][1]["ok"], received[-1]
        return [data for kind, data in received if kind == "tool_call"], received[-1][1]["content"]


@asynccontextmanager
async def interrupted(
    folder: Path, command: str, inside: Callable[[], Any], *flags: str
) -> AsyncIterator[Interrupted]:
    """Have an agent run `command`, kill its hub when the command is `inside`, and start it again."""
    hub = Process(folder, None, *flags)
    await hub.start()
    try:
        token = (await call(hub.url, ADMIN, "POST", "/v1/admin/tenants", {"name": "acme"}))["token"]
        agent = {"id": "doer", "name": "Doer", "goal": "do", "capabilities": ["exec", "mcp", "a2a"]}
        await call(hub.url, token, "POST", "/v1/agents", agent)
        body = {"message": f"now\n{command}"}
        path = "/v1/agents/doer/chat"
        listening = asyncio.create_task(listen(hub.url, token, "POST", path, body, "", 10_000))
        await until(inside)
        await hub.kill()
        heard = await listening
        await hub.start()
        yield Interrupted(hub, token, heard)
    finally:
        await hub.kill()
    steps = await recorded(folder, "doer")
    assert len(steps) == len(set(steps)), "something is on record twice"


# -- /exec ---------------------------------------------------------------------------------------------------------


async def test_a_shell_command_that_ran_when_the_hub_was_killed_does_not_run_again(tmp_path: Path) -> None:
    def ran() -> list[Path]:
        return [path for path in tmp_path.rglob("ran.txt") if lines(path)]

    command = "/exec echo ran >> ran.txt; while [ ! -e go ]; do sleep 0.02; done"
    async with interrupted(tmp_path, command, ran, "--allow-exec") as request:
        calls, answer = await request.done()
        (file,) = ran()
        assert lines(file) == ["ran"]
        file.with_name("go").touch()  # it goes on without the hub
    assert WORDS in answer
    assert [(each["ok"], each["interrupted"]) for each in calls] == [(False, True)]


# -- /mcp ----------------------------------------------------------------------------------------------------------


def register_slow_server(folder: Path) -> None:
    script = str(Path(__file__).with_name("mcp_slow_server.py"))
    slow = {"command": sys.executable, "args": [script, str(folder)]}
    (folder / "mcp_servers.json").write_bytes(msgspec.json.encode({"servers": {"slow": slow}}))


async def test_an_mcp_tool_that_ran_when_the_hub_was_killed_is_not_called_again(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    register_slow_server(tmp_path)
    async with interrupted(tmp_path, "/mcp call slow pay {}", lambda: lines(tmp_path / "pay")) as request:
        calls, answer = await request.done()
        assert lines(tmp_path / "pay") == ["called"]
        (tmp_path / "go").touch()
    assert WORDS in answer
    assert [(each["tool"], each["ok"], each["interrupted"]) for each in calls] == [
        ("mcp:slow.pay", False, True)
    ]


@pytest.mark.parametrize("tool", ["look", "put"])
async def test_an_mcp_tool_that_says_it_may_is_called_again(tmp_path: Path, tool: str) -> None:
    pytest.importorskip("mcp")
    register_slow_server(tmp_path)
    async with interrupted(
        tmp_path, f"/mcp call slow {tool} {{}}", lambda: lines(tmp_path / tool)
    ) as request:
        (tmp_path / "go").touch()
        calls, answer = await request.done()
    assert lines(tmp_path / tool) == ["called", "called"]
    assert f"{tool} is done" in answer
    assert [(each["ok"], "interrupted" in each) for each in calls] == [(True, False)]


# -- /a2a ----------------------------------------------------------------------------------------------------------


class Remote:
    """An agent of somebody else's that speaks A2A 0.3, and counts what it is sent. `silent`: it names its task at the end."""

    def __init__(self, *, silent: bool = False, streams: bool = True) -> None:
        self.silent, self.streams = silent, streams
        self.messages: list[str] = []
        self.looked = 0
        """How often it was asked for its task."""
        self.go = asyncio.Event()
        """It may finish."""
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            return await _answer(send, self._card())
        body = msgspec.json.decode((await receive())["body"])
        method, answer = body["method"], {"jsonrpc": "2.0", "id": body["id"]}
        self.looked += method == "tasks/get"
        if method.startswith("message/"):
            self.messages.append(body["params"]["message"]["messageId"])
        if method in ("message/send", "tasks/get"):
            return await _answer(send, {**answer, "result": self._task()})
        if not self.streams:
            error = {"code": -32004, "message": "there are no streams here"}
            return await _answer(send, {**answer, "error": error})
        if self.silent:
            await self.go.wait()
        await _begin(send, b"text/event-stream", _event({**answer, "result": self._task()}))
        await self.go.wait()
        end = {"kind": "status-update", "taskId": "t-1", "contextId": "c-1", "final": True}
        end["status"] = self._task()["status"]
        await send({"type": "http.response.body", "body": _event({**answer, "result": end})})

    def _card(self) -> dict[str, Any]:
        return {
            "protocolVersion": "0.3.0",
            "name": "Weather",
            "description": "Knows the weather.",
            "version": "1",
            "url": self.url,
            "preferredTransport": "JSONRPC",
            "capabilities": {"streaming": self.streams},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [],
        }

    def _task(self) -> dict[str, Any]:
        status: dict[str, Any] = {"state": "working"}
        if self.go.is_set():
            said = {"kind": "message", "role": "agent", "messageId": "r", "parts": [_text("It rains.")]}
            status = {"state": "completed", "message": said}
        return {"kind": "task", "id": "t-1", "contextId": "c-1", "status": status}


def _text(text: str) -> dict[str, str]:
    return {"kind": "text", "text": text}


def _event(document: Any) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(document)


async def _begin(send: Any, kind: bytes, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _answer(send: Any, document: Any) -> None:
    await _begin(send, b"application/json", msgspec.json.encode(document))
    await send({"type": "http.response.body"})


@asynccontextmanager
async def serving(app: Any, port: int) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield
    finally:
        server.should_exit = True
        await task


@pytest.fixture
def port(tmp_path: Path) -> int:
    """Where the remote called `weather` is."""
    port = free_port()
    entry = {"url": f"http://127.0.0.1:{port}/", "allow_private": True}
    (tmp_path / "a2a_agents.json").write_bytes(msgspec.json.encode({"agents": {"weather": entry}}))
    return port


CALL = "/a2a call weather how is it?"


@pytest.mark.parametrize("streams", [True, False])
async def test_the_task_that_a_remote_has_is_followed_and_not_begun_again(
    tmp_path: Path, port: int, streams: bool
) -> None:
    remote = Remote(streams=streams)
    remote.url = f"http://127.0.0.1:{port}/"
    async with serving(remote, port):
        async with interrupted(tmp_path, CALL, lambda: has_child(tmp_path)) as request:
            done, before = asyncio.create_task(request.done()), remote.looked
            await until(lambda: remote.looked > before)
            remote.go.set()
            calls, answer = await done
        assert len(remote.messages) == 1
        assert "It rains." in answer and [each["ok"] for each in calls] == [True]


async def test_a_remote_that_has_not_named_its_task_is_not_sent_the_message_again(
    tmp_path: Path, port: int
) -> None:
    remote = Remote(silent=True)
    remote.url = f"http://127.0.0.1:{port}/"
    async with serving(remote, port):
        async with interrupted(tmp_path, CALL, lambda: remote.messages) as request:
            calls, answer = await request.done()
        assert len(remote.messages) == 1
        assert WORDS in answer and [each["interrupted"] for each in calls] == [True]
        remote.go.set()


class Listing:
    """An agent of somebody else's that speaks A2A 1.0 and says nothing until it is done, but lists the tasks it has."""

    def __init__(self, *, keeps: bool = True) -> None:
        self._keeps = keeps
        """What it was told is in the history of its tasks."""
        self.sent: list[Any] = []
        self.methods: list[str] = []
        self.go = asyncio.Event()
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            return await _answer(send, self._card())
        body = msgspec.json.decode((await receive())["body"])
        method, params = body["method"], body["params"]
        self.methods.append(method)
        answer = {"jsonrpc": "2.0", "id": body["id"]}
        if method == "SendStreamingMessage":
            self.sent.append(params["message"])
        if method == "ListTasks":
            other = {**self._task(), "id": "t-0", "history": [{**self.sent[0], "messageId": "another"}]}
            tasks = [other, self._task()]
            page = {"tasks": tasks, "nextPageToken": "", "pageSize": 50, "totalSize": len(tasks)}
            return await _answer(send, {**answer, "result": page})
        if method in ("GetTask", "CancelTask"):
            return await _answer(send, {**answer, "result": self._task()})
        if method != "SendStreamingMessage":
            await _begin(send, b"text/event-stream", _event({**answer, "result": {"task": self._task()}}))
        await self.go.wait()
        end = {"statusUpdate": {"taskId": "t-1", "contextId": "c-1", "status": self._task()["status"]}}
        if method == "SendStreamingMessage":
            await _begin(send, b"text/event-stream", _event({**answer, "result": {"task": self._task()}}))
        await send({"type": "http.response.body", "body": _event({**answer, "result": end})})

    def _card(self) -> dict[str, Any]:
        return {
            "name": "Weather",
            "description": "Knows the weather.",
            "version": "1",
            "supportedInterfaces": [
                {"url": self.url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            ],
            "capabilities": {"streaming": True},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [],
        }

    def _task(self) -> dict[str, Any]:
        status: dict[str, Any] = {"state": "TASK_STATE_WORKING"}
        if self.go.is_set():
            said = {"role": "ROLE_AGENT", "messageId": "r", "parts": [{"text": "It rains."}]}
            status = {"state": "TASK_STATE_COMPLETED", "message": said}
        return {
            "id": "t-1",
            "contextId": "c-1",
            "status": status,
            "history": self.sent if self._keeps else [],
        }


async def test_the_task_that_a_remote_has_not_named_is_found_among_those_it_lists(
    tmp_path: Path, port: int
) -> None:
    remote = Listing()
    remote.url = f"http://127.0.0.1:{port}/"
    async with serving(remote, port):
        async with interrupted(tmp_path, CALL, lambda: remote.sent) as request:
            done = asyncio.create_task(request.done())
            await until(lambda: "GetTask" in remote.methods)
            remote.go.set()
            calls, answer = await done
        assert len(remote.sent) == 1
        assert "It rains." in answer
        assert [(each["ok"], "interrupted" in each) for each in calls] == [(True, False)]


async def test_a_remote_task_without_history_is_not_taken_as_ours(tmp_path: Path, port: int) -> None:
    remote = Listing(keeps=False)
    remote.url = f"http://127.0.0.1:{port}/"
    async with serving(remote, port):
        async with interrupted(tmp_path, CALL, lambda: remote.sent) as request:
            calls, answer = await request.done()
        assert len(remote.sent) == 1 and "ListTasks" in remote.methods
        assert WORDS in answer and [each["interrupted"] for each in calls] == [True]
        remote.go.set()


async def test_a_dragoman_that_has_not_named_its_task_gets_the_message_again_and_does_it_once(
    tmp_path: Path, port: int
) -> None:
    weather, asked, go, ids = Agent("weather"), [], asyncio.Event(), []

    @weather.skill
    async def tell(text: str) -> str:
        asked.append(text)
        await go.wait()
        return "It rains."

    inner = weather.app(store="memory:")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Keeps the answers to the first message to itself."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await inner(scope, receive, send)
        event = await receive()
        ids.append(msgspec.json.decode(event["body"])["params"]["message"]["messageId"])
        first = [event]
        mute = len(ids) == 1

        async def hear() -> Any:
            return first.pop() if first else await receive()

        async def say(event: Any) -> None:
            if not mute:
                await send(event)

        await inner(scope, hear, say)

    async with serving(app, port):
        async with interrupted(tmp_path, CALL, lambda: asked) as request:
            done = asyncio.create_task(request.done())
            await until(lambda: len(ids) == 2)
            go.set()
            calls, answer = await done
        assert asked == ["how is it?"] and len(set(ids)) == 1
        assert "It rains." in answer and [each["ok"] for each in calls] == [True]


async def has_child(folder: Path) -> bool:
    """Whether the hub has written down which task the remote has."""
    return any("child {" in row for rows in (await rows_of(folder)).values() for row in rows)
