"""A hub in a folder is copied to PostgreSQL, and goes on there."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dragoman.cli import hub as cli_hub
from dragoman.cli import main
from dragoman.errors import Unavailable
from dragoman.hub.assembly import application
from dragoman.hub.settings import Settings
from dragoman.hub.store.artifacts import INLINE_BYTES
from dragoman.hub.store.sqlite import SqliteDatabase
from dragoman.hub.store.tenants import Tenants
from tests import postgres
from tests.hub.house import ADMIN, SCOUT, Caller, House, events
from tests.hub.scripted import ScriptedModel
from tests.waiting import until

if not postgres.available():
    pytest.skip("there is no PostgreSQL here", allow_module_level=True)

import asyncpg

from dragoman.hub.store import copy_to_postgres
from dragoman.hub.store.copy_to_postgres import NOT_COPIED, copy_hub

LARGE = bytes(range(256)) * (INLINE_BYTES // 128)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def url() -> str:
    return postgres.server().database(f"copy_{uuid4().hex}")


@asynccontextmanager
async def running(folder: Path, *replies: Any, store: str = "") -> AsyncIterator[House]:
    """The hub in a folder, or with its tables in the database at `store`."""
    given = Settings(
        admin_token=ADMIN, drain=0.0, data=str(folder), store=store, models=("*",), approve=("/schedule",)
    )
    model = ScriptedModel(replies)
    hub, app = application(given, model=model)
    await app.start()
    try:
        yield House(hub, app, model)
    finally:
        await app.stop()


def tables_of_file(folder: Path) -> dict[str, list[str]]:
    """The columns of each table of a hub in SQLite."""
    with closing(sqlite3.connect(folder / "hub.db")) as db:
        named = "select name from sqlite_master where type = 'table' and name not like 'sqlite%' and name not like 'memory_words%'"
        return {
            table: [row[1] for row in db.execute(f"pragma table_info({table})")]
            for (table,) in db.execute(named).fetchall()
        }


async def differences(folder: Path, url: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """The tables whose rows are others in the database than in the file."""
    found = {}
    db = await asyncpg.connect(url)
    try:
        with closing(sqlite3.connect(folder / "hub.db")) as source:
            for table, columns in tables_of_file(folder).items():
                if table not in NOT_COPIED:
                    select = f"select {', '.join(columns)} from "
                    rows = source.execute(select + table)  # PostgreSQL has no NUL
                    here = sorted(repr(row).replace("\\x00", "\ufffd") for row in rows)
                    there = sorted(repr(tuple(row)) for row in await db.fetch(f"{select}hub.{table}"))
                    if here != there:
                        found[table] = here, there
    finally:
        await db.close()
    return found


async def begin(folder: Path) -> Caller:
    """A hub with something in each table. Returns a tenant that has a request which waits for an answer."""
    async with running(folder, "Hi.", "/schedule tomorrow: look\n") as house:
        acme, gone = await house.tenant("acme"), await house.tenant("gone")
        talk = (await acme("POST", "/v1/conversations", {})).json["id"]
        await acme.ask("hello", f"/v1/conversations/{talk}/messages")
        await acme("PUT", f"/v1/conversations/{talk}/artifacts?path=large.bin", LARGE)
        await acme("PUT", f"/v1/conversations/{talk}/artifacts?path=small.txt", b"small")
        assert (await acme("POST", "/v1/agents", SCOUT)).status == 201
        one = await acme("POST", "/v1/memory/entries", {"type": "user", "title": "Likes rivers\0"})
        two = await acme("POST", "/v1/memory/entries", {"type": "user", "title": "Likes lakes"})
        ends = {"source_id": one.json["id"], "target_id": two.json["id"], "relation": "supports"}
        assert (await acme("POST", "/v1/memory/relations", ends)).status == 201
        await acme("POST", "/v1/todos", {"subject": "Swim"})
        when = {"agent": "index", "schedule": "every day at 09:00", "message": "look"}
        assert (await acme("POST", "/v1/schedules", when)).status == 201
        await house.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}/policy", {"max_todos": 7})
        asks = await acme("POST", "/v1/orchestrate", {"message": "plan it"}, idempotency_key="k")
        assert events(asks)[-1][1]["error_code"] == "input-required"
        await house.admin("DELETE", "/v1/admin/tenants/gone")

        async def deleted() -> bool:
            listed = (await house.admin("GET", "/v1/admin/deletions")).json["deletions"]
            return all(each["done_at"] for each in listed)

        await until(deleted)
        assert gone.tenant.id == 2
    return acme


async def test_a_hub_that_was_copied_has_everything_and_goes_on(folder: Path, url: str) -> None:
    acme = await begin(folder)
    copied = await copy_hub(folder, url)
    assert copied.tasks.tasks == 2 and copied.rows["tenants"] == 1 and copied.rows["messages"] == 2
    assert await differences(folder, url) == {}
    async with running(folder, "It was refused.", store=url) as house:
        here = Caller(house.app, acme.token, acme.tenant)
        found = (await here("GET", "/v1/memory/entries?q=river")).json["entries"]
        assert [each["title"] for each in found] == ["Likes rivers\ufffd"]
        large = next(
            each
            for each in (await here("GET", "/v1/artifacts")).json["artifacts"]
            if each["size"] == len(LARGE)
        )
        assert (await here("GET", f"/v1/artifacts/{large['id']}/raw")).body == LARGE
        again = await here("POST", "/v1/orchestrate", {"message": "plan it"}, idempotency_key="k")
        asked = events(again)[-1][1]
        assert asked["error_code"] == "input-required", "the key still stands for its request"
        path = f"/v1/requests/{asked['request_id']}"
        answered = await here("POST", f"{path}/answer", {"approved": False})
        assert answered.status == 202
        rest = events(await here("GET", f"{path}/events?since_seq={answered.json['since_seq']}"))
        assert rest[-1][1]["ok"] and rest[-1][1]["content"].endswith("It was refused.")
        assert (await house.tenant("new")).tenant.id == 3, (
            "the number of a deleted tenant is never used again"
        )
        assert (await here("POST", "/v1/memory/entries", {"type": "user", "title": "More"})).status == 201


async def test_the_tables_of_both_databases_have_the_same_columns(folder: Path, url: str) -> None:
    async with running(folder), running(folder, store=url):
        pass
    db = await asyncpg.connect(url)
    try:
        rows = await db.fetch(copy_to_postgres._COLUMNS)
    finally:
        await db.close()
    there = {table: sorted(columns) for table, columns, _ in rows}
    here = {table: sorted(columns) for table, columns in tables_of_file(folder).items()}
    assert here.keys() ^ there.keys() == {"workspace_leases"}
    assert {table: there[table] for table in here} == here


async def test_a_hub_that_runs_is_not_copied(folder: Path, url: str) -> None:
    async with running(folder):
        with pytest.raises(Unavailable, match="in use by another hub: process"):
            await copy_hub(folder, url)


async def test_a_database_that_has_a_hub_is_not_copied_into(folder: Path, url: str) -> None:
    await begin(folder)
    async with running(folder, store=url) as house:
        await house.tenant("other")
    with pytest.raises(Unavailable, match="a hub in that database already"):
        await copy_hub(folder, url)


async def test_a_database_on_which_a_hub_was_started_too_early_is_copied_into(folder: Path, url: str) -> None:
    acme = await begin(folder)
    async with running(folder, store=url):
        pass
    await copy_hub(folder, url)
    assert await differences(folder, url) == {}
    async with running(folder, store=url) as house:
        assert (await Caller(house.app, acme.token, acme.tenant)("GET", "/v1/requests")).status == 200


async def test_a_copy_of_a_hub_that_breaks_off_leaves_nothing(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await begin(folder)
    with monkeypatch.context() as patch:
        patch.setattr("dragoman.stores.copy_to_postgres._copy_tables", _fail)
        with pytest.raises(Unavailable, match="cannot be written to"):
            await copy_hub(folder, url)
    await copy_hub(folder, url)
    async with running(folder, store=url) as house:
        assert (await Caller(house.app, acme.token, acme.tenant)("GET", "/v1/requests")).status == 200


async def _fail(*_: Any) -> None:
    raise ConnectionResetError("the connection is gone")


def test_the_command_copies_a_folder_and_not_the_tasks_of_a_hub_alone(
    folder: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_make(folder))
    with pytest.raises(SystemExit, match=r"these are the tasks of the hub in .*: copy the folder"):
        main(["copy", f"sqlite:///{folder / 'tasks.db'}", url])
    with pytest.raises(SystemExit, match=r"there is no hub in the folder .*: it has no hub\.db"):
        main(["copy", str(folder.parent), url])
    assert main(["copy", str(folder), url]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "copied: tasks 0, webhooks 0, audit entries 0, tenants 1, agents 0, conversations 0, memories 0"
    )
    assert f"Large files and workspaces are still in {folder}" in said
    assert main(["copy", str(folder), url]) == 1
    assert "a hub in that database already" in capsys.readouterr().err


async def _make(folder: Path) -> None:
    async with running(folder) as house:
        await house.tenant("acme")


async def test_a_file_that_another_process_writes_to_is_not_copied(folder: Path, url: str) -> None:
    database = await SqliteDatabase(folder / "hub.db").open()
    await Tenants(database).add("acme")
    await database.close()
    with closing(sqlite3.connect(folder / "hub.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(Unavailable, match=r"hub\.db cannot be read: database is locked"):
            await copy_hub(folder, url)


async def test_a_hub_on_an_empty_database_says_how_the_hub_in_its_folder_gets_there(
    folder: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await _make(folder)
    given = Settings(admin_token=ADMIN, data=str(folder), store=url)

    async def prepare() -> str:
        caplog.clear()
        hub, _ = application(given, model=ScriptedModel(()))
        await cli_hub._prepare(hub, given, demo=False, same="")
        return caplog.text

    assert f"`dragoman copy {folder} DATABASE`" in await prepare()
    await copy_hub(folder, url)
    assert await prepare() == ""
