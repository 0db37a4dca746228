"""`mcp(...)`: the tools of an MCP server for the turns of an agent.

    agent = Agent("Clerk", tools=[mcp("npx -y @modelcontextprotocol/server-memory"), mcp("https://mcp.example.com/mcp")])

A call has these stages, and the task's log records what the next run of the turn needs: the arguments are checked, the caller approves
(`turn.approve`), the call begins (`begun/...`, for tools that may not be repeated), the server may ask (`turn.ask`), the outcome is recorded.

A server can ask in two ways. In MCP of 2026-07-28 its answer to a call is a request for input, and the call is sent again with the input:
this survives a restart. In older versions it asks while the call runs. Then the call stays open in this process while the task waits
(`_open_calls`). If the process ends meanwhile, the call begins again; if the tool may not be repeated, it fails.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.client.transport.network import AddressGuard
from dragoman.engine.recorded import Parked, Recorded, digest
from dragoman.engine.tools import Tool, ToolOutcome
from dragoman.errors import A2AError, ToolFailed, Unreachable
from dragoman.mcp.connection import McpConnection, McpPool, McpServer, NoAnswer, NotDone
from dragoman.mcp.content import DEFAULT_MAX_RESULT, read_result
from dragoman.mcp.questions import ElicitAnswer, ask_caller
from dragoman.mcp.schema import check_value
from dragoman.model.per_loop import PerLoop
from dragoman.model.questions import Approval
from dragoman.model.task import TaskState
from dragoman.observe.terminal import one_line, sanitize

logger = logging.getLogger("dragoman.mcp")

MAX_INPUT_ROUNDS = 20
"""How often a server may ask for input in one call."""
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

    `name`: the prefix of its tools' names if the agent has several servers, unless `prefix` is given. `env`: variables for the process,
    which otherwise gets only basic ones. `headers`: for a URL, such as `Authorization`. `only`: names of the tools to use (`read_*`).

    `approve`: the calls that the caller must approve: True (all), "destructive" (those that are not declared harmless), or a function of
    the tool and the arguments. `repeatable`: the tools that may be called again if it is unknown after a crash whether they ran: all,
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
        name=name or _name_of(url, words),
        settings=settings,
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
        found = next((each for word in named if (each := _base_name(word)) not in _LAUNCHERS), "")
    found = re.sub(r"^(mcp-)?server-|-mcp$|-server$|^mcp-", "", found)
    return re.sub(r"[^A-Za-z0-9_-]+", "-", found).strip("-")[:40] or "mcp"


def _base_name(word: str) -> str:
    """`server-memory` for `@modelcontextprotocol/server-memory@1.2` and `/opt/server-memory.py`."""
    return re.sub(r"(?<=.)@[^/]*$|\.(py|js|mjs|ts|exe)$", "", word.rstrip("/").rpartition("/")[2])


_pools = PerLoop(McpPool)
"""The connections of this process: agents with the same server share one."""


class ServerDescription(Struct, frozen=True, kw_only=True):
    """What a server says about itself."""

    tools: tuple[Tool, ...] = ()
    version: str = ""
    instructions: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class McpTools:
    """The tools of one MCP server. `mcp(...)` makes it; its docstring explains the options."""

    name: str
    settings: McpServer
    prefix: str | None
    only: tuple[str, ...]
    approve: Approve
    repeatable: bool | frozenset[str] | None
    elicit: bool
    answer_timeout: float
    max_result: int
    guard: AddressGuard | None

    def __post_init__(self) -> None:
        guard = id(self.guard) if self.guard is not None else 0
        self._key = msgspec.json.encode(self.settings), self.elicit, guard
        self._open_calls: dict[tuple[str, int, str], _Call] = {}
        """Calls whose tasks wait for an answer, by task, turn and key."""

    def __repr__(self) -> str:
        return f"mcp({self.settings.url or self.settings.command!r}, name={self.name!r})"

    def open(self) -> None:
        _pools.get().retain(self._key)

    async def close(self) -> None:
        for call in self._open_calls.values():
            await call.cancel()
        self._open_calls.clear()
        await _pools.get().release(self._key)

    async def tools(self) -> list[Tool]:
        """Raises `A2AError`."""
        return self._select(await (await self._connect()).tools())

    async def describe(self) -> ServerDescription:
        """What the server says about itself, on a connection of its own. Raises `A2AError`."""
        pool = McpPool()
        try:
            connection = await self._connect(pool)
            found = await connection.tools()
            about, instructions = connection.client.server_info, connection.client.instructions
        finally:
            await pool.close()
        return ServerDescription(
            tools=tuple(self._select(found)),
            version=one_line(about.version)[:40] if about is not None else "",
            instructions=sanitize(instructions or "")[:1000],
        )

    def _select(self, found: Sequence[Tool]) -> list[Tool]:
        """The tools that `only` selects, under this server's name. (Servers with the same settings share a connection.)"""
        return [
            replace(tool, server=self.name)
            for tool in found
            if not self.only or any(fnmatchcase(tool.name, pattern) for pattern in self.only)
        ]

    def may_repeat(self, tool: Tool) -> bool:
        """True if a call may be repeated when it is unknown whether it ran."""
        if self.repeatable is None:
            return tool.read_only or tool.idempotent
        return self.repeatable if isinstance(self.repeatable, bool) else tool.original in self.repeatable

    async def _connect(self, pool: McpPool | None = None) -> McpConnection:
        """Raises `A2AError`."""
        options: dict[str, Any] = {"guard": self.guard, "elicits": self.elicit}
        return await (pool or _pools.get()).connect(self._key, self.name, self.settings, **options)

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
                await call.cancel()
            raise

    def check_arguments(self, tool: Tool, arguments: Any) -> None:
        """Raises `ToolFailed`."""
        if wrong := check_value(tool.input_schema, arguments):
            raise ToolFailed(
                f"the arguments of the tool {tool.original!r} do not fit its schema: {wrong}", why="arguments"
            )

    async def _wants_approval(self, tool: Tool, arguments: dict[str, Any]) -> bool:
        if self.approve == "destructive":
            return tool.destructive
        wanted = self.approve(tool, arguments) if callable(self.approve) else self.approve
        return bool(await wanted if inspect.isawaitable(wanted) else wanted)

    async def _keep_open(self, place: tuple[str, int, str], call: _Call) -> None:
        """Keep a call open while its task waits for an answer."""
        call.record = None
        self._open_calls[place] = call
        while len(self._open_calls) > MAX_OPEN_CALLS:
            await self._open_calls.pop(next(iter(self._open_calls))).cancel()

    def _failure(self, tool: Tool, why: str, what: str, explanation: str = "") -> ToolOutcome:
        return ToolOutcome(
            why=why,
            message=f"the tool {tool.original!r} of {self.name!r} {what}",
            explanation=explanation[:4000],
        )


