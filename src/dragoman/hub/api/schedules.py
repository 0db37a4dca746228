"""`/v1/schedules`, `/v1/runs` and `/v1/notifications/stream`: work to be done later, and how it went."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.api.routes import HEAD_OF_STREAM, Answer, Route, Visit
from dragoman.hub.conversations.events import EventFrames, HubEvent
from dragoman.hub.errors import NotFound, there
from dragoman.hub.hub import Hub
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.schedules.schedules import Schedule


class NewSchedule(Struct):
    """When (`every monday at 09:00`), what, and by whom."""

    schedule: str
    message: str
    agent: str = INDEX_ID
    conversation_id: int = 0


class ScheduleChange(Struct, forbid_unknown_fields=True):
    status: str


def routes(hub: Hub, scheduler: Scheduler) -> list[Route]:
    schedules = scheduler.schedules

    async def add(visit: Visit) -> Answer:
        body, tenant, generation = await visit.json(NewSchedule), visit.tenant.id, visit.tenant.generation
        if hub.catalogue.find(tenant, body.agent) is None:
            raise NotFound(f"there is no agent {body.agent[:80]!r}")
        if body.conversation_id:
            hub.conversations.find(tenant, body.conversation_id)
        made, said = await schedules.add(
            tenant,
            body.agent,
            body.schedule,
            body.message,
            conversation=body.conversation_id,
            generation=generation,
        )
        return Answer({"scheduled_task": _shown(made), "normalized": said}, 201)

    async def browse(visit: Visit) -> Answer:
        found = await schedules.list(visit.tenant.id, visit.asked("status"))
        return Answer({"count": len(found), "schedules": [_shown(each) for each in found]})

    async def get(visit: Visit) -> Answer:
        return Answer({"scheduled_task": _shown(await _there(visit))})

    async def change(visit: Visit) -> Answer:
        await _there(visit)
        status = (await visit.json(ScheduleChange)).status
        changed = await schedules.mark(
            visit.tenant.id, visit.number("id"), status, generation=visit.tenant.generation
        )
        return Answer({"scheduled_task": _shown(changed)})

    async def delete(visit: Visit) -> Answer:
        await _there(visit)
        return Answer({"deleted": await schedules.delete(visit.tenant.id, visit.number("id"))})

    async def its_runs(visit: Visit) -> Answer:
        found = await schedules.runs(visit.tenant.id, schedule=(await _there(visit)).id)
        return Answer({"count": len(found), "runs": [_shown(each) for each in found]})

    async def runs(visit: Visit) -> Answer:
        found = await schedules.runs(
            visit.tenant.id, schedule=visit.count("task_id", 0), since=visit.count("since", 0)
        )
        return Answer({"count": len(found), "runs": [_shown(each) for each in found]})

    async def run(visit: Visit) -> Answer:
        found = await schedules.run(visit.tenant.id, visit.number("id"))
        return Answer({"run": _shown(there(found, "run", visit.values["id"]))})

    async def notifications(visit: Visit) -> Answer | None:
        if visit.exchange.method == "HEAD":
            return HEAD_OF_STREAM
        await visit.exchange.shared.streams.serve(
            visit.exchange,
            scheduler.listen(visit.tenant, visit.last_event),
            EventFrames(),
            failed=lambda error: HubEvent("error", {"message": "the stream broke; see GET /v1/runs"}).frame,
        )
        return None

    async def _there(visit: Visit) -> Schedule:
        return there(await schedules.get(visit.tenant.id, visit.number("id")), "schedule", visit.values["id"])

    all, one = "/v1/schedules", "/v1/schedules/{id}"
    some = {
        "task_id": "Only those of this schedule.",
        "since": "Only those that began at this time or later.",
    }
    return [
        Route(
            "POST",
            all,
            add,
            "Have work done later, or again and again.",
            "schedules",
            body=NewSchedule,
            status=201,
        ),
        Route(
            "GET", all, browse, "What is scheduled.", "schedules", query={"status": "Only what stands so."}
        ),
        Route("GET", one, get, "One schedule.", "schedules"),
        Route("PATCH", one, change, "Pause it, or let it go on.", "schedules", body=ScheduleChange),
        Route("DELETE", one, delete, "Cancel it, and forget its runs.", "schedules"),
        Route("GET", f"{one}/runs", its_runs, "How it went, newest first.", "schedules"),
        Route("GET", "/v1/runs", runs, "How all of them went, newest first.", "schedules", query=some),
        Route("GET", "/v1/runs/{id}", run, "How one went.", "schedules"),
        Route(
            "GET",
            "/v1/notifications/stream",
            notifications,
            "What happens to runs from now on, or after `Last-HubEvent-ID`: `notification` events, after one that says `open`.",
            "schedules",
            streams=True,
        ),
    ]


def _shown(value: Any) -> dict[str, Any]:
    out = msgspec.structs.asdict(value)
    del out["tenant_id"]
    out.pop("generation", None)
    return out
