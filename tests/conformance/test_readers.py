"""Following a log, on every store: all of it, once, in order, whoever was slow."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.buses.local import LocalBus
from dragoman.engine.follow import MOST, Reader
from dragoman.engine.log import Record
from dragoman.engine.seams import Lease, Log, topic
from dragoman.errors import Unavailable
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
        assert 0 < len(batch) <= 2 * MOST
        seen += [record.seq for record in batch]
    return seen


async def test_a_reader_that_comes_late_gets_a_long_log_in_pieces(log: Log) -> None:
    lease = await _begun(log)
    for _ in range(5):
        await log.append(lease, [chunk("x") for _ in range(700)])
    with Reader(log, LocalBus(), await log.load("t"), 0) as reader:
        assert await _all(reader, 3501) == list(range(1, 3502))


async def test_a_reader_hears_what_is_written_while_it_catches_up(log: Log) -> None:
    bus, lease = LocalBus(), await _begun(log)
    await log.append(lease, [chunk("x") for _ in range(2500)])

    async def write() -> None:
        for _ in range(40):
            records: list[Record] = [chunk("y") for _ in range(30)]
            await log.append(lease, records)
            bus.wake(topic(SCOPE, "t"), records)

    with Reader(log, bus, await log.load("t"), 0) as reader:
        seen, _ = await asyncio.gather(_all(reader, 2501 + 1200), write())
    assert seen == list(range(1, 2501 + 1200 + 1))


async def test_a_closed_reader_reads_what_there_is_and_then_ends(log: Log) -> None:
    lease = await _begun(log)
    await log.append(lease, [chunk("x") for _ in range(1500)])
    with Reader(log, LocalBus(), await log.load("t"), 0) as reader:
        reader.close()
        assert await _all(reader, 1501) == list(range(1, 1502))
        with pytest.raises(Unavailable):
            await reader.next()
