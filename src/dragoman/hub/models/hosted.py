"""Models of providers, through any-llm: `openai/gpt-...`, `anthropic/...`, `openrouter/...`, `ollama/...`.

A provider's error message is only logged, because it may contain keys and prompts; callers get a code and a fixed sentence.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.hub.models.model import (
    ChatMessage,
    Delta,
    Image,
    ModelError,
    ModelEvent,
    ModelTraits,
    Prompt,
    Stop,
    ToolCall,
    Usage,
    repair_text,
    without_images,
)
from dragoman.hub.settings import KEYS
from dragoman.observe.logs import describe

logger = logging.getLogger("dragoman.models")

_SENTENCES = {
    "auth_failed": "the model provider did not accept the hub's credentials",
    "rate_limited": "the model provider is busy; try again later",
    "invalid_request": "the model provider did not accept the request",
    "not_found": "the model provider has no such model",
    "request_too_large": "the request is too large for the model",
    "provider_error": "the model provider failed",
}
_CODES = {
    "AuthenticationError": "auth_failed",
    "MissingApiKeyError": "auth_failed",
    "InsufficientFundsError": "auth_failed",
    "RateLimitError": "rate_limited",
    "InvalidRequestError": "invalid_request",
    "UnsupportedParameterError": "invalid_request",
    "ContentFilterError": "invalid_request",
    "ModelNotFoundError": "not_found",
    "UnsupportedProviderError": "not_found",
    "ContextLengthExceededError": "request_too_large",
}
_STATUSES = {
    400: "invalid_request",
    401: "auth_failed",
    403: "auth_failed",
    404: "not_found",
    413: "request_too_large",
    429: "rate_limited",
}
_STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


_OTHER_CREDENTIALS = ("bedrock", "sagemaker", "vertexai", "vertexaianthropic", "azure", "azureopenai")
"""Providers that also accept cloud credentials."""


def missing_key(model: str, environment: Mapping[str, str]) -> str:
    """The unset environment variable for the key of a model's provider; empty if the key is set or not needed."""
    provider, slash, _ = model.partition("/")
    if not slash or ":" in provider:
        return ""
    names = [key for key, example in KEYS.items() if example.startswith(f"{provider}/")] or _names_of_key(
        provider
    )
    return "" if any(environment.get(name) for name in names) else " or ".join(names)


def _names_of_key(provider: str) -> list[str]:
    """The names of a provider's key variable, from any-llm; none if it needs no key."""
    if find_spec("any_llm") is None or provider in _OTHER_CREDENTIALS:
        return []
    try:
        from any_llm import AnyLLM

        name = AnyLLM.get_provider_class(provider).ENV_API_KEY_NAME or ""
    except Exception:  # each provider's library has its own kinds
        return []
    return [each for each in name.split("/") if each.isupper()]  # "None", of those that take none


