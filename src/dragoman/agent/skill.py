"""A function as a skill: what it is called in the card, how it is called, what its answer becomes.

Name, docstring and type hints are the declaration. A `str` parameter gets the text of the message, a dataclass, msgspec
or pydantic parameter gets the message's data (validated), a `Turn` is given by annotation, `Message`, `Part` and `bytes`
(a file) likewise. Several simple parameters (`amount: float, currency: str`) are taken by name from the data.

A plain function (no `async`) is called on a thread of its own, so it may block. Not if it takes the `Turn`, which
belongs to the event loop: then it is called there, and had better be quick.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypedDict

from dragoman.agent.answers import gathered, give, give_pieces, message_of
from dragoman.agent.arguments import arguments_of
from dragoman.agent.parameters import JSON, TEXT, Parameter, hints_of, parameters_of
from dragoman.agent.parameters import output_modes as modes_of
from dragoman.agent.threads import in_thread
from dragoman.engine.turn import Turn, record_of
from dragoman.model import card

logger = logging.getLogger("dragoman.agent")

LONG = 0.1
"""Seconds that a function may hold up the event loop before it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFunction:
    """A function, its parameters and its entry in the card."""

    function: Callable[..., Any]
    skill: card.Skill
    parameters: tuple[Parameter, ...]
    reply: bool
    scopes: frozenset[str]
    default: bool
    blocks: bool
    """A plain function that does not belong to the event loop."""
    holds: bool
    """A plain function that does, and holds it up while it runs."""
    particular: bool
    """Not every message will do."""

    async def run(self, turn: Turn) -> None:
        """Call the function and make its answer the task's."""
        given = arguments_of(self.parameters, turn.message, turn)
        if self.blocks:
            outcome = await in_thread(self.function, **given)
        else:
            outcome = self._watched(given) if self.holds else self.function(**given)
        while type(outcome) is not str and inspect.isawaitable(outcome):
            outcome = await outcome
        if type(outcome) is str and not self.reply:
            await turn.artifact("result").write(outcome, last=True)
            return
        if isinstance(outcome, Generator):
            outcome = _stepped(outcome, in_thread if self.blocks else None)
        if isinstance(outcome, AsyncGenerator):
            async with aclosing(outcome):  # so that it tidies up before the task is told to be over
                if not self.reply:
                    await give_pieces(turn, outcome)
                    return
                outcome = await gathered(outcome)
        if self.reply and not record_of(turn).visible:
            turn.reply(message_of(outcome))
        else:
            await give(turn, outcome)

    def _watched(self, given: dict[str, Any]) -> Any:
        began = time.perf_counter()
        try:
            return self.function(**given)
        finally:
            if (held := time.perf_counter() - began) > LONG:
                logger.warning(
                    "skill %r held up everybody else for %.1f s: make it async, or leave out the Turn, and it gets a thread",
                    self.skill.id,
                    held,
                )


async def _stepped(pieces: Generator[Any, None, Any], call: Callable[..., Any] | None) -> AsyncGenerator[Any]:
    """A plain generator as an asynchronous one."""
    end = object()
    try:
        while (piece := await call(next, pieces, end) if call else next(pieces, end)) is not end:
            yield piece
    finally:
        with suppress(ValueError):  # it is still running on its thread: then nobody can close it
            pieces.close()


class SkillOptions(TypedDict, total=False):
    """Options of `@agent.skill`."""

    id: str
    name: str
    description: str
    tags: Sequence[str]
    examples: Sequence[str]
    input_modes: Sequence[str]
    output_modes: Sequence[str]
    reply: bool
    """The answer is a bare Message, no task."""
    scopes: Sequence[str]
    """Scopes that a caller needs."""
    default: bool
    """It takes messages that name no skill."""


def declare(
    function: Callable[..., Any],
    *,
    id: str = "",
    name: str = "",
    description: str = "",
    tags: Sequence[str] = (),
    examples: Sequence[str] = (),
    input_modes: Sequence[str] = (),
    output_modes: Sequence[str] = (),
    reply: bool = False,
    scopes: Sequence[str] = (),
    default: bool = False,
) -> SkillFunction:
    """Read a function's declaration. Raises TypeError for one that cannot be a skill."""
    hints = hints_of(function)
    parameters = parameters_of(function, hints)
    called = id or function.__name__
    if called == "<lambda>":
        raise TypeError("a lambda has no name: agent.skill(id=...)(it)")
    word = called.replace("_", " ").strip()
    takes = {p.takes for p in parameters}
    skill = card.Skill(
        id=called,
        name=name or word[:1].upper() + word[1:],
        description=description or inspect.getdoc(function) or word,
        tags=words(tags) or (called,),
        examples=words(examples),
        input_modes=words(input_modes) or _input_modes(takes),
        output_modes=words(output_modes) or modes_of(hints.get("return")),
    )
    coroutine = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return SkillFunction(
        function=function,
        skill=skill,
        parameters=parameters,
        reply=reply,
        scopes=frozenset(words(scopes)),
        default=default,
        particular=any(
            p.takes in ("data", "member", "file", "content") or (p.takes == "text" and p.hint is not str)
            for p in parameters
        ),
        blocks=not (coroutine or "turn" in takes),
        holds=not coroutine and "turn" in takes,
    )


def words(value: Sequence[str]) -> tuple[str, ...]:
    """A single word is a list of one."""
    return (value,) if isinstance(value, str) else tuple(value)


def _input_modes(takes: set[str]) -> tuple[str, ...]:
    """What a function takes, if that is more than text."""
    data = takes & {"data", "member", "any"}
    if takes & {"file", "files", "content", "contents"}:
        return (JSON, TEXT, "*/*") if data else (TEXT, "*/*")
    return (JSON, TEXT) if data else ()
