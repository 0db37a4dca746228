"""A language model, as far as the hub needs to know one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol, TypeAlias

from msgspec import Struct


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as models that call tools natively see it."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolCall(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    arguments: dict[str, Any]


class ChatMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str
    """`user`, `assistant` or `tool`."""
    content: str
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


class Stop(Struct, frozen=True):
    reason: str = "end_turn"


ModelEvent: TypeAlias = Delta | ToolCall | Usage | Stop


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


def calls_tools(model: Model, name: str) -> bool:
    """Whether a prompt for the model `name` may offer tools to call. Models that say nothing write commands instead."""
    asked = getattr(model, "calls_tools", None)
    return asked is not None and bool(asked(name))
