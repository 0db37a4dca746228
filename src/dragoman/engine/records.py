"""A task is an append-only log, and its state is a fold of it.

| record                  | written by          | on the wire                          | meaning                            |
|-------------------------|---------------------|--------------------------------------|------------------------------------|
| message cancel          | outside (mail)      | history / nothing                    | makes the task claimable           |
| status ask artifact reply | the lease's holder | StatusUpdate, ArtifactUpdate, Message | what peers see; `ask` parks the turn |
| turn step child note    | the lease's holder  | nothing                              | which mail is being answered; a recorded result; where a delegation went; a remark |
| usage                   | the lease's holder  | nothing; the sum goes into the next status | what a call of a model used        |
| question differs        | the lease's holder  | nothing                              | which question the `ask` after it is; what a re-run did otherwise than the run before it |
| attempt                 | the lease's holder  | nothing                              | a turn runs again: its process died, or gave it back |

The body of a public record is the event's JSON in 1.0's own shape, so one encoding serves the disk and the newest wire.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dragoman.model.content import NOTHING, GrowingArtifact, Message, Wire
from dragoman.model.ops import Scope, StreamResponse
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus
from dragoman.model.usage import TaskUsage, TokenUsage, with_called


class Mail(Wire, frozen=True, kw_only=True):
    """A message, and what its sender said about it."""

    message: Message
    metadata: dict[str, Any] = NOTHING
    accepted_output_modes: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    principal: str = ""
    scopes: tuple[str, ...] = ()
    generation: int | None = None
    trace: dict[str, str] = {}
    depth: int = 0
    deadline: float | None = None
    origin: str = ""
    """The dialect it came in."""
    reply: bool = False
    """The answer may be a bare Message: peers see no task until it does what only a task can do."""
    at: str = ""
    names_context: bool = False
    """Its sender named the context of a new task. Otherwise the context is new, too."""
    copy_of: str = ""
    """Of the first message of a copy: the task whose log was copied (`fork.py`)."""
    copied: int = 0
    """And how many records of it."""


class Cancel(Wire, frozen=True, kw_only=True):
    metadata: dict[str, Any] = NOTHING
    principal: str = ""


class TurnStarted(Wire, frozen=True, kw_only=True):
    """Turn `n` begins, to answer the message at `mail`."""

    n: int
    mail: int
    version: str = ""
    """The version of the agent's code that began it."""


class Step(Wire, frozen=True, kw_only=True):
    """What `key` came to. `mail` is set when it took a message (an answer to a question)."""

    key: str
    value: Raw
    mail: int = 0
    function: str = ""
    """The name of the function whose result it is."""
    took: float = 0.0
    """Seconds that it took; 0 if that is not known."""


class Question(Wire, frozen=True, kw_only=True):
    """The identity of a question: the message that comes next answers this one, and no other."""

    key: str
    text: str = ""


class Differs(Wire, frozen=True, kw_only=True):
    """A re-run of a turn did something else than is on record."""

    what: str
    """`question`, `step` or `call`."""
    recorded: str
    now: str = ""


class Attempt(Wire, frozen=True, kw_only=True):
    """A turn that was interrupted runs again, for the `n`th time, on `node`."""

    n: int
    node: str = ""
    at: str = ""


class Child(Wire, frozen=True, kw_only=True):
    """The delegation `key` became task `task` at `peer`."""

    key: str
    peer: str
    task: str
    context: str = ""
    """The context of the task there."""
    after: int = 0
    """The number of the first event there, if the peer can repeat its events from that on."""


class Note(Wire, frozen=True, kw_only=True):
    """Something for readers on our side of the wire: peers do not see it."""

    name: str
    data: dict[str, Any] = {}


Body = (
    Mail
    | Cancel
    | TurnStarted
    | StatusUpdate
    | ArtifactUpdate
    | Message
    | Step
    | Child
    | Note
    | Question
    | Differs
    | TokenUsage
    | Attempt
)

KINDS: dict[str, type[Any]] = {
    "message": Mail,
    "cancel": Cancel,
    "turn": TurnStarted,
    "status": StatusUpdate,
    "ask": StatusUpdate,
    "artifact": ArtifactUpdate,
    "reply": Message,
    "step": Step,
    "child": Child,
    "note": Note,
    "question": Question,
    "differs": Differs,
    "usage": TokenUsage,
    "attempt": Attempt,
}
PUBLIC = frozenset({"status", "ask", "artifact", "reply"})

