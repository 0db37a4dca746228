"""The cache of snapshots is bounded by the memory that they take, whatever is in them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from dragoman.engine.records import Mail, Record, pack, unpack
from dragoman.engine.snapshot import Snapshot, SnapshotCache
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Scope

MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    "value",
    [[[]] * 4_000, [{}] * 4_000, {str(n): {} for n in range(4_000)}, ["ab"] * 4_000, [1.5] * 4_000, "x" * 24_000],
    ids=["lists", "objects", "members", "strings", "numbers", "text"],
)  # fmt: skip
def test_small_values_count_for_what_they_take_in_memory(value: Any) -> None:
    message = Message(
        message_id="m", role=Role.USER, parts=(Part(text="hi"),), metadata={"values": value, "n": 1}
    )
    packed = pack([Record("message", Mail(message=message))])
    cache = SnapshotCache(count=1000, max_bytes=4 * MEGABYTE)
    tracemalloc.start()
    try:
        for key in range(200):
            snapshot = Snapshot(Scope("t", "a", "p"), str(key), "c").after(unpack(packed, 1))
            cache.keep(key, snapshot)
            del snapshot
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cache) > 1
    assert held < 2 * 4 * MEGABYTE
