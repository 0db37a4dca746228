"""A currency agent: it reports progress, asks for what is missing, and answers with an artifact.

    how much is 10 USD in INR?          -> 10 USD is 832.50 INR
    how much is 100 USD?                -> To which currency would you like to convert?
    in GBP                              -> 100 USD is 79.00 GBP

A small protocol separates the agent from what understands the question. Here it is a regular expression, so that the example
needs no key and no network. A language model would be another class with the same method.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from dragoman import Agent, Turn

# What one US dollar buys. A real agent would call a service, and `turn.step` would record its answer.
RATES = {"USD": 1.0, "EUR": 0.92, "GBP": 0.79, "INR": 83.25, "JPY": 149.5, "CHF": 0.88}


@dataclass
class Question:
    amount: float = 1.0
    source: str = ""
    target: str = ""


class Model(Protocol):
    async def understand(self, text: str) -> Question: ...


class Pattern:
    """Understands `10 USD in INR`, `10 USD`, `in GBP`."""

    async def understand(self, text: str) -> Question:
        number = re.search(r"\d+(?:\.\d+)?", text)
        found = [word for word in re.findall(r"\b[A-Z]{3}\b", text.upper()) if word in RATES]
        into = re.search(r"\b(?:in|to|into)\s+([A-Z]{3})\b", text.upper(), re.IGNORECASE)
        target = into.group(1) if into and into.group(1) in RATES else (found[1] if len(found) > 1 else "")
        source = next((word for word in found if word != target), "")
        return Question(float(number.group()) if number else 1.0, source, target)


model: Model = Pattern()
agent = Agent("Currency", description="Converts amounts between currencies", version="1.0.0")


async def rate(source: str, target: str) -> float:
    return RATES[target] / RATES[source]


@agent.skill(
    id="convert_currency",
    tags=["currency conversion", "currency exchange"],
    examples=["how much is 10 USD in INR?", "What is exchange rate between USD and GBP?"],
)
async def convert(turn: Turn) -> str:
    """Converts an amount of money from one currency to another."""
    question = await model.understand(turn.text)
    if not question.source:
        turn.reject(f"I know {', '.join(RATES)}: name one of them, please.")
    while not question.target:
        answer = await turn.ask("To which currency would you like to convert?")
        reply = await model.understand(answer)
        question.target = reply.target or reply.source
    await turn.status("Looking up the exchange rates...")
    factor = await turn.step("rate", rate, question.source, question.target)
    await turn.status("Processing the exchange rates..")
    return f"{question.amount:g} {question.source} is {question.amount * factor:.2f} {question.target}"


if __name__ == "__main__":
    agent.run()