PIECE_BYTES = 128 << 10
"""Bytes of a log that are read, written or sent at a time. A single record may be larger."""

_WORDS = {kind: kind.encode() + b" " for kind in KINDS}
_decoders = {kind: msgspec.json.Decoder(type) for kind, type in KINDS.items()}


class Record(StreamResponse):
    """One entry of a log. `seq` is 0 until a store has given it its place.

    A public one is itself what its readers get: its body is the event they see.
    """

    __slots__ = ("at", "kind", "memory")

    if TYPE_CHECKING:
        body: Body
    else:
        body = StreamResponse.event  # the same slot

    def __init__(self, kind: str, body: Body, seq: int = 0, raw: bytes = b"", at: int = 0) -> None:
        self.kind = kind
        self.at = at
        """When a store wrote it, in milliseconds since 1970; 0 until then."""
        self.memory = 0
        """Bytes of memory that a large one needs, roughly; 0 until a snapshot has counted them."""
        self.event = body  # type: ignore[assignment]
        self.seq = seq
        self.raw = raw
        self._encoded = None

    def __repr__(self) -> str:
        return f"Record({self.seq}, {self.kind}, {self.body})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Record)
            and (self.seq, self.kind) == (other.seq, other.kind)
            and (self.raw or self.encode()) == (other.raw or other.encode())
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def public(self) -> bool:
        """Whether peers see it."""
        return self.kind in PUBLIC

    @property
    def over(self) -> bool:
        """Whether nothing more happens until somebody says something."""
        if self.kind == "reply":
            return True
        return self.kind in ("status", "ask") and self.body.status.state.over  # type: ignore[union-attr]

    @property
    def progress(self) -> bool:
        """Whether a turn that is run again need not do this again: a task that gets on is not given up."""
        return self.kind in ("step", "child")

    @property
    def terminal(self) -> bool:
        return self.kind == "reply" or (self.kind == "status" and self.body.status.state.terminal)  # type: ignore[union-attr]


def pack(records: Sequence[Record], *, at: int | None = None) -> bytes:
    """Records as lines, after the time of writing, which they get: now, or `at`. JSON holds no newline, so a newline ends a record."""
    written = time.time_ns() // 1_000_000 if at is None else at
    lines: list[bytes] = []
    for record in records:
        record.at = written
        lines.append(_WORDS[record.kind] + (record.raw or record.encode()))
    return b"%d " % written + b"\n".join(lines)


def mark_written(records: Sequence[Record]) -> int:
    """Give records the time of writing, and return it."""
    at = time.time_ns() // 1_000_000
    for record in records:
        record.at = at
    return at


def unpack(lines: bytes, first: int) -> list[Record]:
    """The records of `pack`, numbered from `first`."""
    out, at = [], 0
    if lines[:1].isdigit():  # older logs have no times
        stamp, _, lines = lines.partition(b" ")
        at = int(stamp)
    for seq, line in enumerate(lines.split(b"\n"), first):
        kind, _, raw = line.partition(b" ")
        word = kind.decode()
        out.append(Record(word, _decoders[word].decode(raw), seq, raw, at))
    return out


def size_of(records: Iterable[Record]) -> int:
    """Bytes of these records."""
    return sum([len(record.raw or record.encode()) for record in records])


_SMALL_RECORD_BYTES = 1 << 10


def memory_of(raw: bytes) -> int:
    """Bytes of memory that JSON takes when it is decoded, roughly: `[],` is three bytes, and becomes seventy."""
    brackets = raw.count(b"[") + raw.count(b"{")
    return len(raw) + 64 * brackets + 32 * raw.count(b",") + 24 * raw.count(b'"')


def number(records: Sequence[Record], first: int) -> None:
    """Give `records` their places, from `first` on."""
    for seq, record in enumerate(records, first):
        record.seq = seq


class ArtifactInProgress(GrowingArtifact):
    """An artifact in the log: which turn wrote to it last, and whether it was said to be whole."""

    __slots__ = ("turn", "closed", "before", "owner")

    def __init__(self, update: ArtifactUpdate, turn: int, owner: object) -> None:
        super().__init__(update.artifact)
        self.turn = turn
        self.closed = update.last_chunk
        self.before = 0
        """How many of its parts were there before that turn."""
        self.owner = owner
        """The only fold that may change it."""

    def copy_for(self, owner: object) -> ArtifactInProgress:
        new = ArtifactInProgress.__new__(ArtifactInProgress)
        self.copy_to(new)
        new.turn, new.closed, new.before, new.owner = self.turn, self.closed, self.before, owner
        return new


