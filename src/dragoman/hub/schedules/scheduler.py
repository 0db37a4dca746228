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

from dragoman.errors import A2AError, RateLimited, keep_going
from dragoman.hub.agents.programs import TENANT_STOPPED
from dragoman.hub.conversations import events
from dragoman.hub.conversations.events import HubEvent
from dragoman.hub.conversations.message_input import read_parts
from dragoman.hub.errors import NotFound
from dragoman.hub.hub import Hub
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.store.schedules import PAUSED, WAITING, Schedule, ScheduledRun, Schedules
from dragoman.hub.store.tenants import Tenant

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
_GONE = "its agent or its conversation is gone"


class Scheduler:
    def __init__(self, hub: Hub, schedules: Schedules) -> None:
        self._hub, self.schedules = hub, schedules
        self._changed = asyncio.Event()
        """Set and replaced when something happens to a run."""
        self.periodic = PeriodicWork("running schedules", self._check, retry=CHECK_SECONDS)

    async def run_due(self) -> None:
        """Start due schedules, and end runs whose request has ended."""
        await self.schedules.pause_expired()
        for schedule in await self.schedules.due():
            await self._log_errors(self._fire(schedule))
        for run in await self.schedules.running():
            await self._log_errors(self._follow(run))

    async def listen(self, tenant: Tenant, after: int | None = None) -> AsyncIterator[list[HubEvent]]:
        """Notifications from now on, or after a number, while the tenant's token is valid."""
        seen = await self.schedules.last(tenant.id) if after is None else after
        yield [HubEvent("open", {"ok": True})]
        while True:
            changed = self._changed  # before reading, so that no notification is missed
            while news := await self.schedules.notifications(tenant.id, seen):
                for seen, notification in news:
                    yield [HubEvent("notification", notification, seen)]
            with suppress(TimeoutError):  # another process does not wake this one
                async with asyncio.timeout(CHECK_SECONDS):
                    await changed.wait()
            if await self._hub.tenants.find_active(tenant.id, tenant.generation, expired=False) is None:
                return

    async def _check(self) -> float:
        await self.run_due()
        return CHECK_SECONDS

    async def _log_errors(self, work: Awaitable[None]) -> None:
        """Log an error and continue: one failure must not stop the others."""
        with keep_going(log, "running schedules", A2AError):
            await work

    async def _fire(self, schedule: Schedule) -> None:
        tenant = await self._hub.tenants.find_active(schedule.tenant_id, schedule.generation or None)
        if tenant is None or not await self._exists(schedule):
            await self.schedules.set_status(schedule.tenant_id, schedule.id, PAUSED)
            log.warning("schedule %d is paused: %s", schedule.id, _GONE)
            return
        run = await self.schedules.begin(schedule)
        if run is not None:
            self._wake()
            await self._ask(tenant, schedule, run)

    async def _exists(self, schedule: Schedule) -> bool:
        try:
            if schedule.conversation_id:
                await self._hub.conversations.find(schedule.tenant_id, schedule.conversation_id)
        except NotFound:
            return False
        return await self._hub.catalogue.find(schedule.tenant_id, schedule.agent_id) is not None

    async def _ask(self, tenant: Tenant, schedule: Schedule, run: ScheduledRun) -> None:
        try:
            asked = await self._hub.ask(
                tenant,
                schedule.agent_id,
                partial(read_parts, schedule.message, None),
                key=f"\0run/{run.id}",  # no client can send this key
                conversation=schedule.conversation_id,
            )
        except RateLimited as error:
            if error.metadata.get("reason", "").endswith("_budget"):  # nothing changes before the next day
                await self._end(run, error=error.message)
            else:
                await self.schedules.delay(run, f"it waits to start: {error.message}")
        except A2AError as error:
            await self._end(run, error=error.message)
        else:
            await self.schedules.set_request(run, asked.request_id)

    async def _follow(self, run: ScheduledRun) -> None:
        """End a run whose request has ended; start the request of a run that has none."""
        tenant = await self._hub.tenants.current(run.tenant_id)
        schedule = await self.schedules.get(run.tenant_id, run.task_id)
        if tenant is None or schedule is None:
            return
        if not run.request_id:
            acting = await self._hub.tenants.find_active(tenant.id, schedule.generation or None)
            if acting is None:
                await self._end(run, error=TENANT_STOPPED)
            elif await self._exists(schedule):
                await self._ask(acting, schedule, run)
            else:
                await self._end(run, error=_GONE)
            return
        try:
            snapshot = await self._hub.snapshot(tenant, await self._hub.find(tenant, run.request_id))
        except NotFound:
            await self._end(run, error="its request is gone")
            return
        if not (snapshot.terminal or snapshot.state.interrupted):
            if run.status == WAITING:  # it was answered
                await self.schedules.wait(run, "", waiting=False)
            return
        if schedule.conversation_id:
            with suppress(NotFound):
                await self._hub.store_answers(tenant, schedule.conversation_id)
        text, used = events.answer_of(snapshot)
        if snapshot.state.interrupted:
            if run.status != WAITING and await self.schedules.wait(run, text):
                self._wake()
        elif events.state_of(snapshot) == "completed":
            await self._end(run, answer=text, **used)
        else:
            await self._end(run, error=text or events.state_of(snapshot), **used)

    async def _end(self, run: ScheduledRun, **outcome: Any) -> None:
        await self.schedules.end(run, **outcome)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
