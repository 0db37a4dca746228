"""The providers of models: which one a call goes to, when it is retried, and when a provider is left alone for a while.

The provider is the part of a model's name before the slash. A call is retried only before its first token. After five failures
in a row, calls to the provider are refused for half a minute, then one may try.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from msgspec import Struct

from dragoman.hub.models import Model, ModelError, ModelEvent, ModelTraits, Prompt
from dragoman.hub.models.calls import may_ask


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
        return model.traits(name) if model is not None else ModelTraits(name=name, known=False)

    def _find(self, name: str) -> Model | None:
        provider, slash, _ = name.partition("/")
        if not slash and provider not in self._models:  # `embedded` is a name without a slash
            provider = ""
        return self._models.get(provider) or self._models.get("*") or self._models.get("")


RETRY_WAITS_SECONDS = (1.0, 2.0)
"""Seconds before the second and the third attempt. A provider may ask for more."""
MAX_WAIT_SECONDS = 60.0
"""A call is not retried if its provider asks to wait for longer."""
MAX_FAILURES, OPEN_SECONDS = 5, 30.0
"""Failures in a row after which calls to a provider are refused, and for how long."""

_FAILURE_METRICS = {"rate_limited": "429", "provider_error": "5xx"}
"""Failures of the provider. No answer at all counts as 5xx."""


class _Circuit(Struct):
    """The failures of a provider since its last success."""

    failures: int = 0
    open_until: float = 0.0
    probing: bool = False
    """A call is under way that finds out whether the provider works again."""


class RetryingModel:
    """Retries failed calls, and refuses calls to a provider that keeps failing.

    `count(provider, what)` counts `calls`, `retries`, `failures`, `429`, `5xx` and `circuit_open`.
    """

    def __init__(
        self,
        model: Model,
        *,
        waits: tuple[float, ...] = RETRY_WAITS_SECONDS,
        max_failures: int = MAX_FAILURES,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        count: Callable[[str, str], None] | None = None,
    ) -> None:
        self._model, self._waits, self._max_failures = model, waits, max_failures
        self._sleep, self._clock = sleep, clock
        self._count = count or (lambda provider, what: None)
        self._circuits: dict[str, _Circuit] = {}

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        model = self._model.traits(prompt.model)
        # An unknown provider's name, which a tenant chose, is neither stored nor shown in metrics.
        provider = model.name.partition("/")[0] if model.known else "unknown"
        circuit = self._circuits.setdefault(provider, _Circuit())
        self._check_circuit(provider, circuit)
        for wait in (*self._waits, None):
            begun = False
            try:
                await may_ask()
                self._count(provider, "calls")
                async with aclosing(cast(Any, self._model.respond(prompt))) as events:
                    async for event in events:
                        begun = True
                        yield event
                circuit.failures, circuit.probing = 0, False
                return
            except ModelError as error:
                self._count(provider, "failures")
                if (kind := _FAILURE_METRICS.get(error.code)) is not None:
                    self._count(provider, kind)
                if begun or not error.retryable or wait is None or error.retry_after > MAX_WAIT_SECONDS:
                    self._record_failure(circuit, error)
                    raise
                wait = max(wait, error.retry_after)
            except BaseException:  # the call is canceled: not a failure of the provider
                circuit.probing = False
                raise
            self._count(provider, "retries")
            await self._sleep(wait)

    def traits(self, name: str) -> ModelTraits:
        return self._model.traits(name)

    def _check_circuit(self, provider: str, circuit: _Circuit) -> None:
        """Raises `ModelError` if calls to the provider are refused at the moment."""
        if circuit.failures < self._max_failures:
            return
        if circuit.probing or self._clock() < circuit.open_until:
            self._count(provider, "circuit_open")
            raise ModelError("circuit_open", "the model provider keeps failing; try again in a moment")
        circuit.probing = True

    def _record_failure(self, circuit: _Circuit, error: ModelError) -> None:
        circuit.probing = False
        if error.code in ("provider_error", "rate_limited"):
            circuit.failures += 1
            circuit.open_until = self._clock() + OPEN_SECONDS
        else:
            circuit.failures = 0  # it answered: the request was wrong