class Snapshot:
    """A task as its log tells it, up to record `seq`. `task` is what a peer may see of it.

    A snapshot that a store has returned never changes: `after` returns another one. To fold a long log does not copy what is
    folded for each record: `after` changes a snapshot that nobody else has.
    """

    __slots__ = ("_owner", "_question", "_shared", "_task", "answering", "artifacts", "asked", "attempts", "canceling", "children", "context_id",
                 "delegated", "hidden", "history", "mail", "mails", "memory", "metadata", "notes", "read", "reply", "running", "status_updates",
                 "scope", "seq", "size", "status", "steps", "task_id", "turn", "usage", "used", "used_by_called", "version")  # fmt: skip

    def __init__(self, scope: Scope, task_id: str, context_id: str, created: str = "") -> None:
        self._shared = False
        """Others have it: it may not change."""
        self._owner = object()
        """Marks the artifacts that no other snapshot has."""
        self.scope = scope
        self.task_id = task_id
        self.context_id = context_id
        self.seq = 0
        self.size = 0
        """Bytes of the records in here."""
        self.memory = 0
        """Bytes of memory that it needs, roughly."""
        self.mail = 0
        """The last record that came from outside."""
        self.read = 0
        """The last message a turn has taken."""
        self.turn = 0
        self.answering = 0
        """The message that the last turn began with."""
        self.running = False
        """A turn has begun and not ended; it may be parked on a question."""
        self.canceling: Cancel | None = None
        self.mails: tuple[tuple[int, Mail], ...] = ()
        self.hidden = False
        """Not a task to any peer: its answer is, or may yet be, a bare Message."""
        self.history: list[Message] = []
        self.status = TaskStatus(state=TaskState.SUBMITTED, timestamp=created)
        self.artifacts: dict[str, ArtifactInProgress] = {}
        self.metadata: dict[str, Any] = {}
        self.status_updates: list[StatusUpdate] = []
        """The status updates of the running turn that its function made, in order."""
        self.steps: dict[str, Step] = {}
        self.children: dict[str, Child] = {}
        self.delegated: dict[str, Child] = {}
        """The last delegation to each peer, of all turns."""
        self.notes: list[Note] = []
        """The notes of the running turn, in order."""
        self.version = ""
        """The version of the agent's code that began the last turn."""
        self.usage: list[TokenUsage] | None = None
        """What the running turn used, in order; None if nothing."""
        self.used: TaskUsage | None = None
        """What the whole task used; None if nothing."""
        self.used_by_called: dict[tuple[str, str], TokenUsage] | None = None
        """What called agents said last that their tasks used, by task and currency."""
        self.asked: tuple[int, Question] | None = None
        """The last question of the running turn that peers saw, and the record that asked it."""
        self._question: Question | None = None
        self.attempts: tuple[tuple[int, int], ...] = ()
        """From which record on which attempt of a turn wrote; the first attempt, until there is another."""
        self.reply: Message | None = None
        self._task: tuple[int, Task] | None = None

    @property
    def origin(self) -> str:
        return self.mails[0][1].origin if self.mails else ""

    @property
    def state(self) -> TaskState:
        return self.status.state

    @property
    def over(self) -> bool:
        return self.reply is not None or self.status.state.over

    @property
    def terminal(self) -> bool:
        return self.reply is not None or self.status.state.terminal

    @property
    def attempt(self) -> int:
        """Which attempt of its turn wrote last."""
        return self.attempts[-1][1] if self.attempts else 1

    @property
    def rerun(self) -> bool:
        """A turn has begun, and who runs it now runs it again: it was interrupted, and no answer is what it waited for."""
        if not self.running:
            return False
        unread = self.first_unread
        return unread is None or self.asked is None or unread[0] < self.asked[0]

    @property
    def first_unread(self) -> tuple[int, Mail] | None:
        """The oldest message that no turn has taken yet."""
        if not self.mails or self.mails[-1][0] <= self.read:
            return None
        for unread in self.mails:
            if unread[0] > self.read:
                break
        return unread

    @property
    def task(self) -> Task:
        if self._task is None or self._task[0] != self.seq:
            task = Task(
                id=self.task_id,
                context_id=self.context_id,
                status=self.status,
                artifacts=tuple(map(ArtifactInProgress.artifact, self.artifacts.values())),
                history=tuple(self.history),
                metadata=dict(self.metadata) if self.metadata else NOTHING,
            )
            self._task = (self.seq, task)
        return self._task[1]

    def share(self) -> Snapshot:
        """Return it to somebody else: from now on it does not change."""
        self._shared = True
        return self

    def after(self, records: Iterable[Record]) -> Snapshot:
        """The task after `records` too, which come next in the log. Records that are in here already are passed over."""
        folded = self._copy() if self._shared else self
        for record in records:
            folded._apply(record)
        return folded

    def _copy(self) -> Snapshot:
        new = Snapshot.__new__(Snapshot)
        new._shared, new._owner = False, object()
        new.scope, new.task_id, new.context_id = self.scope, self.task_id, self.context_id
        new.seq, new.size, new.memory = self.seq, self.size, self.memory
        new.mail, new.mails, new.read, new.hidden = self.mail, self.mails, self.read, self.hidden
        new.turn, new.answering, new.running = self.turn, self.answering, self.running
        new.status, new.metadata, new._task = self.status, self.metadata, self._task
        new.canceling, new.reply = self.canceling, self.reply
        new.asked, new._question = self.asked, self._question
        new.attempts = self.attempts
        new.history, new.artifacts = self.history[:], self.artifacts.copy()
        new.status_updates, new.notes = self.status_updates[:], self.notes[:]
        new.steps, new.children = self.steps.copy(), self.children.copy()
        new.delegated = self.delegated
        new.usage, new.used = self.usage and self.usage[:], self.used
        new.used_by_called = self.used_by_called
        new.version = self.version
        return new

    def _apply(self, record: Record) -> None:
        if record.seq <= self.seq:
            return
        assert record.seq == self.seq + 1, f"gap in the log of {self.task_id}: {self.seq} -> {record.seq}"
        self.seq = record.seq
        raw = record.raw or record.encode()
        self.size += len(raw)
        if len(raw) < _SMALL_RECORD_BYTES:
            self.memory += len(raw)
        else:
            record.memory = record.memory or memory_of(raw)
            self.memory += record.memory
        body: Any = record.body
        kind = record.kind
        if kind == "artifact":
            have = self.artifacts.get(body.artifact.artifact_id)
            if body.append and have is not None:
                if have.owner is not self._owner:
                    have = self.artifacts[body.artifact.artifact_id] = have.copy_for(self._owner)
                if have.turn != self.turn:
                    have.turn, have.before = self.turn, len(have.parts)
                have.extend(body.artifact)
                have.closed = body.last_chunk
            else:
                self.artifacts[body.artifact.artifact_id] = ArtifactInProgress(body, self.turn, self._owner)
        elif kind == "status" or kind == "ask":
            if self.status.message is not None:
                self._move_status_to_history()
            self.status = body.status
            first = self.mails[0][1] if self.mails else None
            self.hidden = body.status.state is TaskState.SUBMITTED and first is not None and first.reply
            if body.metadata:
                self.metadata = {**self.metadata, **body.metadata}
            if kind == "ask":
                if self._question is not None:
                    self.asked = record.seq, self._question
            elif body.status.state.over:
                self.running = False
            elif body.status.message is not None or body.metadata:
                self.status_updates.append(body)
        elif kind == "message":
            self.mail = record.seq
            if not self.mails:
                self.hidden = body.reply
            self.mails += ((record.seq, body),)
            if self.status.message is not None:
                self._move_status_to_history()
            self.history.append(body.message)
            if self.status.state.interrupted:
                # `submitted` would hide a task whose first answer could have been a bare Message.
                state = TaskState.WORKING if self.mails[0][1].reply else TaskState.SUBMITTED
                self.status = TaskStatus(state=state, timestamp=body.at or self.status.timestamp)
            elif not self.status.timestamp:
                self.status = replace(self.status, timestamp=body.at)
        elif kind == "turn":
            if self.attempts and self.attempts[-1][1] > 1 and self.attempts[-1][0] != record.seq - 1:
                self.attempts += ((record.seq, 1),)
            self.turn, self.answering, self.running = body.n, body.mail, True
            self.version = body.version
            self.read = max(self.read, body.mail)
            self.status_updates, self.steps, self.children, self.notes = [], {}, {}, []
            self.asked = self._question = self.usage = None
        elif kind == "step":
            self.steps[body.key] = body
            self.read = max(self.read, body.mail)
        elif kind == "child":
            self.children[body.key] = body
            self.delegated = {**self.delegated, body.peer: body}
        elif kind == "note":
            self.notes.append(body)
        elif kind == "usage":
            if body.called:
                self.used_by_called = {**(self.used_by_called or {}), (body.called, body.currency): body}
                self.used = with_called(self.used, self.used_by_called)
            else:
                self.usage = self.usage or []
                self.usage.append(body)
                self.used = (self.used or TaskUsage()).plus(body)
        elif kind == "question":
            self._question = body
        elif kind == "reply":
            self.reply, self.running = body, False
        elif kind == "attempt":
            self.attempts += ((record.seq, body.n),)
        elif kind == "cancel":
            self.mail = record.seq
            self.canceling = body

    def _move_status_to_history(self) -> None:
        """The message of a status becomes history when the next status or message comes."""
        assert self.status.message is not None
        self.history.append(self.status.message)
        self.status = replace(self.status, message=None)


