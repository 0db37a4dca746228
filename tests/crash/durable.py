"""An agent that is killed while it streams, asks and calls. CALLS: a file with one line for each piece of work that began."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from dragoman import Agent, Approval, Ask, Status, TimestampExtension, Turn

agent = Agent(
    "Durable",
    description="Goes on after it was killed",
    version=os.environ.get("VERSION", "1.0.0"),
    extensions=[TimestampExtension()],
)


def note(line: str) -> None:
    with open(os.environ["CALLS"], "a") as file:
        file.write(line + "\n")


async def recite(words: int) -> AsyncIterator[str | Status]:
    """Says something else in each process, and does not come to an end in one that is to be killed."""
    note("recite")
    yield "I am "
    yield Status("reciting", {"words": words})
    for n in range(words):
        yield f"{os.getpid()}-{n} "
    if "HANG" in os.environ:
        await asyncio.Event().wait()


@agent.skill
async def versions(turn: Turn) -> str:
    """Says which code began it."""
    return f"{await turn.ask('Go on?')} {turn.version} {turn.began_before('2')}"


@dataclass
class Trip:
    city: str
    days: int = 3


leaf = Agent("Leaf", description="Asks")


@leaf.skill
async def book(turn: Turn) -> str:
    """Asks for a trip, then for two things at once."""
    trip = await turn.ask("Where to?", Trip)
    note(f"asked {trip.city}")
    answers = await turn.ask_all({"seat": "Which seat?", "pay": Ask("Pay 300 EUR?", Approval)})
    note(f"booked {trip.city}")
    turn.usage("leaf", input_tokens=1)
    return f"{trip.city} {trip.days} {answers['seat']} {bool(answers['pay'])}"


middle = Agent("Middle", description="Calls the agent that asks")


@middle.skill
async def between(turn: Turn) -> str:
    """Passes everything on."""
    return (await turn.call("leaf", turn.text, ask="pass")).text


top = Agent("Top", description="Calls the agent that calls the agent that asks")


@top.skill
async def begin(turn: Turn) -> str:
    """Passes everything on."""
    return (await turn.call("middle", turn.text, ask="pass")).text


@agent.skill(default=True)
async def stream(words: int, turn: Turn) -> None:
    """Streams some words, then asks."""
    text = await turn.stream_step("recite", recite, words)
    await turn.artifact("result").write(await turn.ask("And then?"))
    await turn.data({"text": text}, name="whole")
