"""Models of providers, through any-llm: `openai/gpt-...`, `anthropic/...`, `openrouter/...`, `ollama/...`.

A provider's error message is only logged, because it may contain keys and prompts; callers get a code and a fixed sentence.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from importlib.util import find_spec
from threading import Thread
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.hub.models import (
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


MAX_REMEMBERED_MODELS = 256
"""Of models that refuse a parameter: their names come from tenants."""


def _is_among(name: str, patterns: Sequence[str]) -> bool:
    """Whether a model is one of these: `provider`, `provider/name`, or the start of a name and `*`."""
    provider = name.partition("/")[0]
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else pattern in (name, provider)
        for pattern in patterns
    )


class HostedModel:
    """`default` is the model of constitutions that name none. `options` go to any-llm (`api_base`, `api_key`).

    `text_commands`: models that write commands, because they cannot call tools. `plain`: models that are too small for commands.
    Both are providers (`ollama`), models (`ollama/gemma3`) or starts of their names (`ollama/gemma*`); `*` is all of them.
    Images go to providers that take them; a provider that refuses them is asked again without. Likewise a model that refuses
    `temperature`, as many that reason do, and one that takes tools only if it does not reason. `window`: context window in tokens.
    """

    def __init__(
        self,
        default: str,
        *,
        completion: Callable[..., Any] | None = None,
        text_commands: Sequence[str] = (),
        plain: Sequence[str] = (),
        window: int = 0,
        **options: Any,
    ) -> None:
        if completion is None:
            # load the libraries before anybody waits for them; without a default, perhaps nobody ever does
            if default:
                _load(default.partition("/")[0])
            else:
                Thread(target=_load, daemon=True).start()
        self._completion = completion
        self._default, self._options = default, options
        self._text_commands, self._plain = tuple(text_commands), tuple(plain)
        self._window = window
        self._without_temperature: set[str] = set()
        """Models that have refused it."""
        self._without_reasoning: set[str] = set()
        """Models that have refused tools while they reason."""

    def traits(self, name: str) -> ModelTraits:
        name = name or self._default
        provider = name.partition("/")[0]
        plain = _is_among(name, self._plain)
        return ModelTraits(
            name=name,
            known=provider in _providers(),
            tools=not plain and not _is_among(name, self._text_commands),
            plain=plain,
            sees=_takes_pictures(provider),
            window=self._window,
        )

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        begun = False
        while True:
            try:
                async with aclosing(self._respond(prompt)) as events:
                    async for event in events:
                        begun = True
                        yield event
                return
            except ModelError as error:
                again = None if begun or error.code != "invalid_request" else self._less(prompt, error)
                if again is None:
                    raise
                prompt = again

    def _less(self, prompt: Prompt, error: ModelError) -> Prompt | None:
        """The prompt without what the model has refused; None if there is nothing to leave out."""
        name, why = prompt.model or self._default, str(error.__cause__).lower()
        for word, models in (
            ("temperature", self._without_temperature),
            ("reasoning_effort", self._without_reasoning if prompt.tools else None),
        ):
            if (
                models is not None
                and word in why
                and name not in models
                and len(models) < MAX_REMEMBERED_MODELS
            ):
                models.add(name)
                return prompt
        if any(message.images for message in prompt.messages):
            return replace(prompt, messages=tuple(without_images(message) for message in prompt.messages))
        return None

    async def _respond(self, prompt: Prompt) -> AsyncGenerator[ModelEvent]:
        model = prompt.model or self._default
        provider, _, name = model.partition("/")
        sampling: dict[str, Any] = {}
        if model not in self._without_temperature:
            sampling["temperature"] = prompt.temperature
        if prompt.tools and model in self._without_reasoning:
            sampling["reasoning_effort"] = "none"
        try:
            stream = await (self._completion or _acompletion())(
                model=name,
                provider=provider,
                messages=_messages(prompt),
                max_tokens=prompt.max_tokens,
                stream=True,
                stream_options={"include_usage": True},
                **sampling,
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


def _load(provider: str = "") -> None:
    """Import any-llm, and the library of a provider."""
    _acompletion()
    _takes_pictures(provider)


def _acompletion() -> Callable[..., Any]:
    from any_llm import acompletion

    call: Callable[..., Any] = acompletion
    return call


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
