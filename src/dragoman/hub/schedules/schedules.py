"""Work to be done later, or again and again, and each time that it was done.

A run is on record before its request begins, and its time is moved on in the same transaction: a hub that dies between
the two finds a run without a request, and begins it then.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.errors import InvalidParams, Unauthenticated
from dragoman.hub.database import Database
from dragoman.hub.schedules import natural_dates as phrases

MOST = 200
"""Schedules that a tenant may have."""
KEPT = 200
"""Runs of a schedule that are remembered."""
ACTIVE, PAUSED, COMPLETED, FAILED, CANCELED = "active", "paused", "completed", "failed", "canceled"
STATES = (ACTIVE, PAUSED, COMPLETED, FAILED, CANCELED)
RUNNING, SUCCEEDED = "running", "succeeded"
SUMMARY = 4096
NOTIFICATION_SECONDS = 3600
"""Seconds for which it is known what happened to runs."""

_SCHEDULE = """id, tenant_id, agent_id, conversation_id, message, schedule_phrase, schedule_kind, fire_at, recur_json,
next_fire_at, status, created_at, updated_at, last_run_at, last_run_id, run_count, generation"""
_RUN = """id, tenant_id, task_id, status, started_at, completed_at, request_id, result_summary, error_message, input_tokens,
output_tokens"""
_ADD = f"""
insert into schedules (tenant_id, agent_id, conversation_id, message, schedule_phrase, schedule_kind, fire_at, recur_json,
next_fire_at, created_at, updated_at, generation) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning {_SCHEDULE}
"""
_COUNT = "select count(*) from schedules where tenant_id = ?"
_ONE = f"select {_SCHEDULE} from schedules where tenant_id = ? and id = ?"
_LIST = f"""
select {_SCHEDULE} from schedules where tenant_id = ? and (? = '' or status = ?) order by updated_at desc, id desc limit 200
"""
_MARK = f"""
update schedules set status = ?, next_fire_at = ?, updated_at = ?, generation = ? where tenant_id = ? and id = ?
returning {_SCHEDULE}
"""
_GENERATION = "select generation from tenants where id = ? and disabled = 0"
_DELETE = "delete from schedules where tenant_id = ? and id = ?"
_DUE = f"""
select {_SCHEDULE} from schedules where status = 'active' and next_fire_at <= ?
and generation = (select generation from tenants where id = schedules.tenant_id and disabled = 0)
and not exists (select 1 from runs where task_id = schedules.id and runs.status = 'running') order by next_fire_at limit 100
"""
_BEGIN = f"insert into runs (tenant_id, task_id, started_at) values (?, ?, ?) returning {_RUN}"
_FIRED = """
update schedules set next_fire_at = ?, status = ?, last_run_at = ?, last_run_id = ?, run_count = run_count + 1, updated_at = ?
where id = ? and status = 'active' and next_fire_at = ?
"""
_FORGET = """
delete from runs where task_id = ? and id <= (select id from runs where task_id = ? order by id desc limit 1 offset ?)
"""
_BEGUN = "update runs set request_id = ? where id = ?"
_END = f"""
update runs set status = ?, completed_at = ?, result_summary = ?, error_message = ?, input_tokens = ?, output_tokens = ?
where id = ? and status = 'running' returning {_RUN}
"""
_OVER = (
    "update schedules set status = 'failed' where id = ? and schedule_kind = 'once' and status = 'completed'"
)
_OPEN = f"select {_RUN} from runs where status = 'running' order by id"
_RUNS = f"""
select {_RUN} from runs where tenant_id = ? and (? = 0 or task_id = ?) and started_at >= ?
order by started_at desc, id desc limit 200
"""
_TELL = "insert into notifications (tenant_id, payload, at) values (?, ?, ?)"
_UNTELL = "delete from notifications where at < ?"
_TOLD = "select id, payload from notifications where tenant_id = ? and id > ? order by id limit 200"
_LAST = "select coalesce(max(id), 0) from notifications where tenant_id = ?"
_WHOSE = "select agent_id from schedules where id = ?"
_RAN = f"select {_RUN} from runs where tenant_id = ? and id = ?"


class Schedule(Struct, frozen=True, kw_only=True):
    id: int
    tenant_id: int
    agent_id: str
    conversation_id: int
    message: str
    schedule_phrase: str
    schedule_kind: str
    fire_at: int
    recur_json: str
    next_fire_at: int
    status: str
    created_at: int
    updated_at: int
    last_run_at: int
    last_run_id: int
    run_count: int
    generation: int
    """Of its tenant, when it was made or last resumed: under another token it does nothing."""

    def after(self, now: datetime) -> int:
        """When it is due after `now`; what is done once stays due when it was."""
        if not self.recur_json:
            return self.fire_at
        return int(phrases.following(msgspec.json.decode(self.recur_json), now).timestamp())


class Run(Struct, frozen=True, kw_only=True):
    id: int
    tenant_id: int
    task_id: int
    status: str
    started_at: int
    completed_at: int
    request_id: str
    result_summary: str
    error_message: str
    input_tokens: int
    output_tokens: int


class Schedules:
    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._db, self._clock = database, clock

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._clock())

    async def add(
        self,
        tenant: str | int,
        agent: str,
        phrase: str,
        message: str,
        *,
        conversation: int = 0,
        once: str = "",
        generation: int | None = None,
    ) -> tuple[Schedule, str]:
        """A schedule, and when that is, said as we say it. `generation`: of the tenant, when its token was shown.

        Raises `InvalidParams`, and `Unauthenticated` if the tenant has another token by now.
        """
        when, message, now = phrases.read(phrase, self.now), message.strip(), int(self._clock())
        if not 1 <= len(message) <= 16_384:
            raise InvalidParams(
                "a message has 1 to 16384 characters", fields=(("message", "has 1 to 16384"),)
            )
        first = int(when.first.timestamp())
        recur = msgspec.json.encode(when.recur).decode() if when.recur else ""

        def add(db: sqlite3.Connection) -> Schedule:
            now_valid = _current(db, int(tenant), generation)
            if db.execute(_COUNT, (int(tenant),)).fetchone()[0] >= MOST:
                raise InvalidParams(f"a tenant has at most {MOST} schedules: delete one first")
            what = (int(tenant), agent, conversation, message, phrase.strip()[:200], when.kind)
            values = (*what, 0 if recur else first, recur, first, now, now, now_valid)
            return Schedule(**db.execute(_ADD, values).fetchone())

        return await self._db.run_once(once, add, Schedule), when.normalized

    async def list(self, tenant: str | int, status: str = "") -> Sequence[Schedule]:
        """What changed last first."""
        rows = await self._db.all(_LIST, (int(tenant), status, status))
        return [Schedule(**row) for row in rows]

    async def get(self, tenant: str | int, id: int) -> Schedule | None:
        row = await self._db.one(_ONE, (int(tenant), id))
        return None if row is None else Schedule(**row)

    async def set_status(
        self, tenant: str | int, id: int, status: str, *, generation: int | None = None
    ) -> Schedule | None:
        """Pause it, or let it go on from now. None if there is no such schedule. Raises as `add` does."""
        if status not in STATES:
            raise InvalidParams(
                f"a schedule is one of {', '.join(STATES)}", fields=(("status", "is unknown"),)
            )
        known = await self.get(tenant, id)
        if known is None:
            return None
        now = int(self._clock())
        due = known.after(self.now) if status == ACTIVE and known.next_fire_at <= now else known.next_fire_at

        def mark(db: sqlite3.Connection) -> sqlite3.Row | None:
            valid = _current(db, int(tenant), generation)
            row: sqlite3.Row | None = db.execute(_MARK, (status, due, now, valid, int(tenant), id)).fetchone()
            return row

        row = await self._db.run(mark)
        return None if row is None else Schedule(**row)

    async def delete(self, tenant: str | int, id: int, *, once: str = "") -> bool:
        """With its runs. False: there was none."""
        return await self._db.run_once(
            once, lambda db: db.execute(_DELETE, (int(tenant), id)).rowcount > 0, bool
        )

    # -- running -----------------------------------------------------------------------------------------------

    async def due(self) -> Sequence[Schedule]:
        """What is to be done now, unless it is being done. For a tenant that is disabled, nothing is; it is due when the
        tenant is back."""
        now = int(self._clock())
        rows = await self._db.all(_DUE, (now,))
        return [Schedule(**row) for row in rows]

    async def begin(self, schedule: Schedule) -> Run | None:
        """A run of a schedule that is due; None if somebody else has begun it."""
        now, due = int(self._clock()), schedule.after(self.now)
        status = ACTIVE if schedule.recur_json else COMPLETED

        def begin(db: sqlite3.Connection) -> Run | None:
            run = Run(**db.execute(_BEGIN, (schedule.tenant_id, schedule.id, now)).fetchone())
            fired = (due, status, now, run.id, now, schedule.id, schedule.next_fire_at)
            if db.execute(_FIRED, fired).rowcount == 0:
                db.execute("delete from runs where id = ?", (run.id,))
                return None
            db.execute(_FORGET, (schedule.id, schedule.id, KEPT))
            _tell(db, "run.started", run, now)
            return run

        return await self._db.run(begin)

    async def set_request(self, run: Run, request: str) -> None:
        await self._db.change(_BEGUN, (request, run.id))

    async def end(
        self, run: Run, *, answer: str = "", error: str = "", read: int = 0, written: int = 0
    ) -> Run | None:
        """None if it has ended already. What was to be done once and failed has failed."""
        status = FAILED if error else SUCCEEDED
        values = (status, int(self._clock()), answer[:SUMMARY], error[:SUMMARY], read, written, run.id)

        def end(db: sqlite3.Connection) -> Run | None:
            row = db.execute(_END, values).fetchone()
            if row is None:
                return None
            if error:
                db.execute(_OVER, (run.task_id,))
            ended = Run(**row)
            _tell(db, "run.failed" if error else "run.completed", ended, ended.completed_at)
            return ended

        return await self._db.run(end)

    async def running(self) -> Sequence[Run]:
        """Runs that have not ended."""
        rows = await self._db.all(_OPEN)
        return [Run(**row) for row in rows]

    async def runs(self, tenant: str | int, *, schedule: int = 0, since: int = 0) -> Sequence[Run]:
        """Newest first."""
        values = (int(tenant), schedule, schedule, since)
        rows = await self._db.all(_RUNS, values)
        return [Run(**row) for row in rows]

    async def run(self, tenant: str | int, id: int) -> Run | None:
        row = await self._db.one(_RAN, (int(tenant), id))
        return None if row is None else Run(**row)

    # -- writer -----------------------------------------------------------------------------------------------

    async def notifications(self, tenant: int, after: int) -> Sequence[tuple[int, dict[str, Any]]]:
        """What happened to a tenant's runs, after the notification `after`: its number, and what it says."""
        rows = await self._db.all(_TOLD, (tenant, after))
        return [(row["id"], msgspec.json.decode(row["payload"])) for row in rows]

    async def last(self, tenant: int) -> int:
        """The number of the newest notification."""
        return int((await self._db.one(_LAST, (tenant,)))[0])


def _current(db: sqlite3.Connection, tenant: int, shown: int | None) -> int:
    """The tenant's generation, if it is the one `shown`. Raises `Unauthenticated`."""
    row = db.execute(_GENERATION, (tenant,)).fetchone()
    if row is None or shown not in (None, row["generation"]):
        raise Unauthenticated("missing or invalid bearer token")
    generation: int = row["generation"]
    return generation


def _tell(db: sqlite3.Connection, kind: str, run: Run, now: int) -> None:
    """Note what happened to a run, in the transaction in which it does."""
    told = {
        "kind": kind,
        "task_id": run.task_id,
        "run_id": run.id,
        "agent_id": db.execute(_WHOSE, (run.task_id,)).fetchone()["agent_id"],
        "status": run.status,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
    }
    for name in ("result_summary", "error_message"):
        if value := getattr(run, name):
            told[name] = value
    db.execute(_UNTELL, (now - NOTIFICATION_SECONDS,))
    db.execute(_TELL, (run.tenant_id, msgspec.json.encode(told).decode(), now))
