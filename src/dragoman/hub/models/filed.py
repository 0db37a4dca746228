"""A model that reads its part from a file: the same answer to the same prompt, also after a restart.

    {"pace": 0.01, "replies": {"Index": ["/agent scout look", "Scout says hi."], "Scout": ["hi"]}}

An agent's nth reply to a request is the nth in the list under its name; the last one stands for all that follow. `pace` is
how many seconds there are between two words. For tests that kill a hub, and for showing one without a key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.hub.models.model import About, Delta, ModelError, ModelEvent, Prompt, Stop, Usage

_NAME = re.compile(r"^NAME: (.+)$", re.MULTILINE)


class Script(Struct, frozen=True):
    replies: dict[str, tuple[str, ...]]
    pace: float = 0.0


class FiledModel:
    def __init__(self, path: str | Path) -> None:
        self._script = msgspec.json.decode(Path(path).read_bytes(), type=Script)

    def about(self, name: str) -> About:
        return About(name=name or "scripted")

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        found = _NAME.search(prompt.system)
        replies = self._script.replies.get(found[1].strip() if found else "", self._script.replies.get("*"))
        if not replies:
            raise ModelError("provider_error", "the script has no part for this agent")
        asked = max((n for n, m in enumerate(prompt.messages) if m.content.startswith("QUERY:")), default=-1)
        said = sum(message.role == "assistant" for message in prompt.messages[asked + 1 :])
        words = replies[min(said, len(replies) - 1)].split(" ")
        for n, word in enumerate(words):
            yield Delta(f" {word}" if n else word)
            await asyncio.sleep(self._script.pace)
        yield Usage(
            input_tokens=sum(len(m.content.split()) for m in prompt.messages), output_tokens=len(words)
        )
        yield Stop()


class EchoModel:
    """No model at all: it says what it was told. For a hub that has nothing better yet."""

    plain = True

    def about(self, name: str) -> About:
        return About(name="echo")

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        text = prompt.messages[-1].content.rpartition("QUERY: ")[2]
        words = f"(there is no model here, so this only repeats what you said) {text}".split(" ")
        for n, word in enumerate(words):
            yield Delta(f" {word}" if n else word)
            await asyncio.sleep(0)
        yield Usage(input_tokens=len(text.split()), output_tokens=len(words))
        yield Stop()
