"""`mcp(...)`: the tools of an MCP server for the turns of an agent.

    agent = Agent("Clerk", tools=[mcp("npx -y @modelcontextprotocol/server-memory"), mcp("https://mcp.example.com/mcp")])

A call goes through these stages, and each leaves what the next run of the turn needs in the task's log: the arguments are
checked, the caller approves (`turn.approve`), the call begins (`begun/...`, for tools that may not be repeated), the server may ask
(`turn.ask`), the outcome is recorded.

A server asks in two ways. In MCP of 2026-07-28 its answer to a call says what it needs, and the call is sent again with that: this
survives a restart. In older versions it asks while the call goes on. Then the call stays open in this process while the task
waits (`_open_calls`). If the process ends meanwhile, the call is begun again, or, if the tool may not be repeated, fails.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.client.transport.network import AddressGuard
from dragoman.engine.recorded import Parked, Recorded, digest
from dragoman.engine.tools import Tool, ToolOutcome
from dragoman.errors import A2AError, ToolFailed, Unreachable
from dragoman.mcp.connection import McpConnection, McpPool, McpServer, NoAnswer, NotDone
from dragoman.mcp.content import DEFAULT_MAX_RESULT, read_result
from dragoman.mcp.questions import Elicited, ask_caller
from dragoman.mcp.schema import check_value
from dragoman.model.questions import Approval
from dragoman.model.task import TaskState
from dragoman.observe.terminal import one_line, sanitize

logger = logging.getLogger("dragoman.mcp")

MAX_INPUT_ROUNDS = 20
"""How often a server may ask for more before one call ends."""
MAX_OPEN_CALLS = 1000
"""Calls that stay open while their tasks wait for an answer."""
ANSWER_SECONDS = 600.0
"""How long a call stays open for an answer, unless `mcp(answer_timeout=)` says otherwise."""
PROGRESS_SECONDS, MAX_PROGRESS = 0.2, 500
"""How often the progress of a call becomes a status update, and how many times at most."""
_LAUNCHERS = {
    "npx",
    "uvx",
    "bunx",
    "pipx",
    "uv",
    "npm",
    "pnpm",
    "yarn",
    "node",
    "deno",
    "bun",
    "python",
    "python3",
}
_URL_ELICITATION = -32042
"""MCP's error code for a page that must be visited first."""

Approve = bool | str | Callable[[Tool, dict[str, Any]], Any]


def mcp(
    server: str | Sequence[str],
    *,
    name: str = "",
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    prefix: str | None = None,
    only: str | Sequence[str] = (),
    approve: Approve = False,
    repeatable: bool | Sequence[str] | None = None,
    timeout: float = 60.0,
    start_timeout: float = 60.0,
    elicit: bool = True,
    answer_timeout: float = ANSWER_SECONDS,
    max_result: int = DEFAULT_MAX_RESULT,
    guard: AddressGuard | None = None,
    legacy: bool = False,
) -> McpTools:
    """An MCP server for `Agent(tools=[...])`: a command line (or its words), or a URL.

    `name`: what its tools are called after if the agent has several servers; `prefix` says otherwise. `env`: variables for the
    process, which gets only basic ones. `headers`: for a URL, such as `Authorization`. `only`: names of the tools to use (`read_*`).

    `approve`: which calls the caller is asked about first: True (all), "destructive" (those that are not declared harmless), or a function
    of the tool and the arguments. `repeatable`: which tools may be called again if a crash leaves it open whether they ran: all,
    none, or some names. By default those that the server declares read-only or idempotent.

    `timeout`: seconds that a call may take; `start_timeout`: seconds that the server may take to start. `elicit`: the server may ask
    the caller questions; `answer_timeout`: seconds that a call stays open for the answer. `max_result`: characters of a result that
    are kept. `guard`: checks the address of a URL (`dragoman.push.Guard`). `legacy`: do not ask the server first whether it speaks MCP of
    2026-07-28; for servers that do not answer unknown methods. Raises `ModuleNotFoundError` without the extra `mcp`.
    """
    if find_spec("mcp") is None:
        raise ModuleNotFoundError("mcp(...) needs the MCP library: pip install 'dragoman[mcp]'", name="mcp")
    if approve not in (True, False, "destructive") and not callable(approve):
        raise ValueError(f'approve= is True, False, "destructive" or a function, not {approve!r}')
    url = server if isinstance(server, str) and server.startswith(("http://", "https://")) else ""
    words = [] if url else shlex.split(server) if isinstance(server, str) else list(server)
    if not url and (not words or "://" in words[0]):
        raise ValueError(f"an MCP server is a command line, or an http or https URL, not {server!r}")
    if url and env:
        raise ValueError("env= is for a command; a URL takes headers=")
    if not url and (headers or guard is not None):
        raise ValueError("headers= and guard= are for a URL; a command takes env=")
    settings = McpServer(
        command=words[0] if words else "",
        args=tuple(words[1:]),
        env=dict(env or {}),
        url=url,
        headers=dict(headers or {}),
        init_timeout_ms=max(1, int(start_timeout * 1000)),
        call_timeout_ms=max(1, int(timeout * 1000)),
        legacy=legacy,
    )
    return McpTools(
        name or _name_of(url, words),
        settings,
        prefix=prefix,
        only=(only,) if isinstance(only, str) else tuple(only),
        approve=approve,
        repeatable=repeatable
        if repeatable is None or isinstance(repeatable, bool)
        else frozenset(repeatable),
        elicit=elicit,
        answer_timeout=answer_timeout,
        max_result=max_result,
        guard=guard,
    )


