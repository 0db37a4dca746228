"""The snapshots of the last tasks, within a number of bytes: what a database need not fold again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from dragoman.engine.records import Record, Snapshot

CACHE_BYTES = 64 << 20
"""Bytes of memory of all kept snapshots of a store."""


class SnapshotCache:
    """By the store's key of the task, the last used last. One that is a quarter of `max_bytes` is not kept at all."""

    def __init__(self, *, count: int, max_bytes: int = CACHE_BYTES) -> None:
        self._count, self._max, self._largest = count, max_bytes, max_bytes // 4
        self._snapshots: OrderedDict[int, Snapshot] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._snapshots)

    def get(self, key: int) -> Snapshot | None:
        return self._snapshots.get(key)

    def keep(self, key: int, snapshot: Snapshot) -> None:
        """Keep `snapshot` as the newest, and drop the oldest to make room."""
        size = snapshot.memory
        if size > self._largest:
            self.drop(key)
            return
        snapshots, sizes = self._snapshots, self._sizes
        snapshots[key] = snapshot
        snapshots.move_to_end(key)
        self.bytes += size - sizes.get(key, 0)
        sizes[key] = size
        while self.bytes > self._max or len(snapshots) > self._count:
            oldest, _ = snapshots.popitem(last=False)
            self.bytes -= sizes.pop(oldest)

    def drop(self, key: int) -> None:
        if self._snapshots.pop(key, None) is not None:
            self.bytes -= self._sizes.pop(key)

    def move(self, key: int, records: Sequence[Record]) -> Snapshot | None:
        """Add what was just committed to the kept snapshot. None if there is none, or if records are missing in between."""
        snapshot = self._snapshots.get(key)
        if snapshot is None or not records:
            return snapshot
        if snapshot.seq < records[0].seq - 1:  # another process wrote in between
            self.drop(key)
            return None
        snapshot = self._snapshots[key] = snapshot.after(records)
        size = snapshot.memory
        self.bytes += size - self._sizes[key]
        self._sizes[key] = size
        if size > self._largest or self.bytes > self._max:
            self.keep(key, snapshot)
        return snapshot
