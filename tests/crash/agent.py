"""The agent that is killed: it reports, streams, takes steps and asks, and writes down what it really did.

STEPS   a file: one line for each step that was done, on disk when the step returns
PACE    seconds between two things it says
DIE     `before:7` or `after:7`: SIGKILL itself before or after its 7th transaction
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

from dragoman import Agent, Turn
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


@agent.skill
async def stubborn(turn: Turn) -> None:
    """Does not stop when it is told to."""
    note(f"{turn.task_id} began {turn.attempt}")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await turn.status("I will not stop")


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


if os.environ.get("DIE"):
    connect = sqlite3.connect

    def doomed(*args: Any, **options: Any) -> sqlite3.Connection:
        return connect(*args, **{**options, "factory": Doomed})

    sqlite3.connect = doomed  # type: ignore[assignment]
