"""The state machine of a task, behind every store.

A store loads and locks the row of a task, calls `decide` with a job (a write), and stores the row and the records that
`decide` returns. `decide` has no clock and no disk, so it can be tested by itself, and the stores cannot disagree.

    unclaimed  --Deliver(node), Claim-->  held  --Settle-->  settled (not ready)
       ^                                   |  ^                  |
       |------------- Release -------------|  |--Append          |
       |                                                         |
       |----------------------- Deliver -------------------------|     a message to a finished task, or to an earlier question: TaskClosed

`fence` rises with each new lease, so writes of an earlier holder are refused with `LeaseLost`. `attempt` counts how often the
task was claimed since it last settled or recorded progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.engine.protocols import LeaseLost, NewMail
from dragoman.engine.push_configs import MAX_PUSH_CONFIGS, PushRow, StoredPushConfig
from dragoman.engine.records import PUBLIC, Mail, Record, number
from dragoman.errors import InvalidParams, TaskClosed
from dragoman.model.task import StatusUpdate, TaskState, TaskStatus


class TaskRow(Struct, frozen=True, kw_only=True, gc=False):
    """A task as its store indexes it: the end of its log, parts of the fold of the log, and the holder of its lease."""

    seq: int = 0
    """The last record of the log."""
    mail: int = 0
    """The last record that came from outside."""
    state: TaskState = TaskState.SUBMITTED
    updated: str = ""
    """When the state last changed, from the records."""
    done: bool = False
    """Terminal: no more messages are accepted."""
    ready: bool = False
    """There is mail that no turn has settled."""
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
    """Add a message or a cancel. With `node`, that node gets the lease if no node holds it."""

    task: str
    mail: Record
    at: str = ""
    """The time of a message; empty for a cancel."""
    node: str = ""
    push: bool = False
    """The message has a push config."""
    reply: bool = False
    """The first message could be answered with a bare Message, so the state `submitted` would hide the task."""


class Append(Struct, frozen=True, gc=False):
    """Add output of the holder of the lease."""

    task: str
    fence: int
    records: Sequence[Record]


class Settle(Struct, frozen=True, gc=False):
    """`Append`, and give the lease back, if no mail came after `mail_read`."""

    task: str
    fence: int
    records: Sequence[Record]
    mail_read: int


class Claim(Struct, frozen=True, gc=False):
    """Take the lease of a task that has work and that no live node holds. A node cannot claim a task that it holds."""

    node: str
    holder_alive: bool = True


class Release(Struct, frozen=True, gc=False):
    """Give a task back unfinished. The attempt counts only if it `failed`."""

    fence: int
    failed: bool = False


Job = Create | Deliver | Append | Settle | Claim | Release


class Decision(Struct, frozen=True, gc=False):
    """The effect of a job."""

    row: TaskRow
    records: Sequence[Record] = ()
    """Records to add to the log, with their numbers."""
    leased: bool = False
    """The node of the job holds the lease now, with `row.fence` and `row.attempt`."""
    notify: int = 0
    """The last record that webhooks are to be notified of; 0 if there is none."""


def decide(row: TaskRow, job: Job) -> Decision:
    """The effect of `job` on the task of `row`. Raises `LeaseLost`, `NewMail` or `TaskClosed` if it has none."""
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
    mail = job.mail.body
    if isinstance(mail, Mail) and mail.answers is not None and row.mail > mail.answers:
        raise TaskClosed(f"task {job.task!r} does not wait for an answer to this question any more")
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
    done, status = find_end(records)
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
        return Decision(row)  # another node holds the task, or none
    return Decision(replace(row, node="", attempt=row.attempt - (not job.failed)))


def find_end(records: Sequence[Record]) -> tuple[bool, TaskStatus | None]:
    """True if these records finish their task; and the last status among them."""
    for record in reversed(records):
        if isinstance(record.body, StatusUpdate):
            return record.kind == "status" and record.body.status.state.terminal, record.body.status
        if record.kind == "reply":
            return True, None
    return False, None


def _last_public(records: Sequence[Record]) -> int:
    return next((record.seq for record in reversed(records) if record.kind in PUBLIC), 0)


# -- push configs ------------------------------------------------------------------------------------------------------


class Replace(Struct, frozen=True, gc=False):
    """The owner replaced the config: it is due at once, from the same cursor on, and the node that holds it loses it."""


class Notify(Struct, frozen=True, gc=False):
    """The webhook is to be notified of records up to `last`."""

    last: int


class ClaimPush(Struct, frozen=True, gc=False):
    """Take a config that is due at `now` and that no live node holds. A node cannot take a config that it holds.

    An attempt that is planned more than `longest` seconds ahead is due now: the clock was wrong when it was planned.
    """

    node: str
    now: float
    holder_alive: bool = False
    longest: float = float("inf")


class Advance(Struct, frozen=True, gc=False):
    """Notifications up to record `cursor` were delivered."""

    task: str
    fence: int
    cursor: int


class ReleasePush(Struct, frozen=True, gc=False):
    """`Advance`, and give the config back. With an `error` the attempt failed; `dead`: there is no next attempt."""

    fence: int
    cursor: int
    now: float
    retry_in: float = 0.0
    error: str = ""
    dead: bool = False


class Redeliver(Struct, frozen=True, gc=False):
    """An operator makes the config due at once, from `cursor` on if given."""

    cursor: int | None = None


PushJob = Replace | Notify | ClaimPush | Advance | ReleasePush | Redeliver

R = TypeVar("R", bound=PushRow)


def decide_push(row: R, job: PushJob) -> R:
    """The push config after `job`; the same row if nothing changes. Raises `LeaseLost` (from `Advance`)."""
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
            return _restart(row, row.cursor if job.cursor is None else min(job.cursor, row.last))
        case Replace():
            return _restart(row, row.cursor)


def _restart(row: R, cursor: int) -> R:
    """Due at once from `cursor` on, and held by no node."""
    return replace(
        row, cursor=cursor, node="", fence=row.fence + 1, attempt=0, since=0.0, at=0.0, error="", dead=False
    )


def _release_push(row: R, job: ReleasePush) -> R:
    if row.fence != job.fence:
        return row  # another node holds it
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
    """A new config of a task: it gets later records, and the last status if the task is settled."""
    settled = row.done or row.state.settled
    return PushRow(cursor=row.seq - 1 if settled else row.seq, last=row.seq)


def check_push_config(
    config: StoredPushConfig, same: StoredPushConfig | None, count: int
) -> StoredPushConfig:
    """A push config as it is stored. It replaces `same`, which has the same id, and keeps its uid.

    Raises `InvalidParams` if a task that has `count` push configs may not have another.
    """
    if same is not None:
        return replace(config, uid=same.uid)
    if count >= MAX_PUSH_CONFIGS:
        raise InvalidParams(f"a task can have up to {MAX_PUSH_CONFIGS} push configs")
    return config


def visible(state: str, reply: bool) -> bool:
    """True if peers can see a task: then it is in the partial indexes and in `counts`."""
    return not reply or state != TaskState.SUBMITTED.value
