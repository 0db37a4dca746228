"""A hub whose database takes nothing right now."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

import dragoman.hub
from dragoman.errors import Unavailable
from dragoman.hub.store.database import PACKAGE, Database, MissingReference, Transaction, open_database
from dragoman.hub.store.sqlite import SqliteTables
from dragoman.hub.store.tenants import Tenants
from dragoman.hub.store.tokens import digest
from dragoman.stores.common import missing, scripts
from tests.hub.house import ON_POSTGRES, House, house

TOKENS_SCRIPT = 5
"""The number of the script that gave tenants several tokens."""


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
        told = await acme.ask("go")
        assert told[-1][1]["ok"], "the agent can do something else"
        assert "ERR: the hub's database cannot be used" in hub.model.prompts[-1].messages[-1].content


async def test_a_database_locked_for_too_long_works_again_afterwards(
    tmp_path: Path,
) -> None:
    database = await Database(SqliteTables(tmp_path / "hub.db", busy_seconds=0.01)).open()
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


async def test_a_database_of_a_newer_version_is_refused_and_one_of_this_version_is_opened(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        database = await open_database(tmp_path / "hub.db").open()
        await database.close()
    newer = sqlite3.connect(tmp_path / "hub.db")
    newer.execute("pragma user_version = 1000")
    newer.close()
    with pytest.raises(Unavailable, match="newer version"):
        await open_database(tmp_path / "hub.db").open()


def test_all_sql_of_the_hub_is_in_its_store() -> None:
    folder = Path(dragoman.hub.__file__).parent
    sql = re.compile(r"\b(select \S+ from|insert (or \w+ )?into|update \w+ set|delete from) ", re.IGNORECASE)
    for path in folder.rglob("*.py"):
        name = path.relative_to(folder).as_posix()
        assert name.startswith("store/") or not sql.search(path.read_text()), name


async def test_tokens_of_an_older_database_stay_valid(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "hub.db", isolation_level=None)
    for number, _, script in missing(scripts("sqlite", PACKAGE), 0):
        if number < TOKENS_SCRIPT:
            old.executescript(script)
    old.execute(f"pragma user_version = {TOKENS_SCRIPT - 1}")
    old.execute(
        "insert into tenants (id, name, token_hash, generation, created_at) values (7, 'acme', ?, 3, 5)",
        (digest("atr_old"),),
    )
    old.execute("insert into todos (tenant_id, subject, created_at, updated_at) values (7, 'kept', 0, 0)")
    old.execute("insert into secrets (name, value) values ('admin', ?)", (digest("adm_old"),))
    old.close()
    database = await open_database(tmp_path / "hub.db").open()
    tenants = Tenants(database)
    acme = await tenants.by_token("atr_old")
    assert acme is not None and acme.id == 7 and acme.generation == 3 and acme.principal.tenant == "7"
    assert await tenants.is_admin("adm_old")
    assert (await database.one("select count(*) from todos"))[0] == 1
    assert (await tenants.add("other"))[0].id == 8
    with pytest.raises(MissingReference):
        await database.change(
            "insert into todos (tenant_id, subject, created_at, updated_at) values (99, 'f', 0, 0)"
        )
    await database.close()
