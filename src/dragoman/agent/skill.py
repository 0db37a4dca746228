"""A function as a skill: what it is called in the card, how it is called, what its answer becomes.

Name, docstring and type hints are the declaration. A `str` parameter gets the text of the message, a dataclass, msgspec
or pydantic parameter gets the message's data (validated), a `Turn` is given by annotation, `Message`, `Part` and `bytes`
(a file) likewise. Several simple parameters (`amount: float, currency: str`) are taken by name from the data.

A plain function (no `async`) is called on a thread of its own, so it may block. Not if it takes the `Turn`, which
belongs to the event loop: then it is called there, and must be quick. The thread is a daemon: one that is stuck holds up
neither the loop nor the end of the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypedDict, TypeVar

from msgspec.structs import replace

from dragoman.agent.parameters import (
    JSON,
    TEXT,
    Parameter,
    arguments_of,
    hints_of,
    input_schema,
    output_schema,
    parameters_of,
)
from dragoman.agent.parameters import output_modes as modes_of
from dragoman.engine.artifact_writer import ArtifactWriter
from dragoman.engine.turn import Turn, record_of
from dragoman.model import card
from dragoman.model.content import Artifact, Message, Part, checked, parts_of
from dragoman.model.per_loop import PerLoop
from dragoman.model.schema import SkillSchema
from dragoman.model.task import TaskState

T = TypeVar("T")

logger = logging.getLogger("dragoman.agent")

LONG_CALL_SECONDS = 0.1
"""How long a function may hold up the event loop before a warning is logged."""
MAX_THREADS = 100
"""Threads of skills at a time. A call that finds none free waits."""

_free_threads = PerLoop(lambda: asyncio.Semaphore(MAX_THREADS))


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFunction:
    """A function, its parameters and its entry in the card."""

    function: Callable[..., Any]
    skill: card.Skill
    parameters: tuple[Parameter, ...]
    reply: bool
    scopes: frozenset[str]
    default: bool
    coroutine: bool
    """An `async def` that returns."""
    blocks: bool
    """A plain function that does not belong to the event loop."""
    holds: bool
    """A plain function that does, and holds it up while it runs."""
    particular: bool
    """Not every message will do."""
    schema: SkillSchema
    """What it takes and returns as data."""
    check: Callable[[Message], None] | None = None
    """Raises what is wrong with a message, before there is a task."""

    async def run(self, turn: Turn) -> None:
        """Call the function and make its answer the task's."""
        given = arguments_of(self.parameters, turn.message, turn)
        outcome: Any
        if self.coroutine:
            outcome = await self.function(**given)
        elif self.blocks:
            outcome = await in_thread(self.function, **given)
        else:
            outcome = self._call_timed(given) if self.holds else self.function(**given)
        if type(outcome) is not str:
            while inspect.isawaitable(outcome):
                outcome = await outcome
        elif not self.reply:
            turn.artifact("result").put(outcome, last=True)
            return
        if isinstance(outcome, Generator):
            outcome = _as_async(outcome, in_thread if self.blocks else None)
        if isinstance(outcome, AsyncGenerator):
            async with aclosing(outcome):  # so that it cleans up before the task ends
                if not self.reply:
                    await _write_pieces(turn, outcome)
                    return
                outcome = await _join_pieces(outcome)
        record = record_of(turn)
        if self.reply and not record.visible:
            if outcome is not None or record.reply is None:
                turn.reply(_message_of(outcome))
        else:
            await _write_answer(turn, outcome)

    def _call_timed(self, given: dict[str, Any]) -> Any:
        began = time.perf_counter()
        try:
            return self.function(**given)
        finally:
            if (held := time.perf_counter() - began) > LONG_CALL_SECONDS:
                logger.warning(
                    "skill %r held up everybody else for %.1f s: make it async, or leave out the Turn, and it gets a thread",
                    self.skill.id,
                    held,
                )


