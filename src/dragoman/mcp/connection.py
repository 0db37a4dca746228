"""Connections to servers of the Model Context Protocol: the tools of agents and the hub's `/mcp` use them.

A server is a command, which runs as a process and communicates over stdin and stdout, or a URL. Both come from the operator's code or
configuration, never from a message, a card or a tenant. A process gets only basic environment variables and those of its settings.

`McpPool` has one connection for each key. It connects when a server is first used, and again when the server has died. This module never
repeats a call: only its callers know whether a tool may be called twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Annotated, Any, Protocol, TypeVar

from msgspec import Meta, Struct

from dragoman.client.transport.network import AddressGuard
from dragoman.engine.tools import Tool
from dragoman.errors import A2AError, Unreachable
from dragoman.observe.logs import describe
from dragoman.observe.terminal import one_line, sanitize

T = TypeVar("T")

logger = logging.getLogger("dragoman.mcp")

MAX_RESPONSE_BYTES = 16 << 20
"""Bytes of one answer over HTTP, or of one event of a stream."""
MAX_TOOLS = 1000
MAX_TOOL_PAGES = 20
"""Pages of tools that are read."""
MAX_NAME_CHARACTERS = 128
MAX_DESCRIPTION_CHARACTERS = 4000
MAX_SCHEMA_CHARACTERS = 100_000
MAX_STDERR_LINES = 20
"""The last lines of a process's stderr, which are logged when it fails."""
TOOLS_SECONDS = 60.0
"""How long a list of tools is used before the server is asked again."""
ABANDONED_SECONDS = 30.0
"""How long a server may still work on a call that was canceled."""
PROBE_SECONDS = 5.0
"""How long a server that did not answer a call in time may take to answer a probe."""
CLOSE_SECONDS = 5.0
NOT_SENT, NOT_ANSWERED = -32098, -32097
"""Error codes that `http_client.py` uses: the request was not sent; it was sent, and its answer cannot be read."""
_CONNECTION_CLOSED, _PARSE_ERROR = -32000, -32700
_INVALID_REQUEST, _HEADER_MISMATCH = -32600, -32020
"""Error codes: a session that the server has forgotten, a tool whose schema is stale."""


class McpServer(Struct, frozen=True, kw_only=True):
    """One server: a command, or a URL."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    init_timeout_ms: Annotated[int, Meta(gt=0)] = 60_000
    call_timeout_ms: Annotated[int, Meta(gt=0)] = 30_000
    legacy: bool = False
    """Do not ask first whether the server speaks MCP of 2026-07-28."""


class NoAnswer(Unreachable):
    """The request was sent, and no answer came: the server may have executed it."""


class NotDone(Unreachable):
    """The request was not sent, or the server refused it without executing it."""


class ElicitableCall(Protocol):
    """A call whose server may ask questions."""

    @property
    def is_asking(self) -> bool:
        """A question of the server waits for its answer."""
        ...

    async def answer_server(self, params: Any) -> Any:
        """The library's `ElicitResult` for its `ElicitRequestParams`."""
        ...


