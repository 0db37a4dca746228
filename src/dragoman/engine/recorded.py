"""The record of one turn: the part of the log that belongs to it, and what this run of the agent's function adds.

A function that was interrupted runs again from the top. The record has what it did before: the results of its steps, the
answers to its questions, the status updates, notes and artifacts that peers have seen. None of these is done or written again.

A step begins only when the message of the turn is on disk, and while this node's lease is known to be valid: otherwise
another node may have done the step. A step is identified by its key, a question by its key or its text. The first message
after a question is the answer to it, and to no other question, also if the function asks other questions when it runs again.
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
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.engine.artifact_writer import ArtifactWriter
from dragoman.engine.journal import Journal
from dragoman.engine.protocols import LeaseLost
from dragoman.engine.records import Child, Differs, Mail, Note, Question, Record, Step
from dragoman.engine.snapshot import ArtifactInProgress, Snapshot
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
from dragoman.model.ops import Scope
from dragoman.model.questions import Answers, Ask, describe, hint_for, read_answer, with_questions
from dragoman.model.task import StatusUpdate, TaskState, TaskStatus
from dragoman.model.usage import USAGE, TaskUsage, TokenUsage, usage_of_called, with_called
from dragoman.model.values import Unfit, decode_result

logger = logging.getLogger("dragoman.turn")

MAX_RECORDED_QUESTION_CHARACTERS = 200
"""Characters of a question's text in the log, where it is for readers only."""
_NULL = msgspec.Raw(b"null")
_NO_PARTS = (Part(text=""),)
"""The parts of a message that has none: A2A wants at least one."""

TurnEnd = tuple[TaskState, Message | None, dict[str, Any]]
"""The status with which a turn ends: the state of the task, the message, and metadata."""
_COMPLETED: TurnEnd = (TaskState.COMPLETED, None, {})


MAX_BACKOFF_SECONDS = 60.0


class Retries(Struct, frozen=True):
    """How often and when a step that fails is repeated."""

    retries: int = 0
    backoff: float = 1.0
    """Seconds before the first repetition. Each further one waits twice as long, up to `MAX_BACKOFF_SECONDS`."""
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
    """A turn that runs again cannot use a recorded result. The task fails, and the program's log has the reason."""


class Parked(BaseException):
    """Unwinds the function of a turn that waits for an answer. Not an `Exception`: agent code must not catch it."""


class _RunningStep(NamedTuple):
    began: float
    calls: list[str]
    """Calls of other agents that were made meanwhile, by key."""


