"""Several hubs on one PostgreSQL database: what one does holds for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from dragoman.agent.agent import Agent
from dragoman.engine.protocols import Lease
from dragoman.errors import StoreUnavailable, Unavailable
from dragoman.hub.agents.programs import StoppableModel
from dragoman.hub.assembly import application
from dragoman.hub.hub import Hub
from dragoman.hub.models import Delta, ModelError, ModelEvent, ModelTraits, Prompt, Stop
from dragoman.hub.models.providers import RetryingModel
from dragoman.hub.sandbox import Sandbox
from dragoman.hub.sandbox.process import ProcessIsolation
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.settings import InvalidSetting, Settings, load_settings
from dragoman.hub.store import postgres as store_postgres
from dragoman.hub.store import workspace_leases
from dragoman.hub.store.conversations import Conversations
from dragoman.hub.store.database import Database, Transaction, open_database
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.store.tenants import Tenants
from dragoman.hub.store.workspace_leases import WorkspaceLease, WorkspaceLeases
from dragoman.model.ops import Scope
from dragoman.server.routes import NotFound
from tests import postgres
from tests.hub.house import ADMIN, SCOUT, Caller, House, events, message
from tests.hub.scripted import ScriptedModel
from tests.server.wire import Answer
from tests.waiting import elapse, until

pytestmark = pytest.mark.skipif(not postgres.available(), reason="PostgreSQL is not installed")


@asynccontextmanager
async def hubs(
    replies: Any,
    *,
    n: int = 2,
    folder: Any,
    model: Any = None,
    url: str = "",
    code: Sequence[Agent] = (),
    **options: Any,
) -> AsyncIterator[list[House]]:
    """Hubs that share a database, which is their own unless its `url` is given, and a model."""
    url, model = url or postgres.server().database(f"hubs_{uuid4().hex}"), model or ScriptedModel(replies)
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(n):
            given = Settings(admin_token=ADMIN, drain=0.0, data=str(folder), store=url, **options)
            hub, app = application(given, model=model, code=code)
            await app.start()
            stack.push_async_callback(app.stop)
            opened.append(House(hub, app, model))
        yield opened


_WAITERS = "select count(*) from pg_catalog.pg_locks where locktype = 'advisory' and not granted"
"""Transactions that wait for the lock of a tenant."""


def at(house: House, caller: Caller) -> Caller:
    """The same tenant, at another hub."""
    return Caller(house.app, caller.token, caller.tenant)


async def test_what_one_hub_stores_is_at_the_others_at_once(tmp_path: Any) -> None:
    async with hubs(lambda prompt: "Found.", folder=tmp_path) as (one, two):
        here = await one.tenant("acme")
        there = at(two, here)
        assert (await here("POST", "/v1/agents", SCOUT)).status == 201
        said = await there.ask("look", "/v1/orchestrate", agent="scout")
        assert said[-1][0] == "done" and said[-1][1]["ok"]
        (listed,) = (await here("GET", "/v1/requests")).json["requests"]
        assert listed["request_id"] == said[-1][1]["request_id"] and listed["agent_id"] == "scout"
        talk = (await there("POST", "/v1/conversations", {})).json["id"]
        await here.ask("hello", f"/v1/conversations/{talk}/messages")
        received = (await there("GET", f"/v1/conversations/{talk}/messages")).json["messages"]
        assert [each["content"] for each in received] == ["hello", "Found."]
        await there("POST", "/v1/memory/entries", {"type": "user", "title": "Likes rivers"})
        found = (await here("GET", "/v1/memory/entries?q=river")).json["entries"]
        assert [each["title"] for each in found] == ["Likes rivers"]


async def test_a_key_stands_for_one_request_at_all_hubs(tmp_path: Any) -> None:
    async with hubs(lambda prompt: "Once.", folder=tmp_path) as houses:
        acme = await houses[0].tenant("acme")
        asked = [
            at(houses[n % 2], acme)("POST", "/v1/orchestrate", {"message": "go"}, idempotency_key="k")
            for n in range(6)
        ]
        answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {200}
        assert len((await acme("GET", "/v1/requests")).json["requests"]) == 1
        assert len(houses[0].model.prompts) == 1


async def test_a_key_whose_request_is_gone_stands_for_one_new_request_at_all_hubs(tmp_path: Any) -> None:
    async with hubs(lambda prompt: "Once.", folder=tmp_path) as (one, two):
        acme = await one.tenant("acme")
        body = {"message": "go"}
        await acme("POST", "/v1/orchestrate", body, idempotency_key="k")
        (first,) = (await acme("GET", "/v1/requests")).json["requests"]
        scope = Scope(acme.tenant.key, "index", acme.tenant.key)
        await one.hub.store.purge_tasks([(scope, first["request_id"])])
        gate, info = asyncio.Barrier(2), Hub.info

        async def together(self: Hub, *what: Any) -> Any:
            try:
                return await info(self, *what)
            except NotFound:
                await gate.wait()  # both find that it is gone
                raise

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Hub, "info", together)
            asked = [
                at(hub, acme)("POST", "/v1/orchestrate", body, idempotency_key="k") for hub in (one, two)
            ]
            answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {200}
        assert len(one.model.prompts) == 2, "the one that is gone, and one more"


async def test_a_resubscription_at_another_hub_has_the_rest_of_the_stream_with_the_notes_between(
    tmp_path: Any,
) -> None:
    hold = asyncio.Event()
    replies = ["one\n/mem write note", ("two ", hold, "three")]
    async with hubs(replies, folder=tmp_path) as (one, two):
        here = await one.tenant("acme")
        first = here.open_rpc("index", "message/stream", message("hi"))
        await first.until(lambda: b"two" in first.body)
        id = first.results()[0]["taskId"]
        whole = here.open_rpc("index", "tasks/resubscribe", {"id": id})
        await whole.until(lambda: b"two" in whole.body)
        cursors = [frame.id for frame in whole.frames() if frame.id]
        late = {
            n: at(two, here).open_rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=n)
            for n in cursors
        }
        hold.set()
        frames = (await whole.end()).frames()
        assert sum(b"-meta-" in frame.data for frame in frames) == 4
        for seen, stream in late.items():
            place = next(n for n, frame in enumerate(frames) if frame.id == seen)
            assert (await stream.end()).frames()[1:] == frames[place + 1 :], f"after {seen}"
        await first.end()


async def test_a_tenant_that_one_hub_disables_stops_at_the_others(tmp_path: Any) -> None:
    async with hubs([("word\n", asyncio.Event())], folder=tmp_path) as (one, two):
        acme = await one.tenant("acme")
        live = at(two, acme).open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        changed = await one.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}", {"disabled": True})
        assert changed.status == 200
        assert b"cancel" in (await live.end()).body
        for house in (one, two):
            assert (await at(house, acme)("GET", "/v1/requests")).status == 401


async def test_an_agent_that_is_code_does_not_begin_for_a_tenant_that_is_disabled_at_that_moment(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, began = Agent("Worker", description="Works"), list[str]()

    @agent.skill
    async def work(what: str) -> str:
        """Work."""
        began.append(what)
        return "done"

    async with hubs((), n=1, folder=tmp_path, code=[agent]) as (one,):
        acme = await one.tenant("acme")
        store = one.hub.programs.store_request

        async def disable_meanwhile(*what: Any) -> None:
            await store(*what)
            await one.hub.tenants.disable(acme.tenant, True)  # as another hub does, whose watch comes later

        monkeypatch.setattr(one.hub.programs, "store_request", disable_meanwhile)
        sent = await acme.rpc("worker", "message/send", message("go"))
        assert sent.json["result"]["status"]["state"] in ("failed", "canceled") and not began


async def test_the_limits_of_a_tenant_hold_over_all_hubs(tmp_path: Any) -> None:
    hold = asyncio.Event()
    replies = [("word\n", hold)] * 2 + ["fine"]
    async with hubs(replies, folder=tmp_path, max_concurrent=2) as (one, two):
        acme = await one.tenant("acme")
        live = [at(house, acme).open("POST", "/v1/orchestrate", {"message": "go"}) for house in (one, two)]
        for each in live:
            await each.until(lambda each=each: b"word" in each.body)  # type: ignore[misc]
        for house in (one, two):
            refused = await at(house, acme)("POST", "/v1/orchestrate", {"message": "more"})
            assert refused.status == 429 and "running already" in refused.json["error"]
        hold.set()
        for each in live:
            await each.end()

        async def accepted() -> bool:
            return (await at(two, acme)("POST", "/v1/orchestrate", {"message": "now"})).status == 200

        await until(accepted)


class CountingModel:
    """Takes a moment for each reply, and counts those that it makes at the same time."""

    def __init__(self) -> None:
        self.active = self.most = 0

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name=name)

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        self.active += 1
        self.most = max(self.most, self.active)
        await elapse(0.02)
        self.active -= 1
        yield Delta("ok")
        yield Stop()


async def test_requests_that_arrive_together_do_not_exceed_the_limit_of_a_tenant(tmp_path: Any) -> None:
    model = CountingModel()
    async with hubs((), folder=tmp_path, max_concurrent=2, model=model) as houses:
        acme = await houses[0].tenant("acme")

        async def insist(n: int) -> None:
            ask = at(houses[n % 2], acme)

            async def accepted() -> bool:
                return (await ask("POST", "/v1/orchestrate", {"message": "go"})).status == 200

            await until(accepted)

        await asyncio.gather(*map(insist, range(12)))
    assert model.most <= 2, "a task that is about to begin has its slot already"


async def test_the_rate_of_a_tenant_holds_over_all_hubs(tmp_path: Any) -> None:
    async with hubs(lambda prompt: "ok", folder=tmp_path, rate_per_min=1, rate_burst=5) as houses:
        acme = await houses[0].tenant("acme")
        asked = [
            at(houses[n % 2], acme)("POST", "/v1/orchestrate", {"message": f"go {n}"}) for n in range(12)
        ]
        states = [answer.status for answer in await asyncio.gather(*asked)]
        assert states.count(200) <= 5 and states.count(429) == 12 - states.count(200) and 200 in states


async def test_the_room_for_requests_of_a_tenant_holds_over_all_hubs(tmp_path: Any) -> None:
    async with hubs(lambda prompt: "ok", n=3, folder=tmp_path, max_request_mb=10) as houses:
        acme = await houses[0].tenant("acme")
        callers = [at(each, acme) for each in houses]
        for caller in callers:  # each hub knows what there is at the beginning
            assert (await caller.ask("hi"))[-1][1]["ok"]
        statuses = [
            (await callers[n % 3]("POST", "/v1/orchestrate", {"message": "x" * 200_000})).status
            for n in range(36)
        ]
        assert set(statuses) == {200, 413}
        assert 8 << 20 < await houses[0].hub.store.index.size(acme.tenant.key) < 11 << 20


async def test_a_due_schedule_runs_once_however_many_hubs_look(tmp_path: Any) -> None:
    async with hubs(lambda prompt: "Green.", n=3, folder=tmp_path) as houses:
        acme = await houses[0].tenant("acme")
        now = [1_900_000_000.0]
        schedulers = [
            Scheduler(house.hub, Schedules(house.hub.database, clock=lambda: now[0])) for house in houses
        ]
        await schedulers[0].schedules.add(acme.tenant.id, "index", "every 15 minutes", "look")
        for _ in range(3):
            now[0] += 900

            async def over() -> bool:
                await asyncio.gather(*(scheduler.run_due() for scheduler in schedulers))
                runs = (await acme("GET", "/v1/runs")).json["runs"]
                return bool(runs) and all(run["status"] == "succeeded" for run in runs)

            await until(over)
        runs = (await acme("GET", "/v1/runs")).json["runs"]
        assert len({run["request_id"] for run in runs}) == len(runs) == 3
        assert len(houses[0].model.prompts) == 3


async def test_a_run_waits_while_the_database_does_not_count_the_slots_of_its_tenant(tmp_path: Any) -> None:
    url = postgres.server().database(f"hubs_{uuid4().hex}")
    async with hubs(lambda prompt: "Green.", n=1, folder=tmp_path, url=url) as (house,):
        acme = await house.tenant("acme")
        now = [1_900_000_000.0]
        scheduler = Scheduler(house.hub, Schedules(house.hub.database, clock=lambda: now[0]))
        await scheduler.schedules.add(acme.tenant.id, "index", "in 1 minute", "look")
        now[0] += 60
        db = await asyncpg.connect(url)
        try:
            async with db.transaction():  # as long as a restart takes on a busy machine
                await db.execute("lock table dragoman.quotas")
                await scheduler.run_due()
                (run,) = await scheduler.schedules.runs(acme.tenant.id)
        finally:
            await db.close()
        assert run.status == "running" and "the quota cannot be checked" in run.error_message

        async def over() -> Any:
            await scheduler.run_due()
            return (await acme("GET", "/v1/runs")).json["runs"]

        (ended,) = await until(over, lambda runs: runs[0]["status"] != "running")
        assert (ended["status"], ended["result_summary"], ended["error_message"]) == (
            "succeeded",
            "Green.",
            "",
        )


def test_the_store_of_a_hub_is_a_postgresql_url() -> None:
    with pytest.raises(InvalidSetting, match="postgresql://host/database"):
        load_settings({"store": "sqlite:///x.db"}, environment={}, config="none.toml")
    given = load_settings({"store": "postgresql://u:secret@h/d"}, environment={}, config="none.toml")
    assert "secret" not in str(given.describe())


@asynccontextmanager
async def sandboxes(folder: Path, *, seconds: float = 20.0) -> AsyncIterator[tuple[Database, list[Sandbox]]]:
    """Sandboxes of two hubs on one path."""
    url = postgres.server().database(f"hubs_{uuid4().hex}")
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(2):
            database = await open_database(url).open()
            stack.push_async_callback(database.close)
            leases = WorkspaceLeases(database, seconds=seconds)
            made.append(Sandbox(folder, ProcessIsolation(unconfined=True, seconds=seconds), leases=leases))
        await Tenants(database).add("acme")
        yield database, made


async def test_commands_of_a_tenant_run_one_at_a_time_at_all_hubs(tmp_path: Path) -> None:
    async with sandboxes(tmp_path) as (database, hubs):
        alone = "mkdir busy && sleep 0.02 && rmdir busy && echo alone"
        runs = [hubs[n % 2].run("1", alone) for n in range(8)]
        assert [ran.output for ran in await asyncio.gather(*runs)] == ["alone\n"] * 8
        assert not await database.all("select * from workspace_leases"), "each lease is given back"


async def test_a_hub_waits_for_the_command_of_a_hub_that_died(tmp_path: Path) -> None:
    async with sandboxes(tmp_path) as (database, (_, hub)):
        assert await WorkspaceLease(database, 1, 60.0).acquire()  # and nobody gives it back
        waiting = asyncio.create_task(hub.run("1", "echo here"))
        await asyncio.wait((waiting,), timeout=0.3)
        assert not waiting.done()
        await database.change("update workspace_leases set until = 0")
        assert (await waiting).output == "here\n"


async def test_a_hub_that_hung_does_not_touch_a_folder_that_another_hub_has_leased(tmp_path: Path) -> None:
    async with sandboxes(tmp_path) as (database, (hub, other)):
        running = asyncio.create_task(hub.run("1", "touch began; until test -e go; do sleep 0.01; done"))
        await until(lambda: (tmp_path / "t1" / "began").exists())
        await database.change("update workspace_leases set until = 0")
        await other.run("1", "echo kept > theirs")
        (tmp_path / "t1" / "go").touch()
        with pytest.raises(Unavailable, match="another hub"):
            await running
        assert (tmp_path / "t1" / "theirs").read_text() == "kept\n"


@pytest.mark.parametrize("statement", ["_ACQUIRE", "_RENEW"])
async def test_a_command_waits_for_a_database_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.setattr(workspace_leases, "_OUTAGE_RETRY_SECONDS", 0.0)
    async with sandboxes(tmp_path) as (database, (_, hub)):
        change, away = database.change, [StoreUnavailable("the database is away")] * 2

        async def change_later(asked: str, values: Sequence[Any] = ()) -> int:
            if asked == getattr(workspace_leases, statement) and away:
                raise away.pop()
            return await change(asked, values)

        monkeypatch.setattr(database, "change", change_later)
        assert (await hub.run("1", "echo here")).output == "here\n"
        assert not away and not await database.all("select * from workspace_leases")


async def test_the_time_that_the_database_is_away_does_not_count_as_waiting_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_leases, "_OUTAGE_RETRY_SECONDS", 0.3)
    async with sandboxes(tmp_path) as (database, _):
        change = database.change
        answers: list[Any] = [StoreUnavailable("the database is away"), 0]

        async def change_later(asked: str, values: Sequence[Any] = ()) -> Any:
            answer = answers.pop(0) if answers else await change(asked, values)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(database, "change", change_later)
        leases = WorkspaceLeases(database, seconds=0.1 - workspace_leases._EXTRA_SECONDS)
        async with leases.hold("1"):
            assert not answers


async def test_a_command_that_waited_for_its_folder_does_not_run_if_its_task_is_lost_by_then(
    tmp_path: Path,
) -> None:
    folder, run = tmp_path / "data", "/exec echo ran >> done"
    async with hubs([run], n=1, folder=folder, allow_exec=True, exec_unconfined=True, approve=()) as (one,):
        acme = await one.tenant("acme")
        other = WorkspaceLease(one.hub.database, acme.tenant.id, 60.0)
        assert await other.acquire()
        acme.open("POST", "/v1/orchestrate", {"message": "go"})

        async def began() -> bool:
            runs = tuple(one.hub.engine.runner._runs)
            return any(each.recorded is not None and "begun/tool/1/1" in each.recorded.steps for each in runs)

        await until(began)
        (task,) = one.hub.engine.runner._runs
        assert task.recorded is not None
        task.recorded.journal.close()  # as in a hub that stood still, before it notices
        await other.release()
        await asyncio.wait([task.asyncio_task])
        assert not list(folder.rglob("done"))


async def test_the_version_of_the_tables_changes_when_one_tenant_is_deleted_and_another_changes(
    tmp_path: Any,
) -> None:
    async with hubs(["ok"], n=1, folder=tmp_path) as (one,):
        database = one.hub.database
        await one.tenant("acme")
        await one.tenant("beta")
        before = await database.version()
        await database.change("delete from tenants where name = 'acme'")
        await database.change("update tenants set generation = generation + 2 where name = 'beta'")
        assert await database.version() != before


async def test_a_database_role_that_may_not_create_tables_gets_a_clear_error(tmp_path: Path) -> None:
    server = postgres.server()
    name, role = f"closed_{uuid4().hex}", f"role_{uuid4().hex}"
    url = server.database(name)
    server.execute(f"create role {role} login", f"revoke create on database {name} from public")
    with pytest.raises(Unavailable, match=r"the database cannot be opened: permission denied for database"):
        await open_database(url.replace("postgres@", f"{role}@")).open()


@pytest.mark.parametrize("schema", ["hub", "dragoman"])
async def test_a_hub_refuses_a_database_of_a_newer_version(tmp_path: Path, schema: str) -> None:
    url = postgres.server().database(f"newer_{uuid4().hex}")
    async with running_once(url, tmp_path):
        pass
    db = await asyncpg.connect(url)
    await db.execute(f"insert into {schema}.migrations (number, name) values (1000, 'later')")
    await db.close()
    with pytest.raises(
        Unavailable, match="has schema 1000, and this version of dragoman knows schemas up to"
    ):
        async with running_once(url, tmp_path):
            pass


@asynccontextmanager
async def running_once(url: str, folder: Path) -> AsyncIterator[None]:
    given = Settings(admin_token=ADMIN, drain=0.0, data=str(folder), store=url)
    _, app = application(given, model=ScriptedModel([]))
    await app.start()
    yield
    await app.stop()


def has_word(answer: Answer) -> bool:
    return b"word" in answer.body


async def test_a_tenant_is_deleted_while_its_requests_run_at_every_hub(tmp_path: Path) -> None:
    def reply(prompt: Prompt) -> Any:
        return ("word\n", asyncio.Event())

    async with hubs(reply, n=3, folder=tmp_path) as opened:
        acme, other = await opened[0].tenant("acme"), await opened[0].tenant("other")
        live = [at(each, acme).open("POST", "/v1/orchestrate", {"message": "go"}) for each in opened]
        stays = at(opened[1], other).open("POST", "/v1/orchestrate", {"message": "go"})
        for each in (*live, stays):
            await each.until(partial(has_word, each))
        assert (await opened[1].admin("DELETE", "/v1/admin/tenants/acme")).status == 202
        for each in live:
            await each.end()

        async def done() -> bool:
            listed = (await opened[2].admin("GET", "/v1/admin/deletions")).json["deletions"]
            return [bool(each["done_at"]) for each in listed] == [True]

        await until(done, seconds=30)
        count = f"select count(*) from dragoman.tasks join dragoman.scopes using (scope) where tenant = '{acme.tenant.key}'"
        assert (await opened[0].hub.database.one(count))[0] == 0
        assert (await at(opened[2], other)("GET", "/v1/requests")).json["requests"][0]["state"] == "running"
        (asked,) = (await other("GET", "/v1/requests")).json["requests"]
        await at(opened[2], other)("POST", f"/v1/requests/{asked['request_id']}/cancel")
        await stays.end()


async def test_a_rename_and_a_rotation_with_overlap_at_one_hub_leave_a_stream_of_another_alone(
    tmp_path: Path,
) -> None:
    go = asyncio.Event()
    async with hubs(lambda prompt: ("word\n", go, "the end"), folder=tmp_path) as (one, two):
        acme = await one.tenant("acme")
        live = at(two, acme).open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        path = f"/v1/admin/tenants/{acme.tenant.id}"
        assert (await one.admin("PATCH", path, {"name": "apex"})).status == 200
        rotated = await one.admin("POST", f"{path}/rotate-token", {"overlap_seconds": 3600})
        assert rotated.status == 200
        new = Caller(two.app, rotated.json["token"])
        for each in (new, at(two, acme)):
            assert (await each("GET", "/v1/requests")).json["requests"][0]["state"] == "running"
        go.set()
        told = (await live.end()).body
        assert b'"ok":true' in told and b"the end" in told
        assert [t["name"] for t in (await two.admin("GET", "/v1/admin/tenants")).json["tenants"]] == ["apex"]


async def test_a_request_that_ends_while_its_hub_stops_gives_its_slot_back(tmp_path: Any) -> None:
    hold = asyncio.Event()
    replies = [("word\n", hold), "fine"]
    async with hubs(replies, n=1, folder=tmp_path, max_concurrent=1) as (stays,):
        acme = await stays.tenant("acme")
        url = stays.hub.settings.store
        given = Settings(admin_token=ADMIN, drain=10.0, data=str(tmp_path), store=url, max_concurrent=1)
        hub, app = application(given, model=stays.model)
        await app.start()
        live = Caller(app, acme.token, acme.tenant).open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        stopping = asyncio.create_task(app.stop())
        await until(lambda: hub.engine.runner.stopping)
        hold.set()
        await stopping
        await live.end()
        (asked,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert asked["state"] == "completed"
        assert (await acme("POST", "/v1/orchestrate", {"message": "more"})).status == 200


async def test_a_message_stays_in_its_conversation_if_nobody_hears_that_it_was_accepted(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hubs(lambda prompt: "Found.", folder=tmp_path) as (one, two):
        here = await one.tenant("acme")
        talk = (await here("POST", "/v1/conversations", {})).json["id"]
        deliver = one.hub.observer.deliver

        async def deliver_and_lose_the_answer(*what: Any) -> Any:
            await deliver(*what)
            raise Unavailable("the database is away")

        monkeypatch.setattr(one.hub.observer, "deliver", deliver_and_lose_the_answer)
        path = f"/v1/conversations/{talk}/messages"
        assert (await here("POST", path, {"message": "look"}, idempotency_key="k")).status == 503
        there = at(two, here)
        assert (await there("POST", path, {"message": "look"}, idempotency_key="k")).status == 200
        received = (await there("GET", path)).json["messages"]
        assert [each["content"] for each in received] == ["look", "Found."]


async def test_a_message_that_another_hub_gives_up_stays_with_the_hub_that_accepts_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hubs(lambda prompt: "Found.", folder=tmp_path) as (one, two):
        here = await one.tenant("acme")
        talk = (await here("POST", "/v1/conversations", {})).json["id"]
        path, body = f"/v1/conversations/{talk}/messages", {"message": "look"}
        deliver = one.hub.observer.deliver

        async def fail(*what: Any) -> Any:
            raise Unavailable("the database is away")

        async def deliver_after_the_other_gave_up(*what: Any) -> Any:
            assert (await at(two, here)("POST", path, body, idempotency_key="k")).status == 503
            return await deliver(*what)

        monkeypatch.setattr(two.hub.observer, "deliver", fail)
        monkeypatch.setattr(one.hub.observer, "deliver", deliver_after_the_other_gave_up)
        assert (await here("POST", path, body, idempotency_key="k")).status == 200
        received = (await here("GET", path)).json["messages"]
        assert [each["content"] for each in received] == ["look", "Found."]


async def test_messages_of_a_conversation_are_written_one_at_a_time_at_all_hubs(tmp_path: Any) -> None:
    """Else one could appear after one with a higher id, which a reader has seen already."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with hubs((), folder=tmp_path) as (one, two):
        acme = await one.tenant("acme")
        tenant, talk = acme.tenant.id, (await acme("POST", "/v1/conversations", {})).json["id"]

        class Slow(Conversations):
            async def _check_messages(self, db: Transaction, *what: Any) -> None:
                begun.set()
                await go_on.wait()

        first = asyncio.create_task(Slow(one.hub.database).add_question(tenant, talk, "r-1", "first"))
        await begun.wait()
        second = asyncio.create_task(two.hub.conversations.add_answer(tenant, talk, "r-0", "second"))

        async def waits() -> bool:
            return bool((await one.hub.database.one(_WAITERS))[0])

        await until(waits)
        go_on.set()
        await asyncio.gather(first, second)
        received = await one.hub.conversations.messages(talk)
        assert [each["content"] for each in received] == ["first", "second"]


