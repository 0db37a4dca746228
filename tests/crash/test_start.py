"""A store that cannot be used is said so in a sentence, before anybody is served; a new one is nobody else's."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

from dragoman import Agent
from dragoman.server.runtime import serve
from dragoman.stores import open_store
from tests.serving import Server


def served(url: str) -> NoReturn:
    raise AssertionError("it began to serve")


def begin(store: Path, workers: int) -> None:
    serve(Agent("A"), port=0, store=f"sqlite:///{store}", workers=workers, announce=served)


async def make_store(path: Path) -> Path:
    store = open_store(f"sqlite:///{path}")
    await store.open()
    await store.close()
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_that_is_no_database(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "t.db"
    file.write_text("these are not the bytes you are looking for" * 100)
    with pytest.raises(SystemExit, match="cannot be opened: file is not a database"):
        begin(file, workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_that_is_not_there(tmp_path: Path, workers: int) -> None:
    with pytest.raises(SystemExit, match="unable to open"):
        begin(tmp_path / "missing" / "t.db", workers)


async def test_a_database_of_a_newer_version(tmp_path: Path) -> None:
    file = await make_store(tmp_path / "t.db")
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("insert into migrations (number, name) values (999, 'later')")
    server = Server(tmp_path / "agent.py", store=file)
    (tmp_path / "agent.py").write_text("from dragoman import Agent\nagent = Agent('A')\n")
    with pytest.raises(AssertionError):
        await server.start()
    assert await server.ended() == 1
    assert b"upgrade dragoman" in server.said and b"Traceback" not in server.said


async def test_a_new_database_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 't.db'}")
    await store.open()
    files = [file for file in tmp_path.iterdir() if file.is_file()]
    assert len(files) >= 2  # what is not yet in the database is beside it
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
    await store.close()


async def test_a_database_that_its_owner_shows_to_others_stays_so(tmp_path: Path) -> None:
    file = await make_store(tmp_path / "t.db")
    file.chmod(0o640)
    await make_store(file)
    assert file.stat().st_mode & 0o777 == 0o640
