"""Schedules and their runs.

A run is stored in the transaction that sets the next time of its schedule, and before its request starts. If the hub is killed in
between, it finds a run without a request when it starts again, and starts the request then. The id of the request follows from the
run, so a request that has started is found, however long ago that was.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.schedules import run_times
from dragoman.hub.store.database import Database, Repository, Transaction, read_row, transaction
from dragoman.hub.store.policies import check_room
from dragoman.hub.store.tokens import check_token
from dragoman.server.routes import Conflict

MAX_RUNS = 200
"""Stored runs per schedule."""
ACTIVE, PAUSED, COMPLETED, FAILED, CANCELED = "active", "paused", "completed", "failed", "canceled"
STATES = (ACTIVE, PAUSED, COMPLETED, FAILED, CANCELED)
RUNNING, WAITING, SUCCEEDED = "running", "input-required", "succeeded"
MAX_SUMMARY_CHARACTERS = 4096
NOTIFICATION_SECONDS = 3600
"""How long notifications are stored."""

_ADD = """
insert into schedules (tenant_id, agent_id, conversation_id, message, schedule_phrase, schedule_kind, fire_at, recur_json,
next_fire_at, created_at, updated_at, generation) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning *
"""
_ONE = "select * from schedules where tenant_id = ? and id = ?"
_LIST = """
select * from schedules where tenant_id = ? and (? = '' or status = ?) order by updated_at desc, id desc
"""
_SET_STATUS = """
update schedules set status = ?, next_fire_at = ?, updated_at = ?, generation = ? where tenant_id = ? and id = ?
returning *
"""
_DELETE = "delete from schedules where tenant_id = ? and id = ?"
_DUE = """
select * from schedules where status = 'active' and next_fire_at <= ?1
and exists (select 1 from tenants where tenants.id = schedules.tenant_id and disabled = 0)
and (generation = 0 or exists (select 1 from tokens where tokens.tenant_id = schedules.tenant_id
    and tokens.generation = schedules.generation and revoked_at = 0 and (expires_at is null or expires_at > ?2)))