async def test_writes_of_a_tenant_that_wait_for_another_hub_do_not_hold_up_other_tenants(
    tmp_path: Any,
) -> None:
    url = postgres.server().database(f"hubs_{uuid4().hex}")
    async with hubs((), n=1, folder=tmp_path, url=url) as (one,):
        acme, other = await one.tenant("acme"), await one.tenant("other")
        stuck = await asyncpg.connect(url)
        try:
            async with stuck.transaction():  # a hub that stands still in a transaction of acme
                await stuck.execute("select pg_advisory_xact_lock(1684369000, $1)", acme.tenant.id)
                waiting = [
                    asyncio.create_task(one.hub.conversations.create(acme.tenant.id)) for _ in range(20)
                ]
                await until(partial(stuck.fetchval, _WAITERS))
                await one.hub.conversations.create(other.tenant.id)
                assert not any(each.done() for each in waiting)
        finally:
            await stuck.close()
        assert len({made.id for made in await asyncio.gather(*waiting)}) == 20


@pytest.mark.parametrize("rounds", range(6))
async def test_a_write_that_waits_for_another_of_its_tenant_can_be_canceled_at_any_moment(
    rounds: int,
) -> None:
    url = postgres.server().database(f"hubs_{uuid4().hex}")
    database = await open_database(url).open()
    try:
        go_on = asyncio.Event()

        async def hold(db: Transaction) -> None:
            await go_on.wait()

        async def write(db: Transaction) -> str:
            return "written"

        first = asyncio.create_task(database.run(hold, tenant=1))
        await elapse(0.05)
        second = asyncio.create_task(database.run(write, tenant=1))
        await elapse(0.05)
        go_on.set()
        await first
        for _ in range(rounds):
            await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await database.run(write, tenant=1) == "written"
    finally:
        await database.close()


