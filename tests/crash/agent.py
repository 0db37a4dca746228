"""The agent that is killed: it reports, streams, takes steps and asks, and writes down what it really did.

STEPS   a file: one line for each step that was done, on disk when the step returns
PACE    seconds between two things it says
DIE     `before:7` or `after:7`: SIGKILL itself before or after its 7th transaction
PAUSE   a folder. A process that finds its own number there, as a file, stops itself (SIGSTOP): `7.step` in a step, `7.commit`
        as it commits. When `finish` is there, tasks that count come to their end
STORE   the SQLite file to look for leases in
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dragoman import Agent, Turn
from dragoman.engine.protocols import Lease
from dragoman.engine.turn import record_of
from dragoman.model.ids import new_id

PACE = float(os.environ.get("PACE", "0"))

agent = Agent("Story", description="Tells a story and does not lose the thread")


def note(line: str) -> None:
    """Append a line to the file of steps; it is on disk when this returns."""
    handle = os.open(os.environ["STEPS"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    try:
        os.write(handle, line.encode() + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)


async def work(task: str, key: str) -> str:
    """Has an outcome of its own each time it runs, so that nobody can take one run for another."""
    await asyncio.sleep(PACE)
    outcome = new_id()
    note(f"{task} {key} {outcome}")
    return outcome


@agent.skill
async def story(title: str, turn: Turn) -> AsyncIterator[str]:
    """Tells a story in chapters, and asks what it should be like."""
    yield f"# {title}\n"
    for i in (1, 2):
        await turn.status(f"chapter {i}")
        outcome = await turn.step(f"chapter/{i}", work, turn.task_id, f"chapter/{i}")
        yield f"chapter {i}: {outcome}\n"
        await asyncio.sleep(PACE)
    hero = await turn.ask("Who is the hero?")
    await turn.data({"hero": hero}, name="cast")
    yield f"the hero is {hero}\n"
    outcome = await turn.step("chapter/3", work, turn.task_id, "chapter/3")
    await asyncio.sleep(PACE)
    yield f"chapter 3: {outcome}\n"
    pages = await turn.ask("How many pages?", int)
    for i in range(pages):
        yield f"page {i + 1}\n"
        await asyncio.sleep(PACE)


@agent.skill(default=True)
async def patience(title: str, turn: Turn) -> str:
    """Waits until it is canceled, or for as many steps as its text says."""
    note(f"{turn.task_id} began {turn.attempt}")
    await turn.status("waiting")
    for i in range(int(title or 0)):
        await turn.step(f"wait/{i}", work, turn.task_id, f"wait/{i}")
        await turn.status(f"waited {i + 1}")
    return "patient"


def pause(where: str) -> None:
    asked = Path(os.environ["PAUSE"], f"{os.getpid()}.{where}")
    if asked.exists():
        asked.unlink()
        signal.pthread_kill(
            threading.get_ident(), signal.SIGSTOP
        )  # this thread does nothing more before it stops


def holds(lease: Lease) -> bool:
    """Whether the store says, here and now, that this process has the lease and is alive."""
    if "STORE" not in os.environ:
        return True
    with contextlib.closing(sqlite3.connect(os.environ["STORE"])) as db:
        look = "select fence, until from tasks join nodes using (node) where key = ?"
        fence, until = db.execute(look, (lease.key,)).fetchone() or (0, 0)
    return bool(fence == lease.fence and until > time.monotonic())


async def count_one(turn: Turn, n: int) -> int:
    lease = record_of(turn).journal.lease
    held = holds(lease)
    note(f"{turn.task_id} {n} {lease.fence} {os.getpid()} {'held' if held else 'lapsed'}")
    pause("step")
    await asyncio.sleep(PACE)
    return n


@agent.skill
async def count(turn: Turn) -> str:
    """Counts, each number in a step, until it is told to finish."""
    n = 0
    while not Path(os.environ["PAUSE"], "finish").exists():
        await turn.step(f"count/{n}", count_one, turn, n)
        n += 1
    return str(n)


@agent.skill
async def stubborn(turn: Turn) -> None:
    """Does not stop when it is told to."""
    note(f"{turn.task_id} began {turn.attempt}")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await turn.status("I will not stop")


class Pausing(sqlite3.Connection):
    """Stops where it holds the lock to write, when it is asked to."""

    def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
        if sql == "commit":
            pause("commit")
        return super().execute(sql, *more)


class Doomed(sqlite3.Connection):
    """Dies at a transaction of its choice."""

    commits = 0

    def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
        if sql != "commit":
            return super().execute(sql, *more)
        Doomed.commits += 1
        when, _, at = os.environ["DIE"].partition(":")
        if Doomed.commits == int(at) and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = super().execute(sql, *more)
        if Doomed.commits == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        return done


if os.environ.get("DIE") or os.environ.get("PAUSE"):
    connect = sqlite3.connect
    factory = Doomed if os.environ.get("DIE") else Pausing

    def strange(*args: Any, **options: Any) -> sqlite3.Connection:
        return connect(*args, **{**options, "factory": factory})

    sqlite3.connect = strange  # type: ignore[assignment]
