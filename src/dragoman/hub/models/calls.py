"""How a model is called: recorded, so that a turn that runs again after a crash does not ask again; and retried, per provider.

A reply has the text, the usage, why it stopped, or how it failed. It is recorded before it is used.

The provider is the part of a model's name before the slash. A call is retried only before its first token. After five failures
in a row, calls to the provider are refused for half a minute, then one may try.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

import msgspec
from msgspec import Struct

from dragoman.engine.turn import Turn, record_of
from dragoman.hub.models import (
    Delta,
    Model,
    ModelError,
    ModelEvent,
    ModelTraits,
    Prompt,
    Stop,
    TextRepair,
    ToolCall,
    Usage,
    estimate,
    traits_of,
)

NOT_ASKED = (
    "budget_exhausted",
    "price_unknown",
    "model_not_allowed",
    "unauthorized",
    "circuit_open",
)
"""Errors of calls that the hub refuses: they are no calls of a model."""

OnText = Callable[[str], Awaitable[None]]
OnCancel = Callable[[Usage], Awaitable[None]]


class ModelReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    stop: str = "end_turn"
    error: str = ""
    """Safe to show; empty on success."""
    error_code: str = ""

    @property
    def asked(self) -> bool:
        """Whether a model was asked at all: the hub refuses some calls before that."""
        return self.error_code not in NOT_ASKED

    def followed_by(self, more: ModelReply) -> ModelReply:
        """This reply joined with its continuation."""
        return msgspec.structs.replace(more, text=self.text + more.text, usage=self.usage + more.usage)


async def ask(
    turn: Turn,
    key: str,
    model: Model,
    prompt: Prompt,
    on_text: OnText | None = None,
    on_cancel: OnCancel | None = None,
) -> ModelReply:
    """The model's reply to `prompt`, asked once in this turn. `on_text` gets the text as it is generated.

    `on_cancel` gets the estimated usage of a call that is canceled.
    """
    if (reply := recorded_reply(turn, key)) is not None:
        if on_text is not None:
            await on_text(reply.text)
        return reply
    await record_of(turn).may_begin()
    reply = await respond(model, prompt, on_text, on_cancel)
    await record_of(turn).record(key, reply)
    return reply


def recorded_reply(turn: Turn, key: str) -> ModelReply | None:
    """The recorded reply."""
    step = record_of(turn).steps.get(key)
    return None if step is None else msgspec.json.decode(step.value, type=ModelReply)


async def respond(
    model: Model, prompt: Prompt, on_text: OnText | None = None, on_cancel: OnCancel | None = None
) -> ModelReply:
    """`ask`, without a record of it."""
    pieces: list[str] = []
    calls: list[ToolCall] = []
    characters = TextRepair()

    async def say(text: str) -> None:
        if text:
            pieces.append(text)
            if on_text is not None:
                await on_text(text)

    usage, stop, failed = Usage(), "end_turn", ModelError("", "")
    try:
        async with aclosing(cast(Any, model.respond(prompt))) as stream:
            events: AsyncIterator[Any] = stream
            async for event in events:
                match event:
                    case Delta(text):
                        await say(characters.feed(text))
                    case ToolCall():
                        calls.append(event)
                    case Usage():
                        usage = event
                    case Stop(reason):
                        stop = reason
        await say(characters.close())
    except ModelError as error:
        failed, stop, calls = error, "error", []
    except asyncio.CancelledError:
        if pieces and on_cancel is not None:
            await on_cancel(usage if usage.total else estimate(prompt, len("".join(pieces))))
        raise
    text = "".join(pieces)
    if failed.message and text and not usage.total:
        usage = estimate(prompt, len(text))
    return ModelReply(
        text=text,
        tool_calls=tuple(calls),
        usage=usage,
        stop=stop,
        error=failed.message,
        error_code=failed.code,
    )


# -- providers: choose, retry, break the circuit -----------------------------------------------------------


class ModelByProvider:
    """`models` by provider; `""` takes prompts that name no model, `*` those of every other provider."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = dict(models)

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        model = self._find(prompt.model)
        if model is None:
            raise ModelError("not_found", f"there is no model {prompt.model[:80]!r} here")
        async for event in model.respond(prompt):
            yield event

    def traits(self, name: str) -> ModelTraits:
        model = self._find(name)
        return traits_of(model, name) if model is not None else ModelTraits(name=name, known=False)

    def _find(self, name: str) -> Model | None:
        provider, slash, _ = name.partition("/")
        if not slash and provider not in self._models:  # `embedded` is a name without a slash
            provider = ""
        return self._models.get(provider) or self._models.get("*") or self._models.get("")


RETRY_WAITS_SECONDS = (1.0, 2.0)
"""Seconds before the second and the third attempt."""

_KINDS = {"rate_limited": "429", "provider_error": "5xx"}
"""Failures of the provider. No answer at all counts as 5xx."""


class _Circuit(Struct):
    """The recent failures of a provider."""

    failures: int = 0
    until: float = 0.0
    trying: bool = False


class RetryingModel:
    """`counted(provider, what)` counts `calls`, `retries`, `failures`, `429`, `5xx` and `circuit_open`."""

    def __init__(
        self,
        model: Model,
        *,
        waits: tuple[float, ...] = RETRY_WAITS_SECONDS,
        threshold: int = 5,
        open_seconds: float = 30.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        counted: Callable[[str, str], None] | None = None,
    ) -> None:
        self._model, self._waits = model, waits
        self._threshold, self._open_seconds = threshold, open_seconds
        self._sleep, self._clock = sleep, clock
        self._counted = counted or (lambda provider, what: None)
        self._circuits: dict[str, _Circuit] = {}

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        model = traits_of(self._model, prompt.model)
        # An unknown provider's name, which a tenant chose, is neither stored nor shown in metrics.
        provider = model.name.partition("/")[0] if model.known else "unknown"
        circuit = self._circuits.setdefault(provider, _Circuit())
        self._enter(provider, circuit)
        for wait in (*self._waits, None):
            begun = False
            self._counted(provider, "calls")
            try:
                async with aclosing(cast(Any, self._model.respond(prompt))) as events:
                    async for event in events:
                        begun = True
                        yield event
                circuit.failures, circuit.trying = 0, False
                return
            except ModelError as error:
                self._counted(provider, "failures")
                if (kind := _KINDS.get(error.code)) is not None:
                    self._counted(provider, kind)
                if begun or not error.retryable or wait is None:
                    self._failed(circuit, error)
                    raise
            except BaseException:  # the caller has gone, which is not the provider's fault
                circuit.trying = False
                raise
            self._counted(provider, "retries")
            await self._sleep(wait)

    def traits(self, name: str) -> ModelTraits:
        return traits_of(self._model, name)

    def _enter(self, provider: str, circuit: _Circuit) -> None:
        if circuit.failures < self._threshold:
            return
        if circuit.trying or self._clock() < circuit.until:
            self._counted(provider, "circuit_open")
            raise ModelError("circuit_open", "the model provider keeps failing; try again in a moment")
        circuit.trying = True

    def _failed(self, circuit: _Circuit, error: ModelError) -> None:
        circuit.trying = False
        if error.code in ("provider_error", "rate_limited"):
            circuit.failures += 1
            circuit.until = self._clock() + self._open_seconds
        else:
            circuit.failures = 0  # it answered: the request was wrong
