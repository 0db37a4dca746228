"""An agent that authenticates its callers and checks what they may do.

    dragoman keys token                              # for each caller: a token, and its hash for the agent
    ADA=HASH BOB=HASH dragoman serve examples/secure.py
    dragoman send http://127.0.0.1:8000 "100 to Bob" --auth TOKEN
    dragoman card get http://127.0.0.1:8000 --extended --auth TOKEN

Without hashes in the environment it creates tokens and prints them. With `dragoman keys new` and
`--keys keys` its card is signed, and `dragoman card get http://127.0.0.1:8000 --verify` checks it.
"""

from __future__ import annotations

import os
import sys

from dragoman import Agent, Principal, Skill, Turn
from dragoman.auth import Bearer, Holder, hashed, new_token


def secret(name: str) -> str:
    """The hash of somebody's token."""
    if name in os.environ:
        return os.environ[name]
    token = new_token()
    print(f"{name}'s token: {token}", file=sys.stderr)
    return hashed(token)


def more(principal: Principal) -> list[Skill]:
    """What only some callers hear of."""
    if "pay" not in principal.scopes:
        return []
    return [Skill(id="limits", name="Limits", description="Up to 1000 a day", tags=("money",))]


agent = Agent(
    "Bank",
    description="Knows what you have, and pays if you may",
    auth=[
        Bearer(
            {
                "ada": Holder(secret=secret("ADA"), scopes=["read", "pay"]),
                "bob": Holder(secret=secret("BOB"), scopes=["read"]),
            },
            scopes=["read"],
        )
    ],
    extended_card=more,
)


@agent.skill(scopes=["pay"], default=True)
async def pay(order: str, turn: Turn) -> str:
    """Pays somebody, once you have agreed."""
    answer = await turn.ask(f"{turn.principal}, shall I pay {order}?")
    return f"Paid {order}." if answer.lower().startswith("y") else "Not paid."


@agent.skill
async def balance(turn: Turn) -> str:
    """Says what you have."""
    return f"{turn.principal} has 42."


if __name__ == "__main__":
    agent.run()