CACHE_BYTES = 64 << 20
"""Bytes of memory of all kept snapshots of a store."""


class SnapshotCache(OrderedDict[int, Snapshot]):
    """By the store's key of the task, the last used last. One that is a quarter of `max_bytes` is not kept at all."""

    def __init__(self, *, count: int, max_bytes: int = CACHE_BYTES) -> None:
        super().__init__()
        self._count, self._max, self._largest = count, max_bytes, max_bytes // 4
        self._sizes: dict[int, int] = {}
        self.bytes = 0

    def use(self, key: int, seq: int) -> Snapshot | None:
        """The kept snapshot, to be returned to somebody, if it has record `seq`. It is now the newest."""
        snapshot = self.get(key)
        if snapshot is None or snapshot.seq < seq:
            return None
        self.move_to_end(key)
        return snapshot.share()

    def keep(self, key: int, snapshot: Snapshot) -> Snapshot:
        """Keep `snapshot` as the newest, drop the oldest to make room, and return it."""
        size = snapshot.memory
        if size > self._largest:
            self.drop(key)
            return snapshot
        self[key] = snapshot
        self.move_to_end(key)
        self.bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        while self.bytes > self._max or len(self) > self._count:
            oldest, _ = self.popitem(last=False)
            self.bytes -= self._sizes.pop(oldest)
        return snapshot

    def drop(self, key: int) -> None:
        if self.pop(key, None) is not None:
            self.bytes -= self._sizes.pop(key)

    def move(self, key: int, records: Sequence[Record], *, share: bool = False) -> Snapshot | None:
        """Add what was just committed to the kept snapshot. None if there is none, or if records are missing in between.

        `share`: it is to be returned to somebody.
        """
        snapshot = self.get(key)
        if snapshot is None or not records:
            return snapshot.share() if snapshot is not None and share else snapshot
        if snapshot.seq < records[0].seq - 1:  # another process wrote in between
            self.drop(key)
            return None
        snapshot = self[key] = snapshot.after(records)
        size = snapshot.memory
        self.bytes += size - self._sizes[key]
        self._sizes[key] = size
        if size > self._largest or self.bytes > self._max:
            self.keep(key, snapshot)
        return snapshot.share() if share else snapshot


@lru_cache(4096)
def topic(scope: Scope, task: str) -> str:
    """The bus topic of a task; it begins with the tenant. No two tasks share one, whatever their ids are made of."""
    words = (scope.tenant, scope.agent, scope.owner, task)
    plain = "/".join(words)
    if "%" not in plain and plain.count("/") == 3:
        return plain
    return "/".join([word.replace("%", "%25").replace("/", "%2F") for word in words])


def read_topic(topic: str) -> tuple[Scope, str] | None:
    """The scope and the task of a topic; None if it is not that of a task, or cannot be known (a bus sends some as a hash)."""
    words = topic.split("/")
    if len(words) != 4:
        return None
    tenant, agent, owner, task = (word.replace("%2F", "/").replace("%25", "%") for word in words)
    return Scope(tenant, agent, owner), task


def trimmed(task: Task, history_length: int | None) -> Task:
    """The task with at most the last `history_length` messages; None keeps them all."""
    if history_length is None or len(task.history) <= history_length:
        return task
    return replace(task, history=task.history[len(task.history) - history_length :])