def _name_of(url: str, words: Sequence[str]) -> str:
    """A name for a server: `memory` for `npx -y @modelcontextprotocol/server-memory`."""
    if url:
        labels = [label for label in (urlsplit(url).hostname or "").split(".") if label not in ("mcp", "www")]
        found = labels[0] if labels and not labels[0].isdigit() else ""
    else:
        named = (word for word in words if not word.startswith("-") and word not in ("run", "exec", "x"))
        found = next((each for word in named if (each := _base(word)) not in _LAUNCHERS), "")
    found = re.sub(r"^(mcp-)?server-|-mcp$|-server$|^mcp-", "", found)
    return re.sub(r"[^A-Za-z0-9_-]+", "-", found).strip("-")[:40] or "mcp"


def _base(word: str) -> str:
    """`server-memory` for `@modelcontextprotocol/server-memory@1.2` and `/opt/server-memory.py`."""
    return re.sub(r"(?<=.)@[^/]*$|\.(py|js|mjs|ts|exe)$", "", word.rstrip("/").rpartition("/")[2])


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, McpPool] = WeakKeyDictionary()
"""One connection to each server for all agents of a process."""


class ServerDescription(Struct, frozen=True, kw_only=True):
    """What a server says about itself."""

    tools: tuple[Tool, ...] = ()
    version: str = ""
    instructions: str = ""