and not exists (select 1 from runs where task_id = schedules.id and runs.status in ('running', 'input-required')) order by next_fire_at limit 100
"""
_WITH_EXPIRED_TOKEN = """
select schedules.id from schedules join tokens on tokens.tenant_id = schedules.tenant_id
and tokens.generation = schedules.generation where schedules.status = 'active' and tokens.expires_at <= ? limit 100
"""
_PAUSE = "update schedules set status = 'paused' where id = ? and status = 'active'"
_BEGIN = "insert into runs (tenant_id, task_id, started_at) values (?, ?, ?) returning *"
_SET_NEXT_TIME = """
update schedules set next_fire_at = ?, status = ?, last_run_at = ?, last_run_id = ?, run_count = run_count + 1, updated_at = ?
where id = ? and status = 'active' and next_fire_at = ?
"""
_DELETE_OLD_RUNS = """
delete from runs where task_id = ? and id <= (select id from runs where task_id = ? order by id desc limit 1 offset ?)
"""
_DELAY = "update runs set error_message = ? where id = ? and status = 'running' and request_id = ''"
_LAST_ERRORS = """
select task_id, error_message from runs where error_message <> ''
and id in (select last_run_id from schedules where tenant_id = ?1 and (?2 = 0 or id = ?2))
"""
_SET_REQUEST = "update runs set request_id = ?, error_message = '' where id = ?"
_END = """
update runs set status = ?, completed_at = ?, result_summary = ?, error_message = ?, input_tokens = ?, output_tokens = ?
where id = ? and request_id = ? and status in ('running', 'input-required') returning *
"""
_FAIL_SCHEDULE = (
    "update schedules set status = 'failed' where id = ? and schedule_kind = 'once' and status = 'completed'"
)
_RUNNING = """
select * from runs where status = 'running' union all select * from runs where status = 'input-required' order by id
"""
_WAIT = "update runs set status = ?, result_summary = ? where id = ? and status = ? returning *"
_RUNS = """
select * from runs where tenant_id = ? and (? = 0 or task_id = ?) and started_at >= ?
order by started_at desc, id desc limit 200
"""
_ADD_NOTIFICATION = "insert into notifications (tenant_id, payload, at) values (?, ?, ?)"
_DELETE_NOTIFICATIONS = "delete from notifications where at < ?"
_NOTIFICATIONS = "select id, payload from notifications where tenant_id = ? and id > ? order by id limit 200"
_LAST_NOTIFICATION = "select coalesce(max(id), 0) from notifications where tenant_id = ?"
_AGENT_OF = "select agent_id from schedules where id = ?"
_ONE_RUN = "select * from runs where tenant_id = ? and id = ?"


class ScheduleFields(Struct, frozen=True, kw_only=True):
    """What the API shows of a schedule."""

    id: int
    agent_id: str
    conversation_id: int
    message: str
    schedule_phrase: str
    schedule_kind: str
    """`once` or `recurring`."""
    fire_at: int
    recur_json: str
    next_fire_at: int
    status: str
    created_at: int
    updated_at: int
    last_run_at: int
    last_run_id: int
    run_count: int


class Schedule(ScheduleFields, frozen=True, kw_only=True):
    tenant_id: int
    generation: int
    """The number of the token that created or resumed it: it runs while that token is valid. 0: no token did."""

    def next_time(self, now: float, default: str = "") -> int:
        """The next time after `now`; the same time for a schedule that runs once. `default`: the hub's time zone."""
        if not self.recur_json:
            return self.fire_at
        recur = msgspec.json.decode(self.recur_json)
        return run_times.next_time(recur, now, run_times.find_zone(recur.get("tz", default)))

    @property
    def timezone(self) -> str:
        """The name of its time zone; empty: that of the hub."""
        return run_times.split_zone(self.schedule_phrase)[1]

    def next_run(self, default: str = "") -> str:
        """When it runs next, in its time zone (RFC 3339); empty if it does not."""
        if self.status != ACTIVE:
            return ""
        zone = run_times.find_zone(self.timezone or default)
        return datetime.fromtimestamp(self.next_fire_at, zone).isoformat()


class RunInfo(Struct, frozen=True, kw_only=True):
    """What the API shows of a run."""

    id: int
    task_id: int
    status: str
    started_at: int
    completed_at: int
    request_id: str
    result_summary: str
    error_message: str
    input_tokens: int
    output_tokens: int


class ScheduledRun(RunInfo, frozen=True, kw_only=True):
    tenant_id: int

    @property
    def planned_request_id(self) -> str:
        """The id that its request gets, however often it is started. `request_id` is empty until the request has started.

        The time is part of it, because the numbers of runs are used again if the tables come from a backup.
        """
        identity = f"run/{self.tenant_id}/{self.task_id}/{self.id}/{self.started_at}"
        return hashlib.sha256(identity.encode()).hexdigest()[:16]


