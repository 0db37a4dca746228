"""A model for tests, which gives prepared replies.

Each reply is a text, a `ModelError` to raise, or a tuple of texts, errors, tool calls and events to stream. `by_agent` answers by a
word of the system prompt, so that several agents can share one script.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeAlias

from dragoman.hub.models import (
    Delta,
    ModelError,
    ModelEvent,
    ModelTraits,
    Prompt,
    Stop,
    ToolCall,
    Usage,
)

Piece: TypeAlias = str | ModelError | ToolCall | asyncio.Event | Usage | Stop
"""An event holds the stream until it is set."""
Scripted: TypeAlias = str | ModelError | Sequence[Piece]


class ScriptedModel:
    """Gives the replies in order, or the result of a function of the prompt. Stores the prompts.

    `tools`: it is offered tools. `sees`: it takes images.
    """

    def __init__(
        self,
        replies: Iterable[Scripted] | Callable[[Prompt], Scripted],
        *,
        tools: bool = False,
        sees: bool = False,
        window: int = 0,
    ) -> None:
        self._choose = replies if callable(replies) else None
        self._replies = iter(() if callable(replies) else replies)
        self.prompts: list[Prompt] = []
        self._tools, self._sees, self._window = tools, sees, window

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name=name or "scripted", tools=self._tools, sees=self._sees, window=self._window)

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        self.prompts.append(prompt)
        reply = self._choose(prompt) if self._choose is not None else next(self._replies, None)
        if reply is None:
            raise ModelError("provider_error", "the script has no more replies")
        pieces: Sequence[Piece] = (reply,) if isinstance(reply, str | ModelError) else reply
        sent, usage, stop = 0, None, Stop()
        for piece in pieces:
            match piece:
                case str():
                    for word in _words(piece):
                        sent += 1
                        yield Delta(word)
                        await asyncio.sleep(0)
                case ModelError():
                    raise piece
                case asyncio.Event():
                    await piece.wait()
                case Usage():
                    usage = piece
                case Stop():
                    stop = piece
                case _:
                    yield piece
        asked = sum(len(message.content.split()) for message in prompt.messages)
        yield usage or Usage(input_tokens=asked, output_tokens=sent)
        yield stop


def by_agent(scripts: dict[str, Iterable[Scripted]]) -> Callable[[Prompt], Scripted]:
    """Replies by agent: the one whose `NAME: ...` line the system prompt has."""
    waiting = {name: iter(replies) for name, replies in scripts.items()}

    def choose(prompt: Prompt) -> Scripted:
        for name, replies in waiting.items():
            if f"NAME: {name}\n" in prompt.system + "\n":
                return next(
                    replies, ModelError("provider_error", f"the script of {name} has no more replies")
                )
        return ModelError("provider_error", "nobody in the script is asked")

    return choose


def _words(text: str) -> list[str]:
    """Words, each with the space before it."""
    words: list[str] = []
    for piece in text.split(" "):
        words.append(f" {piece}" if words else piece)
    return [word for word in words if word]
