"""What the scripted model of every framework says. It decides by the texts of the conversation and nothing else.

| the caller says | the model |
|---|---|
| `stream` | says "one two three" in pieces; it waits for the file `gate` after the first |
| `other` | says "one two", and waits for the file `gate` after the first piece; asked again, it says "uno due tre" |
| `tool` | calls `weather(city="Rome")`, then says what it answered |
| `pause` | says "Let me see.", calls `book(city="Rome")`, which asks a person, then says what it answered |
| `two` | calls `book` for Rome and for Paris at once, then says what they answered |
| `remote X` | calls the agent at `REMOTE_URL`, `desk(message="X")`, then says what it answered |
| `both` | calls that agent twice at once, for "a ticket" and "another ticket", then says what they answered |
| `once` | calls `weather(city="Oslo")`, then waits for the file `gate`, then says what it answered |
| `hang` | makes the file `started`, and never answers; when it is cancelled, it makes the file `stopped` |
| `my name is X` | says "Hello X" |
| `who am I` | says the name that it was told in this conversation, else "unknown" |

Each answer of the model costs 10 tokens in and 5 out. Files are in the folder `SCRIPT_DIR`.
"""

import asyncio
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

INPUT_TOKENS, OUTPUT_TOKENS = 10, 5
HOME = Path(os.environ["SCRIPT_DIR"])
REMOTE = os.environ.get("REMOTE_URL", "")
"""The URL of an agent elsewhere, which three of the agents have as a tool."""


@dataclass
class Call:
    name: str
    arguments: dict


@dataclass
class Answer:
    """What the model says next. `gated`: after the first piece it waits for the file `gate`."""

    pieces: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    gated: bool = False
    hangs: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def respond(said: list, results: list) -> Answer:
    """The next answer. `said`: all that the caller said, in order. `results`: what tools answered since the last of it."""
    last = said[-1].strip()
    if results and last == "once":
        return Answer(["", ", ".join(results)], gated=True)
    if last == "once":
        return Answer(calls=[Call("weather", {"city": "Oslo"})])
    if results:
        return Answer([", ".join(results)])
    if last == "stream":
        return Answer(["one ", "two ", "three"], gated=True)
    if last == "other":
        if (HOME / "waits").exists():
            return Answer(["uno ", "due ", "tre"])
        return Answer(["one ", "two"], gated=True)
    if last == "tool":
        return Answer(calls=[Call("weather", {"city": "Rome"})])
    if last == "pause":
        return Answer(["Let me ", "see."], calls=[Call("book", {"city": "Rome"})])
    if last == "two":
        return Answer(calls=[Call("book", {"city": "Rome"}), Call("book", {"city": "Paris"})])
    if last == "both":
        return Answer(calls=[Call("desk", {"message": text}) for text in ("a ticket", "another ticket")])
    if found := re.fullmatch("remote (.*)", last):
        return Answer(calls=[Call("desk", {"message": found[1]})])
    if last == "hang":
        return Answer(hangs=True)
    if found := re.fullmatch("my name is (.*)", last):
        return Answer(["Hello ", found[1]])
    if last == "who am I":
        names = [found[1] for text in said if (found := re.fullmatch("my name is (.*)", text.strip()))]
        return Answer([names[-1] if names else "unknown"])
    return Answer([f"I do not know {last!r}"])


async def pieces(answer: Answer):
    """The text of an answer as it comes."""
    if answer.hangs:
        await hang()
    for n, piece in enumerate(answer.pieces):
        if n and answer.gated:
            (HOME / "waits").touch()
            while not (HOME / "gate").exists():
                await asyncio.sleep(0.005)
        if piece:
            yield piece


def pieces_in_thread(answer: Answer):
    """`pieces`, for frameworks that call the model in a thread. A model that hangs sends pieces without end: such a thread
    stops at a piece."""
    if answer.hangs:
        (HOME / "started").touch()
        try:
            while True:
                yield "."
                time.sleep(0.01)
        finally:
            (HOME / "stopped").touch()
    for n, piece in enumerate(answer.pieces):
        if n and answer.gated:
            (HOME / "waits").touch()
            while not (HOME / "gate").exists():
                time.sleep(0.005)
        if piece:
            yield piece


async def hang() -> None:
    (HOME / "started").touch()
    try:
        await asyncio.sleep(3600)
    finally:
        (HOME / "stopped").touch()


def weather(city: str) -> str:
    """Tell the weather of a city."""
    with (HOME / "asked").open("a") as file:
        file.write(f"{city}\n")
    return f"sunny in {city}"


def book(city: str) -> str:
    """Book a trip to a city."""
    with (HOME / "booked").open("a") as file:
        file.write(f"{city}\n")
    return f"booked {city}"