class Recorded(Struct, eq=False, kw_only=True):
    """The record of one turn. `Turn` is its interface for agent code."""

    journal: Journal
    scope: Scope
    task_id: str
    context_id: str
    n: int
    """The number of the turn in its task, from 1."""
    mail: Mail
    """The message that the turn answers."""
    begins_at: int
    """The record of `mail`."""
    read: int
    """The last message that the turn has read."""
    version: str
    """The version of the agent's code that began the turn."""
    resumed: bool
    """An earlier run of this turn was interrupted."""
    visible: bool
    """Peers see a task. Until then the answer may still be a bare Message."""
    cancelled: bool
    used: TaskUsage | None
    """Tokens and money that the task used so far."""
    stored: Awaitable[object] | None
    """Done when the message is on disk; None if that is known."""
    wait_for_heartbeat: Callable[[], Awaitable[None]]
    """Waits until the lease of this node is known to be valid."""
    steps: dict[str, Step] = {}
    children: dict[str, Child] = {}
    """Calls of other agents that have begun, by key."""
    artifacts: dict[str, ArtifactInProgress] = {}
    """Artifacts that an earlier run of this turn wrote to."""
    used_by_called: dict[tuple[str, str], TokenUsage] = {}
    """The last usage that each called agent reported, by task and currency."""
    used_now: list[TokenUsage] | None = None
    """The usage that this run added to the record."""
    writers: dict[str, ArtifactWriter] = {}
    """By key."""
    parked: TurnEnd | None = None
    """The status of a question without an answer. The turn waits for the answer, also if the function caught `Parked`."""
    question: Question | None = None
    """The identity of the question in `parked`."""
    reply: Message | None = None
    """The bare Message with which a `reply` skill answered."""
    streamed_piece: Any = None
    """The last piece that a streaming step sent and returned: if the skill yields it, it is not sent again."""
    rewound: bool = False
    """Chunks of an artifact were withdrawn, and perhaps not replaced."""
    final: TurnEnd = _COMPLETED
    """The status with which the turn ends if the function returns."""
    _status_updates: Sequence[StatusUpdate] = ()
    _status_message_ids: frozenset[str] = frozenset()
    _noted: Counter[bytes] | None = None
    _usage: Counter[bytes] | None = None
    """Usage on record that this run has not reported again yet."""
    _uncalled: frozenset[str] = frozenset()
    """Calls on record that this run has not made yet."""
    _unasked: Question | None = None
    """The last question of an earlier run, until this run asks it again."""
    _steps_running: dict[str, _RunningStep] = {}
    _steps_used: dict[str, int] = {}
    """How often this run used the result of each step."""
    _message_count: int = 0
    _used_keys: dict[str, int] = {}
    """How often this run asked each question and made each call without a key of its own."""

    def read_earlier_run(self, snapshot: Snapshot) -> None:
        """What the earlier run of this turn recorded."""
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
        calls = {key for key in (*self.children, *self.steps) if key.startswith("call/")}
        self._uncalled = frozenset(calls.difference(*(step.calls for step in self.steps.values())))
        if snapshot.asked is not None:
            _, self._unasked = snapshot.asked

    def answer_last_question(self) -> None:
        """If the earlier run asked, and a message has come since, record it as the answer."""
        snapshot = self.journal.loaded
        if snapshot.asked is None:
            return
        seq, asked = snapshot.asked
        if asked.key not in self.steps:
            after = max(seq, self.read)
            if (mail := next((n for n, _ in snapshot.mails if n > after), None)) is not None:
                self._take_answer(asked.key, mail)

    # -- messages, status updates, notes -----------------------------------------------------------------------

    def show(self) -> None:
        """Let peers see the task, if they do not yet."""
        if not self.visible:
            self.visible = True
            self.journal.put(self.status_record(TaskState.WORKING))

    def status(self, content: Any, metadata: dict[str, Any]) -> None:
        """Add a status update, unless it is the next one on record. After one that differs, all are added."""
        self.show()
        message = self.message(content) if content else None
        record = self.journal.change(self.status_record(TaskState.WORKING, message, metadata))
        if self._status_updates:
            update = record.body
            assert isinstance(update, StatusUpdate)
            parts = update.status.message.parts if update.status.message else None
            for place, old in enumerate(self._status_updates, 1):  # those of a failed attempt are skipped
                if (
                    old.status.message.parts if old.status.message else None
                ) == parts and old.metadata == update.metadata:
                    self._status_updates = self._status_updates[place:]
                    return
            self._status_updates = ()
        self.journal.put(record)

    def note(self, note: Note) -> None:
        """Add a note, unless it is on record. Each recorded note counts once."""
        if not _take_recorded(self._noted, note):
            self.journal.put(Record("note", note))

    def add_usage(self, usage: TokenUsage) -> None:
        """Add what a call of a model used, unless it is on record. Each recorded entry counts once."""
        if _take_recorded(self._usage, usage):
            return
        self.journal.put(Record("usage", usage))
        self.used = (self.used or TaskUsage()).plus(usage)
        self.used_now = [*(self.used_now or ()), usage]

    def add_usage_of_called(self, task: str, used: TaskUsage | None) -> None:
        """Add the usage that a called agent reports for its task so far, unless it reported the same before."""
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
            parts = tuple(part_of(part) for part in content.parts) or _NO_PARTS
            return checked(
                replace(content, role=Role.AGENT, parts=parts, task_id=task, context_id=self.context_id)
            )
        return Message(
            message_id=f"{self.task_id}-{self.n}-{key}",
            role=Role.AGENT,
            parts=parts_of(content) or _NO_PARTS,
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
        if self.used is not None and state.settled:
            metadata = self.with_usage(metadata)
        status = TaskStatus(state=state, message=message, timestamp=timestamp())
        update = StatusUpdate(
            task_id=self.task_id, context_id=self.context_id, status=status, metadata=metadata or NOTHING
        )
        return Record(kind, update)

    def reply_record(self, reply: Message) -> Record:
        """The record of a bare Message."""
        if self.used is not None:
            reply = replace(reply, metadata=self.with_usage(reply.metadata))
        return Record("reply", reply)

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
            writer = self.writers[key] = ArtifactWriter(self.journal, head, recorded, media_type, before)
        return writer

    def writer(self, name: str) -> ArtifactWriter:
        """The artifact `name` of this turn."""
        return self.writers.get(name) or self.artifact(name, "", "", "", None, (), append=False)

    def rewind(self, writer: ArtifactWriter, parts: tuple[Part, ...]) -> None:
        """Withdraw what an artifact got since its `mark` returned `parts`."""
        writer.rewind(parts)
        self.rewound = True

    # -- steps -------------------------------------------------------------------------------------------------

    async def run_step(
        self,
        key: str,
        work: Callable[..., Any],
        args: Sequence[Any],
        kw: Mapping[str, Any],
        retries: Retries = ONCE,
    ) -> Any:
        """The recorded result of step `key`, or the result of `work(*args, **kw)`, which is then recorded.

        If another function has the same key in a re-run, it gets the recorded result: work that must happen once may not
        happen again because its function was renamed.
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
            self._report_second_use(key)
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
                    async with asyncio.timeout(retries.timeout):
                        outcome = work(*args, **kw)
                        value = await outcome if isinstance(outcome, Awaitable) else outcome
                    break
                except Exception as error:
                    await retries.pause(attempt, error, self.task_id, key)
            await self.record_step(key, value, function)
        self._steps_used[key] = 1
        return value

    def _report_second_use(self, key: str) -> None:
        """Warn if this run uses a step again: in a loop, perhaps, in which every step has the same key."""
        used = self._steps_used[key] = self._steps_used.get(key, 0) + 1
        if used == 2:
            logger.warning(
                "task %s: step %r is used twice in a turn and returns the first result: give each step its own key",
                self.task_id, key,
            )  # fmt: skip

    def check_function(self, step: Step, function: str) -> None:
        """Report a recorded step whose function has another name now."""
        if step.function and step.function != function:
            self._differs("step", f"{step.key!r} of {step.function}", function)

    @contextmanager
    def running(self, key: str) -> Iterator[None]:
        """Surrounds the work of step `key`. Raises `RuntimeError` if that step runs already."""
        if key in self._steps_running:
            raise RuntimeError(f"step {key!r} runs already: give each step of a turn its own key")
        self._steps_running[key] = _RunningStep(time.monotonic(), [])
        try:
            yield
        finally:
            self._steps_running.pop(key, None)

    async def may_begin(self) -> None:
        """Wait until work whose result is recorded may begin. Raises `LeaseLost` if another node has the task.

        Call it right before the work: if the process is paused in between, the lease is not checked again.
        """
        if self.stored is not None:
            try:
                await asyncio.shield(self.stored)
            except Exception:
                raise LeaseLost(self.task_id) from None
            self.stored = None
        await self.wait_for_heartbeat()
        if self.journal.closed:
            raise LeaseLost(self.task_id)

    async def record_step(self, key: str, value: Any, function: str = "") -> None:
        """Record the result of a step; it is on disk when this returns."""
        running = self._steps_running.get(key)
        step = Step(
            key=key,
            value=msgspec.Raw(msgspec.json.encode(plain(value))),
            function=function,
            took=0.0 if running is None else round(time.monotonic() - running.began, 4),
            calls=() if running is None else tuple(running.calls),
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
        """The answer to `question`, as a `kind`. If an answer does not fit, the question is asked again. Raises `Parked`.

        `fresh`: messages that came before the question was asked do not answer it, and are skipped.
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
        """The answers to several questions, by key. Questions without an answer are asked again. Raises `Parked`."""
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
        """The key under which a question is recorded: its own, or a hash of its text."""
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
        """Ask `content`, then whatever `read` returns for the answer, until it returns None. Raises `Parked`.

        `make` makes the message of the question. `text` is the text that identifies it.
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
                # Messages that came before this question was asked do not answer it.
                if unread and (fresh or self._unasked is not None):
                    for seq in unread:
                        self._take_answer(f"mail/{seq}", seq)
                    unread = []
                if not unread:
                    if self.parked is None:  # of several questions at the same time, the first is asked
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
        """`key`; from its second use on, with a number."""
        self._used_keys[key] = n = self._used_keys.get(key, 0) + 1
        return key if n == 1 else f"{key}#{n}"

    def note_call(self, key: str) -> None:
        """Note that this run makes the call `key`, which may be on record."""
        self._uncalled -= {key}
        for step in self._steps_running.values():
            step.calls.append(key)

    def has_answer(self, key: str) -> bool:
        """True if an earlier run asked question `key`, and got an answer."""
        return f"ask/{key}" in self.steps

    def skip_question(self, key: str) -> None:
        """Note that this run does not ask question `key` again, because the step that its answer decided is on record."""
        if self._unasked is not None and f"{self._unasked.key}/".startswith(f"ask/{key}/"):
            self._unasked = None

    # -- the end of a run --------------------------------------------------------------------------------------

    def report_differences(self) -> None:
        """At the end of a run or at a question: report recorded questions and calls that this run did not repeat."""
        if self._unasked is not None and self._unasked.key in self.steps:
            self._differs("question", self._unasked.text, self.question.text if self.question else "")
        if self._uncalled and self.parked is None:
            for key in sorted(self._uncalled):
                child = self.children.get(key)
                self._differs("call", f"{child.peer}, task {child.task}" if child else key)

    def _differs(self, what: str, recorded: str, now: str = "") -> None:
        """Report a difference between a re-run and the record: in the program's log and in the task's log."""
        self.journal.put(Record("differs", Differs(what=what, recorded=recorded, now=now)))
        logger.warning(_DIFFERS[what], self.task_id, recorded, now or "nothing")

    def finish_writers(self) -> None:
        """End all artifacts after the function returned."""
        for writer in self.writers.values():
            writer.finish()


_DIFFERS = {
    "question": "task %s: an answer to %r is recorded, and the re-run asks %r: the answer stays with its own question."
    " Give turn.ask a key= if only the text has changed",
    "step": "task %s: the recorded result of step %s is used for %s. Give other work another key",
    "call": "task %s: the re-run did not repeat the call of %s, but made %s. Give turn.call a key= if only its content has"
    " changed",
}


def open_record(
    journal: Journal,
    *,
    resume: bool,
    version: str,
    stored: Awaitable[object] | None,
    wait_for_heartbeat: Callable[[], Awaitable[None]],
) -> Recorded:
    """What is on record of a turn. The caller writes the records with which a turn begins.

    `resume`: the turn began before, and was interrupted; otherwise it begins with the oldest message that no turn has read.
    `version`: of the agent's code, for a turn that begins.
    """
    snapshot = journal.loaded
    if resume:
        begins_at, mail = next((n, mail) for n, mail in snapshot.mails if n == snapshot.answering)
        n, read, version = snapshot.turn, max(begins_at, snapshot.read), snapshot.version
    else:
        unread = snapshot.first_unread
        assert unread is not None
        begins_at, mail = unread
        n, read = snapshot.turn + 1, begins_at
    recorded = Recorded(
        journal=journal,
        scope=snapshot.scope,
        task_id=snapshot.task_id,
        context_id=snapshot.context_id,
        n=n,
        mail=mail,
        begins_at=begins_at,
        read=read,
        version=version,
        resumed=resume,
        visible=not snapshot.hidden,
        cancelled=snapshot.canceling is not None,
        used=snapshot.used,
        stored=stored,
        wait_for_heartbeat=wait_for_heartbeat,
    )
    if snapshot.used_by_called:
        recorded.used_by_called.update(snapshot.used_by_called)
    if resume:
        recorded.read_earlier_run(snapshot)
    return recorded


def _take_recorded(recorded: Counter[bytes] | None, value: Any) -> bool:
    """True if a value is among the recorded ones. Each of those counts once."""
    if not recorded or recorded[raw := msgspec.json.encode(value)] <= 0:
        return False
    recorded[raw] -= 1
    return True


def digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def name_of(work: Any) -> str:
    """The name by which a function is recognised in a re-run. Without its module, which depends on how it is loaded."""
    while isinstance(work, partial):
        work = work.func
    return str(getattr(work, "__qualname__", type(work).__qualname__))


def _identity(question: Any) -> str:
    """The text that identifies a question without a key."""
    text = question if isinstance(question, str) else text_of(_parts(question))
    if not text:
        return msgspec.json.encode(_parts(question)).decode()
    # Text that cannot be encoded is refused when it is recorded.
    return text.encode("utf-8", "replace").decode()


def _parts(question: Any) -> tuple[Part, ...]:
    return question.parts if isinstance(question, Message) else parts_of(question)


def _with_hint(question: Any, sentence: str) -> Any:
    """The question with a sentence about which answers fit."""
    if isinstance(question, str):
        return f"{question} ({sentence})"
    parts = (*_parts(question), Part(text=f" ({sentence})"))
    return replace(question, parts=parts) if isinstance(question, Message) else parts
