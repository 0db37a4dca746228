"""`/v1/todos`, `/v1/schedules`, `/v1/runs` and `/v1/notifications/stream`: open work, and work that runs later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.api import ApiRequest, RouteList, must_exist, page, page_type, stream_error
from dragoman.hub.conversations.events import EventFrames, HubEvent
from dragoman.hub.hub import Hub
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.store.schedules import STATES as SCHEDULE_STATES
from dragoman.hub.store.schedules import RunInfo, Schedule, ScheduledRun, ScheduleFields
from dragoman.hub.store.todos import OPEN, STATES, Todo
from dragoman.server.routes import HEAD_OF_STREAM, LAST_EVENT_ID, ApiResponse, Natural, NotFound, Route


class NewTodo(Struct):
    subject: str
    description: str = ""
    conversation_id: Natural = 0


class TodoChange(Struct):
    state: str | None = None
    subject: str | None = None
    description: str | None = None


class NewSchedule(Struct):
    """When (`every monday at 09:00`, `0 9 * * mon-fri`), in which time zone (`Europe/Berlin`), what, and by which agent."""

    schedule: str
    message: str
    agent: str = INDEX_ID
    conversation_id: int = 0
    timezone: str = ""


class ScheduleChange(Struct, forbid_unknown_fields=True):
    status: Literal["active", "paused"]


class ScheduleInfo(ScheduleFields, frozen=True, kw_only=True):
    timezone: str
    next_run: str
    last_error: str
    """Why the last run failed, or has not started yet."""


class ScheduleResponse(Struct):
    scheduled_task: ScheduleInfo


class CreatedSchedule(ScheduleResponse):
    normalized: str


class Deleted(Struct):
    deleted: bool


class RunResponse(Struct):
    run: RunInfo


TodoList = page_type("TodoList", "todos", Todo)
ScheduleList = page_type("ScheduleList", "schedules", ScheduleInfo)
RunList = page_type("RunList", "runs", RunInfo)


def todo_routes(hub: Hub) -> list[Route]:
    api, todos = RouteList("todos"), hub.todos
    all, one = "/v1/todos", "/v1/todos/{id}"
    filters = {
        "conversation_id": "Those of this conversation or of none; default: all.",
        "state": "Only these states, with commas between them; default: pending and in progress.",
        "after_id": "Only todos after this one.",
        "limit": "200, at most 500.",
    }

    @api.add("GET", all, "List open todos.", TodoList, query=filters)
    async def list_todos(request: ApiRequest) -> Any:
        found = await todos.list(
            request.tenant.id,
            states=request.query_words("state", STATES) or OPEN,
            conversation=request.query_int("conversation_id") or None,
            after=request.query_int("after_id"),
            limit=request.query_limit(200, 500),
        )
        return page("todos", found)

    @api.add("POST", all, "Add a todo.", Todo, status=201)
    async def add_todo(request: ApiRequest, body: NewTodo) -> Any:
        tenant = request.tenant.id
        if body.conversation_id:
            await hub.conversations.find(tenant, body.conversation_id)
        return await todos.add(tenant, body.subject, body.description, conversation=body.conversation_id)

    @api.add("GET", one, "Get a todo.", Todo)
    async def get_todo(request: ApiRequest) -> Any:
        id = request.path_id()
        return must_exist(await todos.get(request.tenant.id, id), "todo", id)

    @api.add("PATCH", one, "Change the state or the text of a todo.", Todo)
    async def change_todo(request: ApiRequest, body: TodoChange) -> Any:
        id, changes = request.path_id(), msgspec.structs.asdict(body)
        return must_exist(await todos.change(request.tenant.id, id, **changes), "todo", id)

    @api.add("DELETE", one, "Delete a todo.", status=204)
    async def delete_todo(request: ApiRequest) -> None:
        id = request.path_id()
        must_exist(await todos.delete(request.tenant.id, id) or None, "todo", id)

    return api


def routes(hub: Hub, scheduler: Scheduler) -> list[Route]:
    api, schedules = RouteList("schedules"), scheduler.schedules
    all, one = "/v1/schedules", "/v1/schedules/{id}"

    def show(schedule: Schedule, errors: Mapping[int, str] = {}) -> ScheduleInfo:
        return ScheduleInfo(
            **{name: getattr(schedule, name) for name in ScheduleFields.__struct_fields__},
            timezone=schedule.timezone or schedules.timezone,
            next_run=schedule.next_run(schedules.timezone),
            last_error=errors.get(schedule.id, ""),
        )

    async def find(request: ApiRequest) -> Schedule:
        found = await schedules.get(request.tenant.id, request.path_id())
        return must_exist(found, "schedule", request.path["id"])

    @api.add("POST", all, "Schedule work, once or repeatedly.", CreatedSchedule, status=201)
    async def add(request: ApiRequest, body: NewSchedule) -> Any:
        tenant, generation = request.tenant.id, request.tenant.generation
        if await hub.catalogue.find(tenant, body.agent) is None:
            raise NotFound(f"there is no agent {body.agent[:80]!r}")
        if body.conversation_id:
            await hub.conversations.find(tenant, body.conversation_id)
        made, normalized = await schedules.add(
            tenant,
            body.agent,
            body.schedule,
            body.message,
            conversation=body.conversation_id,
            generation=generation,
            timezone=body.timezone,
        )
        return {"scheduled_task": show(made), "normalized": normalized}

    status = {"status": f"Only those with this status: {', '.join(SCHEDULE_STATES)}."}

    @api.add("GET", all, "List schedules.", ScheduleList, query=status)
    async def list_schedules(request: ApiRequest) -> Any:
        tenant = request.tenant.id
        found = await schedules.list(tenant, request.query_word("status", SCHEDULE_STATES))
        errors = await schedules.last_errors(tenant)
        return page("schedules", [show(each, errors) for each in found])

    @api.add("GET", one, "Get a schedule.", ScheduleResponse)
    async def get(request: ApiRequest) -> Any:
        found = await find(request)
        return {"scheduled_task": show(found, await schedules.last_errors(request.tenant.id, found.id))}

    @api.add("PATCH", one, "Pause or resume a schedule.", ScheduleResponse)
    async def change(request: ApiRequest, body: ScheduleChange) -> Any:
        id, tenant = (await find(request)).id, request.tenant
        changed = await schedules.set_status(tenant.id, id, body.status, generation=tenant.generation)
        errors = await schedules.last_errors(tenant.id, id)
        return {"scheduled_task": show(must_exist(changed, "schedule", id), errors)}

    @api.add("DELETE", one, "Delete a schedule and its runs.", Deleted)
    async def delete(request: ApiRequest) -> Any:
        return {"deleted": await schedules.delete(request.tenant.id, (await find(request)).id)}

    @api.add("GET", f"{one}/runs", "List the runs of a schedule, newest first.", RunList)
    async def runs_of(request: ApiRequest) -> Any:
        found = await schedules.runs(request.tenant.id, schedule=(await find(request)).id)
        return page("runs", [_show_run(each) for each in found])

    filters = {
        "task_id": "Only those of this schedule.",
        "since": "Only those that started at this time or later.",
    }

    @api.add("GET", "/v1/runs", "List all runs, newest first.", RunList, query=filters)
    async def runs(request: ApiRequest) -> Any:
        task, since = request.query_int("task_id"), request.query_int("since")
        found = await schedules.runs(request.tenant.id, schedule=task, since=since)
        return page("runs", [_show_run(each) for each in found])

    @api.add("GET", "/v1/runs/{id}", "Get a run.", RunResponse)
    async def run(request: ApiRequest) -> Any:
        found = await schedules.run(request.tenant.id, request.path_id())
        return {"run": _show_run(must_exist(found, "run", request.path["id"]))}

    stream_summary = "Stream notifications about runs, from now on or after `Last-Event-ID`."

    @api.add("GET", "/v1/notifications/stream", stream_summary, headers=LAST_EVENT_ID, streams=True)
    async def notifications(request: ApiRequest) -> ApiResponse | None:
        if request.exchange.method == "HEAD":
            return HEAD_OF_STREAM
        news = scheduler.listen(request.tenant, request.last_event_id)
        await request.exchange.shared.streams.serve(
            request.exchange,
            hub.admission.while_valid(request.tenant.principal, news),
            EventFrames(),
            failed=lambda error: (
                HubEvent("error", stream_error(error, "the stream broke; see GET /v1/runs")).frame
            ),
        )
        return None

    return api


def _show_run(run: ScheduledRun) -> RunInfo:
    return RunInfo(**{name: getattr(run, name) for name in RunInfo.__struct_fields__})
