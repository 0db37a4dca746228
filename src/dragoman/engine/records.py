"""The records of a task's log: what each kind holds, and how a store writes them.

`docs/architecture.md` has a table of them. The body of a public record is the event's JSON in the shape of 1.0, so one
encoding serves the disk and the newest wire.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from dragoman.model.content import NOTHING, Message, Wire
from dragoman.model.ops import Scope, StreamResponse
from dragoman.model.task import ArtifactUpdate, StatusUpdate
from dragoman.model.usage import TokenUsage


class Mail(Wire, frozen=True, kw_only=True):
    """A message, and the context of the request that sent it."""

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
    """The dialect of the request."""
    reply: bool = False
    """The answer may be a bare Message: peers see no task until it does something that only tasks do."""
    at: str = ""
    answers: int | None = None
    """The last record that the sender knew: the message answers the question of that time, and no later one."""
    names_context: bool = False
    """The sender named the context of a new task. Otherwise the context is new, too."""
    copy_of: str = ""
    """In the first message of a copied task: the original task (`fork.py`)."""
    copied: int = 0
    """In the first message of a copied task: the number of records that are copied."""


class Cancel(Wire, frozen=True, kw_only=True):
    metadata: dict[str, Any] = NOTHING
    principal: str = ""


class TurnStarted(Wire, frozen=True, kw_only=True):
    """Turn `n` begins, to answer the message at `mail`."""

    n: int
    mail: int
    version: str = ""
    """The version of the agent's code that began the turn."""


class Step(Wire, frozen=True, kw_only=True):
    """The result of step `key`. `mail` is set if it is an answer to a question: the record of the message."""

    key: str
    value: Raw
    mail: int = 0
    function: str = ""
    """The name of the function that returned the result."""
    took: float = 0.0
    """Seconds that the step took; 0 if that is not known."""
    calls: tuple[str, ...] = ()
    """The keys of the calls of other agents during the step. With its recorded result, they are not made again."""


class Question(Wire, frozen=True, kw_only=True):
    """The identity of a question: the message that comes next answers this one, and no other."""

    key: str
    text: str = ""


class Differs(Wire, frozen=True, kw_only=True):
    """A difference between a re-run of a turn and the record."""

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
    """The number of the first event there, if the peer can repeat its events from that number on."""


class Note(Wire, frozen=True, kw_only=True):
    """A remark for readers of the log. Peers do not see it."""

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

_PREFIXES = {kind: kind.encode() + b" " for kind in KINDS}
_decoders = {kind: msgspec.json.Decoder(type) for kind, type in KINDS.items()}


class Record(StreamResponse):
    """One entry of a log. `seq` is 0 until a store has numbered it.

    Readers of a public record get the record itself: its body is the event.
    """

    __slots__ = ("at", "kind", "memory")

    if TYPE_CHECKING:
        body: Body
    else:
        body = StreamResponse.event  # the same slot

    def __init__(self, kind: str, body: Body, seq: int = 0, raw: bytes = b"", at: int = 0) -> None:
        self.kind = kind
        self.at = at
        """When a store wrote the record, in milliseconds since 1970; 0 until then."""
        self.memory = 0
        """Bytes of memory that a large record needs, roughly; 0 until a snapshot has counted them."""
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
        """True if peers see the record."""
        return self.kind in PUBLIC

    @property
    def settles(self) -> bool:
        """True if the task is settled after it: terminal or interrupted."""
        if self.kind == "reply":
            return True
        return self.kind in ("status", "ask") and self.body.status.state.settled  # type: ignore[union-attr]

    @property
    def progress(self) -> bool:
        """True if a re-run need not do this again. A task that makes progress is not given up."""
        return self.kind in ("step", "child")

    @property
    def terminal(self) -> bool:
        return self.kind == "reply" or (self.kind == "status" and self.body.status.state.terminal)  # type: ignore[union-attr]


def pack(records: Sequence[Record], *, at: int | None = None) -> bytes:
    """Encode records: the time of writing (now, or `at`), then a line for each record. JSON of one line has no newline in it.

    Sets `at` of the records.
    """
    written = time.time_ns() // 1_000_000 if at is None else at
    lines: list[bytes] = []
    for record in records:
        record.at = written
        lines.append(_PREFIXES[record.kind] + (record.raw or record.encode()))
    return b"%d " % written + b"\n".join(lines)


def mark_written(records: Sequence[Record]) -> None:
    """Set the time of writing of records: now."""
    at = time.time_ns() // 1_000_000
    for record in records:
        record.at = at


def unpack(lines: bytes, first: int) -> list[Record]:
    """Decode the records of `pack`, numbered from `first` on."""
    out, at = [], 0
    if lines[:1].isdigit():  # older logs have no times
        stamp, _, lines = lines.partition(b" ")
        at = int(stamp)
    for seq, line in enumerate(lines.split(b"\n"), first):
        kind, _, raw = line.partition(b" ")
        name = kind.decode()
        out.append(Record(name, _decoders[name].decode(raw), seq, raw, at))
    return out


def size_of(records: Iterable[Record]) -> int:
    """Bytes of these records."""
    return sum([len(record.raw or record.encode()) for record in records])


def number(records: Sequence[Record], first: int) -> None:
    """Number `records` from `first` on."""
    for seq, record in enumerate(records, first):
        record.seq = seq


@lru_cache(4096)
def topic(scope: Scope, task: str) -> str:
    """The bus topic of a task. It begins with the tenant. No two tasks have the same, whatever characters their ids have."""
    words = (scope.tenant, scope.agent, scope.owner, task)
    plain = "/".join(words)
    if "%" not in plain and plain.count("/") == 3:
        return plain
    return "/".join([word.replace("%", "%25").replace("/", "%2F") for word in words])


def read_topic(topic: str) -> tuple[Scope, str] | None:
    """The scope and the task of a topic; None if it is not the topic of a task, or was sent as a hash."""
    words = topic.split("/")
    if len(words) != 4:
        return None
    tenant, agent, owner, task = (word.replace("%2F", "/").replace("%25", "%") for word in words)
    return Scope(tenant, agent, owner), task
