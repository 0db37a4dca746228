"""The agent that the browser talks to: it streams, asks for every kind of answer, takes and gives files, works slowly, and calls another.

PACE    seconds that a step of `story` takes
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum

from dragoman import Agent, Ask, Part, Turn

PACE = float(os.environ.get("PACE", "0.15"))

agent = Agent("Clerk", description="Does what a page has to show")
helper = Agent("Helper", description="Is called by the clerk")


@helper.skill
async def help(text: str) -> str:
    """Says that it helped."""
    return f"helped with {text}"


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Trip:
    city: str
    nights: int
    breakfast: bool = False


@agent.skill(examples=["a story"])
async def story(turn: Turn) -> AsyncIterator[str]:
    """Tells a story in six chapters, each of which takes a step."""
    yield "# A story\n\n"
    for n in range(1, 7):
        await turn.status(f"Chapter {n} of 6")
        found = await turn.step(f"chapter/{n}", chapter, n)
        yield f"- {found}\n"


async def chapter(n: int) -> str:
    await asyncio.sleep(PACE)
    return f"chapter {n} is **done**"


@agent.skill
async def questions(turn: Turn) -> str:
    """Asks for a text, a choice, a number, a form, two things at once and a yes."""
    name = await turn.ask("What is your name?")
    size = await turn.ask("Which size?", Size)
    age = await turn.ask("How many?", int)
    trip = await turn.ask("Which trip?", Trip)
    both = await turn.ask_all({"colour": "Which colour?", "legs": Ask("How many legs?", int)})
    sure = await turn.approve("Are you sure?")
    return (
        f"{name}, {size.value}, {age}, {trip.city} for {trip.nights}, {trip.breakfast}, {both}, {bool(sure)}"
    )


@agent.skill(input_modes=["*/*"], output_modes=["text/plain"])
async def upper(file: Part, turn: Turn) -> None:
    """Gives a text file back in capitals."""
    raw = file.raw or b""
    await turn.file(raw.upper(), name=f"big-{file.filename}", media_type="text/plain")


@agent.skill
async def forever(turn: Turn) -> str:
    """Works until it is canceled."""
    await turn.status("Working on it")
    await asyncio.Event().wait()
    return ""


@agent.skill
async def delegate(turn: Turn) -> str:
    """Lets another agent do it."""
    return (await turn.call("helper", "the work")).text


@agent.skill
async def delegate_and_wait(turn: Turn) -> str:
    """Lets another agent do it, and then works until it is canceled."""
    await turn.call("helper", "the work")
    await turn.status("Waiting")
    await asyncio.Event().wait()
    return ""


@agent.skill
async def broken(turn: Turn) -> str:
    """Fails."""
    raise ValueError("it broke")


@agent.skill
async def login(turn: Turn) -> str:
    """Needs an authorisation."""
    await turn.need_auth("Log in at https://login.example.com first")
    return "welcome"
