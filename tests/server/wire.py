"""An ASGI client that sees every message, and a service that says what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from dragoman.dialects.sse import Frame, SseReader
from dragoman.errors import TaskNotFound
from dragoman.model.card import AgentCard, Capabilities, Extension, Skill
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ops import Batch, Call, GetOrigin, Request, StreamResponse
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus
from dragoman.server.app import App
from dragoman.server.mount import Mount

CARD = AgentCard(
    name="Hello",
    description="Says hello",
    version="1.2.3",
    capabilities=Capabilities(streaming=True, extensions=(Extension(uri="https://ext.example/a"),)),
    skills=(Skill(id="hello", name="hello", description="Greets", tags=("greeting",)),),
)

HELLO = {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}


class Answer:
    """A response that may still be coming."""

    def __init__(self, app: Any, scope: dict[str, Any], pieces: list[bytes]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.sends: list[bytes] = []
        self.gone = asyncio.Event()
        self.finished = False
        self.blocked: asyncio.Event | None = None
        """When set, sending waits for it, as it does on a connection that is not read."""
        self.patience = 30.0
        """How long `end` waits."""
        self.unread = pieces
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: Any, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            self._news.set()

    async def _receive(self) -> dict[str, Any]:
        if self.unread:
            piece = self.unread.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.unread)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        assert not self.finished, "sent after the end"
        if self.blocked is not None:
            await self.blocked.wait()
        if message["type"] == "http.response.start":
            assert not self.status, "started twice"
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            assert self.status
            self.sends.append(message.get("body", b""))
            self.finished = not message.get("more_body", False)
        self._news.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.sends)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def frames(self) -> list[Frame]:
        reader = SseReader()
        return reader.feed(self.body) + reader.end()

    def results(self) -> list[Any]:
        return [msgspec.json.decode(frame.data)["result"] for frame in self.frames()]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                self._news.clear()
                await self._news.wait()
                if self.task.done() and not true():
                    self.task.result()
                    raise AssertionError(f"it never came: {self.status} {self.body!r}")

    async def end(self) -> Answer:
        """Wait until the application is done with the request."""
        async with asyncio.timeout(self.patience):
            await self.task
        return self


def open_request(
    app: Any,
    method: str,
    path: str,
    *pieces: bytes,
    headers: Mapping[str, str] | None = None,
    query: str = "",
    client: tuple[str, int] | None = ("127.0.0.1", 50000),
    root_path: str = "",
) -> Answer:
    given = {"host": "agents.example", **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": root_path,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
        "client": client,
        "server": ("127.0.0.1", 8000),
    }
    return Answer(app, scope, list(pieces) or [b""])


async def request(app: Any, method: str, path: str, *pieces: bytes, **more: Any) -> Answer:
    return await open_request(app, method, path, *pieces, **more).end()


def envelope(method: str, params: Any = None, id: Any = 1) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})


async def rpc(
    app: Any, method: str, params: Any = None, *, id: Any = 1, path: str = "/", **more: Any
) -> Answer:
    return await request(app, "POST", path, envelope(method, params, id), **more)


def open_rpc(app: Any, method: str, params: Any = None, *, id: Any = 1, **more: Any) -> Answer:
    return open_request(app, "POST", "/", envelope(method, params, id), **more)


def task(state: TaskState = TaskState.COMPLETED, id: str = "t1") -> Task:
    return Task(id=id, context_id="c1", status=TaskStatus(state=state))


def status(state: TaskState, seq: int = 0) -> StreamResponse:
    return StreamResponse(StatusUpdate(task_id="t1", context_id="c1", status=TaskStatus(state=state)), seq)


def chunk(text: str, seq: int = 0) -> StreamResponse:
    artifact = Artifact(artifact_id="a1", parts=(Part(text=text),))
    return StreamResponse(
        ArtifactUpdate(task_id="t1", context_id="c1", artifact=artifact, append=seq > 1), seq
    )


def reply(text: str) -> Message:
    return Message(message_id="r1", role=Role.AGENT, context_id="c1", parts=(Part(text=text),))


class Scripted:
    """A `Service`. It keeps what it was asked, and answers with `result` and `batches`; an exception is raised."""

    def __init__(self, *batches: Any, result: Any = None, origin: str = "") -> None:
        self.calls: list[tuple[Call, Request]] = []
        self.batches: list[Any] = list(batches)
        self.result = result if result is not None else task()
        self.origin = origin
        self.hold: asyncio.Event | None = None
        """When set, a stream waits for it after the batches."""
        self.then: Exception | None = None
        """What it fails with after that."""
        self.closed = asyncio.Event()

    async def call(self, call: Call, request: Request) -> Any:
        if isinstance(request, GetOrigin):
            return self.origin
        self.calls.append((call, request))
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    async def stream(self, call: Call, request: Request) -> AsyncIterator[Batch]:
        self.calls.append((call, request))
        try:
            for batch in self.batches:
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
            if self.hold is not None:
                await self.hold.wait()
            if self.then is not None:
                raise self.then
        finally:
            self.closed.set()


def app_of(service: Any = None, **more: Any) -> App:
    names = {"versions", "authenticator", "only", "agent", "card"}
    mount = {name: more.pop(name) for name in list(more) if name in names}
    return App([Mount(service=service or Scripted(), **{"card": CARD, "agent": "hello", **mount})], **more)


async def unknown(call: Call, request: Request) -> Any:
    raise TaskNotFound(getattr(request, "id", ""))
