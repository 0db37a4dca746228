"""Models without a provider: one that reads its replies from a file, one that echoes, and one for the demo."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.hub.models.model import Delta, ModelError, ModelEvent, ModelTraits, Prompt, Stop, Usage
from dragoman.hub.quote import unquote


async def _stream_words(text: str, seconds: float, prompt: Prompt) -> AsyncIterator[ModelEvent]:
    """A reply, word by word, and its usage: a word is a token."""
    words = text.split(" ")
    for n, word in enumerate(words):
        yield Delta(f" {word}" if n else word)
        await asyncio.sleep(seconds)
    asked = sum(len(message.content.split()) for message in prompt.messages)
    yield Usage(input_tokens=asked, output_tokens=len(words))
    yield Stop()


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
        async for event in _stream_words(replies[min(answered, len(replies) - 1)], self._script.pace, prompt):
            yield event


class EchoModel:
    """No model at all: it repeats the question."""

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name="echo", plain=True)

    def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        text = prompt.messages[-1].content.rpartition("QUERY: ")[2]
        return _stream_words(
            f"(there is no model here, so this only repeats what you said) {text}", 0, prompt
        )


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

    def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        return _stream_words(demo_reply(prompt), _WORD_SECONDS, prompt)


def demo_reply(prompt: Prompt) -> str:
    last = prompt.messages[-1].content if prompt.messages else ""
    end = last.rfind(_RESULT_END)
    if end >= 0 and (result := _RESULT.search(last, 0, end)):
        return f"The {result[1]} agent says: {unquote(last[result.end() + 1 : end]).strip()}"
    company, _, query = last.rpartition("QUERY: ")
    query = " ".join(query[:_QUERY_CHARACTERS].split())
    for agent, words in _RULES:
        if f"\n  {agent} (" in company and words.search(query):
            return f"/agent {agent} {query}"
    return _ABOUT_ME
