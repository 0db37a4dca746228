"""Several hubs on one PostgreSQL database: what one does holds for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from dragoman.errors import Unavailable
from dragoman.hub.assembly import application
from dragoman.hub.models import Delta, ModelEvent, Prompt, Stop
from dragoman.hub.sandbox import Sandbox
from dragoman.hub.sandbox.process import Process
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.settings import InvalidSetting, Settings, settings
from dragoman.hub.store.database import Database, open_database
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.store.tenants import Tenants
from dragoman.hub.store.workspace_leases import WorkspaceLease, WorkspaceLeases
from tests import postgres
from tests.hub.house import ADMIN, SCOUT, Caller, House, message
from tests.hub.scripted import ScriptedModel
from tests.server.wire import Answer
from tests.waiting import elapse, until

pytestmark = pytest.mark.skipif(not postgres.available(), reason="PostgreSQL is not installed")


@asynccontextmanager
async def hubs(
    replies: Any, *, n: int = 2, folder: Any, model: Any = None, **options: Any
) -> AsyncIterator[list[House]]:
    """Hubs that share a database of their own and a model."""
    url, model = postgres.server().database(f"hubs_{uuid4().hex}"), model or ScriptedModel(replies)
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(n):
            given = Settings(admin_token=ADMIN, drain=0.0, data=str(folder), store=url, **options)
            hub, app = application(given, model=model)
            await app.start()
            stack.push_async_callback(app.stop)
            opened.append(House(hub, app, model))
        yield opened


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


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("update hub.migrations set number = 1000", "schema 1000, and this version of dragoman knows"),
        ("drop table hub.migrations", "unknown version of dragoman"),
    ],
)
async def test_tables_of_a_newer_or_an_unknown_version_are_refused(change: str, error: str) -> None:
    url = postgres.server().database(f"hubs_{uuid4().hex}")
    database = await open_database(url).open()
    await database.close()
    connection = await asyncpg.connect(url)
    await connection.execute(change)
    await connection.close()
    with pytest.raises(Unavailable, match=error):
        await open_database(url).open()


def test_the_store_of_a_hub_is_a_postgresql_url() -> None:
    with pytest.raises(InvalidSetting, match="postgresql://host/database"):
        settings({"store": "sqlite:///x.db"}, environment={}, config="none.toml")
    given = settings({"store": "postgresql://u:secret@h/d"}, environment={}, config="none.toml")
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
            made.append(Sandbox(folder, Process(unconfined=True, seconds=seconds), leases=leases))
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


async def test_a_role_that_may_not_create_tables_is_told_so(tmp_path: Path) -> None:
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