class McpConnection:
    """A client in its own asyncio task, because the library must open and close it in the same task.

    `elicits`: the server may ask questions (elicitation), which go to the call that it works on. Otherwise the client does not offer
    that. It never offers a model to the server (sampling).
    """

    def __init__(
        self,
        name: str,
        server: McpServer,
        *,
        idle: float | None = None,
        guard: AddressGuard | None = None,
        elicits: bool = False,
    ) -> None:
        self.name = name
        self.calls: list[ElicitableCall] = []
        """The calls that wait for an answer."""
        self._abandoned_at = float("-inf")
        self.maybe_stuck = False
        """A call was not answered in time: `McpPool` probes the server before the next one."""
        self._server, self._idle, self._guard, self._elicits = server, idle, guard, elicits
        self._client_ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._users = 0
        self._use_changed = asyncio.Event()
        self._tools: tuple[float, list[Tool]] | None = None
        self._stderr: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self._task = asyncio.create_task(self._run(), name=f"mcp-{name}")

    @property
    def is_closed(self) -> bool:
        return self._task.done() or self._stop.is_set()

    @property
    def ended(self) -> asyncio.Task[None]:
        """Done when the connection has ended."""
        return self._task

    @property
    def client(self) -> Any:
        """The library's client."""
        return self._client_ready.result()

    async def ready(self) -> None:
        """Wait until the server answers. Raises `Unreachable`."""
        try:
            async with asyncio.timeout(self._server.init_timeout_ms / 1000):
                await asyncio.shield(self._client_ready)
        except TimeoutError:
            self._stop.set()
            self._task.cancel()
            raise Unreachable(f"the MCP server {self.name!r} did not start in time") from None

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """The connection is not idle inside this block."""
        self._users += 1
        self._use_changed.set()
        try:
            yield
        finally:
            self._users -= 1
            self._use_changed.set()

    async def await_answer(self, request: Awaitable[T], seconds: float | None = None) -> T:
        """Await an answer for `seconds`, or for the server's timeout. The wait ends when the server dies.

        Raises `Unreachable` with the server's message if it answered with an error, `NoAnswer` if it did not answer.
        """
        work = asyncio.ensure_future(request)
        try:
            done, _ = await asyncio.wait(
                [work, self._task],
                timeout=seconds if seconds is not None else self._server.call_timeout_ms / 1000,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if work not in done:
                if self._task in done:
                    raise NoAnswer(f"the MCP server {self.name!r} died")
                self.maybe_stuck = True
                raise NoAnswer(f"the MCP server {self.name!r} did not answer in time")
            return work.result()
        except A2AError:
            raise
        except Exception as error:  # the library's and the server's own
            raise self.to_unreachable(error) from error
        finally:
            if not work.done():
                work.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await work

    def to_unreachable(self, error: Exception) -> Unreachable:
        """The A2A error for an error of the library. If the connection is broken, the next use connects again."""
        logger.info("the MCP server %s failed: %s", self.name, describe(error))
        code = getattr(getattr(error, "error", None), "code", None)
        kind: type[Unreachable] = Unreachable
        if code is None:
            self._stop.set()
            kind = NoAnswer
        elif code in (_CONNECTION_CLOSED, _PARSE_ERROR, NOT_ANSWERED):  # it may be this one request alone
            self.maybe_stuck = True
            kind = NoAnswer
        elif code == NOT_SENT:
            kind = NotDone
        elif code == _INVALID_REQUEST and "session" in str(error).lower():  # the server was restarted
            self._stop.set()
            kind = NotDone
        elif code == _HEADER_MISMATCH:  # the tool has another schema now
            self._tools = None
            kind = NotDone
        return kind(f"the MCP server {self.name!r} failed: {one_line(str(error))[:300]}")

    def note_abandoned_call(self) -> None:
        """Remember that a call was canceled just now: the server may still work on it, and ask questions about it."""
        self._abandoned_at = asyncio.get_running_loop().time()

    async def probe(self) -> None:
        """After a call that was not answered in time: close the connection if the server does not answer a list of tools either."""
        self.maybe_stuck, self._tools = False, None
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self.tools()
        except (A2AError, TimeoutError):
            self._stop.set()

    async def tools(self) -> list[Tool]:
        """The tools of the server. A list that is a minute old, or that the server says has changed, is asked for again.

        Raises `A2AError`.
        """
        now = asyncio.get_running_loop().time()
        if self._tools is not None and now - self._tools[0] < TOOLS_SECONDS:
            return self._tools[1]
        found: dict[str, Tool] = {}
        async with self.in_use():
            page, cursor = 0, None
            while page == 0 or (cursor and page < MAX_TOOL_PAGES and len(found) < MAX_TOOLS):
                some = await self.await_answer(self.client.list_tools(cursor=cursor))
                for each in some.tools:
                    if (tool := self._read_tool(each)) is not None:
                        found.setdefault(tool.name, tool)
                page, cursor = page + 1, some.next_cursor
        tools = list(found.values())[:MAX_TOOLS]
        self._tools = now, tools
        return tools

    def _read_tool(self, tool: Any) -> Tool | None:
        """A tool as its server describes it. Names and texts are put on one line and cut."""
        name = tool.name
        if not name or len(name) > MAX_NAME_CHARACTERS or not name.isprintable() or " " in name:
            logger.warning("the MCP server %s has a tool whose name cannot be used: %.80r", self.name, name)
            return None
        schema, output = tool.input_schema or {}, tool.output_schema
        if max(len(str(schema)), len(str(output))) > MAX_SCHEMA_CHARACTERS:
            logger.warning("the MCP server %s: the schema of the tool %s is too large", self.name, name)
            return None
        hints = tool.annotations
        title = tool.title or (hints.title if hints is not None else "") or ""
        return Tool(
            name=name,
            original=name,
            server=self.name,
            title=one_line(title)[:MAX_NAME_CHARACTERS],
            description=sanitize(tool.description or "")[:MAX_DESCRIPTION_CHARACTERS],
            input_schema=schema,
            output_schema=output,
            read_only=hints is not None and bool(hints.read_only_hint),
            idempotent=hints is not None and bool(hints.idempotent_hint),
            destructive=hints is None or not (hints.read_only_hint or hints.destructive_hint is False),
        )

    async def close(self) -> None:
        self._stop.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.wait([self._task])
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            async with self._client() as client:
                self._client_ready.set_result(client)
                await self._until_idle()
        except Exception as error:  # whatever the library meets
            last = f" (last line of its stderr: {self._stderr[-1]})" if self._stderr else ""
            logger.info("the MCP server %s ended: %s%s", self.name, describe(_innermost(error)), last)
        finally:
            self._stop.set()
            if not self._client_ready.done():
                self._client_ready.set_exception(
                    Unreachable(f"the MCP server {self.name!r} could not be started")
                )
                self._client_ready.exception()  # marks it as retrieved, in case nobody waits any more

    async def _until_idle(self) -> None:
        while not self._stop.is_set():
            self._use_changed.clear()
            waits = [
                asyncio.ensure_future(self._stop.wait()),
                asyncio.ensure_future(self._use_changed.wait()),
            ]
            done, _ = await asyncio.wait(waits, timeout=self._idle, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if not done and not self._users:
                return

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        from mcp import Client

        server = self._server
        transport = self._process() if server.command else self._http()
        more = {"elicitation_callback": self._on_elicit} if self._elicits else {}
        reporting = _report_end(transport, self._stop.set)
        mode = "legacy" if server.legacy else "auto"
        async with Client(
            reporting, message_handler=self._on_message, cache=None, mode=mode, **more
        ) as client:
            yield client

    async def _on_elicit(self, context: Any, params: Any) -> Any:
        """Forward a question to the call that it belongs to.

        The protocol does not say which call that is. It is not one that already waits for an answer. If several calls remain, or one
        was canceled a moment ago, the question could reach the wrong caller. Then it is canceled.
        """
        from mcp.types import ElicitResult

        abandoned = asyncio.get_running_loop().time() - self._abandoned_at < ABANDONED_SECONDS
        working = [call for call in self.calls if not call.is_asking]
        if len(working) == 1 and not abandoned:
            return await working[0].answer_server(params)
        logger.warning("the MCP server %s asked a question that may belong to several calls", self.name)
        return ElicitResult(action="cancel")

    async def _on_message(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._tools = None

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[Any]:
        """The streams of a process. The last lines of its stderr are kept."""
        from mcp import StdioServerParameters, stdio_client

        server = self._server
        parameters = StdioServerParameters(
            command=server.command,
            args=list(server.args),
            env=server.env,
            encoding_error_handler="replace",
        )
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(reader, self._read_stderr, reader)
        try:
            async with AsyncExitStack() as running:
                with os.fdopen(writer, "w") as errors:
                    streams = await running.enter_async_context(stdio_client(parameters, errlog=errors))
                yield streams
        finally:
            loop.remove_reader(reader)
            self._read_stderr(reader)
            os.close(reader)

    def _read_stderr(self, reader: int) -> None:
        try:
            raw = os.read(reader, 65_536)
        except (BlockingIOError, OSError):
            return
        if not raw:
            asyncio.get_running_loop().remove_reader(reader)
            return
        for line in raw.decode(errors="replace").splitlines():
            if line := one_line(line)[:300]:
                self._stderr.append(line)
                logger.debug("the MCP server %s: %s", self.name, line)

    @asynccontextmanager
    async def _http(self) -> AsyncIterator[Any]:
        from mcp.client import streamable_http

        from dragoman.mcp.http_client import open_http

        server = self._server
        async with (
            open_http(server.headers, self._guard, MAX_RESPONSE_BYTES) as http,
            streamable_http.streamable_http_client(
                server.url, http_client=http, max_sse_event_size=MAX_RESPONSE_BYTES
            ) as streams,
        ):
            yield streams


def _innermost(error: BaseException) -> BaseException:
    """The first error in groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def _report_end(transport: Any, ended: Callable[[], None]) -> AsyncIterator[Any]:
    """A transport that reports its end, so that the next use connects again instead of calling a dead server."""
    async with transport as (read, write):
        yield _EndReportingStream(read, ended), write


class _EndReportingStream:
    """A stream to read from that calls `ended` at its end."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream, self._ended = stream, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except Exception:
            self._ended()
            raise

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except (StopAsyncIteration, Exception):
            self._ended()
            raise

    async def __aenter__(self) -> Any:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


class McpPool:
    """The connections of one event loop, one for each key."""

    def __init__(self, *, idle: float | None = None) -> None:
        """`idle`: seconds after which a connection that nobody uses is closed; None: never."""
        self._idle = idle
        self._open: dict[Hashable, McpConnection] = {}
        self._users: dict[Hashable, int] = {}

    async def connect(
        self,
        key: Hashable,
        name: str,
        server: McpServer,
        *,
        guard: AddressGuard | None = None,
        elicits: bool = False,
    ) -> McpConnection:
        """The connection for `key`. A new one if there is none, or if its server has died. Raises `A2AError`."""
        connection = self._open.get(key)
        if connection is not None and connection.maybe_stuck:
            await connection.probe()
        if connection is None or connection.is_closed:
            connection = self._open[key] = McpConnection(
                name, server, idle=self._idle, guard=guard, elicits=elicits
            )
        await connection.ready()
        return connection

    def retain(self, key: Hashable) -> None:
        """Count a user of `key`: its connection stays open until all users have released it."""
        self._users[key] = self._users.get(key, 0) + 1

    async def release(self, key: Hashable) -> None:
        """Release `key`. The last user closes the connection."""
        self._users[key] = self._users.get(key, 1) - 1
        if self._users[key] <= 0:
            del self._users[key]
            if (connection := self._open.pop(key, None)) is not None:
                await connection.close()

    async def close(self) -> None:
        opened, self._open = list(self._open.values()), {}
        for connection in opened:
            await connection.close()