async def test_a_turn_whose_write_waits_too_long_for_others_of_its_tenant_runs_again(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hubs(["/mem write note", "Done."], n=1, folder=tmp_path) as (one,):
        acme, go_on, held = await one.tenant("acme"), asyncio.Event(), asyncio.Event()

        async def hold(db: Transaction) -> None:
            held.set()
            await go_on.wait()

        monkeypatch.setattr(store_postgres, "PATIENCE_SECONDS", 0.05)
        holding = asyncio.create_task(one.hub.database.run(hold, tenant=acme.tenant.id))
        await held.wait()
        runner, retried = one.hub.engine.runner, asyncio.Event()
        retry = runner.retry

        def retry_noticed(lease: Lease) -> None:
            retry(lease)
            retried.set()

        monkeypatch.setattr(runner, "retry", retry_noticed)
        answer = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        async with asyncio.timeout(20):
            await retried.wait()
        monkeypatch.undo()
        go_on.set()
        await holding
        received = events(await answer.end())
        assert [data["ok"] for kind, data in received if kind in ("tool_call", "done")] == [True, True]


def lose_leases(house: House) -> None:
    """As if the hub stood still until another one had continued everything."""
    for run in tuple(house.hub.engine.runner._runs):
        run.lose_lease()


async def test_a_hub_that_loses_a_task_while_it_checks_the_policy_asks_no_model(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hubs(lambda prompt: "ok", n=1, folder=tmp_path) as (one,):
        acme = await one.tenant("acme")
        check, checked = StoppableModel._check_policy, asyncio.Event()

        async def check_slowly(self: StoppableModel, *what: Any) -> None:
            await check(self, *what)
            lose_leases(one)
            checked.set()

        monkeypatch.setattr(StoppableModel, "_check_policy", check_slowly)
        acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await checked.wait()
        await until(lambda: not one.hub.engine.runner._runs)
        assert one.model.prompts == []


class FailingModel:
    asked = 0

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name=name)

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        self.asked += 1
        raise ModelError("provider_error", "try again", retryable=True)
        yield Stop()


async def test_a_hub_that_loses_a_task_between_two_attempts_of_a_call_does_not_try_again(
    tmp_path: Any,
) -> None:
    failing, houses, waited = FailingModel(), list[House](), asyncio.Event()

    async def lose(seconds: float) -> None:
        lose_leases(houses[0])
        waited.set()

    async with hubs((), n=1, folder=tmp_path, model=RetryingModel(failing, sleep=lose)) as houses[:]:
        acme = await houses[0].tenant("acme")
        acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await waited.wait()
        await until(lambda: not houses[0].hub.engine.runner._runs)
        assert failing.asked == 1
