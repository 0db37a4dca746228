"""Per provider (the part of a model's name before the slash): choose the model, retry, and break the circuit.

A call is retried only before its first token. After five failures in a row, calls to the provider are refused for half a
minute, then one may try.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from dragoman.hub.models.model import Model, ModelError, ModelEvent, ModelTraits, Prompt, traits_of


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


class _Circuit:
    """The recent failures of a provider."""

    __slots__ = ("failures", "until", "trying")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0
        self.trying = False


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
