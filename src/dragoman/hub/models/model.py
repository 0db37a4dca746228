"""A language model, as far as the hub needs to know one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as models that call tools natively see it."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolCall(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    arguments: dict[str, Any]


class Image(Struct, frozen=True, kw_only=True):
    """A picture for models that see."""

    media_type: str
    content: bytes

    @property
    def title(self) -> str:
        return f"{self.media_type}, {len(self.content)} bytes"


class ChatMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str
    """`user`, `assistant` or `tool`."""
    content: str
    images: tuple[Image, ...] = ()
    """Only for a model that sees, and only in what a user says."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class Prompt(Struct, frozen=True, kw_only=True):
    model: str
    """`provider/name`, as a constitution has it; empty for the hub's default."""
    system: str
    messages: tuple[ChatMessage, ...]
    max_tokens: int = 1024
    temperature: float = 0.3
    tools: tuple[ToolSpec, ...] = ()


class Delta(Struct, frozen=True):
    text: str


class Usage(Struct, frozen=True, kw_only=True):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_create_tokens: int = 0
    estimated: bool = False
    """The model broke off, or was broken off, before it said."""

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, more: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + more.input_tokens,
            output_tokens=self.output_tokens + more.output_tokens,
            cache_read_tokens=self.cache_read_tokens + more.cache_read_tokens,
            cache_create_tokens=self.cache_create_tokens + more.cache_create_tokens,
            estimated=self.estimated or more.estimated,
        )


class Stop(Struct, frozen=True):
    reason: str = "end_turn"


ModelEvent: TypeAlias = Delta | ToolCall | Usage | Stop


CHARACTERS_PER_TOKEN = 4
"""In a token, about."""


def estimate(prompt: Prompt, written: int) -> Usage:
    """What a call used that did not live to say: of which so many characters had come."""
    read = len(prompt.system) + sum(len(message.content) for message in prompt.messages)
    return Usage(
        input_tokens=-(-read // CHARACTERS_PER_TOKEN),
        output_tokens=-(-written // CHARACTERS_PER_TOKEN),
        estimated=True,
    )


class ModelError(Exception):
    """A provider failed. `code` and the message are safe to show; what the provider said goes to the log only.

    Codes: auth_failed cancelled rate_limited invalid_request not_found request_too_large provider_error circuit_open
    """

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.retryable = code, message, retryable


class Model(Protocol):
    def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Stream an answer. Raises `ModelError`. Closing the iterator stops the generation."""
        ...


class ModelTraits(Struct, frozen=True, kw_only=True):
    """What a model is, and what a prompt for it may hold."""

    name: str = ""
    """`provider/name`, also of one that is meant without being named."""
    known: bool = True
    """There is such a provider."""
    tools: bool = False
    """It calls tools. One that does not writes commands instead."""
    window: int = 0
    """Tokens that it reads at once; 0: it does not say, or it sees to that itself."""
    sees: bool = False
    """It is shown pictures. One that is not is told that there was one."""


def traits_of(model: Model, name: str) -> ModelTraits:
    """The model that a prompt for `name` goes to. One that says nothing about itself reads and writes text."""
    asked = getattr(model, "traits", None)
    return asked(name) if asked is not None else ModelTraits(name=name)


def without_images(message: ChatMessage) -> ChatMessage:
    """A message for a model that does not see."""
    lines = [f"[a picture ({image.title}), which this model cannot see]" for image in message.images]
    return replace(message, content="\n".join([message.content, *lines]), images=()) if lines else message


_SURROGATE = re.compile("[\ud800-\udfff]")
_HIGH_SURROGATE = re.compile("[\ud800-\udbff]\\Z")


def repair_text(text: str) -> str:
    """With halves that belong together as one character, and U+FFFD for those that do not."""
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class TextRepair:
    """Text that comes in pieces."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be said by now."""
        text, self._held = self._held + piece, ""
        if _HIGH_SURROGATE.search(text) is not None:
            text, self._held = text[:-1], text[-1]
        return repair_text(text)

    def close(self) -> str:
        """What is left."""
        return repair_text(self._held)
