"""What agent code holds while it works on a message.

A turn is one run of the agent's function, from the message that began it to its return. It may be interrupted: by a
question (`ask` parks it, nothing stays in memory), or by a crash. Then the function runs again from the top, and what
it says is compared with what the log already holds for this turn: the same is not said again, a continuation is added,
and the first thing that differs replaces the artifact. `step` returns what was recorded instead of working twice.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from os import PathLike
from typing import Any, NoReturn, TypeVar, cast, overload

import msgspec

from dragoman.engine.ask import answer, differs, key_of_question, take_answer
from dragoman.engine.delegate import abandon, delegate, key_of_call, on_behalf, request_of
from dragoman.engine.journal import Journal
from dragoman.engine.once import may_begin, once
from dragoman.engine.protocols import Bus, Lease, Log, Peers
from dragoman.engine.records import Child, Mail, Note, Question, Record, Snapshot, Started, Step
from dragoman.engine.replay import Replay
from dragoman.engine.writer import ArtifactWriter
from dragoman.errors import A2AError, Unavailable
from dragoman.model.content import NOTHING, Artifact, Message, Part, Role
from dragoman.model.fold import Fold
from dragoman.model.ids import timestamp
from dragoman.model.ops import ListTasks
from dragoman.model.task import Event, StatusUpdate, Task, TaskState, TaskStatus
from dragoman.model.values import checked, file_part, part_of, parts_of, plain

logger = logging.getLogger("dragoman.delegate")

T = TypeVar("T")


class Rejected(BaseException):
    """Raised by `turn.reject`: the agent declines the task. Not an `Exception`: agent code must let it pass."""


class Turn:
    """One run of an agent's function."""

    def __init__(
        self,
        log: Log,
        bus: Bus,
        lease: Lease,
        snapshot: Snapshot,
        stop: Callable[[str], object],
        loop: AbstractEventLoop,
        *,
        resume: bool = False,
        peers: Peers | None = None,
        stored: Awaitable[object] | None = None,
        confirmed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._stored = stored
        self._confirmed = confirmed
        """Waits until this node's lease is known to be valid."""
        """Done when the message is on disk; None if it is."""
        self.journal = Journal(log, bus, lease, snapshot, stop, loop)
        self.task_id, self.context_id = snapshot.task_id, snapshot.context_id
        self._peers = peers
        self.cancelled = snapshot.canceling is not None
        """Somebody asked for this task to be canceled."""
        if not resume:
            seq, mail = snapshot.unread[0]
            self.journal.put(Record("turn", Started(n=snapshot.turn + 1, mail=seq)))
            self.n = snapshot.turn + 1
        else:
            seq, mail = next((s, m) for s, m in snapshot.mails if s == snapshot.answering)
            self.n = snapshot.turn
        self.mail: Mail = mail
        """The message with what came along: who sent it, what output it accepts, the trace it belongs to."""
        self.message: Message = mail.message
        """The message this turn answers."""
        self.principal = mail.principal
        """Who sent the message; empty for an anonymous caller."""
        self.scope = lease.scope
        """Whose task it is: the tenant, the agent, the owner."""
        self.trace: dict[str, str] = mail.trace
        """The trace context that what this turn does belongs to."""
        self.read = max(seq, snapshot.read if resume else seq)
        """The last message this turn has taken."""
        self._replay = Replay(snapshot if resume else None)
        self.children: dict[str, Child] = self._replay.children
        """Delegations that have begun, by their keys."""
        self._writers: dict[str, ArtifactWriter] = {}
        self._doing: set[str] = set()
        """Keys of the steps that are at work."""
        self._messages = 0
        self._used: dict[str, int] = {}
        """How often this run asked each question and made each call that has no key of its own."""
        self.unasked: Question | None = None
        """The question that was asked last before this run, until this run asks it, too."""
        self._uncalled = set(filter(_is_call, (*self.children, *self._replay.steps))) if resume else set()
        """Delegations on record that this run has not come to."""
        self.question: Question | None = None
        """Which question `parked` is."""
        self.parked: tuple[TaskState, Message, dict[str, Any]] | None = None
        """What the function asked and nobody has answered. Then the turn waits, whatever the function made of it."""
        self.answer_message: Message | None = None
        """What a `reply` skill answered."""
        self.final: tuple[TaskState, Message | None, dict[str, Any]] = (TaskState.COMPLETED, None, {})
        """How the task ends if the function returns."""
        self.shown = not snapshot.hidden
        """Peers see a task. Until then the answer may still be a bare Message."""
        if self.shown and snapshot.state is not TaskState.WORKING:
            self.journal.put(self._status_record(TaskState.WORKING, None, {}))
        if resume:
            take_answer(self)

    @property
    def snapshot(self) -> Snapshot:
        """The task as far as this turn knows it."""
        return self.journal.snapshot

    # -- what was asked ----------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def files(self) -> tuple[Part, ...]:
        return self.message.files

    @property
    def metadata(self) -> dict[str, Any]:
        """What the caller attached to the request and to the message."""
        return {**self.mail.metadata, **self.message.metadata}

    @property
    def first(self) -> Mail:
        """The message that began the task, with what came along."""
        return self.snapshot.mails[0][1]

    @property
    def task(self) -> Task:
        """The task as recorded so far."""
        return self.snapshot.task

    @property
    def history(self) -> Sequence[Message]:
        """What was said on this task, oldest first. Not what came since and waits to be read."""
        waiting = {id(mail.message) for seq, mail in self.snapshot.mails if seq > self.read}
        said = self.snapshot.task.history
        return tuple(message for message in said if id(message) not in waiting) if waiting else said

    async def earlier(self, limit: int = 20) -> Sequence[Task]:
        """The tasks of this context that came before this one and are finished, oldest first; the last `limit` of them."""
        tasks: list[Task] = []
        token = ""
        while len(tasks) < limit:  # a page of large tasks is short
            query = ListTasks(context_id=self.context_id, page_token=token)
            found = await self.journal.log.find(query, limit=limit + 1 - len(tasks))
            tasks += [
                known.task for known in found.snapshots if known.task_id != self.task_id and known.terminal
            ]
            token = found.next
            if not token:
                break
        return tasks[:limit][::-1]

    @property
    def attempt(self) -> int:
        """1, unless the turn was interrupted by a crash."""
        return self.journal.lease.attempt

    # -- what is said ------------------------------------------------------------------------------------------

    async def status(
        self, text: str | Message | Sequence[Part], metadata: dict[str, Any] | None = None
    ) -> None:
        """Report progress: the task is working, and this is what it is doing."""
        self.say(text, metadata)
        if self.journal.full:
            await self.journal.commit()

    def say(self, content: str | Message | Sequence[Part], metadata: dict[str, Any] | None = None) -> None:
        """`status`, without waiting for room."""
        self.show()
        message = self._agent_message(content) if content else None
        if not self._replay.has_said(message, metadata or {}):
            self.journal.put(self._status_record(TaskState.WORKING, message, metadata or {}))

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
        """An artifact to write to, piece by piece. The same name gives the same artifact within a turn; a later turn
        makes another, unless it says the same `id`: then what it writes takes the place of what was there, or is added
        to it (`append`)."""
        self.show()
        key = id or name or "result"
        if key not in self._writers:
            head = Artifact(
                artifact_id=id or (key if self.n == 1 else f"{key}-{self.n}"),
                parts=(),
                name=name,
                description=description,
                metadata=metadata or NOTHING,
                extensions=tuple(extensions),
            )
            if key is not name or description or metadata or extensions or not isinstance(name, str):
                head = checked(head)
            before: tuple[Part, ...] = ()
            recorded = self._replay.artifacts.get(head.artifact_id)
            if append and (known := recorded or self.snapshot.artifacts.get(head.artifact_id)) is not None:
                head = known.head.extended_by(head)
                before = tuple(known.parts[: recorded.before] if recorded else known.parts)
            self._writers[key] = ArtifactWriter(self, head, recorded, media_type, before)
        return self._writers[key]

    async def file(
        self, source: str | PathLike[str] | bytes, name: str = "", media_type: str = "", **more: Any
    ) -> None:
        """A file as an artifact: bytes, a path, or an `http(s)` URL."""
        part = file_part(source, name=name, media_type=media_type)
        await self.artifact(name or part.filename or "file", **more).write(part, last=True)

    async def data(self, value: Any, name: str = "data", **more: Any) -> None:
        """A JSON value (or a dataclass, msgspec or pydantic object) as an artifact."""
        await self.artifact(name, **more).write(Part(data=plain(value)), last=True)

    async def note(self, name: str, data: dict[str, Any] | None = None) -> None:
        """Put a remark on record that peers do not see: for readers of the log on our own side.

        Remarks of work that goes on side by side may come in another order after an interruption; each of those on
        record is passed over once.
        """
        note = Note(name=name, data=data or {})
        if not self._replay.has_noted(note):
            self.journal.put(Record("note", note))
            if self.journal.full:
                await self.journal.commit()

    def reply(self, message: str | Message | Part | Sequence[Part]) -> None:
        """Answer with a bare Message: what a `reply=True` skill does, unless it has shown a task."""
        self.answer_message = self._agent_message(message)

    def finish(
        self, state: TaskState, text: str | Message | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        """How the task stands when the function has returned, if not `completed`: `turn.finish(TaskState.FAILED, "why")`.

        It does not end the function, and the last call counts. With `INPUT_REQUIRED` or `AUTH_REQUIRED` the next message
        begins a new turn, where `ask` goes on with this one.
        """
        self.final = (state, None if text is None else self._agent_message(text), metadata or {})

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
        return await self._ask(TaskState.INPUT_REQUIRED, question, kind, key, metadata or {})

    async def need_auth(
        self, what: str | Message, *, key: str = "", metadata: dict[str, Any] | None = None
    ) -> Message:
        """Say that the caller has to authorise something, and return the message that says it is done."""
        return cast(Message, await self._ask(TaskState.AUTH_REQUIRED, what, Message, key, metadata or {}))

    def reject(self, reason: str = "") -> NoReturn:
        """Decline the task. Does not return."""
        raise Rejected(reason)

    async def _ask(
        self, state: TaskState, question: str | Message, kind: Any, key: str, metadata: dict[str, Any]
    ) -> Any:
        self.show()
        return await answer(self, state, question, kind, key_of_question(question, key, self._used), metadata)

    # -- what must happen once ---------------------------------------------------------------------------------

    @overload
    async def step(self, key: str, work: Callable[..., Awaitable[T]], *args: Any, **kw: Any) -> T: ...
    @overload
    async def step(self, key: str, work: Callable[..., T], *args: Any, **kw: Any) -> T: ...

    async def step(self, key: str, work: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """Do `work(*args, **kw)` once for this turn, whatever crashes: its result is recorded under `key`.

        The result must be JSON, or a dataclass, msgspec or pydantic object (annotate `work`'s return type to get it
        back as such after a restart). If the process dies while `work` runs, it runs again.
        """
        return await once(self, key, work, args, kw)

    async def may_begin(self) -> None:
        """Wait until something may begin whose result is recorded by `record`: `step` does this by itself.

        Raises `LeaseLost` if another node has the task by now.
        """
        await may_begin(self)

    def recorded(self, key: str) -> Step | None:
        return self._replay.steps.get(key)

    async def record(self, key: str, value: Any, function: str = "") -> None:
        """Put the result of a step on record; it is on disk when this returns."""
        step = Step(key=key, value=msgspec.Raw(msgspec.json.encode(plain(value))), function=function)
        self._replay.steps[key] = step
        await self.put(Record("step", step))

    # -- other agents ------------------------------------------------------------------------------------------

    async def call(
        self, peer: str, content: str | Part | Message | Sequence[Part], *, key: str = "", **options: Any
    ) -> Task | Message:
        """Ask another agent, and return its task (or its message): `.text`, `.data`, `.files`, `.state` if a task.

        `peer` is a URL, a name from the configuration, or the id of an agent in this process. The call is a step: after
        a crash it goes on with the task it began there, and does not begin another. It is found by `key`, or by the peer
        and what it is told: give a `key` to a call whose content differs from run to run. Options: `task`, `context`,
        `skill`, `metadata`, `accept`. The caller's credentials are not passed on.
        """
        fold = Fold()
        async for event in self.stream(peer, content, key=key, **options):
            fold.apply(event)
        answer = fold.message or fold.task
        assert answer is not None
        return answer

    async def stream(
        self, peer: str, content: str | Part | Message | Sequence[Part], *, key: str = "", **options: Any
    ) -> AsyncGenerator[Event, None]:
        """`call`, event by event. When its result is on record already, that is the only event."""
        if self._peers is None:
            raise Unavailable("this agent is not connected to any other")
        request = request_of(content, **options)
        key = key_of_call(peer, request, key, self._used)
        self._uncalled.discard(key)
        await may_begin(self)
        try:
            service, scope = await self._peers.find(peer, self.scope)
            call = on_behalf(self, scope, key)
            async with aclosing(delegate(self, service, call, request, key=key, peer=peer)) as events:
                async for event in events:
                    yield event
        except A2AError as error:
            logger.warning("task %s: the call of %s failed: %s", self.task_id, peer, error.message)
            error.delegated = True
            raise

    async def cancel_children(self) -> None:
        """Cancel the tasks that others have for this one and have not finished."""
        if self._peers is not None:
            await abandon(self._peers, self.snapshot)

    async def put(self, record: Record) -> None:
        """Put a record of the turn's own on disk."""
        self.journal.put(record)
        await self.journal.commit()

    # -- how it gets to the log --------------------------------------------------------------------------------

    def show(self) -> None:
        """Let peers see the task, if they do not yet."""
        if not self.shown:
            self.shown = True
            self.journal.put(self._status_record(TaskState.WORKING, None, {}))

    def _agent_message(self, content: Any, key: str = "") -> Message:
        """A message of ours. Its id comes from the turn and its place in it, past those that a run before this one used."""
        if not key:
            self._messages += 1
            while self._replay.has_message(f"{self.task_id}-{self.n}-{self._messages}"):
                self._messages += 1
            key = str(self._messages)
        if isinstance(content, Message):
            return checked(
                msgspec.structs.replace(
                    content,
                    role=Role.AGENT,
                    parts=tuple(part_of(part) for part in content.parts),
                    task_id=self.task_id if self.shown else "",
                    context_id=self.context_id,
                )
            )
        return Message(
            message_id=f"{self.task_id}-{self.n}-{key}",
            role=Role.AGENT,
            parts=parts_of(content),
            task_id=self.task_id if self.shown else "",
            context_id=self.context_id,
        )

    def _status_record(
        self, state: TaskState, message: Message | None, metadata: dict[str, Any], kind: str = "status"
    ) -> Record:
        if not isinstance(metadata, dict):
            raise TypeError(f"metadata is a dict, not {metadata!r}")
        status = TaskStatus(state=state, message=message, timestamp=timestamp())
        update = StatusUpdate(
            task_id=self.task_id, context_id=self.context_id, status=status, metadata=metadata or NOTHING
        )
        return Record(kind, update)

    def compare(self) -> None:
        """Report what this run, now at its end or at a question, did not do again of what is on record."""
        if self.unasked is not None and self.unasked.key in self._replay.steps:
            differs(self, "question", self.unasked.text, self.question.text if self.question else "")
        if self.parked is None:
            for key in sorted(self._uncalled):
                child = self.children.get(key)
                differs(self, "call", f"{child.peer}, task {child.task}" if child else key)

    async def rest(self) -> list[Record]:
        """Stop writing and hand over what is not on disk yet, for the settling transaction."""
        if self.journal.flushing:
            await self.journal.quiet()
        for writer in self._writers.values():
            writer.finish()
        self._writers.clear()  # each holds us: see `Run.work`
        await self.journal.write_excess()
        return self.journal.rest()


def _is_call(key: str) -> bool:
    return key.startswith("call/")
