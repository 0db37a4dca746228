"""What lists, the check of `--open-tasks` and purging cost with few and with many stored tasks. It stops by itself.

    python -m bench.lists [--store sqlite|memory|URL] [--sizes 1000 1000000] [--rounds 20]

The tasks are stored through the store itself, in one scope: one in a thousand failed, one in ten thousand is unfinished, ten
share a context. Each figure is the median of the rounds, in milliseconds of wall-clock time, asked of the store in process:
what a call costs beyond HTTP. `twenty` is how long twenty first pages take that are asked for at once. `purged_per_s` is the
rate of the loop that `--retain-days` runs; `file_mb` is the size of a SQLite file before that and after.
A URL must be that of an empty PostgreSQL database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dragoman.engine.protocols import Log, Store
from dragoman.engine.records import Mail, Record, TurnStarted
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ids import new_id, timestamp
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskState, TaskStatus
from dragoman.stores import open_store

SCOPE = Scope("", "echo", "")
TOGETHER = 500


async def add(log: Log, n: int) -> None:
    message = Message(message_id=new_id(), role=Role.USER, parts=(Part(text="hello"),))
    task, context = new_id(), f"context-{n // 10}"
    mail = Mail(message=message, at=timestamp(), origin="1.0")
    given = log.begin(task, context, mail, node="bench") or await log.create(
        task, context, mail, node="bench"
    )
    assert given.lease is not None
    state = TaskState.FAILED if n % 1000 == 0 else TaskState.COMPLETED
    if n % 10_000 == 1:
        state = TaskState.INPUT_REQUIRED
    artifact = Artifact(artifact_id="echo", parts=(Part(text="hello"),))
    status = TaskStatus(state=state, timestamp=timestamp())
    records = [
        Record("turn", TurnStarted(n=1, mail=1)),
        Record("artifact", ArtifactUpdate(task_id=task, context_id=context, artifact=artifact)),
        Record("status", StatusUpdate(task_id=task, context_id=context, status=status)),
    ]
    await log.settle(given.lease, records, mail=1)


async def median(rounds: int, work: Callable[[], Awaitable[Any]]) -> float:
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        await work()
        took.append(time.perf_counter() - began)
    return round(statistics.median(took) * 1000, 3)


async def measure(store: Store, size: int, rounds: int) -> dict[str, Any]:
    log = store.scope(SCOPE)
    began = time.perf_counter()
    for first in range(0, size, TOGETHER):
        await asyncio.gather(*(add(log, n) for n in range(first, min(size, first + TOGETHER))))
    filled = time.perf_counter() - began

    async def list_(**query: Any) -> Any:
        return await log.find(ListTasks(**query), limit=50)

    first = await list_()
    assert first.total == size
    context = f"context-{size // 20}"
    return {
        "tasks": size,
        "stored_per_s": round(size / filled),
        "first_page": await median(rounds, list_),
        "next_page": await median(rounds, lambda: list_(page_token=first.next)),
        "by_context": await median(rounds, lambda: list_(context_id=context)),
        "by_rare_status": await median(rounds, lambda: list_(status=TaskState.INPUT_REQUIRED)),
        "by_status": await median(rounds, lambda: list_(status=TaskState.COMPLETED)),
        "since": await median(rounds, lambda: list_(status_timestamp_after=timestamp(time.time() - 1))),
        "twenty": await median(3, lambda: asyncio.gather(*(list_() for _ in range(20)))),
        "open_tasks": await median(rounds, log.count_unfinished),
    }


async def purge(store: Store) -> dict[str, Any]:
    """As the engine does it, but for the pauses."""
    before, purged, worst, began = timestamp(time.time() + 60), 0, 0.0, time.perf_counter()
    while time.perf_counter() < began + 20:
        since = time.perf_counter()
        done = await store.purge(before, limit=100)
        worst = max(worst, time.perf_counter() - since)
        purged += done
        if not done:
            break
    seconds = time.perf_counter() - began
    while await store.tidy():
        pass
    return {
        "purged": purged,
        "purged_per_s": round(purged / seconds),
        "longest_piece": round(worst * 1000, 1),
    }


async def run(where: str, size: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "tasks.db")
        store = open_store({"sqlite": f"sqlite:///{file}", "memory": "memory:"}.get(where, where))
        await store.open()
        try:
            await store.join("bench", ttl=3600)
            found = await measure(store, size, rounds)
            before = file.stat().st_size if file.exists() else 0
            found |= await purge(store)
        finally:
            await store.close()
        if before:
            found["file_mb"] = [before >> 20, file.stat().st_size >> 20]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", default="sqlite")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    for size in given.sizes:
        print(json.dumps(asyncio.run(run(given.store, size, given.rounds))), flush=True)


if __name__ == "__main__":
    main()
