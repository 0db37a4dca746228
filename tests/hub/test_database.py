"""A hub whose database takes nothing right now."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

import dragoman.hub
from dragoman.errors import Unavailable
from dragoman.hub.store.database import PACKAGE, MissingReference, Transaction, open_database
from dragoman.hub.store.sqlite import SqliteDatabase
from dragoman.hub.store.tenants import Tenants
from dragoman.stores.common import scripts
from tests.hub.house import ON_POSTGRES, House, house


async def fill(hub: House) -> None:
    """There is no room in the database for anything more."""
    await hub.hub.database.change("pragma max_page_count = 1")  # as many as there are, that is


@pytest.mark.skipif(ON_POSTGRES, reason="a limit of a SQLite file")
async def test_a_full_disk_refuses_writes_and_allows_reads() -> None:
    async with house(["/mem write " + "x" * 100_000, "Ok."]) as hub:
        acme = await hub.tenant("acme")
        assert (await acme("POST", "/v1/conversations", {})).status == 201
        await fill(hub)
        entry = {"type": "user", "title": "t", "content": "x" * 60_000}
        refused = await acme("POST", "/v1/memory/entries", entry)
        assert refused.status == 503 and "cannot be used" in refused.json["error"]
        assert (await acme("POST", "/v1/conversations/1/messages", {"message": "x" * 100_000})).status == 503
        assert (await acme("GET", "/v1/conversations/1")).status == 200
        received = await acme.ask("go")
        assert received[-1][1]["ok"], "the agent can do something else"
        assert "ERR: the hub's database cannot be used" in hub.model.prompts[-1].messages[-1].content


async def test_a_database_locked_for_too_long_works_again_afterwards(
    tmp_path: Path,
) -> None:
    database = await SqliteDatabase(tmp_path / "hub.db", busy_seconds=0.01).open()
    other = sqlite3.connect(tmp_path / "hub.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(Unavailable, match="cannot be used right now"):
        await Tenants(database).add("acme")
    other.execute("rollback")
    other.close()
    assert (await Tenants(database).add("acme"))[0].name == "acme"
    await database.close()


async def test_a_failed_commit_leaves_no_open_transaction(tmp_path: Path) -> None:
    database = await open_database(tmp_path / "hub.db").open()

    async def dangling(db: Transaction) -> None:
        await db.change("pragma defer_foreign_keys = on")
        await db.change(
            "insert into todos (tenant_id, subject, created_at, updated_at) values (9, 'f', 0, 0)"
        )

    with pytest.raises(MissingReference):
        await database.run(dangling)
    assert (await Tenants(database).add("acme"))[0].name == "acme"
    assert (await database.one("select count(*) from todos"))[0] == 0
    await database.close()


async def test_a_database_of_this_version_is_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        database = await open_database(tmp_path / "hub.db").open()
        await database.close()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("update migrations set number = 1000", "schema 1000, and this version of dragoman knows"),
        ("drop table migrations", "unknown version of dragoman"),
    ],
)
async def test_a_database_of_a_newer_or_an_unknown_version_is_refused(
    tmp_path: Path, change: str, error: str
) -> None:
    database = await open_database(tmp_path / "hub.db").open()
    await database.change(change)
    await database.close()
    with pytest.raises(Unavailable, match=error):
        await open_database(tmp_path / "hub.db").open()


async def test_a_database_of_an_earlier_version_keeps_its_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await open_database(tmp_path / "hub.db").open()
    acme, _ = await Tenants(database).add("acme")
    await database.close()
    change = "alter table tenants add column later integer not null default 7;"
    known = scripts("sqlite", PACKAGE)
    known |= {len(known) + 1: ("999_later.sqlite.sql", change)}
    monkeypatch.setattr("dragoman.stores.sqlite.file.scripts", lambda *_: known)
    database = await open_database(tmp_path / "hub.db").open()
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
