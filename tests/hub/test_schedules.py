"""Work that is done later, or again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dragoman.agent.agent import Agent
from dragoman.cli import main
from dragoman.engine.turn import Turn
from dragoman.errors import InvalidParams, StoreUnavailable, Unauthenticated, Unavailable
from dragoman.hub.models import ModelError
from dragoman.hub.schedules import run_times
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.store import schedules
from dragoman.hub.store.schedules import Schedules
from tests.hub.house import ON_POSTGRES, SCOUT, Caller, House, events, house, place_of
from tests.waiting import until

MONDAY = datetime(2100, 1, 4, 10, 30)
"""Far away, so that nothing is due by the clock on the wall."""


@pytest.mark.parametrize(
    ("phrase", "first", "said", "then"),
    [
        ("in 30 minutes", "2100-01-04 11:00", "in 30 minutes", ""),
        ("In 1 Week", "2100-01-11 10:30", "in 1 week", ""),
        ("at 17:00", "2100-01-04 17:00", "at 17:00", ""),
        ("at 9:05", "2100-01-05 09:05", "at 09:05", ""),
        ("tomorrow", "2100-01-05 10:30", "tomorrow at 10:30", ""),
        ("tomorrow at 08:00", "2100-01-05 08:00", "tomorrow at 08:00", ""),
        ("on 2100-06-01", "2100-06-01 09:00", "on 2100-06-01 at 09:00", ""),
        ("every hour", "2100-01-04 11:30", "every hour", "2100-01-04 12:30"),
        ("hourly", "2100-01-04 11:30", "every hour", "2100-01-04 12:30"),
        ("every  15 minutes", "2100-01-04 10:45", "every 15 minutes", "2100-01-04 11:00"),
        ("daily", "2100-01-05 10:30", "every day at 10:30", "2100-01-06 10:30"),
        ("every day at 23:00", "2100-01-04 23:00", "every day at 23:00", "2100-01-05 23:00"),
        ("every monday at 09:00", "2100-01-11 09:00", "every Mon at 09:00", "2100-01-18 09:00"),
        ("every monday at 11:00", "2100-01-04 11:00", "every Mon at 11:00", "2100-01-11 11:00"),
        ("weekly on thu at 7:00", "2100-01-07 07:00", "every Thu at 07:00", "2100-01-14 07:00"),
        ("every wednesday", "2100-01-06 10:30", "every Wed at 10:30", "2100-01-13 10:30"),
        ("every week", "2100-01-11 10:30", "every Mon at 10:30", "2100-01-18 10:30"),
    ],
)
def test_natural_dates_are_understood(phrase: str, first: str, said: str, then: str) -> None:
    when = run_times.parse(phrase, MONDAY.timestamp())
    zone = run_times.LocalZone()
    assert run_times.format_time(when.first, zone).rpartition(" ")[0] == first
    assert when.normalized == said and when.kind == ("recurring" if then else "once")
    if then:
        later = run_times.next_time(when.recur, when.first, zone)
        assert run_times.format_time(later, zone).rpartition(" ")[0] == then


@pytest.mark.parametrize(
    "phrase",
    [
        "",
        "soon",
        "at 25:00",
        "on 2100-02-30",
        "on 2099-12-31",
        "in 0 minutes",
        "every 0 hours",
        "every moonday",
    ],
)
def test_an_invalid_date_is_refused_with_valid_examples(phrase: str) -> None:
    with pytest.raises(InvalidParams, match="every DAY"):
        run_times.parse(phrase, MONDAY.timestamp())


class Clock:
    def __init__(self) -> None:
        self.now = MONDAY.timestamp()

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def scheduling(replies: Any, **options: Any) -> AsyncIterator[tuple[House, Caller, Scheduler, Clock]]:
    """A hub, a tenant, and a scheduler whose clock is ours. The scheduler of the hub itself does nothing: tests say when."""
    async with house(replies, **options) as hub:
        clock = Clock()
        (own,) = (work for work in hub.hub.periodic if work.what == "running schedules")
        await own.stop()
        scheduler = Scheduler(hub.hub, Schedules(hub.hub.database, clock=clock))
        yield hub, await hub.tenant("acme"), scheduler, clock


async def ended(scheduler: Scheduler, caller: Caller, id: int) -> Any:
    """A run, when it has ended."""

    async def look() -> Any:
        await scheduler.run_due()
        return (await caller("GET", f"/v1/runs/{id}")).json["run"]

    return await until(look, lambda run: run["status"] != "running")


async def test_a_due_schedule_runs_and_is_recorded() -> None:
    async with scheduling(["All green."]) as (hub, acme, scheduler, clock):
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 hour", "check the deploy")
        await scheduler.run_due()
        assert hub.model.prompts == []
        clock.now += 3600
        run = await ended(scheduler, acme, 1)
        assert (run["status"], run["result_summary"], run["task_id"]) == ("succeeded", "All green.", 1)
        assert run["output_tokens"] > 0 and "check the deploy" in hub.model.prompts[0].messages[-1].content
        request = (await acme("GET", f"/v1/requests/{run['request_id']}")).json["request"]
        assert request["state"] == "completed"
        schedule = (await acme("GET", "/v1/schedules/1")).json["scheduled_task"]
        assert (schedule["status"], schedule["run_count"], schedule["last_run_id"]) == ("completed", 1, 1)
        clock.now += 86_400
        await scheduler.run_due()
        assert len(hub.model.prompts) == 1


async def test_a_run_beyond_the_budget_fails_and_says_why() -> None:
    async with scheduling(["ok"], tokens_per_day=1) as (hub, acme, scheduler, clock):
        await acme.ask("hi")  # the budget is used up
        await scheduler.schedules.add(acme.tenant.id, "index", "every hour", "look")
        clock.now += 3600
        run = await ended(scheduler, acme, 1)
        assert (
            run["status"] == "failed"
            and "the budget of this tenant for today is used up" in run["error_message"]
        )
        schedule = (await acme("GET", "/v1/schedules/1")).json["scheduled_task"]
        assert schedule["status"] == "active" and schedule["last_error"] == run["error_message"]
        (listed,) = (await acme("GET", "/v1/schedules?status=active")).json["schedules"]
        assert listed["last_error"] == run["error_message"] and len(hub.model.prompts) == 1


async def test_a_run_that_waits_for_a_slot_says_so_until_it_starts() -> None:
    hold = asyncio.Event()
    async with scheduling([("one", hold), "two"], max_concurrent=1) as (_, acme, scheduler, clock):
        first = acme.open("POST", "/v1/orchestrate", {"message": "hi"})
        await first.until(lambda: b"one" in first.body)
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 hour", "look")
        clock.now += 3600
        await scheduler.run_due()
        schedule = (await acme("GET", "/v1/schedules/1")).json["scheduled_task"]
        assert schedule["last_error"].startswith("it waits to start: 1 requests are running already")
        hold.set()
        await first.end()
        run = await ended(scheduler, acme, 1)
        assert (run["status"], run["error_message"]) == ("succeeded", "")
        assert (await acme("GET", "/v1/schedules/1")).json["scheduled_task"]["last_error"] == ""


@pytest.mark.parametrize("error", [StoreUnavailable("the database is away"), Unavailable("the hub stops")])
async def test_a_run_that_begins_while_the_database_is_away_starts_later(
    error: Unavailable, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scheduling(["All green."]) as (hub, acme, scheduler, clock):
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 hour", "look")
        clock.now += 3600

        async def fail(*_: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(hub.hub.engine, "deliver", fail)
            await scheduler.run_due()
        waiting = (await acme("GET", "/v1/runs/1")).json["run"]
        assert (waiting["status"], waiting["error_message"]) == (
            "running",
            f"it waits to start: {error.message}",
        )
        run = await ended(scheduler, acme, 1)
        assert (run["status"], run["error_message"]) == ("succeeded", "")
        assert len(hub.model.prompts) == 1 and len((await acme("GET", "/v1/requests")).json["requests"]) == 1


async def test_a_run_waits_while_its_hub_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(["later"]) as (hub, acme, scheduler, clock):
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 hour", "look")
        clock.now += 3600
        with monkeypatch.context() as full:
            full.setattr(hub.hub.engine.runner, "_queue", 0)
            await scheduler.run_due()
        run = (await acme("GET", "/v1/runs/1")).json["run"]
        assert run["status"] == "running" and run["error_message"].startswith("it waits to start: too much")
        run = await ended(scheduler, acme, 1)
        assert (run["status"], run["result_summary"], run["error_message"]) == ("succeeded", "later", "")


async def test_a_process_that_cannot_start_a_run_leaves_it_alone_if_another_one_started_it() -> None:
    async with scheduling([]) as (_, acme, scheduler, clock):
        runs = scheduler.schedules
        await runs.add(acme.tenant.id, "index", "in 1 hour", "look")
        clock.now += 3600
        (due,) = await runs.due_schedules()
        seen = await runs.begin_run(due)
        assert seen is not None
        await runs.set_run_request(seen, "r-1")
        await runs.delay_run(seen, "it waits to start")
        assert await runs.end_run(seen, error="there is no room") is None
        now = await runs.run(acme.tenant.id, seen.id)
        assert now is not None and (now.status, now.error_message) == ("running", "")
        assert await runs.end_run(now, answer="done") is not None


async def test_a_recurring_schedule_runs_each_time_and_missed_runs_once() -> None:
    async with scheduling(["one", ModelError("provider_error", "down")]) as (_, acme, scheduler, clock):
        await scheduler.schedules.add(acme.tenant.id, "index", "every 15 minutes", "look")
        clock.now += 900
        assert (await ended(scheduler, acme, 1))["result_summary"] == "one"
        clock.now += 86_400
        failed = await ended(scheduler, acme, 2)
        assert (failed["status"], failed["error_message"]) == ("failed", "down")
        schedule = (await acme("GET", "/v1/schedules/1")).json["scheduled_task"]
        assert (schedule["status"], schedule["run_count"]) == ("active", 2)
        assert schedule["next_fire_at"] == int(clock.now) + 900
        assert [run["id"] for run in (await acme("GET", "/v1/schedules/1/runs")).json["runs"]] == [2, 1]
        since = int(clock.now)
        assert [run["id"] for run in (await acme("GET", f"/v1/runs?since={since}")).json["runs"]] == [2]


async def test_a_run_belongs_to_its_conversation() -> None:
    async with scheduling(["Done, as you asked."]) as (_, acme, scheduler, clock):
        id = (await acme("POST", "/v1/conversations", {})).json["id"]
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 minute", "go on", conversation=id)
        clock.now += 60
        await ended(scheduler, acme, 1)
        said = (await acme("GET", f"/v1/conversations/{id}/messages")).json["messages"]
        assert [each["content"] for each in said] == ["go on", "Done, as you asked."]


async def test_a_hub_that_died_before_the_request_began_begins_it_once(tmp_path: Path) -> None:
    async with scheduling(["once"], folder=tmp_path) as (hub, acme, scheduler, clock):
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 minute", "look")
        clock.now += 60
        (due,) = await scheduler.schedules.due_schedules()
        run = await scheduler.schedules.begin_run(due)
        assert run is not None and await scheduler.schedules.begin_run(due) is None
    async with house(["once", "twice"], folder=tmp_path) as hub:
        again = Caller(hub.app, acme.token, acme.tenant)
        scheduler = Scheduler(hub.hub, Schedules(hub.hub.database, clock=clock))
        await asyncio.gather(scheduler.run_due(), scheduler.run_due())
        assert (await ended(scheduler, again, 1))["result_summary"] == "once"
        assert len(hub.model.prompts) == 1


async def test_a_run_whose_hub_died_before_it_noted_the_request_does_not_start_again_however_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scheduling(["once", "twice"]) as (hub, acme, scheduler, clock):
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 minute", "look")
        clock.now += 60

        async def die(*_: Any) -> None:
            raise StoreUnavailable("the hub dies here")

        with monkeypatch.context() as patched:
            patched.setattr(scheduler.schedules, "set_run_request", die)
            await scheduler.run_due()
        await until(lambda: hub.model.prompts)
        # whoever remembers messages that are sent twice has forgotten this one, and the row of the request is not there
        monkeypatch.setattr(hub.hub.idempotency_keys, "_seconds", -1)
        for module in ("postgres.batch", "postgres.log") if ON_POSTGRES else ("sqlite.log",):
            monkeypatch.setattr(f"dragoman.stores.{module}.DEDUPE_SECONDS", -1)
        (request,) = await hub.hub.requests.list(acme.tenant.id, 10)
        await hub.hub.requests.delete([(acme.tenant.id, request.request_id, request.agent_id)])

        run = await ended(scheduler, acme, 1)
        assert (run["result_summary"], run["request_id"]) == ("once", request.request_id)
        (listed,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert listed["request_id"] == request.request_id and len(hub.model.prompts) == 1


async def test_a_schedule_is_paused_when_its_agent_is_gone_and_rests_while_its_tenant_is_disabled() -> None:
    async with scheduling(["back"]) as (hub, acme, scheduler, clock):
        await acme("POST", "/v1/agents", SCOUT)
        await scheduler.schedules.add(acme.tenant.id, "scout", "every hour", "look")
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 hour", "look")
        await acme("DELETE", "/v1/agents/scout")
        tenant = await hub.hub.tenants.disable(acme.tenant, True)
        clock.now += 3600
        await scheduler.run_due()
        assert await scheduler.schedules.running_runs() == []
        await hub.hub.tenants.disable(tenant, False)
        assert (await ended(scheduler, acme, 1))["result_summary"] == "back"
        assert (await acme("GET", "/v1/schedules/1")).json["scheduled_task"]["status"] == "paused"


async def test_schedules_of_an_old_token_stay_paused_until_they_are_resumed(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with house(folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        scheduler = Scheduler(hub.hub, Schedules(hub.hub.database, clock=clock))
        for _ in range(2):
            await scheduler.schedules.add(
                acme.tenant.id, "index", "in 1 minute", "look", generation=acme.tenant.generation
            )
        clock.now += 60
        first, _ = await scheduler.schedules.due_schedules()
        assert (
            await scheduler.schedules.begin_run(first) is not None
        )  # and the hub goes down before its request
    assert await asyncio.to_thread(main, ["tenant", "rotate", "acme", *place_of(tmp_path)]) == 0
    async with house(["resumed"], folder=tmp_path) as hub:
        tenant, token = await hub.hub.tenants.rotate(acme.tenant)
        again = Caller(hub.app, token, tenant)
        scheduler = Scheduler(hub.hub, Schedules(hub.hub.database, clock=clock))
        await scheduler.run_due()
        assert hub.model.prompts == [] and await scheduler.schedules.running_runs() == []
        assert "token is revoked" in (await again("GET", "/v1/runs/1")).json["run"]["error_message"]
        second = (await again("GET", "/v1/schedules/2")).json["scheduled_task"]
        assert second["status"] == "paused" and "generation" not in second
        with pytest.raises(Unauthenticated):
            await scheduler.schedules.add(
                tenant.id, "index", "in 1 minute", "look", generation=acme.tenant.generation
            )
        await again("PATCH", "/v1/schedules/2", {"status": "active"})
        assert (await ended(scheduler, again, 2))["result_summary"] == "resumed"


async def test_a_tenant_that_has_enough_to_do_gets_its_run_later() -> None:
    hold = asyncio.Event()
    async with scheduling([("busy", hold), "later"], max_concurrent=1) as (_, acme, scheduler, clock):
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"busy" in live.body)
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 minute", "look")
        clock.now += 60
        await scheduler.run_due()
        assert (await acme("GET", "/v1/runs/1")).json["run"]["request_id"] == ""
        hold.set()
        await live.end()
        assert (await ended(scheduler, acme, 1))["result_summary"] == "later"


async def test_a_recurring_schedule_does_not_start_while_its_last_run_is_running() -> None:
    hold = asyncio.Event()
    async with scheduling([("slow", hold), "quick"]) as (_, acme, scheduler, clock):
        await scheduler.schedules.add(acme.tenant.id, "index", "every 1 minutes", "look")
        for _ in range(3):
            clock.now += 60
            await scheduler.run_due()
        assert [run.id for run in await scheduler.schedules.runs(acme.tenant.id)] == [1]
        hold.set()
        assert (await ended(scheduler, acme, 1))["result_summary"] == "slow"
        assert (await ended(scheduler, acme, 2))["result_summary"] == "quick"
        assert await scheduler.schedules.due_schedules() == [], "the times that were missed are one"


async def test_a_run_in_which_an_agent_asks_waits_for_the_answer_and_the_next_one_comes_after_it() -> None:
    agent = Agent("Shy")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        return await turn.ask("Shall I?", str)

    async with scheduling([], code=[agent]) as (_, acme, scheduler, clock):
        await scheduler.schedules.add(acme.tenant.id, "shy", "every hour", "work")
        for n in (1, 2):
            clock.now += 3600

            async def asks(n: int = n) -> bool:
                await scheduler.run_due()
                found = await acme("GET", f"/v1/runs/{n}")
                return found.status == 200 and found.json["run"]["status"] == "input-required"

            await until(asks)
            run = (await acme("GET", f"/v1/runs/{n}")).json["run"]
            assert run["result_summary"] == "Shall I?"
            answered = await acme("POST", f"/v1/requests/{run['request_id']}/answer", {"message": f"yes {n}"})
            assert answered.status == 202
            assert (await ended(scheduler, acme, n))["result_summary"] == f"yes {n}"


async def test_a_run_that_cannot_start_does_not_delay_others() -> None:
    hold = asyncio.Event()
    async with scheduling([("busy", hold), "Done."], max_concurrent=1) as (hub, acme, scheduler, clock):
        other = await hub.tenant("other")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"busy" in live.body)
        id = (await acme("POST", "/v1/conversations", {})).json["id"]
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 minute", "go on", conversation=id)
        await scheduler.schedules.add(other.tenant.id, "index", "in 1 minute", "look")
        clock.now += 60
        await scheduler.run_due()
        await acme("DELETE", f"/v1/conversations/{id}")
        assert (await ended(scheduler, other, 2))["result_summary"] == "Done."
        hold.set()
        await live.end()
        assert (await ended(scheduler, acme, 1))["error_message"] == "its agent or its conversation is gone"


async def test_only_the_last_runs_of_a_schedule_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MAX_RUNS", 2)
    async with scheduling(["one", "two", "three"]) as (_, acme, scheduler, clock):
        await scheduler.schedules.add(acme.tenant.id, "index", "every hour", "look")
        for n in (1, 2, 3):
            clock.now += 3600
            await ended(scheduler, acme, n)
        assert [run["id"] for run in (await acme("GET", "/v1/runs")).json["runs"]] == [3, 2]


async def test_schedules_over_http_are_the_tenants_own() -> None:
    async with house() as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        body = {"schedule": "every monday at 09:00", "message": "sum up the week"}
        made = await acme("POST", "/v1/schedules", body)
        assert made.status == 201 and made.json["normalized"] == "every Mon at 09:00"
        task = made.json["scheduled_task"]
        assert (
            task["recur_json"] == '{"every":"week","day":"mon","at":"09:00"}' and task["status"] == "active"
        )
        for wrong, status in (
            ({"schedule": "soon"}, 400),
            ({"message": " "}, 400),
            ({"agent": "nobody"}, 404),
            ({"conversation_id": 9}, 404),
        ):
            assert (await acme("POST", "/v1/schedules", {**body, **wrong})).status == status
        for state in ("paused", "active"):
            changed = await acme("PATCH", "/v1/schedules/1", {"status": state})
            assert changed.json["scheduled_task"]["status"] == state
        for state in ("asleep", "completed", "failed", "canceled"):
            assert (await acme("PATCH", "/v1/schedules/1", {"status": state})).status == 400
        assert len((await acme("GET", "/v1/schedules?status=active")).json["schedules"]) == 1
        assert (await acme("GET", "/v1/schedules?status=paused")).json["schedules"] == []
        assert (await other("GET", "/v1/schedules")).json["schedules"] == []
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/runs")):
            assert (await other(method, f"/v1/schedules/1{path}")).status == 404
        assert (await other("PATCH", "/v1/schedules/1", {"status": "paused"})).status == 404
        assert (await acme("DELETE", "/v1/schedules/1")).json == {"deleted": True}
        assert (await acme("GET", "/v1/schedules/1")).status == 404
        assert (await acme("GET", "/v1/runs/1")).status == 404


async def test_a_schedule_that_has_run_for_the_last_time_is_neither_paused_nor_resumed() -> None:
    async with scheduling(["Done."]) as (hub, acme, scheduler, clock):
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 hour", "once")
        clock.now += 3600
        await ended(scheduler, acme, 1)
        for state in ("active", "paused"):
            refused = await acme("PATCH", "/v1/schedules/1", {"status": state})
            assert refused.status == 409
            assert refused.json["error"] == "schedule 1 is completed: it does not run again"
        await scheduler.run_due()
        assert len(hub.model.prompts) == 1


async def test_a_notification_stream_has_only_runs_of_its_tenant() -> None:
    async with scheduling(["All green."]) as (hub, acme, scheduler, clock):
        other = await hub.tenant("other")
        mine, theirs = scheduler.listen(acme.tenant), scheduler.listen(other.tenant)
        assert (await anext(mine))[0].kind == (await anext(theirs))[0].kind == "open"
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 minute", "look")
        clock.now += 60
        await ended(scheduler, acme, 1)
        received = [(await asyncio.wait_for(anext(mine), 5))[0] for _ in range(2)]
        assert [event.kind for event in received] == ["notification"] * 2
        assert [event.payload["kind"] for event in received] == ["run.started", "run.completed"]
        assert received[1].payload["result_summary"] == "All green."
        waiting = asyncio.ensure_future(anext(theirs))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        live = acme.open("GET", "/v1/notifications/stream")
        await live.until(lambda: b'event: open\ndata: {"ok":true}' in live.body)


async def test_a_notification_stream_continues_after_its_last_event_also_at_a_new_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scheduling(["All green.", "Still green."]) as (hub, acme, scheduler, clock):
        for n in (1, 2):
            await scheduler.schedules.add(acme.tenant.id, "index", "in 1 minute", f"look {n}")
            clock.now += 60
            await ended(scheduler, acme, n)
        monkeypatch.setattr("dragoman.hub.schedules.scheduler.CHECK_SECONDS", 0.01)
        elsewhere = Scheduler(hub.hub, Schedules(hub.hub.database))
        heard = elsewhere.listen(acme.tenant, after=1)
        received = [(await asyncio.wait_for(anext(heard), 5))[0] for _ in range(4)]
        assert [event.payload.get("kind") for event in received] == [
            None,
            "run.completed",
            "run.started",
            "run.completed",
        ]
        live = acme.open("GET", "/v1/notifications/stream", last_event_id=str(received[2].seq))
        await live.until(lambda: b"Still green." in live.body)
        assert b"All green." not in live.body
        assert f"id: {received[3].seq}\n".encode() in live.body
        await scheduler.schedules.add(acme.tenant.id, "index", "in 2 hours", "look")
        clock.now += 7200
        await ended(scheduler, acme, 3)
        kept = await scheduler.schedules.notifications(acme.tenant.id, 0)
        assert [said["run_id"] for _, said in kept] == [3, 3], "older ones are not kept"


async def test_a_notification_stream_ends_when_its_token_is_rotated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.hub.schedules.scheduler.CHECK_SECONDS", 0.01)
    async with house() as hub:
        acme = await hub.tenant("acme")
        live = acme.open("GET", "/v1/notifications/stream")
        await live.until(lambda: b"event: open" in live.body)
        await hub.hub.tenants.rotate(acme.tenant)
        await asyncio.wait_for(live.end(), 5)


async def test_agents_schedule_their_own_work() -> None:
    replies = [
        "/schedule in 2 hours: look again\n/schedule every day at 09:00: sum up\n/schedule list\n/schedule pause #2\n"
        "/schedule cancel 1\n/schedule cancel 1\n/schedule sometime: never",
        "Scheduled.",
    ]
    async with house(replies) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", {**SCOUT, "capabilities": ["schedule"]})
        received = events(await acme("POST", "/v1/agents/scout/chat", {"message": "go"}))
        assert received[-1][1]["content"] == "Scheduled."
        said = hub.model.prompts[1].messages[-1].content
        assert "OK: scheduled #1: in 2 hours (" in said and "), for scout" in said
        assert "OK: - #2 [paused] every day at 09:00, for scout: sum up" in said
        assert "OK: #1 is canceled" in said and "ERR: there is no schedule '1'" in said
        assert "'sometime' is not a known time" in said
        (left,) = (await acme("GET", "/v1/schedules")).json["schedules"]
        assert (left["id"], left["agent_id"], left["status"]) == (2, "scout", "paused")
