"""An agent with a model: it streams, remembers, asks for what is missing, wants an approval, and reports what it used.

    python examples/booking.py
    dragoman chat http://127.0.0.1:8000

The model is a generator in this file, so the example needs no key. Put a call of your model in its place. Kill the server while it
streams or waits, and start it again: the model is called once for each answer that it finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from dragoman import Agent, Ask, QuestionsExtension, Result, Status, Turn, UsageExtension

agent = Agent(
    "Booking",
    description="Books trips, and asks before it pays",
    extensions=[UsageExtension(), QuestionsExtension()],
)

PRICES = {"train": 60, "plane": 180}


@dataclass
class Booking:
    city: str
    days: int
    eur: int


async def model(prompt: str, remembered: int) -> AsyncIterator[str | Status | Result]:
    """Stands for a model: it reports a tool call, streams text, and says how many tokens that took."""
    yield Status("Looking at timetables", {"tool": "timetable", "arguments": {"prompt": prompt}})
    words = f"I can do that. (I remember {remembered} earlier messages.)\n".split(" ")
    for n, word in enumerate(words):
        yield word if n == len(words) - 1 else word + " "
        await asyncio.sleep(0.01)
    yield Result({"input_tokens": len(prompt.split()), "output_tokens": len(words)})


@agent.skill(default=True)
async def book(text: str, turn: Turn) -> None:
    """Books a trip: asks where, how long and how, then for your approval."""
    before = await turn.conversation()
    stream = turn.stream_step("answer", model, text, len(before) - 1)
    await stream
    turn.usage("example-model", **stream.value, cost=0.0001)

    trip = await turn.ask_all(
        {
            "city": "Which city?",
            "days": Ask("How many days?", int),
            "by": Ask("Train or plane?", Literal["train", "plane"]),
        }
    )
    eur = PRICES[trip["by"]] + 80 * trip["days"]
    agreed = await turn.approve(f"Pay {eur} EUR?", details={"to": "ACME Travel", "eur": eur})
    if not agreed:
        turn.reject(agreed.comment or "Nothing was booked.")
    receipt = await turn.step("pay", pay, eur, retries=3, backoff=0.5, timeout=10)
    await turn.data({"city": trip["city"], "receipt": receipt}, name="booking")


@agent.skill
async def price(city: str, days: int, by: Literal["train", "plane"] = "train") -> Booking:
    """Says what a trip costs, without a question."""
    return Booking(city, days, PRICES[by] + 80 * days)


async def pay(eur: int) -> str:
    """Stands for a payment: it must happen once."""
    return f"paid {eur} EUR"


if __name__ == "__main__":
    agent.run()
