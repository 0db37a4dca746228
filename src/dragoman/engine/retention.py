"""Delete old tasks, while the engine runs."""

from __future__ import annotations

import asyncio
import logging
import time

from dragoman.engine.protocols import Store
from dragoman.engine.push_configs import steady_time
from dragoman.errors import Unavailable, keep_going
from dragoman.model.ids import timestamp

logger = logging.getLogger("dragoman.engine")

PURGED_TASKS = 100
"""Tasks that one transaction purges."""
PURGE_SECONDS = 60.0
"""Between two searches for old tasks."""


async def purge_old(store: Store, retain: float | None, retain_unfinished: float | None) -> None:
    """Purge old tasks and tidy the store, in bounded pieces, for at most half of the time. Does not end.

    `retain`, `retain_unfinished`: see `Engine.start`. The age is counted by a clock that cannot be set.
    """
    while True:
        more, began = False, time.perf_counter()
        with keep_going(logger, "purging old tasks", Unavailable):
            old = False
            for age, unfinished in ((retain, False), (retain_unfinished, True)):
                if age is not None:
                    before = timestamp(steady_time() - age)
                    purged = await store.purge(before, limit=PURGED_TASKS, unfinished=unfinished)
                    old |= purged >= PURGED_TASKS
            more = await store.tidy() or old
        await asyncio.sleep(time.perf_counter() - began if more else PURGE_SECONDS)
