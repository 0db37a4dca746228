"""An agent with authentication, and its callers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from dragoman import Agent, Turn
from dragoman.auth import Bearer, Holder, Principal, hashed
from dragoman.model.card import Skill
from dragoman.push.options import PushOptions
from dragoman.server.application import application
from dragoman.server.runtime import running

NO_ONE_LISTENS = "http://127.0.0.1:9/hook"
PUSH = PushOptions(allow_private=True, http=True, ports=(9,))
GENERATIONS = 64
"""So many times is everybody there, so that tests can share a server and nothing else."""


class People(NamedTuple):
    """The tokens of one generation."""

    n: int = 0

    @property
    def alice(self) -> str:
        return f"alice-token-{self.n}"

    @property
    def alice_limited(self) -> str:
        """Alice's as well, without the scope of the skill."""
        return f"alice-limited-{self.n}"

    @property
    def bob(self) -> str:
        return f"bob-token-{self.n}"

    @property
    def carol(self) -> str:
        """Carol's, without the scope of the agent."""
        return f"carol-token-{self.n}"

    @property
    def dave(self) -> str:
        """Dave's, expired."""
        return f"dave-token-{self.n}"


def schemes() -> list[Bearer]:
    everybody: dict[str, Holder] = {}
    limited: dict[str, Holder] = {}
    for people in map(People, range(GENERATIONS)):
        both = ["use", "work"]
        everybody |= {
            f"alice-{people.n}": Holder(secret=hashed(people.alice), scopes=both),
            f"bob-{people.n}": Holder(secret=hashed(people.bob), scopes=both),
            f"carol-{people.n}": Holder(secret=hashed(people.carol), scopes=["work"]),
            f"dave-{people.n}": Holder(secret=hashed(people.dave), scopes=both, expires="2020-01-01"),
        }
        limited[f"alice-{people.n}"] = Holder(secret=hashed(people.alice_limited), scopes=["use"])
    return [Bearer(everybody, scopes=["use"]), Bearer(limited, scopes=["use"])]


def secure_agent(**more: Any) -> Agent:
    """`Keeper`: its one skill waits for more. Everybody needs `use`; the skill needs `work`, too."""

    def more_for(principal: Principal) -> list[Skill]:
        return [Skill(id="secret", name=f"For {principal.id}", description="More", tags=("secret",))]

    options: dict[str, Any] = {"auth": schemes(), "extended_card": more_for} | more
    agent = Agent("Keeper", "Keeps what it is told", **options)

    @agent.skill(scopes=["work"])
    async def keep(turn: Turn) -> str:
        """Keeps a text until it hears another."""
        text = turn.text
        if text == "done":
            return "done"
        return f"{text}, {await turn.ask('And then?')}"

    return agent


@asynccontextmanager
async def served(agent: Agent | None = None, **options: Any) -> AsyncIterator[str]:
    """The agent over every binding."""
    app = application(agent or secure_agent(), store="memory:", push=PUSH, grpc_port=0, **options)
    async with running(app) as url:
        yield url
