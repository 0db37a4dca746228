"""What each write does to a task: the one state machine behind every store.

A store loads and locks the row of a task, asks `decide` what a job does to it, and writes the row and the records that
come back. `decide` knows no clock and no disk, so it can be tested by itself, and three stores cannot disagree.

    nobody's  --Deliver(node), Claim-->  held  --Settle-->  at rest (not ready)
       ^                                  |  ^                  |
       |------------- Release ------------|  |--Append          |
       |                                                        |
       |----------------------- Deliver ------------------------|     a message to a task that is done: TaskClosed

`fence` rises each time somebody takes the lease, so what an earlier holder still writes is refused with `LeaseLost`.
`attempt` counts how often the task was taken since it last settled or recorded progress.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.engine.protocols import LeaseLost, NewMail
from dragoman.engine.push_configs import MAX_PUSH_CONFIGS
from dragoman.engine.records import PUBLIC, Record, number
from dragoman.errors import InvalidParams, TaskClosed
from dragoman.model.task import StatusUpdate, TaskState, TaskStatus


class TaskRow(Struct, frozen=True, kw_only=True, gc=False):
    """A task as its store indexes it: where its log ends, what the fold of the log comes to, and who holds its lease."""

    seq: int = 0
    """The last record of the log."""
    mail: int = 0
    """The last record that came from outside."""
    state: TaskState = TaskState.SUBMITTED
    updated: str = ""
    """When the state last changed, as the records say it."""
    done: bool = False
    """Finished: no message is taken any more."""
    ready: bool = False
    """There is work: mail that no turn has settled."""
    node: str = ""
    """The node that holds the lease; empty if none does."""
    fence: int = 0
    attempt: int = 0
    push: bool = False
    """It has push configs."""


class Create(Struct, frozen=True, gc=False):
    """Begin a task with a message. With `node`, that node holds its lease from the start."""

    message: Record
    at: str
    node: str = ""
    push: bool = False


class Deliver(Struct, frozen=True, gc=False):
    """Add a message or a cancel. With `node`, that node takes the lease unless a node holds it."""

    task: str
    mail: Record
    at: str = ""
    """When a message was sent; empty for a cancel."""
    node: str = ""
    push: bool = False
    """The message brings a push config."""
    reply: bool = False
    """The answer to the first message could have been a bare Message: `submitted` would hide the task again."""


class Append(Struct, frozen=True, gc=False):
    """Add what the holder of the lease writes."""

    task: str
    fence: int
    records: Sequence[Record]


class Settle(Struct, frozen=True, gc=False):
    """`Append`, and give the lease back, if nothing came after the mail that the turn has read."""

    task: str
    fence: int
    records: Sequence[Record]
    mail_read: int


class Claim(Struct, frozen=True, gc=False):
    """Take a task that has work and that no live node holds. A node does not take its own tasks again."""

    node: str
    holder_alive: bool = True


class Release(Struct, frozen=True, gc=False):
    """Give a task back unfinished. Unless it `failed`, that was no attempt."""

    fence: int
    failed: bool = False


Job = Create | Deliver | Append | Settle | Claim | Release


class Decision(Struct, frozen=True, gc=False):
    """What a job comes to."""

    row: TaskRow
    records: Sequence[Record] = ()
    """To be added to the log. They have their numbers."""
    leased: bool = False
    """Whoever asked holds the lease now: `row.fence` and `row.attempt` are its terms."""
    notify: int = 0
    """The last record that push configs are to be told of; 0 if there is none."""


def decide(row: TaskRow, job: Job) -> Decision:
    """What `job` does to the task of `row`. Raises `LeaseLost`, `NewMail` or `TaskClosed`, and then nothing happens."""
    match job:
        case Append():
            return _append(row, job.task, job.fence, job.records)
        case Settle():
            return _settle(row, job)
        case Deliver():
            return _deliver(row, job)
        case Create():
            return _create(job)
        case Claim():
            return _claim(row, job)
        case Release():
            return _release(row, job)


def _create(job: Create) -> Decision:
    number((job.message,), 1)
    claims = 1 if job.node else 0
    made = TaskRow(
        seq=1, mail=1, updated=job.at, ready=True, node=job.node, fence=claims, attempt=claims, push=job.push
    )
    return Decision(made, (job.message,), leased=bool(job.node))


def _deliver(row: TaskRow, job: Deliver) -> Decision:
    if row.done:
        raise TaskClosed(f"task {job.task!r} is finished")
    seq = row.seq + 1
    number((job.mail,), seq)
    state, updated = row.state, row.updated
    if job.mail.kind == "message":
        if state.interrupted:  # the answer sets the task in motion again
            state = TaskState.WORKING if job.reply else TaskState.SUBMITTED
            updated = job.at or updated
        elif not updated:
            updated = job.at
    node, fence, attempt, leased = row.node, row.fence, row.attempt, False
    if job.node and not node:
        node, fence, attempt, leased = job.node, fence + 1, attempt + 1, True
    after = TaskRow(
        seq=seq,
        mail=seq,
        state=state,
        updated=updated,
        ready=True,
        node=node,
        fence=fence,
        attempt=attempt,
        push=row.push or job.push,
    )
    return Decision(after, (job.mail,), leased)


def _append(row: TaskRow, task: str, fence: int, records: Sequence[Record]) -> Decision:
    if row.fence != fence or not row.node:
        raise LeaseLost(task)
    seq = row.seq + len(records)
    number(records, row.seq + 1)
    done, status = outcome(records)
    progress = row.attempt > 1 and any(record.progress for record in records)
    after = TaskRow(
        seq=seq,
        mail=row.mail,
        state=row.state if status is None else status.state,
        updated=row.updated if status is None else status.timestamp,
        done=row.done or done,
        ready=row.ready,
        node=row.node,
        fence=fence,
        attempt=1 if progress else row.attempt,
        push=row.push,
    )
    return Decision(after, records, notify=_last_public(records) if row.push else 0)


def _settle(row: TaskRow, job: Settle) -> Decision:
    written = _append(row, job.task, job.fence, job.records)
    if row.mail != job.mail_read:
        raise NewMail(job.task)
    return replace(written, row=replace(written.row, ready=False, node="", attempt=0))


def _claim(row: TaskRow, job: Claim) -> Decision:
    if not row.ready or row.node == job.node or (row.node and job.holder_alive):
        return Decision(row)
    return Decision(
        replace(row, node=job.node, fence=row.fence + 1, attempt=row.attempt + 1),
        leased=True,
    )


def _release(row: TaskRow, job: Release) -> Decision:
    if row.fence != job.fence or not row.node:
        return Decision(row)  # somebody else has it, or nobody
    return Decision(replace(row, node="", attempt=row.attempt - (not job.failed)))


def outcome(records: Sequence[Record]) -> tuple[bool, TaskStatus | None]:
    """Whether these records finish their task, and the last status among them."""
    for record in reversed(records):
        if isinstance(record.body, StatusUpdate):
            return record.kind == "status" and record.body.status.state.terminal, record.body.status
        if record.kind == "reply":
            return True, None
    return False, None


def _last_public(records: Sequence[Record]) -> int:
    return next((record.seq for record in reversed(records) if record.kind in PUBLIC), 0)


# -- push configs ------------------------------------------------------------------------------------------------------


class PushRow(Struct, frozen=True, kw_only=True, gc=False):
    """How far one push config of a task has been told of it, and who tells it. It is due while `cursor < last`."""

    cursor: int
    """Everything up to this record has been told."""
    last: int
    """The last record there is to tell of."""
    node: str = ""
    fence: int = 0
    attempt: int = 0
    """How often the next notification was tried in vain."""
    since: float = 0.0
    """When it first was."""
    at: float = 0.0
    """Not to be tried before this time."""
    error: str = ""
    dead: bool = False
    """Given up. What comes meanwhile waits behind it."""

    @property
    def due(self) -> bool:
        return self.cursor < self.last and not self.dead


class Replace(Struct, frozen=True, gc=False):
    """The owner gave the config again: it goes on from where it is, at once, and whoever sends for it stops."""


class Notify(Struct, frozen=True, gc=False):
    """There is something to tell: a record up to `last`."""

    last: int


class ClaimPush(Struct, frozen=True, gc=False):
    """Take a config that is due at `now` and that no live node holds. A node does not take what it holds already.

    Nobody waits for more than `longest` seconds: a later time is of a clock that was wrong, and means now.
    """

    node: str
    now: float
    holder_alive: bool = False
    longest: float = float("inf")


class Advance(Struct, frozen=True, gc=False):
    """Everything up to `cursor` has been told."""

    task: str
    fence: int
    cursor: int


class ReleasePush(Struct, frozen=True, gc=False):
    """`Advance`, and give it back. With an `error` the attempt was in vain; `dead`: there is no next one."""

    fence: int
    cursor: int
    now: float
    retry_in: float = 0.0
    error: str = ""
    dead: bool = False


class Redeliver(Struct, frozen=True, gc=False):
    """An operator wants it tried at once, from `cursor` on if given."""

    cursor: int | None = None


PushJob = Replace | Notify | ClaimPush | Advance | ReleasePush | Redeliver


def decide_push(row: PushRow, job: PushJob) -> PushRow:
    """What `job` does to a push config. Raises `LeaseLost` (from `Advance`). The same row: nothing happens."""
    match job:
        case Notify():
            return replace(row, last=max(row.last, job.last))
        case ClaimPush():
            waits = job.now < row.at <= job.now + job.longest
            if not row.due or waits or row.node == job.node or (row.node and job.holder_alive):
                return row
            return replace(row, node=job.node, fence=row.fence + 1)
        case Advance():
            if row.fence != job.fence or not row.node:
                raise LeaseLost(job.task)
            return replace(row, cursor=job.cursor, attempt=0, since=0.0, at=0.0, error="")
        case ReleasePush():
            return _release_push(row, job)
        case Redeliver():
            cursor = row.cursor if job.cursor is None else min(job.cursor, row.last)
            return PushRow(cursor=cursor, last=row.last, fence=row.fence + 1)
        case Replace():
            return PushRow(cursor=row.cursor, last=row.last, fence=row.fence + 1)


def _release_push(row: PushRow, job: ReleasePush) -> PushRow:
    if row.fence != job.fence:
        return row  # somebody else has it
    moved = row.cursor != job.cursor
    if job.error or job.dead:
        return replace(
            row,
            cursor=job.cursor,
            node="",
            attempt=1 if moved else row.attempt + 1,
            since=row.since if row.attempt and not moved else job.now,
            at=job.now + job.retry_in,
            error=job.error,
            dead=job.dead,
        )
    return replace(
        row,
        cursor=job.cursor,
        node="",
        attempt=0 if moved else row.attempt,
        since=0.0 if moved else row.since,
        at=job.now + job.retry_in if job.retry_in else 0.0,
        error="" if moved else row.error,
    )


def first_push_row(row: TaskRow) -> PushRow:
    """A new config of a task: it is told what comes from now on, and how the task ended or what it waits for if it does."""
    resting = row.done or row.state.over
    return PushRow(cursor=row.seq - 1 if resting else row.seq, last=row.seq)


def check_push_count(configs: int) -> None:
    """Raises `InvalidParams` if a task that has `configs` push configs may not have another."""
    if configs >= MAX_PUSH_CONFIGS:
        raise InvalidParams(f"a task can have up to {MAX_PUSH_CONFIGS} push configs")


def visible(state: str, reply: bool) -> bool:
    """Whether peers can see a task: what the partial indexes and `counts` hold."""
    return not reply or state != TaskState.SUBMITTED.value
