"""The interface of a turn for agent code.

A turn is one run of the agent's function, from the message that began it to its return. It may be interrupted by a question
(`ask` ends the function, and nothing stays in memory) or by a crash. Then the function runs again from the top, and what it
does is compared with the record of the turn (`recorded.py`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from dragoman.engine.artifact_writer import ArtifactWriter
from dragoman.engine.conversation import ConversationMessage, read_conversation
from dragoman.engine.delegate import (
    WAIT_SECONDS,
    CallOptions,
    RequestOptions,
    cancel_children,
    delegate,
    key_of_call,
    make_request,
    without_skill,
)
from dragoman.engine.protocols import Peers
from dragoman.engine.recorded import ONCE, Recorded, Retries
from dragoman.engine.records import Mail, Note
from dragoman.engine.streamed import StepStream
from dragoman.engine.tools import Tool, ToolBox, ToolResult
from dragoman.errors import ToolFailed, Unavailable
from dragoman.model.content import Message, Part, file_part, plain
from dragoman.model.fold import Fold
from dragoman.model.ops import ListTasks, Scope, SendMessage
from dragoman.model.options import check_options
from dragoman.model.questions import Approval, Ask
from dragoman.model.task import Event, Task, TaskState
from dragoman.model.usage import TaskUsage, TokenUsage

T = TypeVar("T")
P = ParamSpec("P")


class Rejected(BaseException):
    """Raised by `turn.reject`: the agent declines the task. Not an `Exception`: agent code must not catch it."""


class ArtifactOptions(TypedDict, total=False):
    """Options of `turn.artifact`, `turn.file` and `turn.data`."""

    id: str
    description: str
    metadata: dict[str, Any] | None
    extensions: Sequence[str]
    append: bool


class Turn:
    """One run of an agent's function."""

    __slots__ = ("_peers", "_recorded", "_tools", "attempt", "context_id", "first", "mail", "message", "n", "scope", "task_id", "trace",
                 "version")  # fmt: skip

    def __init__(self, recorded: Recorded, peers: Peers | None = None) -> None:
        self._recorded, self._peers = recorded, peers
        self._tools: ToolBox | None = None
        self.scope: Scope = recorded.scope
        """Whose task it is: the tenant, the agent, the owner."""
        self.mail: Mail = recorded.mail
        """The message with the context of its request: who sent it, which output they accept, the trace."""
        self.message: Message = recorded.mail.message
        """The message that this turn answers."""
        self.trace: dict[str, str] = recorded.mail.trace
        """The trace context of this turn."""
        self.task_id: str = recorded.task_id
        self.context_id: str = recorded.context_id
        self.n: int = recorded.n
        """The number of this turn in its task, from 1."""
        self.attempt: int = recorded.journal.lease.attempt
        """1, unless the turn was interrupted by a crash."""
        self.version: str = recorded.version
        """The version of the agent (`Agent(version=...)`) whose code began this turn. A turn that waited across a
        deployment keeps the version of the old code."""
        self.first: Mail = recorded.journal.loaded.mails[0][1]
        """The message that began the task, with the context of its request."""

    # -- the request -------------------------------------------------------------------------------------------

    def began_before(self, version: str) -> bool:
        """True if the code of an earlier version than this one began the turn: `turn.began_before("2.1.0")`."""
        return version_key(self.version) < version_key(version)

    @property
    def cancelled(self) -> bool:
        """True once somebody has asked for this task to be canceled."""
        return self._recorded.cancelled

    @property
    def principal(self) -> str:
        """Who sent the message; empty for an anonymous caller."""
        return self._recorded.mail.principal

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def files(self) -> tuple[Part, ...]:
        return self.message.files

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the request and of the message."""
        return {**self.mail.metadata, **self.message.metadata}

    @property
    def task(self) -> Task:
        """The task as recorded so far."""
        return self._recorded.journal.snapshot.task

    @property
    def history(self) -> Sequence[Message]:
        """The messages of this task, oldest first, without those that no turn has read yet."""
        recorded = self._recorded
        history = recorded.journal.snapshot.task.history
        unread = {id(mail.message) for seq, mail in recorded.journal.loaded.mails if seq > recorded.read}
        return tuple(message for message in history if id(message) not in unread) if unread else history

    async def earlier(self, limit: int = 20) -> Sequence[Task]:
        """The tasks of this context that came before this one and are finished, oldest first; the last `limit` of them."""
        tasks: list[Task] = []
        token = ""
        while len(tasks) < limit:  # a page of large tasks is short
            query = ListTasks(context_id=self.context_id, page_token=token)
            found = await self._recorded.journal.log.find(query, limit=limit + 1 - len(tasks))
            tasks += [
                known.task for known in found.snapshots if known.task_id != self.task_id and known.terminal
            ]
            token = found.next
            if not token:
                break
        return tasks[:limit][::-1]

    async def conversation(self, limit: int = 100, *, characters: int = 100_000) -> list[ConversationMessage]:
        """The messages of this context, oldest first: role and text, without status lines. The last is `turn.message`.

        It has the questions and answers, and the text of artifacts, of this task's earlier turns and of the other tasks that had
        ended, or asked, before this message came. At most `limit` entries and `characters`: the oldest are left out.
        """
        recorded = self._recorded
        return await read_conversation(
            recorded.journal.log,
            self.context_id,
            self.task_id,
            self.mail,
            recorded.begins_at,
            limit=limit,
            characters=characters,
        )

    # -- the answer --------------------------------------------------------------------------------------------

    async def status(
        self, text: str | Message | Sequence[Part], metadata: dict[str, Any] | None = None
    ) -> None:
        """Report progress: a status update of the working task."""
        self.say(text, metadata)
        await self._make_room()

    def say(self, content: str | Message | Sequence[Part], metadata: dict[str, Any] | None = None) -> None:
        """`status`, without waiting for the disk when much has been written."""
        self._recorded.status(content, metadata or {})

    async def _make_room(self) -> None:
        if self._recorded.journal.full:
            await self._recorded.journal.commit()

    def show(self) -> None:
        """Let peers see the task, if they do not yet."""
        self._recorded.show()

    def artifact(
        self,
        name: str = "",
        *,
        id: str = "",
        description: str = "",
        media_type: str = "",
        metadata: dict[str, Any] | None = None,
        extensions: Sequence[str] = (),
        append: bool = False,
    ) -> ArtifactWriter:
        """An artifact to write to, piece by piece. Within a turn, the same name is the same artifact. A later turn makes another
        one, unless it gives the same `id`: then its output replaces the parts of that artifact, or is added to them
        (`append`)."""
        return self._recorded.artifact(name, id, description, media_type, metadata, extensions, append)

    async def file(
        self,
        source: str | PathLike[str] | bytes,
        name: str = "",
        media_type: str = "",
        **more: Unpack[ArtifactOptions],
    ) -> None:
        """A file as an artifact: bytes, a path, or an `http(s)` URL."""
        part = file_part(source, name=name, media_type=media_type)
        await self.artifact(name or part.filename or "file", **more).write(part, last=True)

    async def data(self, value: Any, name: str = "data", **more: Unpack[ArtifactOptions]) -> None:
        """A JSON value (or a dataclass, msgspec or pydantic object) as an artifact."""
        await self.artifact(name, **more).write(Part(data=plain(value)), last=True)

    async def note(self, name: str, data: dict[str, Any] | None = None) -> None:
        """Record a remark that peers do not see: for readers of the log.

        After an interruption, notes that are already on record are not written again, in whatever order they come.
        """
        self._recorded.note(Note(name=name, data=data or {}))
        await self._make_room()

    def usage(
        self,
        model: str = "",
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        reasoning_tokens: int = 0,
        cost: float = 0.0,
        currency: str = "USD",
        calls: int = 1,
    ) -> None:
        """Report what a call of a model used. `cached_tokens` are part of the input, `reasoning_tokens` of the output.

        The sum is in the metadata of the status that ends the turn or asks, and in the server's metrics. What an
        interrupted run reported counts once if this run reports the same.
        """
        counts = (input_tokens, output_tokens, cached_tokens, reasoning_tokens, calls)
        if any(count < 0 for count in counts) or cost < 0:
            raise ValueError("tokens, calls and cost are not negative")
        self._recorded.add_usage(
            TokenUsage(
                model=model,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                cached_tokens=cached_tokens,
                reasoning_tokens=reasoning_tokens,
                cost=float(cost),
                currency=currency if cost else "",
                calls=calls,
            )
        )

    @property
    def used(self) -> TaskUsage:
        """What the task used so far, of all that was reported with `usage`."""
        return self._recorded.used or TaskUsage()

    def reply(self, message: str | Message | Part | Sequence[Part]) -> None:
        """Answer with a bare Message: what a `reply=True` skill does. If there is a task, it is the message with which the task ends,
        unless `finish` has another."""
        self._recorded.reply = self._recorded.message(message)

    def finish(
        self, state: TaskState, text: str | Message | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        """Set the state of the task after the function has returned, if not `completed`: `turn.finish(TaskState.FAILED, "why")`.

        It does not end the function. If it is called several times, the last call counts. With `INPUT_REQUIRED` or
        `AUTH_REQUIRED` the next message begins a new turn; `ask` continues this one.
        """
        message = None if text is None else self._recorded.message(text)
        self._recorded.final = (state, message, metadata or {})

    # -- what needs somebody else ------------------------------------------------------------------------------

    @overload
    async def ask(
        self, question: str | Message, *, key: str = ..., metadata: dict[str, Any] | None = ...
    ) -> str: ...
    @overload
    async def ask(
        self, question: str | Message, kind: type[T], *, key: str = ..., metadata: dict[str, Any] | None = ...
    ) -> T: ...

    async def ask(
        self,
        question: str | Message,
        kind: Any = str,
        *,
        key: str = "",
        metadata: dict[str, Any] | None = None,
    ) -> Any:
        """Ask the caller, and return the answer. The task waits, for days if need be, and holds nothing meanwhile.

        With a `kind` (a dataclass, a msgspec or pydantic model, int, bool, ...) the answer's data part, or its text,
        is converted to it; an answer that does not fit is asked for again.

        When the answer comes, the function runs again, and finds its answer by `key`, or by the text of the question.
        Give a `key` to a question whose text differs from run to run.
        """
        return await self._recorded.ask(TaskState.INPUT_REQUIRED, question, kind, key, metadata or {})

    async def approve(
        self,
        question: str | Message,
        *,
        details: Any = None,
        key: str = "",
        metadata: dict[str, Any] | None = None,
    ) -> Approval:
        """Ask for yes or no: `if await turn.approve("Pay 300 EUR?", details={"to": "ACME"}): ...`.

        `details` are what the question is about, as data beside the text. With "no, too expensive" the answer has the
        `comment` "too expensive".
        """
        answer = await self._recorded.ask(
            TaskState.INPUT_REQUIRED, question, Approval, key, metadata or {}, details
        )
        return cast(Approval, answer)

    async def ask_all(
        self,
        questions: Mapping[str, str | Ask],
        *,
        key: str = "",
        metadata: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Ask several questions at once, and return the answers by key.

        `await turn.ask_all({"city": "Which city?", "days": Ask("How long?", int), "pay": Ask("Pay?", Approval)})`. The
        caller answers with data, `{"city": "Rome", "days": 3}`, or with one text after the other. What has no answer, or one
        that does not fit, is asked for again.
        """
        asks = {str(name): ask if isinstance(ask, Ask) else Ask(str(ask)) for name, ask in questions.items()}
        return await self._recorded.ask_all(TaskState.INPUT_REQUIRED, asks, key, metadata or {})

    async def need_auth(
        self, what: str | Message, *, key: str = "", metadata: dict[str, Any] | None = None
    ) -> Message:
        """Ask the caller to authorise something, and return the message that says that it is done."""
        return cast(
            Message, await self._recorded.ask(TaskState.AUTH_REQUIRED, what, Message, key, metadata or {})
        )

    def reject(self, reason: str = "") -> NoReturn:
        """Decline the task. It does not return."""
        raise Rejected(reason)

    # -- what must happen once ---------------------------------------------------------------------------------

    @overload
    async def step(
        self,
        key: str,
        work: Callable[..., Awaitable[T]],
        *args: Any,
        retries: int,
        backoff: float = ...,
        timeout: float | None = ...,
        **kw: Any,
    ) -> T: ...
    @overload
    async def step(
        self,
        key: str,
        work: Callable[..., T],
        *args: Any,
        retries: int,
        backoff: float = ...,
        timeout: float | None = ...,
        **kw: Any,
    ) -> T: ...
    @overload
    async def step(
        self, key: str, work: Callable[..., Awaitable[T]], *args: Any, timeout: float, **kw: Any
    ) -> T: ...
    @overload
    async def step(self, key: str, work: Callable[P, Awaitable[T]], *args: P.args, **kw: P.kwargs) -> T: ...
    @overload
    async def step(self, key: str, work: Callable[P, T], *args: P.args, **kw: P.kwargs) -> T: ...

    async def step(  # type: ignore[misc]
        self,
        key: str,
        work: Callable[..., Any],
        *args: Any,
        retries: int = 0,
        backoff: float = 1.0,
        timeout: float | None = None,
        **kw: Any,
    ) -> Any:
        """Do `work(*args, **kw)` once for this turn, whatever crashes: its result is recorded under `key`.

        The result must be JSON, or a dataclass, msgspec or pydantic object (annotate `work`'s return type to get it
        back as such after a restart). If the process dies while `work` runs, it runs again.

        `retries`: how often work that raises is repeated, after `backoff` seconds, then twice that, up to a minute.
        `timeout`: seconds that one attempt may take. None of these is passed to `work`.
        """
        how = Retries(retries, backoff, timeout) if retries or timeout is not None else ONCE
        return await self._recorded.run_step(key, work, args, kw, how)

    @overload
    def stream_step(
        self,
        key: str,
        work: Callable[..., AsyncIterable[T] | Awaitable[AsyncIterable[T]]],
        *args: Any,
        artifact: str | None,
        retries: int = ...,
        backoff: float = ...,
        timeout: float | None = ...,
        **kw: Any,
    ) -> StepStream[T]: ...
    @overload
    def stream_step(
        self,
        key: str,
        work: Callable[..., AsyncIterable[T] | Awaitable[AsyncIterable[T]]],
        *args: Any,
        retries: int,
        backoff: float = ...,
        timeout: float | None = ...,
        **kw: Any,
    ) -> StepStream[T]: ...
    @overload
    def stream_step(
        self,
        key: str,
        work: Callable[..., AsyncIterable[T] | Awaitable[AsyncIterable[T]]],
        *args: Any,
        timeout: float | None,
        **kw: Any,
    ) -> StepStream[T]: ...
    @overload
    def stream_step(
        self,
        key: str,
        work: Callable[P, AsyncIterable[T] | Awaitable[AsyncIterable[T]]],
        *args: P.args,
        **kw: P.kwargs,
    ) -> StepStream[T]: ...

    def stream_step(  # type: ignore[misc]
        self,
        key: str,
        work: Callable[..., Any],
        *args: Any,
        artifact: str | None = "result",
        retries: int = 0,
        backoff: float = 1.0,
        timeout: float | None = None,
        **kw: Any,
    ) -> StepStream[Any]:
        """A step that streams: `text = await turn.stream_step("answer", model.stream, prompt)`, or `async for` over it.

        `work` returns an async iterator. Its pieces are sent as they come: text, `Part`s and data as chunks of `artifact`
        (None: they are only recorded), `Status` as a status update, `Artifact` as an artifact of its own. A `Result` is
        recorded and not sent. All pieces are recorded when the iterator ends, and a later run gets them from the record. If the
        step is interrupted before, it runs again, and new pieces replace those that differ.

        `retries`, `backoff` and `timeout` are those of `step`. The pieces of a failed attempt are replaced.
        """
        how = Retries(retries, backoff, timeout) if retries or timeout is not None else ONCE
        return StepStream(self._recorded, key, work, args, kw, artifact, how)

    # -- tools -------------------------------------------------------------------------------------------------

    async def tools(self) -> list[Tool]:
        """The tools of the agent (`Agent(tools=[...])`), with their schemas: most models take
        `[tool.function for tool in await turn.tools()]`. Tools of a server that cannot be reached are left out."""
        return [] if self._tools is None else await self._tools.list_tools()

    async def tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, /, *, key: str = "", **more: Any
    ) -> ToolResult:
        """Call a tool, and return its result: `.text`, `.data`, `.files`. Raises `dragoman.errors.ToolFailed`.

        Arguments are given by name or as a mapping: `turn.tool("add", a=1, b=2)`, `turn.tool("add", {"a": 1, "b": 2})`.
        They are checked against the tool's schema before anything is sent.

        The call is a step. It is found by `key`, or by the tool and its arguments: after a crash, a result that is on record
        is returned. A tool that was called and has no result on record is called again only if it may be repeated. If not,
        the call fails, and says that the tool may have run.
        """
        if self._tools is None:
            raise ToolFailed("this agent has no tools: Agent(tools=[...])", why="unknown-tool")
        return await self._tools.call(self._recorded, name, {**(arguments or {}), **more}, key, self.trace)

    # -- other agents ------------------------------------------------------------------------------------------

    async def call(
        self,
        peer: str,
        content: str | Part | Message | Sequence[Part] | Mapping[str, Any],
        *,
        key: str = "",
        ask: Literal["return", "pass"] = "return",
        **options: Unpack[CallOptions],
    ) -> Task | Message:
        """Ask another agent, and return its task (or its message): `.text`, `.data`, `.files`, `.state` if a task.

        `content` is text, parts, a message, or data: `turn.call("travel", {"city": "Rome"}, skill="book")`. `peer` is a URL, a
        name from the configuration, or the id of an agent in this process. The call is a step: after
        a crash it goes on with the task it began there, and does not begin another. It is found by `key`, or by the peer
        and the content: give a `key` to a call whose content differs from run to run. The caller's credentials are not
        passed on.

        If a peer accepts no connection, because it is being restarted, the call waits for it: `wait=` seconds, and not after
        the caller's own deadline.

        If the other agent asks, its task is returned as it is. With `ask="pass"` our caller gets the question, and the
        other agent the answer, until it does not ask any more.
        """
        if ask not in ("return", "pass"):
            raise ValueError(f'ask= is "return" or "pass", not {ask!r}')
        check_options(options, CallOptions, "turn.call", ("key", "ask"))
        wait, extensions = options.pop("wait", WAIT_SECONDS), options.pop("extensions", ())
        request = make_request(content, **cast(RequestOptions, options))
        known = key_of_call(self._recorded, peer, request, key)
        answer = await self._call(peer, request, known, wait, extensions)
        asked = 0
        while ask == "pass" and isinstance(answer, Task) and answer.state.interrupted:
            asked += 1
            question = answer.status.message or "The agent that does this needs an answer."
            place = f"{known}/pass/{asked}"
            reply = await self._recorded.ask(answer.state, question, Message, place, {})
            passed = Message(parts=reply.parts, metadata=without_skill(reply.metadata))
            again = make_request(passed, task=answer.id, context=answer.context_id)
            answer = await self._call(peer, again, place, wait, extensions)
        return answer

    async def _call(
        self, peer: str, request: SendMessage, key: str, wait: float, extensions: Sequence[str]
    ) -> Task | Message:
        """One call, recorded under `key`."""
        fold = Fold()
        async for event in delegate(
            self._recorded, self._connected_peers, peer, request, key, self.trace, wait, extensions
        ):
            fold.apply(event)
        answer = fold.message or fold.task
        assert answer is not None
        return answer

    @property
    def _connected_peers(self) -> Peers:
        if self._peers is None:
            raise Unavailable("this agent is not connected to any other")
        return self._peers

    def stream(
        self,
        peer: str,
        content: str | Part | Message | Sequence[Part] | Mapping[str, Any],
        *,
        key: str = "",
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Event, None]:
        """`call`, event by event. If its result is on record already, that is the only event."""
        peers = self._connected_peers
        check_options(options, CallOptions, "turn.stream", ("key",))
        wait, extensions = options.pop("wait", WAIT_SECONDS), options.pop("extensions", ())
        request = make_request(content, **cast(RequestOptions, options))
        known = key_of_call(self._recorded, peer, request, key)
        return delegate(self._recorded, peers, peer, request, known, self.trace, wait, extensions)

    async def cancel_children(self) -> None:
        """Cancel the unfinished tasks of agents that this task called."""
        if self._peers is not None:
            await cancel_children(self._peers, self._recorded.journal.snapshot)


def version_key(version: str) -> tuple[tuple[int, ...], bool, str]:
    """A key to sort versions by: the numbers first; one with a suffix (`2.0.0-beta`) comes before the one without."""
    found = re.match(r"v?(\d+(?:\.\d+)*)(.*)", version)
    if found is None:
        return (), False, version
    numbers = [int(number) for number in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    suffix = found[2].partition("+")[0]
    return tuple(numbers), not suffix, suffix


def attach_tools(turn: Turn, tools: ToolBox) -> None:
    """Give a turn the tools of its agent."""
    turn._tools = tools


def record_of(turn: Turn) -> Recorded:
    """The record of a turn: for the packages of Dragoman, not for agent code."""
    return turn._recorded