class HostedModel:
    """`default` is the model of constitutions that name none. `options` go to any-llm (`api_base`, `api_key`).

    `tools`: call tools natively; otherwise the model writes commands. Images go to providers that take them; a provider that
    refuses them is asked again without. `window`: context window in tokens.
    """

    def __init__(
        self,
        default: str,
        *,
        completion: Callable[..., Any] | None = None,
        tools: bool = True,
        window: int = 0,
        **options: Any,
    ) -> None:
        if completion is None:
            from any_llm import acompletion

            completion = acompletion
            _takes_pictures(
                default.partition("/")[0]
            )  # loads the provider's library before anybody waits for it
        self._completion: Callable[..., Any] = completion
        self._default, self._options, self._tools = default, options, tools
        self._window = window

    def traits(self, name: str) -> ModelTraits:
        name = name or self._default
        provider = name.partition("/")[0]
        known, sees = provider in _providers(), _takes_pictures(provider)
        return ModelTraits(name=name, known=known, tools=self._tools, sees=sees, window=self._window)

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        begun = False
        try:
            async with aclosing(self._respond(prompt)) as events:
                async for event in events:
                    begun = True
                    yield event
            return
        except ModelError as error:
            if begun or error.code != "invalid_request" or not any(m.images for m in prompt.messages):
                raise
        words = replace(prompt, messages=tuple(without_images(message) for message in prompt.messages))
        async with aclosing(self._respond(words)) as events:
            async for event in events:
                yield event

    async def _respond(self, prompt: Prompt) -> AsyncGenerator[ModelEvent]:
        provider, _, name = (prompt.model or self._default).partition("/")
        try:
            stream = await self._completion(
                model=name,
                provider=provider,
                messages=_messages(prompt),
                max_tokens=prompt.max_tokens,
                temperature=prompt.temperature,
                stream=True,
                stream_options={"include_usage": True},
                **({"tools": _tools(prompt)} if prompt.tools else {}),
                **self._options,
            )
            async for event in _events(stream):
                yield event
        except ModelError:
            raise
        except Exception as error:  # each provider's library has its own kinds
            raise _sanitized(error, provider) from error


async def _events(stream: Any) -> AsyncIterator[ModelEvent]:
    calls: dict[int, dict[str, list[str]]] = {}
    stop = "end_turn"
    async for chunk in stream:
        if (usage := getattr(chunk, "usage", None)) is not None:
            details = getattr(usage, "prompt_tokens_details", None)
            yield Usage(
                input_tokens=usage.prompt_tokens or 0,
                output_tokens=usage.completion_tokens or 0,
                cache_read_tokens=getattr(details, "cached_tokens", 0) or 0,
            )
        for choice in chunk.choices[:1]:
            if choice.delta.content:
                yield Delta(choice.delta.content)
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(part.index, {"id": [], "name": [], "arguments": []})
                call["id"] = [part.id] if part.id else call["id"]
                if part.function is not None:
                    call["name"].append(part.function.name or "")
                    call["arguments"].append(part.function.arguments or "")
            if choice.finish_reason:
                stop = _STOPS.get(choice.finish_reason, choice.finish_reason)
    for call in calls.values():
        whole = {member: repair_text("".join(pieces)) for member, pieces in call.items()}
        yield ToolCall(id=whole["id"], name=whole["name"], arguments=_arguments(whole["arguments"]))
    yield Stop(stop)


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        value = text
    return value if isinstance(value, dict) else {"args": str(value)}


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    return [{"role": "system", "content": prompt.system}, *(_message(message) for message in prompt.messages)]


def _message(message: ChatMessage) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.images:
        words = [{"type": "text", "text": message.content}] if message.content else []
        out["content"] = [
            *words,
            *({"type": "image_url", "image_url": {"url": _url(i)}} for i in message.images),
        ]
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    return out


def _url(image: Image) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.content).decode()}"


@lru_cache(maxsize=1)
def _providers() -> frozenset[str]:
    """The providers of any-llm."""
    from any_llm import AnyLLM

    return frozenset(AnyLLM.get_supported_providers())


@lru_cache(maxsize=64)
def _takes_pictures(provider: str) -> bool:
    """Whether any-llm says that the provider takes images; True if unknown."""
    try:
        from any_llm import AnyLLM

        return bool(AnyLLM.get_provider_class(provider).SUPPORTS_COMPLETION_IMAGE)
    except Exception:  # each provider's library has its own kinds
        return True


def _tools(prompt: Prompt) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in prompt.tools
    ]


def _sanitized(error: Exception, provider: str) -> ModelError:
    logger.warning("the provider %s failed: %s", provider[:40], describe(error))
    status = getattr(error, "status_code", None)
    code = _CODES.get(type(error).__name__) or _STATUSES.get(status or 0) or "provider_error"
    retryable = code == "rate_limited" or (code == "provider_error" and (status is None or status >= 500))
    return ModelError(code, _SENTENCES[code], retryable=retryable)
