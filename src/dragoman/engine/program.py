"""The protocols of an agent, as the engine sees it, and of those who watch agents work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dragoman.engine.records import Mail
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.turn import Turn
from dragoman.model.card import AgentCard
from dragoman.model.ops import Call, Principal, Request, SendMessage


class Program(Protocol):
    """An agent, as the engine sees it."""

    @property
    def card(self) -> AgentCard: ...

    def check_message(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        """Check a message before it is accepted. Raises the `A2AError` to answer with. True: the answer may be a bare Message.

        `first` is the message that began the task, if the message continues one."""
        ...

    @property
    def authorize(self) -> Callable[[Call, Request], Awaitable[None]] | None:
        """Called before each operation. Raises the `A2AError` to answer with. None: everything in the scope is allowed."""
        ...

    async def extended_card(self, principal: Principal) -> AgentCard | None:
        """The card for an authenticated caller; None if there is none. Raises `Forbidden`."""
        ...

    async def exists(self) -> bool:
        """True if this agent exists, or did before."""
        ...

    def work(self, turn: Turn) -> Awaitable[Any]:
        """Do the work of one turn, writing through `turn`. Returning completes the task."""
        ...


class Observer(Protocol):
    """Is told about turns and settled tasks. Its methods must not fail and must not block."""

    def turn(self, turn: Turn) -> AbstractContextManager[None]:
        """Around each run of an agent's function."""
        ...

    def settled(self, snapshot: Snapshot) -> None:
        """A task settled: it is terminal or interrupted."""
        ...
