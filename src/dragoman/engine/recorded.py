"""The record of one turn: what the log holds of it, and what this run of the agent's function adds.

A function that was interrupted runs again from the top. It finds here what it did before: the results of its steps, the
answers to its questions, the status updates, notes and artifacts that peers have seen. What is on record is not done or
written again.

A step begins when the message that asks for it is on disk, and while this node's lease is known to be valid: otherwise
another node may have done it. A step is known by its key. A question is known by its key, else by its text. The first
message after a question answers it, and answers no other question, also when the function that runs again asks others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.engine.journal import Journal
from dragoman.engine.protocols import LeaseLost
from dragoman.engine.records import (
    ArtifactInProgress,
    Child,
    Differs,
    Mail,
    Note,
    Question,
    Record,
    Snapshot,
    Step,
    TurnStarted,
)
from dragoman.model.content import (
    NOTHING,
    Artifact,
    Message,
    Part,
    Role,
    checked,
    part_of,
    parts_of,
    plain,
    text_of,
)
from dragoman.model.ids import timestamp
from dragoman.model.questions import Answers, Ask, describe, hint_for, read_answer, with_questions
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskState, TaskStatus
from dragoman.model.usage import USAGE, TaskUsage, TokenUsage, usage_of_called, with_called
from dragoman.model.values import Unfit, decode_result

logger = logging.getLogger("dragoman.turn")

MAX_RECORDED_QUESTION_CHARACTERS = 200
_NULL = msgspec.Raw(b"null")

Outcome = tuple[TaskState, Message | None, dict[str, Any]]
"""How a turn ends: the state of the task, the message of its status, and metadata."""
_COMPLETED: Outcome = (TaskState.COMPLETED, None, {})


MAX_BACKOFF_SECONDS = 60.0


class Retries(msgspec.Struct, frozen=True):
    """How a step that fails is repeated."""

    retries: int = 0
    """How often it is repeated."""
    backoff: float = 1.0
    """Seconds before the first repetition. Each further one waits twice as long, up to a minute."""
    timeout: float | None = None
    """Seconds that one attempt may take."""

    async def pause(self, attempt: int, error: Exception, task: str, key: str) -> None:
        """Wait until the next attempt. Raises `error` if there is none."""
        if attempt > self.retries or isinstance(error, LeaseLost):
            raise error
        seconds = min(self.backoff * 2 ** (attempt - 1), MAX_BACKOFF_SECONDS)
        logger.warning(
            "task %s: step %r failed (%s: %s): attempt %d of %d follows in %.1f s",
            task, key, type(error).__name__, error, attempt + 1, self.retries + 1, seconds,
        )  # fmt: skip
        await asyncio.sleep(seconds)


ONCE = Retries()


class Diverged(Exception):
    """A turn that runs again cannot use what is on record. The task fails, and the log says why."""


class Parked(BaseException):
    """Unwinds the function; the turn goes on when the answer comes. Not an `Exception`: agent code must let it pass."""


class Recorded:
    """The record of one turn. `Turn` is what agent code sees of it."""

    __slots__ = ("_confirmed", "_message_count", "_noted", "_status_updates", "_status_message_ids", "_steps_running",
                 "_stored", "_uncalled", "_unasked", "_usage", "_used_keys", "artifacts", "begins_at", "cancelled", "children",
                 "context_id", "final", "handed_out", "journal", "mail", "n", "parked", "question", "read", "reply", "resumed", "rewound", "scope",
                 "steps", "task_id", "used", "used_by_called", "used_now", "version", "visible", "writers")  # fmt: skip

    def __init__(
        self,
        journal: Journal,
        *,
        resume: bool = False,
        stored: Awaitable[object] | None = None,
        confirmed: Callable[[], Awaitable[None]] | None = None,
        version: str = "",
    ) -> None:
        """`version`: of the agent's code, for a turn that begins. `stored`: done when the message is on disk; None if it is. `confirmed` waits until this node's lease is known to
        be valid."""
        snapshot = journal.loaded
        self.journal = journal
        self.scope, self.task_id, self.context_id = snapshot.scope, snapshot.task_id, snapshot.context_id
        self.cancelled = snapshot.canceling is not None
        self._stored, self._confirmed = stored, confirmed
        self.steps: dict[str, Step] = {}
        self.children: dict[str, Child] = {}
        """Calls of other agents that have begun, by key."""
        self.artifacts: dict[str, ArtifactInProgress] = {}
        """Artifacts that an earlier run of this turn wrote to."""
        self._status_updates: Sequence[StatusUpdate] = ()
        self._status_message_ids: frozenset[str] = frozenset()
        self._noted: Counter[bytes] | None = None
        self._usage: Counter[bytes] | None = None
        """The usage that is on record, until this run reports it, too."""
        self.used: TaskUsage | None = snapshot.used
        """What the task used so far."""
        self.used_by_called = dict(snapshot.used_by_called or {})
        """What called agents said last that their tasks used, by task and currency."""
        self.used_now: list[TokenUsage] | None = None
        """What this run added to it."""
        self._uncalled: frozenset[str] = frozenset()
        """Calls on record that this run has not made yet."""
        self._unasked: Question | None = None
        """The question that was asked last before this run, until this run asks it, too."""
        self.writers: dict[str, ArtifactWriter] = {}
        """By key. Each holds us."""
        self._steps_running: dict[str, float] = {}
        self._message_count = 0
        self._used_keys: dict[str, int] = {}
        """How often this run asked each question and made each call that has no key of its own."""
        self.parked: Outcome | None = None
        """What the function asked and nobody has answered. Then the turn waits, whatever the function made of it."""
        self.question: Question | None = None
        """Which question `parked` is."""
        self.reply: Message | None = None
        """What a `reply` skill answered."""
        self.handed_out: Any = None
        """The last piece of a streaming step, which has been sent: if the skill yields it, it is not sent again."""
        self.rewound = False
        """An artifact was set back, and may have nothing in the place of what was withdrawn."""
        self.final: Outcome = _COMPLETED
        """How the task ends if the function returns."""
        self.visible = not snapshot.hidden
        """Peers see a task. Until then the answer may still be a bare Message."""
        self.mail: Mail
        self.version: str
        """The version of the agent's code that began the turn."""
        self.begins_at: int
        """The record of `mail`."""
        self.resumed = resume
        """An earlier run of this turn was interrupted."""
        if not resume:
            unread = snapshot.first_unread
            assert unread is not None
            self.read, self.mail = unread
            self.begins_at = self.read
            self.n = snapshot.turn + 1
            self.version = version
            journal.put(Record("turn", TurnStarted(n=self.n, mail=self.read, version=version)))
        else:
            seq, self.mail = next((s, m) for s, m in snapshot.mails if s == snapshot.answering)
            self.begins_at, self.version = seq, snapshot.version
            self.n, self.read = snapshot.turn, max(seq, snapshot.read)
        if self.visible and snapshot.status.state is not TaskState.WORKING:
            journal.put(self.status_record(TaskState.WORKING))
        if resume:
            self._resume(snapshot)

    def _resume(self, snapshot: Snapshot) -> None:
        self.steps.update(snapshot.steps)
        self.children.update(snapshot.children)
        self.artifacts = {id: a for id, a in snapshot.artifacts.items() if a.turn == snapshot.turn}
        self._status_updates = tuple(snapshot.status_updates)
        self._status_message_ids = frozenset(
            update.status.message.message_id for update in self._status_updates if update.status.message
        )
        self._noted = Counter(msgspec.json.encode(note) for note in snapshot.notes)
        if snapshot.usage:
            self._usage = Counter(map(msgspec.json.encode, snapshot.usage))
        self._uncalled = frozenset(key for key in (*self.children, *self.steps) if key.startswith("call/"))
        if snapshot.asked is None:
            return
        seq, self._unasked = snapshot.asked
        if self._unasked.key not in self.steps:
            after = max(seq, self.read)
            if (mail := next((n for n, _ in snapshot.mails if n > after), None)) is not None:
                self._take_answer(self._unasked.key, mail)

    # -- messages, status updates, notes -----------------------------------------------------------------------

    def show(self) -> None:
        """Let peers see the task, if they do not yet."""
        if not self.visible:
            self.visible = True
            self.journal.put(self.status_record(TaskState.WORKING))

    def status(self, content: Any, metadata: dict[str, Any]) -> None:
        """Add a status update, unless it comes next among those on record. After one that differs, all are added."""
        self.show()
        message = self.message(content) if content else None
        record = self.journal.change(self.status_record(TaskState.WORKING, message, metadata))
        if self._status_updates:
            update = record.body
            assert isinstance(update, StatusUpdate)
            parts = update.status.message.parts if update.status.message else None
            for place, old in enumerate(self._status_updates, 1):  # a failed attempt may have left some
                if (
                    old.status.message.parts if old.status.message else None
                ) == parts and old.metadata == update.metadata:
                    self._status_updates = self._status_updates[place:]
                    return
            self._status_updates = ()
        self.journal.put(record)

    def note(self, note: Note) -> None:
        """Add a note, unless it is on record; each of those there counts once."""
        if self._noted:
            raw = msgspec.json.encode(note)
            if self._noted[raw] > 0:
                self._noted[raw] -= 1
                return
        self.journal.put(Record("note", note))

    def add_usage(self, usage: TokenUsage) -> None:
        """Add what a call of a model used, unless it is on record; each of those there counts once."""
        if self._usage:
            raw = msgspec.json.encode(usage)
            if self._usage[raw] > 0:
                self._usage[raw] -= 1
                return
        self.journal.put(Record("usage", usage))
        self.used = (self.used or TaskUsage()).plus(usage)
        self.used_now = [*(self.used_now or ()), usage]

    def add_usage_of_called(self, task: str, used: TaskUsage | None) -> None:
        """Add what a called agent says that its task used so far, unless it said the same before."""
        for entry in usage_of_called(task, used) if used is not None else ():
            if self.used_by_called.get((task, entry.currency)) != entry:
                self.used_by_called[task, entry.currency] = entry
                self.journal.put(Record("usage", entry))
                self.used = with_called(self.used, self.used_by_called)

    def with_usage(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """The metadata of a status that ends the turn or asks, with what the task used."""
        if self.used is None or USAGE in metadata:
            return metadata
        return {**metadata, USAGE: msgspec.to_builtins(self.used)}

    def message(self, content: Any, key: str = "") -> Message:
        """A message of the agent. Its id is the turn and its place in it, after those that an earlier run used."""
        if not key:
            self._message_count += 1
            while f"{self.task_id}-{self.n}-{self._message_count}" in self._status_message_ids:
                self._message_count += 1
            key = str(self._message_count)
        task = self.task_id if self.visible else ""
        if isinstance(content, Message):
            parts = tuple(part_of(part) for part in content.parts)
            return checked(
                replace(content, role=Role.AGENT, parts=parts, task_id=task, context_id=self.context_id)
            )
        return Message(
            message_id=f"{self.task_id}-{self.n}-{key}",
            role=Role.AGENT,
            parts=parts_of(content),
            task_id=task,
            context_id=self.context_id,
        )

    def status_record(
        self,
        state: TaskState,
        message: Message | None = None,
        metadata: dict[str, Any] = NOTHING,
        kind: str = "status",
    ) -> Record:
        if not isinstance(metadata, dict):
            raise TypeError(f"metadata is a dict, not {metadata!r}")
        if self.used is not None and state.over:
            metadata = self.with_usage(metadata)
        status = TaskStatus(state=state, message=message, timestamp=timestamp())
        update = StatusUpdate(
            task_id=self.task_id, context_id=self.context_id, status=status, metadata=metadata or NOTHING
        )
        return Record(kind, update)

    def artifact(
        self,
        name: str,
        id: str,
        description: str,
        media_type: str,
        metadata: dict[str, Any] | None,
        extensions: Sequence[str],
        append: bool,
    ) -> ArtifactWriter:
        if not self.visible:
            self.show()
        key = id or name or "result"
        if (writer := self.writers.get(key)) is None:
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
            recorded = self.artifacts.get(head.artifact_id)
            if (
                append
                and (known := recorded or self.journal.snapshot.artifacts.get(head.artifact_id)) is not None
            ):
                head = known.head.extended_by(head)
                before = tuple(known.parts[: recorded.before] if recorded else known.parts)
            writer = self.writers[key] = ArtifactWriter(self, head, recorded, media_type, before)
        return writer

    def writer(self, name: str) -> ArtifactWriter:
        """The artifact `name` of this turn."""
        return self.writers.get(name) or self.artifact(name, "", "", "", None, (), append=False)

    # -- steps -------------------------------------------------------------------------------------------------

    async def run_step(
        self,
        key: str,
        work: Callable[..., Any],
        args: Sequence[Any],
        kw: Mapping[str, Any],
        retries: Retries = ONCE,
    ) -> Any:
        """The recorded result of step `key`, or that of `work(*args, **kw)`, which is then recorded.

        A re-run that has another function under the same key gets what is on record, because work that must happen once
        may not happen twice for a new name.
        """
        if not isinstance(key, str):
            raise TypeError(f"a step's key is text, not {key!r}")
        if not callable(work):
            raise TypeError(
                f"turn.step({key!r}, ...) takes a function and its arguments, not what it returned"
            )
        function = name_of(work)
        if (step := self.steps.get(key)) is not None:
            self.check_function(step, function)
            try:
                return decode_result(step.value, work)
            except (msgspec.ValidationError, Unfit) as error:
                raise Diverged(
                    f"step {key!r} of {step.function or function} is on record with a result that does not fit what"
                    f" {function} returns now: {error}. Give the changed work another key"
                ) from error
        with self.running(key):
            attempt = 0
            while True:
                attempt += 1
                await self.may_begin()
                try:
                    if retries.timeout is None:
                        outcome = work(*args, **kw)
                        value = await outcome if isinstance(outcome, Awaitable) else outcome
                    else:
                        async with asyncio.timeout(retries.timeout):
                            outcome = work(*args, **kw)
                            value = await outcome if isinstance(outcome, Awaitable) else outcome
                    break
                except Exception as error:
                    await retries.pause(attempt, error, self.task_id, key)
            await self.record(key, value, function)
        return value

    def check_function(self, step: Step, function: str) -> None:
        """Report a recorded step whose function has another name now."""
        if step.function and step.function != function:
            self._differs("step", f"{step.key!r} of {step.function}", function)

    @contextmanager
    def running(self, key: str) -> Iterator[None]:
        """While step `key` is being done. Raises if it is already."""
        if key in self._steps_running:
            raise RuntimeError(f"step {key!r} is being done: give each step of a turn its own key")
        self._steps_running[key] = time.monotonic()
        try:
            yield
        finally:
            self._steps_running.pop(key, None)

    async def may_begin(self) -> None:
        """Wait until work may begin whose result is recorded. Raises `LeaseLost` if another node has the task.

        Call it right before the work: a process that is stopped in between, and goes on later, does not look again.
        """
        if self._stored is not None:
            try:
                await asyncio.shield(self._stored)
            except Exception:
                raise LeaseLost(self.task_id) from None
            self._stored = None
        if self._confirmed is not None:
            await self._confirmed()
        if self.journal.dead:
            raise LeaseLost(self.task_id)

    async def record(self, key: str, value: Any, function: str = "") -> None:
        """Record the result of a step; it is on disk when this returns."""
        began = self._steps_running.get(key)
        step = Step(
            key=key,
            value=msgspec.Raw(msgspec.json.encode(plain(value))),
            function=function,
            took=0.0 if began is None else round(time.monotonic() - began, 4),
        )
        self.steps[key] = step
        await self.commit(Record("step", step))

    async def commit(self, record: Record) -> None:
        """Put a record on disk."""
        self.journal.put(record)
        await self.journal.commit()

    # -- questions ---------------------------------------------------------------------------------------------

    async def ask(
        self,
        state: TaskState,
        question: str | Message,
        kind: Any,
        key: str,
        metadata: dict[str, Any],
        details: Any = None,
        *,
        fresh: bool = False,
    ) -> Any:
        """The answer to `question`, as a `kind`. One that does not fit is asked for again. Raises `Parked`.

        `fresh`: a message that came before the question was asked is no answer to it, and is passed over.
        """
        text = _identity(question)
        key = self._key_of_question(key, text)
        asked = describe(key.removeprefix("ask/"), text, kind, details)
        structured = asked.schema is not None or asked.approval or details is not None
        content: Any = question
        if details is not None:
            content = (*_parts(question), Part(data=plain(details)))
        answers: list[Any] = []

        def read(message: Message) -> Any:
            try:
                answers.append(read_answer(kind, message))
            except Unfit as error:
                return _with_hint(content, hint_for(kind, str(error)))
            return None

        def make(content: Any, id: str) -> Message:
            message = self.message(content, id)
            return with_questions(message, (asked,)) if structured else message

        await self._ask_until_answered(state, content, key, text, metadata, make, read, fresh=fresh)
        return answers[-1]

    async def ask_all(
        self, state: TaskState, questions: Mapping[str, Ask], key: str, metadata: dict[str, Any]
    ) -> dict[str, Any]:
        """The answers to several questions, by key. What has no answer is asked for again. Raises `Parked`."""
        answers = Answers(questions)
        text = "\n".join(f"{name}: {ask.text}" for name, ask in questions.items())
        key = self._key_of_question(key, text)

        def read(message: Message) -> Any:
            answers.take(message)
            return answers.message() if answers.open else None

        def make(content: Message, id: str) -> Message:
            return self.message(replace(content, message_id=f"{self.task_id}-{self.n}-{id}"), id)

        if questions:
            await self._ask_until_answered(state, answers.message(), key, text, metadata, make, read)
        return {name: answers.values[name] for name in questions}

    def _key_of_question(self, key: str, text: str) -> str:
        """What a question is recorded under: its key, else its text."""
        if not isinstance(key, str):
            raise TypeError(f"a question's key is text, not {key!r}")
        return f"ask/{key}" if key else self.count_key(f"ask/{digest(text.encode())}")

    async def _ask_until_answered(
        self,
        state: TaskState,
        content: Any,
        key: str,
        text: str,
        metadata: dict[str, Any],
        make: Callable[[Any, str], Message],
        read: Callable[[Message], Any],
        *,
        fresh: bool = False,
    ) -> None:
        """Ask `content`, and what `read` returns for an answer, until it returns None. Raises `Parked`.

        `make` makes the message of what is asked. `text` is the text by which the question is known.
        """
        self.show()
        attempt = 0
        while content is not None:
            attempt += 1
            this = key if attempt == 1 else f"{key}/{attempt}"
            if self._unasked is not None and self._unasked.key == this:
                self._unasked = None
            step = self.steps.get(this)
            if step is None:
                unread = [seq for seq, _ in self.journal.loaded.mails if seq > self.read]
                if unread and (
                    fresh or self._unasked is not None
                ):  # their senders saw no or another question
                    for seq in unread:
                        self._take_answer(f"mail/{seq}", seq)
                    unread = []
                if not unread:
                    if self.parked is None:  # of several at once, the first is asked first
                        self.question = Question(key=this, text=text[:MAX_RECORDED_QUESTION_CHARACTERS])
                        self.parked = (state, make(content, this.replace("/", "-")), metadata)
                    raise Parked
                step = self._take_answer(this, unread[0])
                await self.journal.commit()
            mail = next(mail for seq, mail in self.journal.loaded.mails if seq == step.mail)
            content = read(mail.message)

    def _take_answer(self, key: str, mail: int) -> Step:
        """Record the message at `mail` as the answer to question `key`."""
        step = self.steps[key] = Step(key=key, value=_NULL, mail=mail)
        self.read = max(self.read, mail)
        self.journal.put(Record("step", step))
        return step

    # -- keys --------------------------------------------------------------------------------------------------

    def count_key(self, key: str) -> str:
        """`key`, and from the second use on its number."""
        self._used_keys[key] = n = self._used_keys.get(key, 0) + 1
        return key if n == 1 else f"{key}#{n}"

    def call_made(self, key: str) -> None:
        """This run makes the call `key`, which may be on record."""
        self._uncalled -= {key}

    # -- the end of a run --------------------------------------------------------------------------------------

    def report_differences(self) -> None:
        """Report what this run, now at its end or at a question, did not do again of what is on record."""
        if self._unasked is not None and self._unasked.key in self.steps:
            self._differs("question", self._unasked.text, self.question.text if self.question else "")
        if self._uncalled and self.parked is None:
            for key in sorted(self._uncalled):
                child = self.children.get(key)
                self._differs("call", f"{child.peer}, task {child.task}" if child else key)

    def _differs(self, what: str, recorded: str, now: str = "") -> None:
        """Report that a re-run does something else than is on record: in the program's log and in the task's log."""
        self.journal.put(Record("differs", Differs(what=what, recorded=recorded, now=now)))
        logger.warning(_DIFFERS[what], self.task_id, recorded, now or "nothing")

    def finish_writers(self) -> None:
        """The function has returned: artifacts of which it wrote less than is on record are replaced."""
        for writer in self.writers.values():
            writer.finish()


_DIFFERS = {
    "question": "task %s: the answer was to %r, and the function that runs again asks %r: the answer is kept for its own"
    " question. Give turn.ask a key= if only the text has changed",
    "step": "task %s: the recorded result of step %s is used for %s. Give other work another key",
    "call": "task %s: the function that runs again did not make the call of %s again, but %s. Give turn.call a key= if"
    " only its content has changed",
}


class ArtifactWriter:
    """`await turn.artifact("report").write("text")`: each write is a chunk that peers see as it comes.

    What an earlier run of the turn wrote is compared with what this one writes. The same is not written again, a
    continuation is added, and the first difference replaces the artifact.
    """

    __slots__ = ("_before", "_begun", "_closed", "_head", "_last", "_media_type", "_old", "_record", "_rewound",
                 "_rewritten", "_written", "amend")  # fmt: skip

    def __init__(
        self,
        record: Recorded,
        head: Artifact,
        recorded: ArtifactInProgress | None,
        media_type: str,
        before: tuple[Part, ...],
    ) -> None:
        self._record, self._head, self._media_type = record, head, media_type
        self._before = before
        """Parts of earlier turns, which stay."""
        self._old: list[Part] = recorded.parts[recorded.before :] if recorded else []
        """On record, and not yet written again by this run."""
        self._rewritten: list[Part] = []
        """Written again by this run; kept only while there is more on record."""
        self._begun = recorded is not None or bool(before)
        self._closed = recorded is not None and recorded.closed
        self._last: Record | None = None
        self._written = self._rewound = False
        self.amend: Callable[[ArtifactUpdate], ArtifactUpdate] | None = None
        """Changes each update before it is written."""

    @property
    def id(self) -> str:
        return self._head.artifact_id

    async def write(self, content: Any, *, last: bool = False) -> None:
        """Add a chunk: text, bytes, a part, or a value as data. `last` says that the artifact is complete."""
        self.put(content, last=last)
        if self._record.journal.full:
            await self._record.journal.commit()

    def put(self, content: Any, *, last: bool = False) -> None:
        """`write`, without waiting for the disk when much has been written."""
        part = part_of(content, self._media_type)
        self._written = True
        rest = self._not_recorded(part) if self._old else part
        if rest is not None:
            self._emit((rest,), append=self._begun, last=last)
        elif last and not self._old and not self._closed:
            self.close()

    def put_together(self, contents: Sequence[Any], *, last: bool = False) -> None:
        """Add several parts as one chunk."""
        if self._old or len(contents) < 2:  # what is on record is compared part by part
            for i, content in enumerate(contents, 1):
                self.put(content, last=last and i == len(contents))
            return
        self._written = True
        parts = tuple(part_of(content, self._media_type) for content in contents)
        self._emit(parts, append=self._begun, last=last)

    def keep(self) -> tuple[Part, ...]:
        """Keep what an earlier run of this turn wrote, return it, and add what comes to it."""
        recorded, self._old = tuple(self._old), []
        return recorded

    def restart(self) -> None:
        """Replace what this run has written so far by what comes next. What an earlier run wrote is compared as before."""
        if self._written:
            self._begun, self._old, self._rewritten, self._written = False, [], [], False
            self._before = ()

    async def mark(self) -> tuple[Part, ...]:
        """What the artifact has now, for `rewind`."""
        if self._old:
            return (*self._before, *self._rewritten)
        if not self._begun:
            return self._before
        await self._record.journal.commit()
        known = self._record.journal.snapshot.artifacts.get(self.id)
        return tuple(known.parts) if known is not None else ()

    def rewind(self, parts: tuple[Part, ...]) -> None:
        """Withdraw what was written since `mark` returned `parts`: what comes next replaces it."""
        self._before, self._old, self._rewritten = parts, [], []
        self._begun, self._rewound = False, True
        self._record.rewound = True

    def close(self) -> None:
        """Tell peers that the artifact is complete."""
        if self._rewound:
            self._emit((Part(text=""),) if not self._before else (), append=False, last=True)
        if self._closed or not self._begun or self._old:
            return
        if self._last is not None:
            body = self._last.body
            assert isinstance(body, ArtifactUpdate)
            closed = Record("artifact", replace(body, last_chunk=True))
            if self._record.journal.replace_last(self._last, closed):
                self._last, self._closed = closed, True
                return
        self._emit((Part(text=""),), append=True, last=True)

    def finish(self) -> None:
        """The function has returned. If it wrote less than is on record, what it did write replaces that."""
        if self._old:
            self._old = []
            if self._rewritten:
                self._emit(tuple(self._rewritten), append=False, last=True)
        if self._rewound:
            self.close()

    def _not_recorded(self, part: Part) -> Part | None:
        """What of `part` is not on record; None if all of it is. Text may come in other chunks than before."""
        self._rewritten.append(part)
        while self._old:
            old = self._old[0]
            if part == old:
                self._old.pop(0)
                break
            if not part.text or not old.text or replace(part, text="") != replace(old, text=""):
                self._replace_recorded()
                return None
            if old.text.startswith(part.text):
                self._old[0] = replace(old, text=old.text[len(part.text) :])
                break
            if not part.text.startswith(old.text):
                self._replace_recorded()
                return None
            part = replace(part, text=part.text[len(old.text) :])
            self._old.pop(0)
        else:
            self._rewritten = []
            return part
        if not self._old:
            self._rewritten = []
        return None

    def _replace_recorded(self) -> None:
        parts, self._rewritten, self._old = tuple(self._rewritten), [], []
        self._emit(parts, append=False, last=False)

    def _emit(self, parts: tuple[Part, ...], *, append: bool, last: bool) -> None:
        record, head = self._record, self._head
        artifact = (
            Artifact(artifact_id=head.artifact_id, parts=parts)
            if append
            else replace(head, parts=self._before + parts)
        )
        update = ArtifactUpdate(
            task_id=record.task_id,
            context_id=record.context_id,
            artifact=artifact,
            append=append,
            last_chunk=last,
        )
        if self.amend is not None:
            update = self.amend(update)
        if record.journal.on_event is not None:
            update = record.journal.on_event(update)
        self._last = Record("artifact", update)
        self._begun, self._closed, self._rewound = True, last, False
        record.journal.put(self._last)


def digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def name_of(work: Any) -> str:
    """The name of a function, to be recognised when it runs again. Not its module: that depends on how it is loaded."""
    while isinstance(work, partial):
        work = work.func
    return str(getattr(work, "__qualname__", type(work).__qualname__))


def _identity(question: Any) -> str:
    """The text by which a question without a key is known."""
    text = question if isinstance(question, str) else text_of(_parts(question))
    if not text:
        return msgspec.json.encode(_parts(question)).decode()
    return text.encode("utf-8", "replace").decode()  # what cannot be written is refused when it is recorded


def _parts(question: Any) -> tuple[Part, ...]:
    return question.parts if isinstance(question, Message) else parts_of(question)


def _with_hint(question: Any, sentence: str) -> Any:
    """The question once more, with one sentence about what fits."""
    if isinstance(question, str):
        return f"{question} ({sentence})"
    parts = (*_parts(question), Part(text=f" ({sentence})"))
    return replace(question, parts=parts) if isinstance(question, Message) else parts
