"""One recorded call of a model.

A reply has the text, the usage, why it stopped, or how it failed. It is recorded before it is used, so a turn that runs again
after a crash does not ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

import msgspec
from msgspec import Struct

from dragoman.engine.turn import Turn, record_of
from dragoman.hub.models.model import (
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
    await record_of(turn).may_begin()
    reply = await respond(model, prompt, on_text, on_cancel)
    await record_of(turn).record(key, reply)
    return reply


def recorded_reply(turn: Turn, key: str) -> ModelReply | None:
    """The recorded reply."""
    step = record_of(turn).steps.get(key)
    return None if step is None else msgspec.json.decode(step.value, type=ModelReply)


async def respond(
    model: Model, prompt: Prompt, on_text: OnText | None = None, on_cancel: OnCancel | None = None
) -> ModelReply:
    """`ask`, without a record of it."""
    pieces: list[str] = []
    calls: list[ToolCall] = []
    characters = TextRepair()

    async def say(text: str) -> None:
        if text:
            pieces.append(text)
            if on_text is not None:
                await on_text(text)

    usage, stop, failed = Usage(), "end_turn", ModelError("", "")
    try:
        async with aclosing(cast(Any, model.respond(prompt))) as stream:
            events: AsyncIterator[Any] = stream
            async for event in events:
                match event:
                    case Delta(text):
                        await say(characters.feed(text))
                    case ToolCall():
                        calls.append(event)
                    case Usage():
                        usage = event
                    case Stop(reason):
                        stop = reason
        await say(characters.close())
    except ModelError as error:
        failed, stop, calls = error, "error", []
    except asyncio.CancelledError:
        if pieces and on_cancel is not None:
            await on_cancel(usage if usage.total else estimate(prompt, len("".join(pieces))))
        raise
    text = "".join(pieces)
    if failed.message and text and not usage.total:
        usage = estimate(prompt, len(text))
    return ModelReply(
        text=text,
        tool_calls=tuple(calls),
        usage=usage,
        stop=stop,
        error=failed.message,
        error_code=failed.code,
    )
