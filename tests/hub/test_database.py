"""A hub whose database takes nothing right now."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import dragoman.hub
from dragoman.errors import Unavailable
from dragoman.hub.store.database import PACKAGE, MissingReference, Transaction
from dragoman.hub.store.sqlite import SqliteDatabase
from dragoman.hub.store.tenants import Tenants
from dragoman.stores.migrations import find_scripts
from tests.hub.house import ON_POSTGRES, House, house, store_of, tables_of

FULL = """
create function hub.full() returns trigger language plpgsql as
$$ begin raise exception 'no space left on device' using errcode = 'disk_full'; end $$
"""


async def fill(hub: House) -> None:
    """There is no room in the database for anything more."""
    if not ON_POSTGRES:
        await hub.hub.database.change("pragma max_page_count = 1")  # as many as there are, that is
        return

    async def refuse(db: Any) -> None:
        await db.one(FULL)
        for table in ("memories", "messages", "scratchpads"):
            await db.one(
                f"create trigger full_{table} before insert on hub.{table} execute function hub.full()"
            )

    await hub.hub.database.run(refuse)


async def test_a_full_disk_refuses_writes_and_allows_reads() -> None:
    async with house(["/mem write " + "x" * 100_000, "Ok."]) as hub:
        acme = await hub.tenant("acme")
        assert (await acme("POST", "/v1/conversations", {})).status == 201
        await fill(hub)
        entry = {"type": "user", "title": "t", "content": "x" * 60_000}
        refused = await acme("POST", "/v1/memory/entries", entry)
        assert refused.status == 503 and "cannot be used" in refused.json["error"]
        assert refused.json["retry_after_seconds"] == 1 and refused.headers["retry-after"] == "1"
        assert (await acme("POST", "/v1/conversations/1/messages", {"message": "x" * 100_000})).status == 503
        assert (await acme("GET", "/v1/conversations/1")).status == 200
        received = await acme.ask("go")
        assert received[-1][1]["ok"], "the agent can do something else"
        assert re.search(
            r"ERR: the (hub's database|task store) cannot be used", hub.model.prompts[-1].messages[-1].content
        )


async def test_a_database_locked_for_too_long_works_again_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ON_POSTGRES:
        monkeypatch.setattr("dragoman.hub.store.postgres._WAIT", "set local lock_timeout = 10")
        await locked_on_postgres(tmp_path)
        return
    database = await SqliteDatabase(tmp_path / "hub.db", busy_seconds=0.01).open()
    other = sqlite3.connect(tmp_path / "hub.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(Unavailable, match="cannot be used right now"):
        await Tenants(database).add("acme")
    other.execute("rollback")
    other.close()
    assert (await Tenants(database).add("acme"))[0].name == "acme"
    await database.close()


async def locked_on_postgres(folder: Path) -> None:
    import asyncpg

    database = await tables_of(folder).open()
    other = await asyncpg.connect(store_of(folder))
    async with other.transaction():
        await other.execute("lock table hub.tenants in exclusive mode")
        with pytest.raises(Unavailable, match="cannot be used at the moment"):
            await Tenants(database).add("acme")
    await other.close()
    assert (await Tenants(database).add("acme"))[0].name == "acme"
    await database.close()


async def test_a_failed_commit_leaves_no_open_transaction(tmp_path: Path) -> None:
    database = await tables_of(tmp_path).open()

    async def dangling(db: Transaction) -> None:
        if ON_POSTGRES:  # where no constraint of ours is checked as late as at the commit
            table, name = "alter table hub.todos", "todos_tenant_id_fkey"
            await db.one(f"{table} alter constraint {name} deferrable initially deferred")
        else:
            await db.change("pragma defer_foreign_keys = on")
        await db.change(
            "insert into todos (tenant_id, subject, created_at, updated_at) values (9, 'f', 0, 0)"
        )

    with pytest.raises(Unavailable if ON_POSTGRES else MissingReference):
        await database.run(dangling)
    assert (await Tenants(database).add("acme"))[0].name == "acme"
    assert (await database.one("select count(*) from todos"))[0] == 0
    await database.close()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("insert into {migrations} values (1000, 'x')", "schema 1000, and this version of dragoman knows"),
        ("drop table {migrations}", "unknown version of dragoman"),
    ],
)
async def test_a_database_of_a_newer_or_an_unknown_version_is_refused(
    tmp_path: Path, change: str, error: str
) -> None:
    database = await tables_of(tmp_path).open()
    await database.one(change.format(migrations="hub.migrations" if ON_POSTGRES else "migrations"))
    await database.close()
    with pytest.raises(Unavailable, match=error):
        await tables_of(tmp_path).open()


async def test_a_database_of_an_earlier_version_keeps_its_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await tables_of(tmp_path).open()
    acme, _ = await Tenants(database).add("acme")
    await database.close()
    kind, table = ("postgres", "hub.tenants") if ON_POSTGRES else ("sqlite", "tenants")
    change = f"alter table {table} add column later integer not null default 7;"
    known = find_scripts(kind, PACKAGE)
    known |= {len(known) + 1: (f"999_later.{kind}.sql", change)}
    others = find_scripts(kind)
    module = "postgres.migrations" if ON_POSTGRES else "sqlite.migrations"
    monkeypatch.setattr(
        f"dragoman.stores.{module}.find_scripts", lambda _, of="": known if of == PACKAGE else others
    )
    database = await tables_of(tmp_path).open()
    row = await database.one("select later from tenants where id = ?", (acme.id,))
    assert row["later"] == 7
    with pytest.raises(MissingReference):
        await database.change(
            "insert into todos (tenant_id, subject, created_at, updated_at) values (99, 'f', 0, 0)"
        )
    await database.close()


def test_all_sql_of_the_hub_is_in_its_store() -> None:
    folder = Path(dragoman.hub.__file__).parent
    sql = re.compile(r"\b(select \S+ from|insert (or \w+ )?into|update \w+ set|delete from) ", re.IGNORECASE)
    for path in folder.rglob("*.py"):
        name = path.relative_to(folder).as_posix()
        assert name.startswith("store/") or not sql.search(path.read_text()), name