async def _as_async(
    pieces: Generator[Any, None, Any], call: Callable[..., Any] | None
) -> AsyncGenerator[Any]:
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
    coroutine = inspect.iscoroutinefunction(function)
    asynchronous = coroutine or inspect.isasyncgenfunction(function)
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
        schema=SkillSchema(input=input_schema(parameters), output=output_schema(hints.get("return"))),
        coroutine=coroutine,
        blocks=not (asynchronous or "turn" in takes),
        holds=not asynchronous and "turn" in takes,
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


# -- answers -----------------------------------------------------------------------------------------------------


async def _write_answer(turn: Turn, value: Any) -> None:
    """What the function returned. A message is the task's last word, anything else is an artifact."""
    if isinstance(value, Message):
        turn.finish(TaskState.COMPLETED, value)
    elif value is not None:
        await _write(turn, value, last=True)


async def _write_pieces(turn: Turn, pieces: AsyncIterator[Any]) -> None:
    """What the function yields, as it comes."""
    result: ArtifactWriter | None = None
    record = record_of(turn)
    async for piece in pieces:
        if piece is record.streamed_piece and piece is not None:  # a streaming step has sent it
            record.streamed_piece = None
        elif type(piece) is str:  # nearly all of them
            if result is None:
                result = turn.artifact("result")
            await result.write(piece)
        elif isinstance(piece, Message):
            await turn.status(piece)
        elif piece is not None:
            await _write(turn, piece, last=False)
    turn.artifact("result").close()


async def _join_pieces(pieces: AsyncIterator[Any]) -> tuple[Part, ...] | None:
    """All that the function yields, for one message: pieces of text are one text."""
    parts: list[Part] = []
    async for piece in pieces:
        for part in _message_parts(piece) if piece is not None else ():
            if parts and part == Part(text=part.text) and parts[-1] == Part(text=parts[-1].text):
                parts[-1] = replace(part, text=f"{parts[-1].text}{part.text}")
            else:
                parts.append(part)
    return tuple(parts) or None


def _message_of(value: Any) -> Message | tuple[Part, ...]:
    """What the function returned, as a message or its parts."""
    return value if isinstance(value, Message) else _message_parts("" if value is None else value)


def _message_parts(value: Any) -> tuple[Part, ...]:
    if isinstance(value, Message):
        return value.parts
    artifacts = _artifacts(value)
    return tuple(part for each in artifacts for part in each.parts) if artifacts else _parts(value)


def _artifacts(value: Any) -> list[Artifact]:
    """The artifacts that a value is; none if it is anything else."""
    values = value if isinstance(value, list | tuple) else [value]
    return list(values) if all(isinstance(each, Artifact) for each in values) else []


def _parts(value: Any) -> tuple[Part, ...]:
    try:
        return parts_of(value)
    except TypeError as error:
        raise TypeError(
            f"an answer is text, bytes, data (a dict, a dataclass, a model, ...), a Part, an Artifact or a Message: {error}"
        ) from None


async def _write(turn: Turn, value: Any, *, last: bool) -> None:
    artifacts = _artifacts(value)
    for artifact in map(checked, artifacts):
        writer = turn.artifact(
            artifact.name,
            id=artifact.artifact_id,
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=artifact.extensions,
        )
        writer.put_together(artifact.parts, last=True)
    if not artifacts:
        turn.artifact("result").put_together(_parts(value), last=last)
    if record_of(turn).journal.full:
        await record_of(turn).journal.commit()


# -- threads -----------------------------------------------------------------------------------------------------


async def in_thread(function: Callable[..., T], *args: Any, **kw: Any) -> T:
    """Call `function` on a thread. If we are cancelled, it continues, and its result is dropped."""
    loop = asyncio.get_running_loop()
    threads = _free_threads.get()
    await threads.acquire()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        threads.release()
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def run() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(function, *args, **kw)
        except StopIteration as stop:  # which a future cannot carry
            error = RuntimeError(f"{getattr(function, '__name__', function)} raised StopIteration")
            error.__cause__ = stop
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, value, error)

    Thread(target=run, name="dragoman-skill", daemon=True).start()
    return await future
