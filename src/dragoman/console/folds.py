"""Folds logs up to a record: the task as it was then. A long log is not read from its start each time."""

from __future__ import annotations

from dragoman.console.keys import no_task
from dragoman.engine.protocols import Store, TaskInfo
from dragoman.engine.records import PIECE_BYTES
from dragoman.engine.snapshot import Snapshot
from dragoman.server.routes import NotFound

LISTED_BYTES = 64 << 10
"""The largest log that is folded for its row in a list."""
CHECKPOINT_RECORDS = 5000
"""Records between two checkpoints of a long log: folds that stay in memory."""
MAX_CHECKPOINT_TASKS, MAX_CHECKPOINT_BYTES = 2, 32 << 20
"""How many tasks have checkpoints, and how large their logs may be."""


class Folds:
    """Folds logs up to a record. Viewers ask for many records of a long log, so its folds begin at checkpoints."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._checkpoints: dict[int, list[Snapshot]] = {}
        """By the key of the task, in the order of the last use."""

    async def now(self, info: TaskInfo) -> Snapshot:
        """The task as it is now. For a long log, checkpoints are used."""
        if info.size <= LISTED_BYTES:
            return await self._store.scope(info.scope).load(info.id)
        return await self.at(info, info.seq)

    async def at(self, info: TaskInfo, seq: int) -> Snapshot:
        """The task as it was at record `seq`. Raises `NotFound`."""
        check_has_record(info, seq)
        log, checkpoints = self._store.scope(info.scope), self._checkpoints_of(info)
        snapshot = max(
            (each for each in checkpoints if each.seq <= seq),
            key=lambda each: each.seq,
            default=Snapshot(info.scope, info.id, info.context),
        )
        while snapshot.seq < seq:
            upto = min(seq, (snapshot.seq // CHECKPOINT_RECORDS + 1) * CHECKPOINT_RECORDS)
            limit = min(1000, upto - snapshot.seq)
            records = await log.read(info.id, after=snapshot.seq, limit=limit, max_bytes=PIECE_BYTES)
            if not records:
                raise no_task()
            snapshot = snapshot.after(records)
            if snapshot.seq % CHECKPOINT_RECORDS == 0 and info.size <= MAX_CHECKPOINT_BYTES:
                checkpoints.append(snapshot.share())
        return snapshot

    def _checkpoints_of(self, info: TaskInfo) -> list[Snapshot]:
        checkpoints = self._checkpoints.pop(info.key, [])
        self._checkpoints[info.key] = checkpoints
        if len(self._checkpoints) > MAX_CHECKPOINT_TASKS:
            del self._checkpoints[next(iter(self._checkpoints))]
        return checkpoints


def check_has_record(info: TaskInfo, seq: int) -> None:
    """Raises `NotFound`."""
    if not 1 <= seq <= info.seq:
        raise NotFound(f"the task has records 1 to {info.seq}")
