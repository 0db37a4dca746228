"""Models of providers, through any-llm: `openai/gpt-...`, `anthropic/...`, `openrouter/...`, `ollama/...`.

A provider's error message is only logged, because it may contain keys and prompts; callers get a code and a fixed sentence.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from threading import Thread
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.client.transport.transport import retry_after
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
from dragoman.hub.models.calls import may_ask
from dragoman.hub.settings import PROVIDER_KEYS
from dragoman.hub.tenants.policy import matches_any
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


def describe_problem(model: str, environment: Mapping[str, str]) -> str:
    """Why every request to a model of a provider will fail: an unknown provider, or a missing key. Empty if neither is known."""
    provider, slash, _ = model.partition("/")
    if slash and ":" not in provider and find_spec("any_llm") is not None and provider not in _providers():
        close = get_close_matches(provider, _providers(), 1)
        return "has an unknown provider" + (f" (did you mean {close[0]!r}?)" if close else "")
    name = find_missing_key(model, environment)
    return f"needs a key in {name}, which is not set" if name else ""


def find_missing_key(model: str, environment: Mapping[str, str]) -> str:
    """The unset environment variable for the key of a model's provider; empty if the key is set or not needed."""
    provider, slash, _ = model.partition("/")
    if not slash or ":" in provider:
        return ""
    names = [
        key for key, example in PROVIDER_KEYS.items() if example.startswith(f"{provider}/")
    ] or _key_variables(provider)
    return "" if any(environment.get(name) for name in names) else " or ".join(names)


def _key_variables(provider: str) -> list[str]:
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
"""Models whose refusals of a parameter are stored. Tenants choose the names, and could choose any number."""


class HostedModel:
    """`default` is the model of constitutions that name none. `options` go to any-llm (`api_base`, `api_key`).

    `text_commands`: models that write commands as text, because they cannot call tools. `plain`: models that are too small for commands.
    Both are providers (`ollama`), models (`ollama/gemma3`) or patterns of their names (`ollama/gemma*`, `*`). `window`: context window
    in tokens.

    If a model refuses something, it is asked again without it: images; `temperature`, which many reasoning models refuse; reasoning,
    if it refuses to reason and call tools in the same request.
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
            # import the libraries before the first request; without a default model on a thread, because there may never be one
            if default:
                _import_libraries(default.partition("/")[0])
            else:
                Thread(target=_import_libraries, daemon=True).start()
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
        plain = provider in self._plain or matches_any(name, self._plain)
        writes = provider in self._text_commands or matches_any(name, self._text_commands)
        return ModelTraits(
            name=name,
            known=provider in _providers(),
            tools=not plain and not writes,
            plain=plain,
            sees=_takes_images(provider),
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
                reduced = (
                    None if begun or error.code != "invalid_request" else self._without_refused(prompt, error)
                )
                if reduced is None:
                    raise
                prompt = reduced
                await may_ask()

    def _without_refused(self, prompt: Prompt, error: ModelError) -> Prompt | None:
        """The prompt for another attempt without what the model refused; None if there is nothing to leave out."""
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
                **_client_options(provider),
                **self._options,
            )
            async for event in _events(stream):
                yield event
        except ModelError:
            raise
        except Exception as error:  # each provider's library has its own kinds
            raise _to_model_error(error, provider) from error


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
        yield ToolCall(id=whole["id"], name=whole["name"], arguments=_parse_arguments(whole["arguments"]))
    yield Stop(stop)


def _parse_arguments(text: str) -> dict[str, Any]:
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
            *({"type": "image_url", "image_url": {"url": _data_url(i)}} for i in message.images),
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


def _data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.content).decode()}"


def _import_libraries(provider: str = "") -> None:
    """Import any-llm, and the library of a provider."""
    _acompletion()
    _takes_images(provider)


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
def _takes_images(provider: str) -> bool:
    """Whether any-llm says that the provider takes images; True if unknown."""
    try:
        from any_llm import AnyLLM

        return bool(AnyLLM.get_provider_class(provider).SUPPORTS_COMPLETION_IMAGE)
    except Exception:  # each provider's library has its own kinds
        return True


@lru_cache(maxsize=64)
def _client_options(provider: str) -> Mapping[str, Any]:
    """Options that turn off retries in the library of a provider: `RetryingModel` retries, and counts."""
    try:
        from any_llm import AnyLLM

        can = AnyLLM.get_provider_class(provider).MAX_RETRIES_SUPPORT != "unsupported"
    except Exception:  # each provider's library has its own kinds; an older any-llm does not say
        can = False
    return {"client_args": {"max_retries": 0}} if can else {}


def _tools(prompt: Prompt) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in prompt.tools
    ]


def _to_model_error(error: Exception, provider: str) -> ModelError:
    """Log the error of a provider's library, and return the one that callers may see."""
    logger.warning("the provider %s failed: %s", provider[:40], describe(error))
    status = getattr(error, "status_code", None)
    code = _CODES.get(type(error).__name__) or _STATUSES.get(status or 0) or "provider_error"
    retryable = code == "rate_limited" or (code == "provider_error" and (status is None or status >= 500))
    return ModelError(code, _SENTENCES[code], retryable=retryable, retry_after=_retry_after(error))


def _retry_after(error: Exception) -> float:
    """The seconds in the `Retry-After` header of the failed response; 0 if there is none."""
    response = getattr(getattr(error, "original_exception", error), "response", None)
    headers = getattr(response, "headers", None) or {}
    return retry_after(headers.get("retry-after", "")) or 0.0