class McpTools:
    """The tools of one MCP server. `mcp(...)` makes it."""

    def __init__(
        self,
        name: str,
        settings: McpServer,
        *,
        prefix: str | None,
        only: tuple[str, ...],
        approve: Approve,
        repeatable: bool | frozenset[str] | None,
        elicit: bool,
        answer_timeout: float,
        max_result: int,
        guard: AddressGuard | None,
    ) -> None:
        self.name, self.prefix = name, prefix
        self._settings, self._only, self._approve, self._repeatable = settings, only, approve, repeatable
        self._elicit, self._answer_timeout, self._max_result = elicit, answer_timeout, max_result
        self._guard = guard
        self._key = msgspec.json.encode(settings), elicit, id(guard) if guard is not None else 0
        self._open_calls: dict[tuple[str, int, str], _Call] = {}
        """Calls whose tasks wait for an answer, by task, turn and key."""

    def __repr__(self) -> str:
        return f"mcp({self._settings.url or self._settings.command!r}, name={self.name!r})"

    def open(self) -> None:
        _pool().retain(self._key)

    async def close(self) -> None:
        for call in self._open_calls.values():
            await call.give_up()
        self._open_calls.clear()
        await _pool().release(self._key)

    async def tools(self) -> list[Tool]:
        """Raises `A2AError`."""
        return self._used(await (await self._connect()).tools())

    async def look(self) -> ServerDescription:
        """What the server says about itself, on a connection for this alone. Raises `A2AError`."""
        pool = McpPool()
        try:
            connection = await self._connect(pool)
            found = await connection.tools()
            about, instructions = connection.client.server_info, connection.client.instructions
        finally:
            await pool.close()
        return ServerDescription(
            tools=tuple(self._used(found)),
            version=one_line(about.version)[:40] if about is not None else "",
            instructions=sanitize(instructions or "")[:1000],
        )

    def _used(self, found: Sequence[Tool]) -> list[Tool]:
        """The tools that are wanted. Their connection may be that of a server with another name here."""
        return [
            replace(tool, server=self.name)
            for tool in found
            if not self._only or any(fnmatchcase(tool.name, pattern) for pattern in self._only)
        ]

    def may_repeat(self, tool: Tool) -> bool:
        """True if a call may be made again when nobody knows whether it was made."""
        if self._repeatable is None:
            return tool.read_only or tool.idempotent
        return self._repeatable if isinstance(self._repeatable, bool) else tool.original in self._repeatable

    async def _connect(self, pool: McpPool | None = None) -> McpConnection:
        """Raises `A2AError`."""
        options: dict[str, Any] = {"guard": self._guard, "elicits": self._elicit}
        return await (pool or _pool()).connect(self._key, self.name, self._settings, **options)

    # -- one call ----------------------------------------------------------------------------------------------

    async def call(
        self, record: Recorded, tool: Tool, arguments: dict[str, Any], key: str, trace: dict[str, str]
    ) -> ToolOutcome:
        """Call `tool` for a turn. Raises `ToolFailed` if nothing was sent, `Parked` if the caller is asked."""
        self.check_arguments(tool, arguments)
        if await self._wants_approval(tool, arguments):
            question = f"May the tool {tool.original!r} of {self.name!r} be called?"
            details = {"tool": tool.original, "server": self.name, "arguments": arguments}
            answer = await record.ask(
                TaskState.INPUT_REQUIRED, question, Approval, f"{key}/approve", {}, details
            )
            if not answer:
                return self._failure(tool, "declined", "was not approved", answer.comment)
        place = record.task_id, record.n, key
        call = self._open_calls.pop(place, None) or _Call(self, record, tool, arguments, key, trace)
        call.record = record
        try:
            return await call.run()
        except BaseException as error:
            parked = isinstance(error, Parked) or (
                # another part of the turn asks, and this one is cancelled with it
                isinstance(error, asyncio.CancelledError)
                and record.parked is not None
                and not record.cancelled
            )
            if parked and call.is_open:
                await self._keep_open(place, call)
            else:
                await call.give_up()
            raise

    def check_arguments(self, tool: Tool, arguments: Any) -> None:
        """Raises `ToolFailed`."""
        if wrong := check_value(tool.input_schema, arguments):
            raise ToolFailed(
                f"the arguments of the tool {tool.original!r} do not fit its schema: {wrong}", why="arguments"
            )

    async def _wants_approval(self, tool: Tool, arguments: dict[str, Any]) -> bool:
        if self._approve == "destructive":
            return tool.destructive
        wanted = self._approve(tool, arguments) if callable(self._approve) else self._approve
        return bool(await wanted if inspect.isawaitable(wanted) else wanted)

    async def _keep_open(self, place: tuple[str, int, str], call: _Call) -> None:
        """The task waits for an answer, and the call with it."""
        call.record = None
        self._open_calls[place] = call
        while len(self._open_calls) > MAX_OPEN_CALLS:
            await self._open_calls.pop(next(iter(self._open_calls))).give_up()

    def _failure(self, tool: Tool, why: str, what: str, explanation: str = "") -> ToolOutcome:
        return ToolOutcome(
            why=why,
            message=f"the tool {tool.original!r} of {self.name!r} {what}",
            explanation=explanation[:4000],
        )


