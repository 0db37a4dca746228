"""Calls of models, whose replies are recorded: a turn that runs again after a crash does not call the model again.

A reply has the text, the usage, the reason why it ended, and an error if it failed. It is recorded before it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, cast

import msgspec
from msgspec import Struct

from dragoman.engine.turn import Turn, record_of
from dragoman.hub.models import (
    Delta,
    Model,
    ModelError,
    Prompt,
    Stop,
    TextRepair,
    ToolCall,
    Usage,
    estimate,
)

NOT_ASKED = (
    "budget_exhausted",
    "price_unknown",
    "model_not_allowed",
    "unauthorized",
    "circuit_open",
)
"""Errors with which the hub refuses a call: no model was asked."""

OnText = Callable[[str], Awaitable[None]]
OnCancel = Callable[[Usage], Awaitable[None]]


class ModelReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    stop: str = "end_turn"
    error: str = ""
    """Safe to show; empty on success."""
    error_code: str = ""

    @property
    def asked(self) -> bool:
        """False: the hub refused the call, and no model was asked."""
        return self.error_code not in NOT_ASKED

    def followed_by(self, more: ModelReply) -> ModelReply:
        """This reply joined with its continuation."""
        return msgspec.structs.replace(more, text=self.text + more.text, usage=self.usage + more.usage)


async def ask(
    turn: Turn,
    key: str,
    model: Model,
    prompt: Prompt,
    on_text: OnText | None = None,
    on_cancel: OnCancel | None = None,
) -> ModelReply:
    """The model's reply to `prompt`, asked once in this turn. `on_text` gets the text as it is generated.

    `on_cancel` gets the estimated usage of a call that is canceled.
    """
    if (reply := recorded_reply(turn, key)) is not None:
        if on_text is not None:
            await on_text(reply.text)
        return reply
    token = _may_begin.set(record_of(turn).may_begin)
    try:
        await may_ask()
        reply = await respond(model, prompt, on_text, on_cancel)
    finally:
        _may_begin.reset(token)
    await record_of(turn).record_step(key, reply)
    return reply


_may_begin: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("may_begin")


async def may_ask() -> None:
    """Wait until the turn may begin a call. Raises `LeaseLost` if another hub has its task.

    A model that waits, for example before a retry, calls this again before each request to its provider. Another hub may have taken
    the task meanwhile, and have asked the same.
    """
    if (may_begin := _may_begin.get(None)) is not None:
        await may_begin()


def recorded_reply(turn: Turn, key: str) -> ModelReply | None:
    """The reply that is recorded under a key; None if there is none."""
    step = record_of(turn).steps.get(key)
    return None if step is None else msgspec.json.decode(step.value, type=ModelReply)


async def respond(
    model: Model, prompt: Prompt, on_text: OnText | None = None, on_cancel: OnCancel | None = None
) -> ModelReply:
    """The model's reply to `prompt`, which is not recorded. The callbacks are those of `ask`."""
    pieces: list[str] = []
    calls: list[ToolCall] = []
    repair = TextRepair()

    async def add_text(text: str) -> None:
        if text:
            pieces.append(text)
            if on_text is not None:
                await on_text(text)

    usage, stop, failure = Usage(), "end_turn", ModelError("", "")
    try:
        async with aclosing(cast(Any, model.respond(prompt))) as stream:
            events: AsyncIterator[Any] = stream
            async for event in events:
                match event:
                    case Delta(text):
                        await add_text(repair.feed(text))
                    case ToolCall():
                        calls.append(event)
                    case Usage():
                        usage = event
                    case Stop(reason):
                        stop = reason
        await add_text(repair.close())
    except ModelError as error:
        failure, stop, calls = error, "error", []
    except asyncio.CancelledError:
        if pieces and on_cancel is not None:
            await on_cancel(usage if usage.total else estimate(prompt, len("".join(pieces))))
        raise
    text = "".join(pieces)
    if failure.message and text and not usage.total:
        usage = estimate(prompt, len(text))
    return ModelReply(
        text=text,
        tool_calls=tuple(calls),
        usage=usage,
        stop=stop,
        error=failure.message,
        error_code=failure.code,
    )
