"""Following a log, on every store: all of it, once, in order, whoever was slow."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.buses.local import LocalBus
from dragoman.engine.follow import MAX_READ_RECORDS, Reader, Readers
from dragoman.engine.protocols import Lease, Log, Store
from dragoman.engine.records import Record, size_of, topic
from dragoman.errors import Unavailable
from dragoman.model.ops import Scope
from tests.conformance.conftest import SCOPE
from tests.conformance.records import chunk, mail


async def _begun(log: Log) -> Lease:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    return lease


async def _all(reader: Reader, last: int) -> list[int]:
    seen: list[int] = []
    while not seen or seen[-1] < last:
        batch = await asyncio.wait_for(reader.next(), 10)
        assert 0 < len(batch) <= 2 * MAX_READ_RECORDS
        seen += [record.seq for record in batch]
    return seen


async def test_a_reader_that_comes_late_gets_a_long_log_in_pieces(store: Store, log: Log) -> None:
    lease = await _begun(log)
    for _ in range(5):
        await log.append(lease, [chunk("x") for _ in range(700)])
    with Reader(Readers(store, LocalBus()), await log.load("t"), 0) as reader:
        assert await _all(reader, 3501) == list(range(1, 3502)), (
            "and it does not wait for a search between them"
        )


async def test_a_piece_of_a_log_has_as_many_bytes_as_asked_for_unless_the_log_ends(log: Log) -> None:
    lease = await _begun(log)
    for _ in range(5):
        await log.append(lease, [chunk("x") for _ in range(700)])
    asked, after = size_of((await log.read("t", limit=701))[1:]) + 1, 0
    while after < 3501:
        piece = await log.read("t", after=after, max_bytes=asked)
        after = piece[-1].seq
        assert size_of(piece) >= asked or after == 3501


async def test_a_reader_gets_records_written_while_it_catches_up(store: Store, log: Log) -> None:
    bus, lease = LocalBus(), await _begun(log)
    await log.append(lease, [chunk("x") for _ in range(2500)])

    async def write() -> None:
        for _ in range(40):
            records: list[Record] = [chunk("y") for _ in range(30)]
            await log.append(lease, records)
            bus.wake(topic(SCOPE, "t"), records)

    with Reader(Readers(store, bus), await log.load("t"), 0) as reader:
        seen, _ = await asyncio.gather(_all(reader, 2501 + 1200), write())
    assert seen == list(range(1, 2501 + 1200 + 1))


async def test_a_closed_reader_reads_what_there_is_and_then_ends(store: Store, log: Log) -> None:
    lease = await _begun(log)
    await log.append(lease, [chunk("x") for _ in range(1500)])
    with Reader(Readers(store, LocalBus()), await log.load("t"), 0) as reader:
        reader.close()
        assert await _all(reader, 1501) == list(range(1, 1502))
        with pytest.raises(Unavailable):
            await reader.next()


# What the bus has lost


async def test_a_store_says_which_readers_are_behind_and_whose_task_is_gone(
    pair: tuple[Store, Store],
) -> None:
    here, there = pair
    log = there.scope(SCOPE)
    assert not await here.find_behind([])
    lease = await _begun(log)
    for task in ("idle", "ödd'\"task"):
        await log.create(task, "c", mail())
    await log.append(lease, [chunk(), chunk()])
    cursors = [("t", 2), ("idle", 1), ("t", 3), ("ödd'\"task", 0), ("gone", 5), ("ödd'\"task", 1)]
    asked = [(SCOPE, task, after) for task, after in cursors]
    asked.append((Scope("nobody", "a", "b"), "t", 1))
    assert sorted(await here.find_behind(asked)) == [0, 3, 4, 6]


async def test_one_search_finds_what_all_readers_have_missed(pair: tuple[Store, Store]) -> None:
    here, there = pair
    written, log, bus = there.scope(SCOPE), here.scope(SCOPE), LocalBus()
    leases = [(await written.create(f"t{n}", "c", mail(), node="n2")).lease for n in range(3)]
    readers = Readers(here, bus)
    heard: dict[str, list[int]] = {}

    async def read(task: str) -> None:
        with Reader(readers, await log.load(task), 1) as reader:
            heard[task] = [record.seq for record in await reader.next()]

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        jobs = [group.create_task(read(f"t{n}")) for n in range(3)]
        while sum(reader.cursor is not None for reader in readers) < 3:
            await asyncio.sleep(0)
        assert leases[0] is not None and leases[2] is not None
        await written.append(leases[0], [chunk()])
        await written.append(leases[2], [chunk(), chunk()])
        await readers.wake_behind()
        await asyncio.wait([jobs[0], jobs[2]])
        assert heard == {"t0": [2], "t2": [2, 3]} and not jobs[1].done()
        jobs[1].cancel()
