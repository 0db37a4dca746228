"""Processes and databases that stand still for longer than a lease lasts, and go on.

Whatever stood still: no task fails, a task changes hands only if its node is silent while the database is not, and no step
begins that somebody else may have done.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import postgres, raw
from tests.crash.reader import message
from tests.crash.stage import AGENT
from tests.serving import Server
from tests.waiting import elapse, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

ROOT = Path(__file__).parent.parent.parent
TTL, PACE, TASKS, PAUSES = 1.2, 0.03, 6, 3


class Begun(NamedTuple):
    """A step that began: of which task, which one, under which fence, in which process; `held` or `lapsed`."""

    task: str
    n: int
    fence: int
    pid: int
    lease: str


class Counting:
    """Tasks that count, on two processes."""

    def __init__(self, folder: Path) -> None:
        self.steps, self.pauses = folder / "steps", folder / "pauses"
        self.steps.touch()
        self.pauses.mkdir()
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.env = {
            "STEPS": str(self.steps),
            "PAUSE": str(self.pauses),
            "PACE": str(PACE),
            "PYTHONPATH": paths,
        }
        self.tasks: list[str] = []

    def begun(self) -> list[Begun]:
        lines = [line.split() for line in self.steps.read_text().splitlines()]
        return [Begun(task, int(n), int(fence), int(pid), lease) for task, n, fence, pid, lease in lines]

    async def begin(self, *servers: Server) -> None:
        """Have each server count for as many callers."""
        asked = {
            **message("x"),
            "configuration": {"returnImmediately": True},
            "metadata": {"skillId": "count"},
        }
        for n in range(TASKS):
            begun = await raw.result(servers[n % len(servers)].url, "SendMessage", asked)
            self.tasks.append(begun["task"]["id"])
        await self.get_on()

    async def get_on(self) -> None:
        """Wait until each task has taken two more steps."""
        before = len(self.begun())
        await until(
            lambda: all([b.task for b in self.begun()[before:]].count(task) >= 2 for task in self.tasks)
        )

    async def stop_one(self, where: str) -> int:
        """Have a process stop itself in a step, or as it commits: the process that took the last step."""
        pid = self.begun()[-1].pid
        (self.pauses / f"{pid}.{where}").touch()
        await until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        return pid

    async def finish(self, server: Server) -> None:
        """Let the tasks come to their end, and see that they do."""
        (self.pauses / "finish").touch()
        for task in self.tasks:
            known = await until(
                partial(raw.result, server.url, "GetTask", {"id": task}),
                lambda known: known["status"]["state"] != "TASK_STATE_WORKING",
            )
            assert known["status"]["state"] == "TASK_STATE_COMPLETED", known["status"]

    def check(self, fences: dict[str, int], takeovers: int) -> None:
        begun = self.begun()
        assert {b.lease for b in begun} == {"held"}
        assert max(fences[task] for task in self.tasks) <= 1 + takeovers
        for task in self.tasks:
            mine = [b for b in begun if b.task == task]
            assert [b.fence for b in mine] == sorted(b.fence for b in mine)
            assert [b.n for b in mine] == sorted(b.n for b in mine)  # what is on record does not begin again
            assert len(mine) - len({b.n for b in mine}) <= fences[task] - 1


async def silent() -> None:
    """As long as it takes until every lease has lapsed that nobody renews."""
    await elapse(TTL * 1.3)


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    return Counting(tmp_path)


class Workers(Server):
    """Two processes on a SQLite file."""

    def __init__(self, counting: Counting, store: Path) -> None:
        self.file = store
        options = ("--workers", "2", "--ttl", str(TTL))
        super().__init__(AGENT, store=store, options=options, env={**counting.env, "STORE": str(store)})

    def fences(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.file)) as db:
            return dict(db.execute("select id, fence from tasks"))


@pytest.fixture
def workers(counting: Counting, tmp_path: Path) -> Workers:
    return Workers(counting, tmp_path / "tasks.db")


async def test_a_worker_that_stood_still_loses_its_tasks_once_and_begins_nothing_more(
    counting: Counting, workers: Workers
) -> None:
    async with workers:
        await counting.begin(workers)
        for _ in range(PAUSES):
            pid = await counting.stop_one("step")
            before = len(counting.begun())
            await until(lambda b=before, p=pid: _each_elsewhere(counting, b, p))  # type: ignore[misc]
            os.kill(pid, signal.SIGCONT)
            await counting.get_on()
        await counting.finish(workers)
        counting.check(workers.fences(), PAUSES)


async def test_no_task_is_taken_over_after_a_worker_paused_with_the_write_lock(
    counting: Counting, workers: Workers
) -> None:
    async with workers:
        await counting.begin(workers)
        for _ in range(PAUSES):
            pid = await counting.stop_one("commit")
            await silent()
            os.kill(pid, signal.SIGCONT)
            await counting.get_on()
        await counting.finish(workers)
        counting.check(workers.fences(), 0)


async def test_no_task_is_taken_over_after_another_process_held_the_write_lock(
    counting: Counting, workers: Workers
) -> None:
    async with workers:
        await counting.begin(workers)
        for _ in range(PAUSES):
            with closing(sqlite3.connect(workers.file, timeout=20, isolation_level=None)) as db:
                db.execute("begin immediate")
                await silent()
            await counting.get_on()
        await counting.finish(workers)
        counting.check(workers.fences(), 0)


class Node(Server):
    """One process on the PostgreSQL database."""

    def __init__(self, counting: Counting, store: str) -> None:
        super().__init__(env=counting.env)
        self.command = [
            sys.executable, "-m", "tests.crash.node", str(self.port), store, str(TTL), "100",
        ]  # fmt: skip


def fences() -> dict[str, int]:
    (rows,) = postgres.server().execute("select id, fence from dragoman.tasks")
    return dict(rows)


@pytest.fixture
def nodes(counting: Counting, tmp_path: Path) -> Sequence[Node]:
    if not postgres.available():
        pytest.skip("there is no PostgreSQL here")
    store = postgres.server().fresh(tmp_path)
    return [Node(counting, store) for _ in range(2)]


async def test_a_node_on_postgresql_that_stood_still_loses_its_tasks_once_and_begins_nothing_more(
    counting: Counting, nodes: Sequence[Node]
) -> None:
    one, two = nodes
    async with one, two:
        await counting.begin(one, two)
        for _ in range(PAUSES):
            pid = await counting.stop_one("step")
            before = len(counting.begun())
            await until(lambda b=before, p=pid: _each_elsewhere(counting, b, p))  # type: ignore[misc]
            os.kill(pid, signal.SIGCONT)
            await counting.get_on()
        await counting.finish(one)
        counting.check(fences(), PAUSES)


async def test_no_task_is_taken_over_after_postgresql_paused(
    counting: Counting, nodes: Sequence[Node]
) -> None:
    one, two = nodes
    async with one, two:
        await counting.begin(one, two)
        for _ in range(PAUSES):
            with postgres.server().frozen():
                await silent()
            await counting.get_on()
        await counting.finish(one)
        counting.check(fences(), 0)


def _each_elsewhere(counting: Counting, before: int, pid: int) -> bool:
    """Whether each task has taken a step since, and in another process."""
    return {b.task for b in counting.begun()[before:] if b.pid != pid} == {*counting.tasks}
