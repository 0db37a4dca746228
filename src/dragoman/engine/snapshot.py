"""The state of a task is a fold of its log: a snapshot is the fold up to one record.

Stores cache snapshots, so that a log is not folded again for each reader.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.engine.records import Cancel, Child, Mail, Note, Question, Record, Step
from dragoman.model.content import NOTHING, GrowingArtifact, Message
from dragoman.model.ops import Scope
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus
from dragoman.model.usage import TaskUsage, TokenUsage, with_called

_SMALL_RECORD_BYTES = 1 << 10
"""The memory of smaller records is counted as their bytes."""


def memory_of(raw: bytes) -> int:
    """Bytes of memory that JSON takes when it is decoded, roughly: the three bytes of `[],` become seventy."""
    brackets = raw.count(b"[") + raw.count(b"{")
    return len(raw) + 64 * brackets + 32 * raw.count(b",") + 24 * raw.count(b'"')


class ArtifactInProgress(GrowingArtifact):
    """An artifact in the log: the turn that wrote to it last, and whether its last chunk was written (`closed`)."""

    __slots__ = ("turn", "closed", "before", "owner")

    def __init__(self, update: ArtifactUpdate, turn: int, owner: object) -> None:
        super().__init__(update.artifact)
        self.turn = turn
        self.closed = update.last_chunk
        self.before = 0
        """The number of its parts before that turn."""
        self.owner = owner
        """The only snapshot that may change it in place."""

    def copy_for(self, owner: object) -> ArtifactInProgress:
        new = ArtifactInProgress.__new__(ArtifactInProgress)
        self.copy_to(new)
        new.turn, new.closed, new.before, new.owner = self.turn, self.closed, self.before, owner
        return new


class Snapshot(Struct, eq=False):
    """The fold of a task's log up to record `seq`. `task` is the part that peers may see.

    A snapshot that was shared (`share`) never changes: `after` returns another one. A snapshot that was not shared is changed in
    place by `after`, so that folding a long log does not copy it for each record.
    """

    scope: Scope
    task_id: str
    context_id: str
    seq: int = 0
    size: int = 0
    """Bytes of its records."""
    memory: int = 0
    """Bytes of memory that it needs, roughly."""
    mail: int = 0
    """The last record that came from outside."""
    read: int = 0
    """The last message that a turn has read."""
    turn: int = 0
    answering: int = 0
    """The message that the last turn began with."""
    running: bool = False
    """A turn has begun and not ended; it may be parked on a question."""
    canceling: Cancel | None = None
    mails: tuple[tuple[int, Mail], ...] = ()
    hidden: bool = False
    """Peers see no task: the answer is, or may still be, a bare Message."""
    history: list[Message] = []
    status: TaskStatus = TaskStatus(state=TaskState.SUBMITTED)
    artifacts: dict[str, ArtifactInProgress] = {}
    metadata: dict[str, Any] = NOTHING
    status_updates: list[StatusUpdate] = []
    """The status updates of the running turn, in order, without those of the engine."""
    steps: dict[str, Step] = {}
    children: dict[str, Child] = {}
    delegated: dict[str, Child] = {}
    """The last delegation to each peer, of all turns."""
    notes: list[Note] = []
    """The notes of the running turn, in order."""
    version: str = ""
    """The version of the agent's code that began the last turn."""
    usage: list[TokenUsage] | None = None
    """The usage that the running turn reported, in order; None if it reported none."""
    used: TaskUsage | None = None
    """The usage of the whole task; None if none was reported."""
    used_by_called: dict[tuple[str, str], TokenUsage] | None = None
    """The last usage that each called agent reported, by task and currency."""
    asked: tuple[int, Question] | None = None
    """The last question of the running turn that peers saw, and the record that asked it."""
    attempts: tuple[tuple[int, int], ...] = ()
    """Pairs of a record and the number of the attempt that wrote from it on; empty while there was only a first attempt."""
    reply: Message | None = None
    _question: Question | None = None
    _task: tuple[int, Task] | None = None
    _shared: bool = False
    """It was returned to other code, so it must not change."""
    _owner: object = field(default_factory=object)
    """The `owner` of artifacts that no other snapshot has."""

    @property
    def origin(self) -> str:
        return self.mails[0][1].origin if self.mails else ""

    @property
    def state(self) -> TaskState:
        return self.status.state

    @property
    def settled(self) -> bool:
        return self.reply is not None or self.status.state.settled

    @property
    def terminal(self) -> bool:
        return self.reply is not None or self.status.state.terminal

    @property
    def attempt(self) -> int:
        """The number of the attempt that wrote last."""
        return self.attempts[-1][1] if self.attempts else 1

    @property
    def rerun(self) -> bool:
        """True if the next run of the turn is a re-run: it was interrupted, and did not wait for an answer that has come."""
        if not self.running:
            return False
        unread = self.first_unread
        return unread is None or self.asked is None or unread[0] < self.asked[0]

    @property
    def first_unread(self) -> tuple[int, Mail] | None:
        """The oldest message that no turn has read."""
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
        """Mark the snapshot as shared, and return it: from now on it does not change."""
        self._shared = True
        return self

    def after(self, records: Iterable[Record]) -> Snapshot:
        """The snapshot with `records`, the next ones of the log. Records that it has already are skipped."""
        folded = self._copy() if self._shared else self
        seq, size, memory = folded.seq, folded.size, folded.memory
        for record in records:
            if record.seq <= seq:
                continue
            assert record.seq == seq + 1, f"gap in the log of {self.task_id}: {seq} -> {record.seq}"
            folded.seq = seq = record.seq
            raw = record.raw or record.encode()
            length = len(raw)
            size += length
            if length >= _SMALL_RECORD_BYTES:
                length = record.memory = record.memory or memory_of(raw)
            memory += length
            folded._apply(record.kind, record.body, seq)
        folded.size, folded.memory = size, memory
        return folded

    def _copy(self) -> Snapshot:
        return replace(
            self,
            history=self.history[:],
            artifacts=self.artifacts.copy(),
            status_updates=self.status_updates[:],
            steps=self.steps.copy(),
            children=self.children.copy(),
            notes=self.notes[:],
            usage=self.usage and self.usage[:],
            _shared=False,
            _owner=object(),
        )

    def _apply(self, kind: str, body: Any, seq: int) -> None:
        """Apply record `seq`."""
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
                    self.asked = seq, self._question
            elif body.status.state.settled:
                self.running = False
            elif body.status.message is not None or body.metadata:
                self.status_updates.append(body)
        elif kind == "message":
            self.mail = seq
            if not self.mails:
                self.hidden = body.reply
            self.mails += ((seq, body),)
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
            if self.attempts and self.attempts[-1][1] > 1 and self.attempts[-1][0] != seq - 1:
                self.attempts += ((seq, 1),)
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
            self.attempts += ((seq, body.n),)
        elif kind == "cancel":
            self.mail = seq
            self.canceling = body

    def _move_status_to_history(self) -> None:
        """The message of a status becomes history when the next status or message comes."""
        assert self.status.message is not None
        self.history.append(self.status.message)
        self.status = replace(self.status, message=None)


CACHE_BYTES = 64 << 20
"""Bytes of memory of all cached snapshots of a store."""


class SnapshotCache(OrderedDict[int, Snapshot]):
    """Snapshots by the store's key of the task, the last used last. Those larger than a quarter of `max_bytes` are not cached."""

    def __init__(self, *, count: int, max_bytes: int = CACHE_BYTES) -> None:
        super().__init__()
        self._count, self._max, self._largest = count, max_bytes, max_bytes // 4
        self._sizes: dict[int, int] = {}
        self.bytes = 0

    def use(self, key: int, seq: int) -> Snapshot | None:
        """The cached snapshot, shared, if it has record `seq`. It becomes the last used."""
        snapshot = self.get(key)
        if snapshot is None or snapshot.seq < seq:
            return None
        self.move_to_end(key)
        return snapshot.share()

    def keep(self, key: int, snapshot: Snapshot) -> Snapshot:
        """Cache `snapshot` as the last used, drop old ones to make room, and return it."""
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

    def advance(self, key: int, records: Sequence[Record], *, share: bool = False) -> Snapshot | None:
        """Add records that were just committed to the cached snapshot, and return it, shared if `share`.

        None if there is no cached snapshot, or if records are missing in between.
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
