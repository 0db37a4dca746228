"""Models without a provider: scripted ones for tests and demonstrations, and one that echoes.

Each reply is a text, a `ModelError` to raise, or a tuple of texts, errors, tool calls and events to stream. `by_agent` answers by a word of the system prompt, so that several agents can share one script.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from dragoman.hub.models.model import (
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


_NAME_LINE = re.compile(r"^NAME: (.+)$", re.MULTILINE)


class Script(Struct, frozen=True):
    replies: dict[str, tuple[str, ...]]
    pace: float = 0.0


class ScriptFileModel:
    def __init__(self, path: str | Path) -> None:
        """Raises `ModelError` if the file has no script."""
        try:
            self._script = msgspec.json.decode(Path(path).read_bytes(), type=Script)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            why = "there is no such file" if missing else (error.strerror or "").lower()
            raise ModelError(
                "not_found", f"the script {str(path)!r} of the model cannot be read: {why}"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ModelError(
                "invalid_request", f"the script {str(path)!r} of the model is not a script: {error}"
            ) from None

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name=name or "scripted")

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        found = _NAME_LINE.search(prompt.system)
        replies = self._script.replies.get(found[1].strip() if found else "", self._script.replies.get("*"))
        if not replies:
            raise ModelError("provider_error", "the script has no part for this agent")
        asked = max((n for n, m in enumerate(prompt.messages) if m.content.startswith("QUERY:")), default=-1)
        answered = sum(message.role == "assistant" for message in prompt.messages[asked + 1 :])
        words = replies[min(answered, len(replies) - 1)].split(" ")
        for n, word in enumerate(words):
            yield Delta(f" {word}" if n else word)
            await asyncio.sleep(self._script.pace)
        yield Usage(
            input_tokens=sum(len(m.content.split()) for m in prompt.messages), output_tokens=len(words)
        )
        yield Stop()


class EchoModel:
    """No model at all: it repeats the question."""

    plain = True

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name="echo")

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        text = prompt.messages[-1].content.rpartition("QUERY: ")[2]
        words = f"(there is no model here, so this only repeats what you said) {text}".split(" ")
        for n, word in enumerate(words):
            yield Delta(f" {word}" if n else word)
            await asyncio.sleep(0)
        yield Usage(input_tokens=len(text.split()), output_tokens=len(words))
        yield Stop()


_RULES = (
    ("currency", re.compile(r"\b(USD|EUR|GBP|INR|JPY|CHF)\b", re.IGNORECASE)),
    ("report", re.compile(r"\breports?\b", re.IGNORECASE)),
    ("hello", re.compile(r"\b(greet|hello to|hi to)\b", re.IGNORECASE)),
)
"""The agent for a question, by its words."""
_RESULT = re.compile(r"^\[/agent ([^\s\]]++)[^\n]*\]$", re.MULTILINE)
_RESULT_END = "\n[END AGENT]"
_QUERY_CHARACTERS = 2000
_WORD_SECONDS = 0.02

_ABOUT_ME = """\
I am a script, not a language model: I know which agent is for which question, and pass on what it says. Ask me "how much is \
10 USD in INR?", or to write a report about something. With the key of a provider in the environment (OPENAI_API_KEY, \
ANTHROPIC_API_KEY, ...) this hub has a real model."""


class DemoModel:
    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name="demo")

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        words = demo_reply(prompt).split(" ")
        for n, word in enumerate(words):
            yield Delta(f" {word}" if n else word)
            await asyncio.sleep(_WORD_SECONDS)
        asked = sum(len(message.content.split()) for message in prompt.messages)
        yield Usage(input_tokens=asked, output_tokens=len(words))
        yield Stop()


def demo_reply(prompt: Prompt) -> str:
    last = prompt.messages[-1].content if prompt.messages else ""
    end = last.rfind(_RESULT_END)
    if end >= 0 and (result := _RESULT.search(last, 0, end)):
        return f"The {result[1]} agent says: {last[result.end() : end].strip()}"
    company, _, query = last.rpartition("QUERY: ")
    query = " ".join(query[:_QUERY_CHARACTERS].split())
    for agent, words in _RULES:
        if f"\n  {agent} (" in company and words.search(query):
            return f"/agent {agent} {query}"
    return _ABOUT_ME
