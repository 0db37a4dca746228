"""Starts due schedules: a request for each run, and notifications for listeners.

It checks every few seconds. Its state is in the database: after a restart, a schedule that became due meanwhile runs once, and
a run ends when its request has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from functools import partial
from typing import Any

from dragoman.engine.snapshot import Snapshot
from dragoman.errors import A2AError, RateLimited, Unavailable, keep_going
from dragoman.hub.agents.programs import TENANT_STOPPED
from dragoman.hub.conversations import events
from dragoman.hub.conversations.events import HubEvent
from dragoman.hub.conversations.message_input import read_parts
from dragoman.hub.hub import Hub
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.store.schedules import PAUSED, WAITING, Schedule, ScheduledRun, Schedules
from dragoman.hub.store.tenants import Tenant
from dragoman.server.routes import NotFound

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
_AGENT_GONE = "its agent or its conversation is gone"


class Scheduler:
    def __init__(self, hub: Hub, schedules: Schedules) -> None:
        self._hub, self.schedules = hub, schedules
        self._changed = asyncio.Event()
        """Set and replaced when a run starts, waits or ends."""
        self.periodic = PeriodicWork("running schedules", self.run_due, retry=CHECK_SECONDS)

    async def run_due(self) -> None:
        """Start due schedules, and end runs whose request has ended."""
        await self.schedules.pause_expired()
        for schedule in await self.schedules.due_schedules():
            await self._log_errors(self._begin_run(schedule))
        for run in await self.schedules.running_runs():
            await self._log_errors(self._check_run(run))

    async def listen(self, tenant: Tenant, after: int | None = None) -> AsyncIterator[list[HubEvent]]:
        """Notifications from now on, or after a number."""
        seen = await self.schedules.last_notification(tenant.id) if after is None else after
        yield [HubEvent("open", {"ok": True})]
        while True:
            changed = self._changed  # before reading, so that no notification is missed
            while news := await self.schedules.notifications(tenant.id, seen):
                for seen, notification in news:
                    yield [HubEvent("notification", notification, seen)]
            with suppress(TimeoutError):  # another process does not wake this one
                async with asyncio.timeout(CHECK_SECONDS):
                    await changed.wait()

    async def _log_errors(self, work: Awaitable[None]) -> None:
        """Log an error and continue: one failure must not stop the others."""
        with keep_going(log, "running schedules", A2AError):
            await work

    async def _begin_run(self, schedule: Schedule) -> None:
        tenant = await self._hub.tenants.find_active(schedule.tenant_id, schedule.generation or None)
        if tenant is None or not await self._can_run(schedule):
            await self.schedules.set_status(schedule.tenant_id, schedule.id, PAUSED)
            log.warning("schedule %d is paused: %s", schedule.id, _AGENT_GONE)
            return
        run = await self.schedules.begin_run(schedule)
        if run is not None:
            self._notify_listeners()
            await self._start_request(tenant, schedule, run)

    async def _can_run(self, schedule: Schedule) -> bool:
        """False: the agent or the conversation of a schedule is deleted."""
        try:
            if schedule.conversation_id:
                await self._hub.conversations.find(schedule.tenant_id, schedule.conversation_id)
        except NotFound:
            return False
        return await self._hub.catalogue.find(schedule.tenant_id, schedule.agent_id) is not None

    async def _start_request(self, tenant: Tenant, schedule: Schedule, run: ScheduledRun) -> None:
        try:
            stored = await self._hub.start_request(
                tenant,
                schedule.agent_id,
                partial(read_parts, schedule.message, None),
                id=run.planned_request_id,
                conversation=schedule.conversation_id,
            )
        except (RateLimited, Unavailable) as error:
            if error.metadata.get("reason", "").endswith("_budget"):  # nothing changes before the next day
                await self._end(run, error=error.message)
            else:  # the next check asks again, with the same id
                await self.schedules.delay_run(run, f"it waits to start: {error.message}")
        except A2AError as error:
            await self._end(run, error=error.message)
        else:
            await self.schedules.set_run_request(run, stored.request_id)

    async def _check_run(self, run: ScheduledRun) -> None:
        """End a run whose request has ended; start the request of a run that has none."""
        tenant = await self._hub.tenants.current(run.tenant_id)
        schedule = await self.schedules.get(run.tenant_id, run.task_id)
        if tenant is None or schedule is None:
            return
        if not run.request_id:
            await self._start_again(schedule, run)
            return
        try:
            stored = await self._hub.find(tenant, run.request_id)
            info = await self._hub.info(tenant, stored)
            if not (info.done or info.state.interrupted):
                if run.status == WAITING:  # it was answered
                    await self.schedules.set_run_waiting(run, "", waiting=False)
                return
            if not info.done and run.status == WAITING:
                return  # it still waits: its log, which may be long, is not read at each check
            snapshot = await self._hub.snapshot(tenant, stored)
        except NotFound:
            await self._end(run, error="its request is gone")
            return
        if schedule.conversation_id:
            with suppress(NotFound):
                await self._hub.store_answers(tenant, schedule.conversation_id)
        await self._record_outcome(run, snapshot)

    async def _start_again(self, schedule: Schedule, run: ScheduledRun) -> None:
        """Start the request of a run again: it could not start before."""
        tenant = await self._hub.tenants.find_active(schedule.tenant_id, schedule.generation or None)
        if tenant is None:
            await self._end(run, error=TENANT_STOPPED)
        elif await self._can_run(schedule):
            await self._start_request(tenant, schedule, run)
        else:
            await self._end(run, error=_AGENT_GONE)

    async def _record_outcome(self, run: ScheduledRun, snapshot: Snapshot) -> None:
        """Record how the request of a run ended, or what it asks."""
        text, used = events.answer_of(snapshot)
        if snapshot.state.interrupted:
            if run.status != WAITING and await self.schedules.set_run_waiting(run, text):
                self._notify_listeners()
        elif events.state_of(snapshot) == "completed":
            await self._end(run, answer=text, **used)
        else:
            await self._end(run, error=text or events.state_of(snapshot), **used)

    async def _end(self, run: ScheduledRun, **outcome: Any) -> None:
        await self.schedules.end_run(run, **outcome)
        self._notify_listeners()

    def _notify_listeners(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