class Schedules(Repository):
    def __init__(
        self, database: Database, *, clock: Callable[[], float] = time.time, timezone: str = ""
    ) -> None:
        """`timezone`: of schedules that name none; empty: that of this machine."""
        super().__init__(database)
        self._clock, self.timezone = clock, timezone

    @transaction
    async def add(
        self,
        db: Transaction,
        tenant: int,
        agent: str,
        phrase: str,
        message: str,
        *,
        conversation: int = 0,
        generation: int | None = None,
        timezone: str = "",
    ) -> tuple[Schedule, str]:
        """Add a schedule. Returns it and its normalized phrase. `generation`: that of the token that asked for it.
        `timezone`: of the phrase, if it names none.

        Raises `InvalidParams`, and `Unauthenticated` if the token is revoked by now.
        """
        message, now, phrase = message.strip(), int(self._clock()), " ".join(phrase.split())
        when = run_times.parse(phrase, self._clock(), timezone=timezone, default=self.timezone)
        if (zone := timezone or self.timezone) and not run_times.split_zone(phrase)[1]:
            phrase = f"{phrase} in {zone}"
        if not 1 <= len(message) <= 16_384:
            raise InvalidParams(
                "a message has 1 to 16384 characters", fields=(("message", "has 1 to 16384"),)
            )
        recur = msgspec.json.encode(when.recur).decode() if when.recur else ""
        await check_token(db, tenant, generation)
        await check_room(db, tenant, "schedules")
        what = (tenant, agent, conversation, message, phrase[:200], when.kind)
        times = (0 if recur else when.first, recur, when.first, now, now, generation or 0)
        return read_row(Schedule, await db.one(_ADD, (*what, *times))), when.normalized

    async def list(self, tenant: str | int, status: str = "") -> Sequence[Schedule]:
        """The latest changed first."""
        return await self._db.select(Schedule, _LIST, (int(tenant), status, status))

    async def get(self, tenant: str | int, id: int) -> Schedule | None:
        return await self._db.find(Schedule, _ONE, (int(tenant), id))

    @transaction
    async def set_status(
        self, db: Transaction, tenant: int, id: int, status: str, *, generation: int | None = None
    ) -> Schedule | None:
        """Pause or resume a schedule. None if there is no such schedule. Raises as `add` does, and `Conflict`."""
        row = await db.one(_ONE, (tenant, id))
        if row is None:
            return None
        known, now = read_row(Schedule, row), int(self._clock())
        if known.status == COMPLETED:
            raise Conflict(f"schedule {id} is completed: it does not run again")
        due = known.next_fire_at
        if status == ACTIVE and due <= now:
            due = known.next_time(self._clock(), self.timezone)
        await check_token(db, tenant, generation)
        values = (status, due, now, generation or 0, tenant, id)
        return read_row(Schedule, await db.one(_SET_STATUS, values))

    @transaction
    async def delete(self, db: Transaction, tenant: int, id: int) -> bool:
        """Delete it with its runs. False if there was none."""
        return await db.change(_DELETE, (tenant, id)) > 0

    # -- runs --------------------------------------------------------------------------------------------------

    async def due_schedules(self) -> Sequence[Schedule]:
        """Schedules that are due and not running. Those of a disabled tenant wait until it is enabled."""
        return await self._db.select(Schedule, _DUE, (int(self._clock()), int(time.time())))

    async def pause_expired(self) -> None:
        """Pause the schedules whose token has expired, so that people see why they do not run."""
        expired = [(row["id"],) for row in await self._db.all(_WITH_EXPIRED_TOKEN, (int(time.time()),))]
        if expired:
            await self._db.run(lambda db: db.change_many(_PAUSE, expired))

    async def begin_run(self, schedule: Schedule) -> ScheduledRun | None:
        """Start a run of a due schedule; None if another process has started it."""
        now, due = int(self._clock()), schedule.next_time(self._clock(), self.timezone)
        status = ACTIVE if schedule.recur_json else COMPLETED

        async def begin(db: Transaction) -> ScheduledRun | None:
            run = read_row(ScheduledRun, await db.one(_BEGIN, (schedule.tenant_id, schedule.id, now)))
            values = (due, status, now, run.id, now, schedule.id, schedule.next_fire_at)
            if await db.change(_SET_NEXT_TIME, values) == 0:
                await db.change("delete from runs where id = ?", (run.id,))
                return None
            await db.change(_DELETE_OLD_RUNS, (schedule.id, schedule.id, MAX_RUNS))
            await _notify(db, "run.started", run, now)
            return run

        return await self._db.run(begin, tenant=schedule.tenant_id)

    async def delay_run(self, run: ScheduledRun, why: str) -> None:
        """Record why a run has not started yet, unless another process has started it."""
        if run.error_message != why[:MAX_SUMMARY_CHARACTERS]:
            await self._db.change(_DELAY, (why[:MAX_SUMMARY_CHARACTERS], run.id))

    async def last_errors(self, tenant: int, schedule: int = 0) -> dict[int, str]:
        """By schedule, why its last run failed, or has not started yet."""
        rows = await self._db.all(_LAST_ERRORS, (tenant, schedule))
        return {row["task_id"]: row["error_message"] for row in rows}

    async def set_run_request(self, run: ScheduledRun, request: str) -> None:
        await self._db.change(_SET_REQUEST, (request, run.id))

    async def end_run(
        self, run: ScheduledRun, *, answer: str = "", error: str = "", read: int = 0, written: int = 0
    ) -> ScheduledRun | None:
        """End a run; None if it has ended already, or if another process has started its request since `run` was read. A schedule
        that runs once fails with its run."""
        texts = answer[:MAX_SUMMARY_CHARACTERS], error[:MAX_SUMMARY_CHARACTERS]
        values = (
            FAILED if error else SUCCEEDED,
            int(self._clock()),
            *texts,
            read,
            written,
            run.id,
            run.request_id,
        )

        async def end(db: Transaction) -> ScheduledRun | None:
            row = await db.one(_END, values)
            if row is None:
                return None
            if error:
                await db.change(_FAIL_SCHEDULE, (run.task_id,))
            ended = read_row(ScheduledRun, row)
            await _notify(db, "run.failed" if error else "run.completed", ended, ended.completed_at)
            return ended

        return await self._db.run(end, tenant=run.tenant_id)

    async def set_run_waiting(
        self, run: ScheduledRun, question: str, *, waiting: bool = True
    ) -> ScheduledRun | None:
        """Record that the agent of a run asks a question, or has got the answer; None if that is recorded, or the run has ended."""
        old, new = (RUNNING, WAITING) if waiting else (WAITING, RUNNING)

        async def mark(db: Transaction) -> ScheduledRun | None:
            row = await db.one(_WAIT, (new, question[:MAX_SUMMARY_CHARACTERS], run.id, old))
            if row is not None and waiting:
                await _notify(db, "run.waiting", read_row(ScheduledRun, row), int(self._clock()))
            return None if row is None else read_row(ScheduledRun, row)

        return await self._db.run(mark, tenant=run.tenant_id)

    async def running_runs(self) -> Sequence[ScheduledRun]:
        """Runs that have not ended, those that wait for an answer included."""
        return await self._db.select(ScheduledRun, _RUNNING)

    async def runs(self, tenant: str | int, *, schedule: int = 0, since: int = 0) -> Sequence[ScheduledRun]:
        """Newest first."""
        return await self._db.select(ScheduledRun, _RUNS, (int(tenant), schedule, schedule, since))

    async def run(self, tenant: str | int, id: int) -> ScheduledRun | None:
        return await self._db.find(ScheduledRun, _ONE_RUN, (int(tenant), id))

    # -- notifications -----------------------------------------------------------------------------------------------

    async def notifications(self, tenant: int, after: int) -> Sequence[tuple[int, dict[str, Any]]]:
        """The notifications of a tenant after number `after`: (number, payload)."""
        rows = await self._db.all(_NOTIFICATIONS, (tenant, after))
        return [(row["id"], msgspec.json.decode(row["payload"])) for row in rows]

    async def last_notification(self, tenant: int) -> int:
        """The number of the newest notification."""
        return int((await self._db.one(_LAST_NOTIFICATION, (tenant,)))[0])


async def _notify(db: Transaction, kind: str, run: ScheduledRun, now: int) -> None:
    """Store a notification about a run, in the same transaction."""
    payload = {
        "kind": kind,
        "task_id": run.task_id,
        "run_id": run.id,
        "agent_id": (await db.one(_AGENT_OF, (run.task_id,)))["agent_id"],
        "status": run.status,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
    }
    for name in ("result_summary", "error_message"):
        if value := getattr(run, name):
            payload[name] = value
    await db.change(_DELETE_NOTIFICATIONS, (now - NOTIFICATION_SECONDS,))
    await db.change(_ADD_NOTIFICATION, (run.tenant_id, msgspec.json.encode(payload).decode(), now))