class _InputRound(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input that a server needs before it continues. It is recorded, so that a later run asks the same."""

    requests: dict[str, dict[str, Any]] = {}
    """Its questions, by the keys that it gave them."""
    state: str | None = None
    """Sent back to the server unchanged."""


class _Question:
    """A question that a server asked in the middle of a call."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self.answer: asyncio.Future[ElicitAnswer] = asyncio.get_running_loop().create_future()


class _Call:
    """One call of a tool, from its beginning to its outcome. While the caller is asked, it may outlive a run of the turn."""

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
        self._may_resend = False
        """The server did not execute the request of this round, so it may be sent again."""
        self._progress = 0
        self._progress_at = 0.0

    @property
    def is_asking(self) -> bool:
        return self._question is not None

    @property
    def is_open(self) -> bool:
        """The server works on the call."""
        return self._request is not None

    async def run(self) -> ToolOutcome:
        """Raises `Parked`, and `ToolFailed` if nothing was sent."""
        record, key = self._turn, self._key
        if self._request is None:
            while (step := record.steps.get(f"{key}/input/{self._round}")) is not None:
                outcome = await self._answer_round(msgspec.json.decode(step.value, type=_InputRound))
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
                resend, self._may_resend = False, True
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
                if self._state is not None and again:  # the server may have lost its state: start again
                    again, self._round, self._responses, self._state = False, 1, None, None
                    continue
                return self._failure("error", "failed", error.message)
            if isinstance(result, ToolOutcome):
                return result
            if self._round > MAX_INPUT_ROUNDS:
                return self._failure("refused", f"asked for input more than {MAX_INPUT_ROUNDS} times")
            await record.record_step(f"{key}/input/{self._round}", result)
            if (outcome := await self._answer_round(result)) is not None:
                return outcome

    async def cancel(self) -> None:
        """Cancel it, also at the server."""
        request, connection = self._request, self._connection
        self._request = None
        if request is not None and not request.done():
            if connection is not None:
                connection.note_abandoned_call()
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
        return self._server.settings.call_timeout_ms / 1000

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
        """Send the request. Returns an outcome instead if the tool was called before and may not be repeated."""
        record = self._turn
        begun = f"begun/{self._key}/{self._round}"
        if not self._repeatable and begun in record.steps and not self._may_resend:
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
            await record.record_step(begun, self._tool.original)
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
            async with connection.in_use():
                return await connection.client.session.send_request(
                    CallToolRequest(params=params), _answer_type(), progress_callback=self._on_progress
                )
        finally:
            connection.calls.remove(self)

    async def _follow(self) -> ToolOutcome | _InputRound:
        """Wait for the answer, and forward the questions of the server to the caller.

        Raises `TimeoutError`, `NoAnswer`, `Unreachable` (the server answered with an error), `Parked`.
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
                    await self.cancel()
                    if connection.ended.done():
                        raise NoAnswer(f"the MCP server {self._server.name!r} ended")
                    connection.maybe_stuck = True
                    raise TimeoutError
            if (question := self._question) is not None:
                answer = await self._ask(question.params)
                self._question = None
                if not question.answer.done():
                    question.answer.set_result(answer)
        self._request = None
        return self._read(request, connection)

    def _read(self, request: asyncio.Task[Any], connection: McpConnection) -> ToolOutcome | _InputRound:
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
                return _InputRound(requests=requests, state=answer.request_state)
            schema = self._tool.output_schema
            if schema is not None and not answer.is_error:
                value = answer.structured_content
                if wrong := "they are missing" if value is None else check_value(schema, value):
                    return self._failure("result", "returned data that do not fit their schema", wrong)
            result = read_result(answer, self._server.max_result)
            return (
                self._failure("error", "failed", result.text)
                if answer.is_error
                else ToolOutcome(result=result)
            )
        code = getattr(getattr(error, "error", None), "code", None)
        if code == _URL_ELICITATION:
            pages = (getattr(error, "data", None) or {}).get("elicitations", ())
            return _InputRound(
                requests={
                    str(n): {"method": "elicitation/create", "params": {**page, "mode": "url"}}
                    for n, page in enumerate(pages)
                }
            )
        if code is None and isinstance(error, ValueError):  # the library cannot read it
            return self._failure(
                "result", "returned a result that is not valid in MCP", one_line(str(error))[:500]
            )
        if not isinstance(error, Exception):
            raise error
        raise connection.to_unreachable(error)

    async def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Report progress to the caller as a status, but not too often."""
        now = asyncio.get_running_loop().time()
        if (
            self.record is None
            or self._progress >= MAX_PROGRESS
            or now - self._progress_at < PROGRESS_SECONDS
        ):
            return
        self._progress, self._progress_at = self._progress + 1, now
        text = one_line(message or "")[:300] or (f"{progress:g} of {total:g}" if total else f"{progress:g}")
        self.record.status(f"{self._tool.original}: {text}", {})

    # -- questions ---------------------------------------------------------------------------------------------

    async def answer_server(self, params: Any) -> Any:
        """Return the caller's answer to a question that the server asks during the call; after `answer_timeout`, a cancel."""
        from mcp.types import ElicitResult

        question = self._question = _Question(
            params.model_dump(mode="json", by_alias=True, exclude_none=True)
        )
        self._asked.set()
        try:
            async with asyncio.timeout(self._server.answer_timeout):
                answer = await question.answer
        except TimeoutError:
            if self._question is question:
                self._question = None
            answer = ElicitAnswer(action="cancel")
        return ElicitResult(action=answer.action, content=answer.content)

    async def _ask(self, params: dict[str, Any]) -> ElicitAnswer:
        """The caller's answer to a question. Raises `Parked`."""
        record = self._turn
        question = digest(msgspec.json.encode(params, order="sorted"))
        return await ask_caller(record, params, f"{self._key}/elicit/{question}", self._server.name)

    async def _answer_round(self, round: _InputRound) -> ToolOutcome | None:
        """Answer what the server needs before the next request; an outcome if that is not possible. Raises `Parked`."""
        from mcp.types import ElicitResult

        responses: dict[str, Any] = {}
        for name, request in round.requests.items():
            if request.get("method") != "elicitation/create" or not self._server.elicit:
                method = one_line(str(request.get("method")))[:80]
                return self._failure("refused", f"asked for something that it may not have: {method}")
            answer = await self._ask(request.get("params", {}))
            responses[name] = ElicitResult(action=answer.action, content=answer.content)
        if not round.requests:
            await asyncio.sleep(0.1)  # the server only asks to call again
        self._responses, self._state, self._round = responses or None, round.state, self._round + 1
        self._may_resend = False
        return None


@cache
def _answer_type() -> Any:
    """The type with which the library reads the answer to a call."""
    from mcp.types import CallToolResult, InputRequiredResult
    from pydantic import TypeAdapter

    return TypeAdapter(CallToolResult | InputRequiredResult)
