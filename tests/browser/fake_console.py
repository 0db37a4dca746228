"""A console whose answers a test writes: the operator API in memory, with the page's own files and headers.

The tests that follow a real agent use `dragoman serve --console`. This one is for what no agent would say, and for logs of any length.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

import dragoman.console
from tests.ports import free_port
from tests.waiting import until

PAGE = Path(dragoman.console.__file__).parent / "page"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
TIME = "2026-03-01T12:00:00.000Z"


def sse(event: str, data: Any, id: int | None = None) -> bytes:
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {event}\ndata: {json.dumps(data)}\n\n".encode()


def row(key: str = "k1", **more: Any) -> dict[str, Any]:
    return {
        "key": key, "id": f"task-{key}", "agent": "echo", "scope": "", "contextId": "ctx-1", "state": "TASK_STATE_WORKING",
        "created": TIME, "updated": TIME, "records": 0, "attempts": 1, "text": "hello", "node": "node-1", "leaseExpires": None,
        "question": None, **more,
    }  # fmt: skip


def record(seq: int, kind: str = "status", **more: Any) -> dict[str, Any]:
    return {
        "seq": seq, "time": TIME, "kind": kind, "private": False, "attempt": 1, "summary": f"summary {seq}", "data": {}, **more,
    }  # fmt: skip


class FakeConsole:
    """`async with FakeConsole() as fake:` serves the page at `fake.url`. Change its attributes to change its answers."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/console/"
        self.features = ["agents", "tasks", "webhooks", "audit", "talk", "inspect"]
        self.agents: list[dict[str, Any]] = [agent()]
        self.rows: list[dict[str, Any]] = []
        self.records: dict[str, Callable[[int], dict[str, Any]]] = {}
        self.last: dict[str, int] = {}
        self.grown = asyncio.Condition()
        self.task: dict[str, Any] = {}
        self.views: list[dict[str, Any]] = []
        self.webhooks: list[dict[str, Any]] = []
        self.catalogue: list[dict[str, Any]] = []
        self.registered: list[dict[str, Any]] = []
        self.audit: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.talk: list[tuple[str, Any]] = []
        self.inspected: dict[str, Any] = {}
        self.said: list[dict[str, Any]] = []
        self.tokens = {"good"}
        self.sessions = 0
        self.requests: list[str] = []
        self._streams: set[asyncio.Event] = set()

    async def __aenter__(self) -> FakeConsole:
        await self.start()
        return self

    async def start(self) -> None:
        api = [
            Route("/session", self.session, methods=["POST", "DELETE"]),
            Route("/me", self.me),
            Route("/agents", lambda r: self.json({"agents": self.agents})),
            Route("/nodes", lambda r: self.json({"nodes": []})),
            Route("/tasks", self.tasks),
            Route("/tasks/stream", self.tasks_stream),
            Route("/tasks/{key}", self.one_task),
            Route("/tasks/{key}/records", self.read_records),
            Route("/tasks/{key}/events", self.events),
            Route("/tasks/{key}/at/{n:int}", lambda r: self.json(self.task)),
            Route("/tasks/{key}/records/{n:int}/as", lambda r: self.json({"views": self.views})),
            Route("/webhooks", lambda r: self.json({"webhooks": self.webhooks})),
            Route("/audit", lambda r: self.json({"entries": self.audit, "next": None})),
            Route("/metrics", lambda r: self.json({"metrics": self.metrics})),
            Route("/talk", self.talk_to, methods=["POST"]),
            Route("/inspect", lambda r: self.json(self.inspected), methods=["POST"]),
            Route("/catalogue", self.search_catalogue, methods=["GET"]),
            Route("/catalogue", self.register, methods=["POST"]),
            Route("/catalogue/{name}", self.unregister, methods=["DELETE"]),
        ]
        app = Starlette(routes=[*(_under("/console/api", route) for route in api)])
        app.mount("/console", StaticFiles(directory=PAGE, html=True))

        async def with_headers(scope: Any, receive: Any, send: Any) -> None:
            async def sending(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [
                        *message["headers"],
                        *((k.encode(), v.encode()) for k, v in HEADERS.items()),
                    ]
                await send(message)

            if scope["type"] == "http":
                self.requests.append(scope["path"])
            await app(scope, receive, sending)

        config = uvicorn.Config(
            with_headers, port=self.port, log_level="error", lifespan="off", timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)
        self.server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._serving = asyncio.create_task(self.server.serve())
        await until(lambda: self.server.started)

    async def stop(self) -> None:
        """End it, with its streams: the port stays its own."""
        for ended in self._streams:
            ended.set()
        self.server.should_exit = True
        await self._serving

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @staticmethod
    def json(data: Any, status: int = 200) -> Response:
        return Response(json.dumps(data), status, media_type="application/json")

    def refuse(self, status: int, code: str) -> Response:
        return self.json({"error": {"code": code, "message": f"refused: {code}"}}, status)

    async def session(self, request: Request) -> Response:
        if request.method == "DELETE":
            response = Response(status_code=204)
            response.delete_cookie("dragoman_console", path="/console")
            return response
        token = (await request.json()).get("token")
        if token not in self.tokens:
            return self.refuse(401, "UNAUTHENTICATED")
        self.sessions += 1
        response = Response(status_code=204)
        response.set_cookie("dragoman_console", "yes", path="/console", httponly=True, samesite="strict")
        return response

    async def me(self, request: Request) -> Response:
        if request.cookies.get("dragoman_console") != "yes":
            return self.refuse(401, "UNAUTHENTICATED")
        return self.json(
            {
                "role": "operator",
                "tenant": None,
                "kind": "server",
                "version": "1.2",
                "features": self.features,
            }
        )

    async def search_catalogue(self, request: Request) -> Response:
        text = request.query_params.get("text", "").lower()
        found = [each for each in self.catalogue if text in json.dumps(each).lower()]
        return self.json({"agents": found, "total": len(found)})

    async def register(self, request: Request) -> Response:
        body = await request.json()
        self.registered.append(body)
        if "refused" in body["url"]:
            return self.refuse(409, "CONFLICT")
        self.catalogue.append(listed(name=body["name"] or "new", title="New one", kind="registered"))
        return self.json(self.catalogue[-1], 201)

    async def unregister(self, request: Request) -> Response:
        name = request.path_params["name"]
        self.catalogue = [each for each in self.catalogue if each["name"] != name]
        return Response(status_code=204)

    async def tasks(self, request: Request) -> Response:
        counts: dict[str, int] = {}
        for each in self.rows:
            counts[each["state"]] = counts.get(each["state"], 0) + 1
        state = request.query_params.get("state")
        rows = [each for each in self.rows if not state or each["state"] == state]
        return self.json({"tasks": rows, "next": None, "counts": counts})

    async def _stream(self, chunks: AsyncIterator[bytes]) -> Response:
        ended = asyncio.Event()
        self._streams.add(ended)

        async def until_ended() -> AsyncIterator[bytes]:
            yield b": hello\n\n"
            stop = asyncio.create_task(ended.wait())
            step: asyncio.Future[bytes | None] | None = None
            try:
                while True:
                    step = asyncio.ensure_future(anext(chunks, None))
                    await asyncio.wait({step, stop}, return_when=asyncio.FIRST_COMPLETED)
                    if not step.done() or (chunk := step.result()) is None:
                        return
                    yield chunk
            finally:
                stop.cancel()
                if step is not None:
                    step.cancel()
                self._streams.discard(ended)

        return StreamingResponse(until_ended(), media_type="text/event-stream")

    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    async def tasks_stream(self, request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        return await self._stream(chunks())

    def _row(self, key: str) -> dict[str, Any]:
        return next(each for each in self.rows if each["key"] == key)

    async def one_task(self, request: Request) -> Response:
        return self.json(
            {
                **self._row(request.path_params["key"]),
                "task": self.task,
                "webhooks": [],
                "children": [],
                "parent": None,
            }
        )

    async def read_records(self, request: Request) -> Response:
        key = request.path_params["key"]
        after, limit = int(request.query_params.get("after", 0)), int(request.query_params.get("limit", 500))
        last = self.last.get(key, 0)
        found = [self.records[key](seq) for seq in range(after + 1, min(after + limit, last) + 1)]
        return self.json(
            {"records": found, "last": found[-1]["seq"] if found else after, "more": after + limit < last}
        )

    async def append(self, key: str, n: int = 1) -> None:
        async with self.grown:
            self.last[key] += n
            self.grown.notify_all()

    async def events(self, request: Request) -> Response:
        key = request.path_params["key"]
        after = int(request.query_params.get("after", 0))

        async def chunks() -> AsyncIterator[bytes]:
            at = after
            while True:
                async with self.grown:
                    await self.grown.wait_for(lambda at=at: self.last.get(key, 0) > at)  # type: ignore[misc]
                while at < self.last[key]:
                    at += 1
                    yield sse("message", self.records[key](at), at)

        return await self._stream(chunks())

    async def talk_to(self, request: Request) -> Response:
        self.said.append(await request.json())

        async def chunks() -> AsyncIterator[bytes]:
            for event, data in self.talk:
                yield sse(event, data)

        return await self._stream(chunks())


def _under(prefix: str, route: Route) -> Route:
    return Route(prefix + route.path, route.endpoint, methods=sorted((route.methods or {"GET"}) - {"HEAD"}))


def listed(**more: Any) -> dict[str, Any]:
    """An agent of the catalogue."""
    skills = [{"id": "refund", "name": "Refund an order"}]
    return {
        "name": "refunds", "title": "Refunds", "kind": "agent", "tenant": "", "url": "http://127.0.0.1:8000/refunds",
        "card": "http://127.0.0.1:8000/refunds/.well-known/agent-card.json", "private": False, "health": {"state": "up"},
        "signature": "valid", "description": {"name": "Refunds", "description": "Returns money", "version": "1.4", "skills": skills},
        "added": "", "score": None, **more,
    }  # fmt: skip


def agent(**more: Any) -> dict[str, Any]:
    skills = [
        {
            "id": "echo",
            "name": "Echo",
            "description": "Says it again",
            "tags": ["text"],
            "examples": ["hello"],
        }
    ]
    return {
        "id": "echo", "name": "Echo", "description": "Says what you say", "path": "/echo", "url": "http://127.0.0.1:8000/echo",
        "card": {"name": "Echo", "description": "Says what you say", "version": "1.0", "skills": skills,
                 "capabilities": {"streaming": True}, "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"]},
        "skills": skills, "interfaces": [{"url": "http://127.0.0.1:8000/echo", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "counts": {}, "running": 0, "error": None, **more,
    }  # fmt: skip
