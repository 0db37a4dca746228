"""An audit whose entries follow from each other: what somebody does to it afterwards can be seen."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from hashlib import sha256
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.engine.protocols import AuditEntry
from dragoman.stores import open_store
from dragoman.stores.audit_chain import ChainReport, check_chain


async def written(path: Path, *tasks: str) -> None:
    store = open_store(f"sqlite:///{path}")
    await store.open()
    for task in tasks:
        store.audit.record(
            AuditEntry(at="2026-11-15", operation="SendMessage", outcome="OK", task=task, principal="ädä")
        )
        await asyncio.sleep(0)
    await store.close()


def change(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(sql)
    db.close()


async def examined(path: Path, known: str = "") -> ChainReport:
    store = open_store(f"sqlite:///{path}")
    await store.open()
    try:
        return await check_chain(store.audit, known)
    finally:
        await store.close()


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """Of a record with six entries, written by two processes one after the other."""
    path = tmp_path / "t.db"
    await written(path, "1", "2", "3")
    await written(path, "4", "5", "6")
    return path


async def test_an_unchanged_audit_log_is_valid_across_restarts(path: Path) -> None:
    found = await examined(path)
    assert (found.entries, found.breaks, found.older) == (6, [], 0)


async def test_entries_added_during_a_commit_are_not_lost_when_the_store_closes(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 't.db'}")
    await store.open()
    store.audit.record(AuditEntry(at="", operation="SendMessage", outcome="OK", task="first"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it is on its way to the disk
    store.audit.record(AuditEntry(at="", operation="CancelTask", outcome="OK", task="second"))
    await store.close()
    assert (await examined(tmp_path / "t.db")).entries == 2


async def test_two_who_write_at_the_same_time_write_one_chain(path: Path) -> None:
    stores = [open_store(f"sqlite:///{path}") for _ in range(2)]
    for store in stores:
        await store.open()
    for n in range(40):
        stores[n % 2].audit.record(AuditEntry(at="", operation="SendMessage", outcome="OK", task=f"{n}"))
        await asyncio.sleep(0)
    for store in stores:
        await store.close()
    found = await examined(path)
    assert (found.entries, found.breaks) == (46, [])


@pytest.mark.parametrize(
    ("sql", "where"),
    [
        ("update audit set principal = 'bob' where id = 3", "entry 3 does not follow from entry 2"),
        ("update audit set principal = 'bob' where id = 6", "entry 6 does not follow from entry 5"),
        ("delete from audit where id = 3", "entry 4 does not follow from entry 2"),
        ("delete from audit where id = 1", "entry 2 is not the first: the entries before it are gone"),
        ("update audit set hash = null where id = 4", "entry 4 does not follow from entry 3"),
        ("update audit set hash = zeroblob(32) where id = 6", "entry 6 does not follow from entry 5"),
        (
            "insert into audit select 7, at, tenant, agent, principal, operation, task, outcome, dialect, trace, hash"
            " from audit where id = 6",
            "entry 7 does not follow from entry 6",
        ),
        (
            "update audit set task = case id when 2 then '3' else '2' end where id in (2, 3)",
            "entry 2 does not follow from entry 1",
        ),
    ],
    ids=[
        "changed",
        "last-changed",
        "deleted",
        "first-deleted",
        "no-hash",
        "made-up-hash",
        "added",
        "swapped",
    ],
)
async def test_a_changed_entry_breaks_the_chain_at_its_place(path: Path, sql: str, where: str) -> None:
    change(path, sql)
    assert (await examined(path)).breaks[-1] == where


async def test_an_end_that_was_cut_off_is_seen_by_who_noted_a_hash_of_it(path: Path) -> None:
    last = (await examined(path)).last
    assert last is not None
    await written(path, "7")
    assert (await examined(path, last.hash)).breaks == []
    change(path, "delete from audit where id >= 5")
    assert (await examined(path)).breaks == []
    assert (await examined(path, last.hash)).breaks == [
        f"no entry has the hash {last.hash}: the entries until then are not those that are here"
    ]


async def test_a_record_whose_old_entries_were_put_away_goes_on_from_the_hash_of_their_last(
    path: Path,
) -> None:
    store = open_store(f"sqlite:///{path}")
    await store.open()
    fourth = (await store.audit.entries(task="4"))[0].hash
    await store.close()
    change(path, "delete from audit where id <= 4")
    assert (await examined(path, fourth)).breaks == []


async def test_entries_from_before_there_was_a_chain_are_counted_apart(path: Path) -> None:
    change(path, "delete from audit")
    for task in ("x", "y"):
        change(
            path,
            f"insert into audit values (null, '', '', '', '', 'CancelTask', '{task}', 'OK', '', '', null)",
        )
    await written(path, "1", "2")
    found = await examined(path)
    assert (found.entries, found.older, found.breaks) == (4, 2, [])


async def test_the_printed_entries_are_enough_to_check_the_chain(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(main, ["audit", "--json", "--store", f"sqlite:///{path}"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    before = b""
    names = ("at", "tenant", "agent", "principal", "operation", "task", "outcome", "dialect", "trace")
    for entry in reversed(entries):
        fields = [entry.get(name, "") for name in names]
        line = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        before = sha256(before + line).digest()
        assert entry["hash"] == before.hex()


async def test_the_command_says_where_it_breaks_and_fails(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verify = ["audit", "verify", "--store", f"sqlite:///{path}"]
    assert await asyncio.to_thread(main, verify) == 0
    out = capsys.readouterr().out
    assert out.startswith("6 entries, all hashes are correct; the last is 6, ")
    known = out.split()[-1]
    assert await asyncio.to_thread(main, [*verify, "--known", known]) == 0
    capsys.readouterr()
    change(path, "update audit set task = 'other' where id = 2")
    assert await asyncio.to_thread(main, verify) == 1
    assert capsys.readouterr().out == "entry 2 does not follow from entry 1\n"


async def test_old_entries_are_put_away_and_the_rest_is_still_a_chain(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(f"sqlite:///{path}")
    await store.open()
    store.audit.record(AuditEntry(at="2026-12-24T10:00:00Z", operation="CancelTask", outcome="OK", task="7"))
    await store.close()
    url = f"sqlite:///{path}"
    assert await asyncio.to_thread(main, ["audit", "prune", "--before", "2026-12-01", "--store", url]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["task"] for line in out.splitlines()] == ["1", "2", "3", "4", "5", "6"]
    known = json.loads(out.splitlines()[-1])["hash"]
    assert known in err
    assert await asyncio.to_thread(main, ["audit", "verify", "--store", url]) == 1
    assert "the entries before it are gone" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["audit", "verify", "--store", url, "--known", known]) == 0
    await written(path, "8")
    assert await asyncio.to_thread(main, ["audit", "verify", "--store", url, "--known", known]) == 0


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_no_entry_is_forgotten_after_one_that_stays(tmp_path: Path, kind: str) -> None:
    """A clock that was set back makes later entries look older."""
    store = open_store("memory:" if kind == "memory" else f"sqlite:///{tmp_path / 't.db'}")
    await store.open()
    for at in ("2026-01", "2026-02", "2026-03", "2026-01"):
        store.audit.record(AuditEntry(at=at, operation="CancelTask", outcome="OK"))
    assert [entry.at for entry in await store.audit.forget("2026-02-15", limit=1)] == ["2026-01"]
    assert [entry.at for entry in await store.audit.forget("2026-02-15", limit=9)] == ["2026-02"]
    assert await store.audit.forget("2026-02-15", limit=9) == []
    assert [entry.at for entry in await store.audit.entries()] == ["2026-01", "2026-03"]
    await store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_last_entry_stays_so_that_the_next_one_follows_from_it(tmp_path: Path, kind: str) -> None:
    store = open_store("memory:" if kind == "memory" else f"sqlite:///{tmp_path / 't.db'}")
    await store.open()
    for task in ("1", "2"):
        store.audit.record(AuditEntry(at="2020", operation="CancelTask", outcome="OK", task=task))
    (gone,) = await store.audit.forget("2026", limit=9)
    store.audit.record(AuditEntry(at="2026", operation="CancelTask", outcome="OK", task="3"))
    await store.audit.forget("2020", limit=9)  # comes after what was recorded
    assert [entry.task for entry in await store.audit.entries()] == ["3", "2"]
    if kind == "sqlite":
        assert not (await check_chain(store.audit, gone.hash)).breaks
    await store.close()
