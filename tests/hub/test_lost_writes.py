"""A `hub.db` that has lost its last transactions, beside a log of tasks that has not."""

from __future__ import annotations

import shutil
import sqlite3
from asyncio import Event
from pathlib import Path
from typing import Any

import pytest

from dragoman.hub.store.database import open_database
from dragoman.hub.store.sqlite import SqliteDatabase
from tests.hub.house import ON_POSTGRES, Caller, House, house
from tests.hub.scripted import Scripted
from tests.waiting import until

pytestmark = pytest.mark.skipif(ON_POSTGRES, reason="tasks and tables are in one database there")


def copy(source: Path, target: Path) -> None:
    """What is committed in a database."""
    with sqlite3.connect(source) as db, sqlite3.connect(target) as into:
        db.backup(into)
    db.close()
    into.close()


def lose_everything_since(folder: Path, before: Path) -> None:
    for name in ("hub.db-wal", "hub.db-shm"):
        (folder / name).unlink(missing_ok=True)
    shutil.copy(before, folder / "hub.db")


async def messages_of(who: Caller, talk: int) -> list[tuple[str, str]]:
    found = (await who("GET", f"/v1/conversations/{talk}/messages")).json["messages"]
    return [(each["role"], each["content"]) for each in found]


def at(hub: House, caller: Caller) -> Caller:
    return Caller(hub.app, caller.token, caller.tenant)


async def test_a_hub_restores_the_requests_and_messages_that_its_tables_lost(tmp_path: Path) -> None:
    folder, before = tmp_path / "hub", tmp_path / "before.db"
    replies: list[Scripted] = ["One.", "Two.", "Three.", "Four."]
    async with house(replies, folder=folder) as hub:
        acme = await hub.tenant("acme")
        talk = (await acme("POST", "/v1/conversations", {})).json["id"]
        path = f"/v1/conversations/{talk}/messages"
        await acme.ask("first", path)
        copy(folder / "hub.db", before)
        for text in ("second", "third"):
            await acme.ask(text, path)
        await acme.ask("elsewhere")
        whole = await messages_of(acme, talk)
        listed = (await acme("GET", "/v1/requests")).json["requests"]
    lose_everything_since(folder, before)
    async with house([], folder=folder) as hub:
        acme = at(hub, acme)
        assert await messages_of(acme, talk) == whole
        found = (await acme("GET", "/v1/requests")).json["requests"]
        assert [(each["request_id"], each["agent_id"], each["state"]) for each in found] == [
            (each["request_id"], each["agent_id"], each["state"]) for each in listed
        ]
    async with house(["Five."], folder=folder) as hub:
        acme = at(hub, acme)
        assert await messages_of(acme, talk) == whole, "and not again at the next start"
        await acme.ask("fourth", path)
        assert (await messages_of(acme, talk))[-2:] == [("user", "fourth"), ("assistant", "Five.")]


async def test_an_unfinished_request_goes_on_after_its_tables_forgot_it(tmp_path: Path) -> None:
    folder, before = tmp_path / "hub", tmp_path / "before.db"
    replies: list[Scripted] = ["/mem write a note", ("word\n", Event())]
    async with house(replies, folder=folder) as hub:
        acme = await hub.tenant("acme")
        talk = (await acme("POST", "/v1/conversations", {})).json["id"]
        copy(folder / "hub.db", before)
        live = acme.open("POST", f"/v1/conversations/{talk}/messages", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
    lose_everything_since(folder, before)
    async with house(["Done."], folder=folder) as hub:
        acme = at(hub, acme)

        async def answered() -> bool:
            return len(await messages_of(acme, talk)) == 2

        await until(answered)
        assert await messages_of(acme, talk) == [("user", "go"), ("assistant", "Done.")]
        (request,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert request["state"] == "completed"


async def test_what_the_tables_have_is_on_disk_when_anybody_hears_of_it(tmp_path: Path) -> None:
    database = await SqliteDatabase(tmp_path / "hub.db").open()
    assert database._open is not None
    levels: list[Any] = [db.execute("pragma synchronous").fetchone()[0] for db in database._open]
    await database.close()
    assert levels == [2, 2, 2], "2 is FULL: as the log of tasks, so a power cut takes nothing from either"
    await (await open_database(tmp_path / "hub.db").open()).close()
