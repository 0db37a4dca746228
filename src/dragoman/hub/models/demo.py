"""A model for `dragoman hub --demo` where there is none: a few rules that hand work to the agent it is for.

It writes the same commands as a language model (`/agent currency ...`), so the hub does for it what it does for one: the
delegation is real, and so is the answer. What to say depends on the prompt alone, so it is the same after a crash.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from dragoman.hub.models.model import About, Delta, ModelEvent, Prompt, Stop, Usage

_RULES = (
    ("currency", re.compile(r"\b(USD|EUR|GBP|INR|JPY|CHF)\b", re.IGNORECASE)),
    ("report", re.compile(r"\breports?\b", re.IGNORECASE)),
    ("hello", re.compile(r"\b(greet|hello to|hi to)\b", re.IGNORECASE)),
)
"""Which agent a question is for, by its words. Agents that are not there are not asked."""
_RESULT = re.compile(r"^\[/agent ([^\s\]]++)[^\n]*\]$", re.MULTILINE)
_RESULT_END = "\n[END AGENT]"
_QUERY_CHARACTERS = 2000
_WORD_SECONDS = 0.02

_ABOUT_ME = """\
I am a script, not a language model: I know which agent is for which question, and pass on what it says. Ask me "how much is \
10 USD in INR?", or to write a report about something. With the key of a provider in the environment (OPENAI_API_KEY, \
ANTHROPIC_API_KEY, ...) this hub has a real model."""


class DemoModel:
    def about(self, name: str) -> About:
        return About(name="demo")

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        words = reply(prompt).split(" ")
        for n, word in enumerate(words):
            yield Delta(f" {word}" if n else word)
            await asyncio.sleep(_WORD_SECONDS)
        asked = sum(len(message.content.split()) for message in prompt.messages)
        yield Usage(input_tokens=asked, output_tokens=len(words))
        yield Stop()


def reply(prompt: Prompt) -> str:
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
