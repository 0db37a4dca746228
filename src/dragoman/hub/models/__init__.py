"""The interface of a language model."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool for models that call tools natively."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolCall(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    arguments: dict[str, Any]


IMAGE_TYPE = re.compile(r"image/[\w.+-]{1,64}", re.ASCII)
"""The media type of an image. It is checked because it comes from outside, and prompts contain it."""


class Image(Struct, frozen=True, kw_only=True):
    """An image for models that take images. `media_type` is an `IMAGE_TYPE`."""

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
    """Only for a model that takes images, and only in user messages."""
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
    """The reply was interrupted before the model reported its usage."""

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
"""An estimate."""


def estimate(prompt: Prompt, output_characters: int) -> Usage:
    """The estimated usage of a call that was interrupted after so many characters of its reply."""
    input_characters = len(prompt.system) + sum(len(message.content) for message in prompt.messages)
    return Usage(
        input_tokens=-(-input_characters // CHARACTERS_PER_TOKEN),
        output_tokens=-(-output_characters // CHARACTERS_PER_TOKEN),
        estimated=True,
    )


class ModelError(Exception):
    """A provider failed. `code` and the message are safe to show; the provider's own message is only logged.

    Codes: auth_failed cancelled rate_limited invalid_request not_found request_too_large provider_error circuit_open
    """

    def __init__(self, code: str, message: str, *, retryable: bool = False, retry_after: float = 0.0) -> None:
        """`retry_after`: seconds that the provider asks to wait."""
        super().__init__(message)
        self.code, self.message, self.retryable, self.retry_after = code, message, retryable, retry_after


class Model(Protocol):
    def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Stream a reply. Raises `ModelError`. Closing the iterator stops the generation."""
        ...

    def traits(self, name: str) -> ModelTraits:
        """The traits of the model that a prompt for `name` goes to."""
        ...


class ModelTraits(Struct, frozen=True, kw_only=True):
    """What a model supports."""

    name: str = ""
    """`provider/name`, also of the default model."""
    known: bool = True
    """The provider exists."""
    tools: bool = False
    """It calls tools natively; otherwise it writes commands."""
    plain: bool = False
    """It is too small for a list of commands: its prompt has only the question."""
    window: int = 0
    """Context window in tokens; 0: unknown."""
    sees: bool = False
    """It takes images; otherwise the prompt mentions them in words."""


def without_images(message: ChatMessage) -> ChatMessage:
    """The message for a model that takes no images."""
    lines = [f"[a picture ({image.title}), which this model cannot see]" for image in message.images]
    return replace(message, content="\n".join([message.content, *lines]), images=()) if lines else message


_SURROGATE = re.compile("[\ud800-\udfff]")
_HIGH_SURROGATE = re.compile("[\ud800-\udbff]\\Z")


def repair_text(text: str) -> str:
    """Join surrogate pairs, and replace single surrogates by U+FFFD."""
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class TextRepair:
    """Repairs text that comes in pieces. Some providers split a reply inside a character."""

    def __init__(self) -> None:
        self._half = ""
        """The first half of a surrogate pair, at the end of the last piece."""

    def feed(self, piece: str) -> str:
        """The text that is complete so far."""
        text, self._half = self._half + piece, ""
        if _HIGH_SURROGATE.search(text) is not None:
            text, self._half = text[:-1], text[-1]
        return repair_text(text)

    def close(self) -> str:
        """The rest, after the last piece."""
        return repair_text(self._half)