class _Round(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a server needs before it goes on: recorded, so that a later run asks the same."""

    requests: dict[str, dict[str, Any]] = {}
    """Its questions, by the keys that it gave them."""
    state: str | None = None
    """Handed back to it as it is."""


class _Question:
    """A question that a server asked in the middle of a call."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self.answer: asyncio.Future[Elicited] = asyncio.get_running_loop().create_future()


class _Call:
    """One call of a tool, from its beginning to its outcome. It may outlive a run of the turn, while the caller is asked."""

    def __init__(
        self,
        server: McpTools,
        record: Recorded,
        tool: Tool,
        arguments: dict[str, Any],
        key: str,
        trace: dict[str, str],
    ) -> None:
        self.record: Recorded | None = record
        """The turn that waits for the call; None while the task waits for an answer."""
        self._server, self._tool, self._arguments, self._key = server, tool, arguments, key
        self._meta = {name: trace[name] for name in ("traceparent", "tracestate") if name in trace}
        self._repeatable = server.may_repeat(tool)
        self._round = 1
        self._responses: dict[str, Any] | None = None
        self._state: str | None = None
        self._connection: McpConnection | None = None
        self._request: asyncio.Task[Any] | None = None
        self._question: _Question | None = None
        self._asked = asyncio.Event()
        self._refused = False
        """The server refused the request of this round unseen: it may be sent again."""
        self._progress = 0
        self._progress_at = 0.0

    @property
    def is_asking(self) -> bool:
        return self._question is not None

    @property
    def is_open(self) -> bool:
        """The server works on it."""
        return self._request is not None

    async def run(self) -> ToolOutcome:
        """Raises `Parked`, and `ToolFailed` if nothing was sent."""
        record, key = self._turn, self._key
        if self._request is None:
            while (step := record.steps.get(f"{key}/input/{self._round}")) is not None:
                outcome = await self._answer_round(msgspec.json.decode(step.value, type=_Round))
                if outcome is not None:
                    return outcome
        again, resend = self._repeatable, True
        while True:
            if self._request is None and (outcome := await self._begin()) is not None:
                return outcome
            try:
                result = await self._follow()
            except NotDone as error:
                if not resend:
                    return self._failure("unreachable", "could not be called", error.message)
                resend, self._refused = False, True
                continue
            except NoAnswer as error:
                if again:  # it may be called twice: once more, on a new connection
                    again = False
                    continue
                return self._no_answer(error)
            except TimeoutError:
                return self._failure(
                    "timeout", f"did not answer in {self._seconds:g} seconds{self._may_have_run}"
                )
            except Unreachable as error:
                if self._state is not None and again:  # it may have forgotten its questions: begin anew
                    again, self._round, self._responses, self._state = False, 1, None, None
                    continue
                return self._failure("error", "failed", error.message)
            if isinstance(result, ToolOutcome):
                return result
            if self._round > MAX_INPUT_ROUNDS:
                return self._failure("refused", "asks for more again and again")
            await record.record(f"{key}/input/{self._round}", result)
            if (outcome := await self._answer_round(result)) is not None:
                return outcome

    async def give_up(self) -> None:
        """Cancel it, also at the server."""
        request, connection = self._request, self._connection
        self._request = None
        if request is not None and not request.done():
            if connection is not None:
                connection.abandon()
            request.cancel()
            await asyncio.wait([request])
        if self._question is not None:
            self._question.answer.cancel()

    @property
    def _turn(self) -> Recorded:
        assert self.record is not None
        return self.record

    @property
    def _seconds(self) -> float:
        return self._server._settings.call_timeout_ms / 1000

    @property
    def _may_have_run(self) -> str:
        return "" if self._repeatable else ". It may have run, and is not called again"

    def _failure(self, why: str, what: str, explanation: str = "") -> ToolOutcome:
        return self._server._failure(self._tool, why, what, explanation)

    def _no_answer(self, error: A2AError) -> ToolOutcome:
        if self._repeatable:
            return self._failure("unreachable", "could not be reached", error.message)
        return self._failure("unknown", f"was called and did not answer{self._may_have_run}", error.message)

    # -- the request -------------------------------------------------------------------------------------------

    async def _begin(self) -> ToolOutcome | None:
        """Send the request. A tool that may not be repeated, and was called before, is not called: that is the outcome."""
        record = self._turn
        begun = f"begun/{self._key}/{self._round}"
        if not self._repeatable and begun in record.steps and not self._refused:
            logger.warning(
                "task %s: the tool %s was interrupted, and is not called again",
                record.task_id,
                self._tool.name,
            )
            return self._failure(
                "unknown", "was called when the server of this agent stopped" + self._may_have_run
            )
        try:
            connection = await self._server._connect()
        except A2AError as error:
            raise ToolFailed(error.message, why="unreachable") from error
        if not self._repeatable:
            await record.record(begun, self._tool.original)
        await record.may_begin()
        self._connection = connection
        connection.calls.append(self)
        self._request = asyncio.create_task(self._send(connection), name=f"mcp-{self._tool.name}")
        return None

    async def _send(self, connection: McpConnection) -> Any:
        """The library's `CallToolResult` or `InputRequiredResult`. We check the result ourselves."""
        from mcp.types import CallToolRequest, CallToolRequestParams

        params = CallToolRequestParams(
            name=self._tool.original,
            arguments=self._arguments,
            input_responses=self._responses,
            request_state=self._state,
            _meta=self._meta or None,
        )
        try:
            async with connection.used():
                return await connection.client.session.send_request(
                    CallToolRequest(params=params), _answers(), progress_callback=self._on_progress
                )
        finally:
            connection.calls.remove(self)

    async def _follow(self) -> ToolOutcome | _Round:
        """Wait for the answer, and pass the questions of the server on to the caller.

        Raises `TimeoutError`, `NoAnswer`, `Unreachable` (the server said no), `Parked`.
        """
        request, connection = self._request, self._connection
        assert request is not None and connection is not None
        while not request.done():
            if self._question is None:
                self._asked.clear()
                asked = asyncio.ensure_future(self._asked.wait())
                try:
                    await asyncio.wait(
                        [request, asked, connection.ended],
                        timeout=self._seconds,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    asked.cancel()
                if self._question is None and not request.done():
                    await self.give_up()
                    if connection.ended.done():
                        raise NoAnswer(f"the MCP server {self._server.name!r} ended")
                    connection.suspect = True
                    raise TimeoutError
            if (question := self._question) is not None:
                answer = await self._ask(question.params)
                self._question = None
                if not question.answer.done():
                    question.answer.set_result(answer)
        self._request = None
        return self._read(request, connection)

    def _read(self, request: asyncio.Task[Any], connection: McpConnection) -> ToolOutcome | _Round:
        """What the server answered. Raises `NoAnswer`, `Unreachable`."""
        if request.cancelled():
            raise NoAnswer(f"the call of {self._tool.original!r} was cancelled")
        error = request.exception()
        if error is None:
            answer = request.result()
            if getattr(answer, "result_type", "") == "input_required":
                requests = {
                    name: each.model_dump(mode="json", by_alias=True, exclude_none=True)
                    for name, each in (answer.input_requests or {}).items()
                }
                return _Round(requests=requests, state=answer.request_state)
            schema = self._tool.output_schema
            if schema is not None and not answer.is_error:
                value = answer.structured_content
                if wrong := "they are missing" if value is None else check_value(schema, value):
                    return self._failure("result", "returned data that do not fit their schema", wrong)
            result = read_result(answer, self._server._max_result)
            return (
                self._failure("error", "failed", result.text)
                if answer.is_error
                else ToolOutcome(result=result)
            )
        code = getattr(getattr(error, "error", None), "code", None)
        if code == _URL_ELICITATION:
            pages = (getattr(error, "data", None) or {}).get("elicitations", ())
            return _Round(
                requests={
                    str(n): {"method": "elicitation/create", "params": {**page, "mode": "url"}}
                    for n, page in enumerate(pages)
                }
            )
        if code is None and isinstance(error, ValueError):  # the library cannot read it
            return self._failure("result", "returned what is no result in MCP", one_line(str(error))[:500])
        if not isinstance(error, Exception):
            raise error
        raise connection.failed(error)

    async def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Tell the caller, now and then."""
        now = asyncio.get_running_loop().time()
        if (
            self.record is None
            or self._progress >= MAX_PROGRESS
            or now - self._progress_at < PROGRESS_SECONDS
        ):
            return
        self._progress, self._progress_at = self._progress + 1, now
        said = one_line(message or "")[:300] or (f"{progress:g} of {total:g}" if total else f"{progress:g}")
        self.record.status(f"{self._tool.original}: {said}", {})

    # -- questions ---------------------------------------------------------------------------------------------

    async def answer_server(self, params: Any) -> Any:
        """A question of the server in the middle of the call. It waits until the caller answers, but not for ever."""
        from mcp.types import ElicitResult

        question = self._question = _Question(
            params.model_dump(mode="json", by_alias=True, exclude_none=True)
        )
        self._asked.set()
        try:
            async with asyncio.timeout(self._server._answer_timeout):
                answer = await question.answer
        except TimeoutError:
            if self._question is question:
                self._question = None
            answer = Elicited(action="cancel")
        return ElicitResult(action=answer.action, content=answer.content)

    async def _ask(self, params: dict[str, Any]) -> Elicited:
        """What the caller answers. Raises `Parked`."""
        record = self._turn
        what = digest(msgspec.json.encode(params, order="sorted"))
        return await ask_caller(record, params, f"{self._key}/elicit/{what}", self._server.name)

    async def _answer_round(self, round: _Round) -> ToolOutcome | None:
        """Answer what the server needs before the next request; an outcome if that is not possible. Raises `Parked`."""
        from mcp.types import ElicitResult

        responses: dict[str, Any] = {}
        for name, request in round.requests.items():
            if request.get("method") != "elicitation/create" or not self._server._elicit:
                what = one_line(str(request.get("method")))[:80]
                return self._failure("refused", f"wants what it may not have: {what}")
            answer = await self._ask(request.get("params", {}))
            responses[name] = ElicitResult(action=answer.action, content=answer.content)
        if not round.requests:
            await asyncio.sleep(0.1)  # it only needs time
        self._responses, self._state, self._round = responses or None, round.state, self._round + 1
        self._refused = False
        return None


@cache
def _answers() -> Any:
    """What the library reads the answer to a call with."""
    from mcp.types import CallToolResult, InputRequiredResult
    from pydantic import TypeAdapter

    return TypeAdapter(CallToolResult | InputRequiredResult)


def _pool() -> McpPool:
    loop = asyncio.get_running_loop()
    if (pool := _pools.get(loop)) is None:
        pool = _pools[loop] = McpPool()
    return pool
