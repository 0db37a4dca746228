"""What models cost. Prices come from the settings, because providers do not send them with their replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dragoman.hub.models import Usage
from dragoman.hub.tenants.policy import Money, matches_glob

_MILLION = 1_000_000
_FREE = ("embedded", "echo", "demo", "scripted")
"""Models of this process: they cost nothing."""


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a million tokens cost."""

    input: Money
    output: Money
    cached: Money | None = None
    """Input from the provider's cache; None: as other input."""


class Prices:
    """Prices by the name of a model or a pattern; a name goes before a pattern, and a longer pattern before a shorter one."""

    def __init__(self, prices: Mapping[str, Price] | None = None, currency: str = "USD") -> None:
        self._prices, self.currency = dict(prices or {}), currency

    def find(self, model: str) -> Price | None:
        if model in self._prices:
            return self._prices[model]
        matching = [pattern for pattern in self._prices if matches_glob(model, pattern)]
        if matching:
            return self._prices[max(matching, key=len)]
        if model.partition("/")[0].partition(":")[0] in _FREE:
            return Price(input=0.0, output=0.0)
        return None

    def cost(self, model: str, usage: Usage) -> float:
        """0 if the price is not known."""
        price = self.find(model)
        if price is None:
            return 0.0
        cached = min(usage.cache_read_tokens, usage.input_tokens)
        of_cached = price.input if price.cached is None else price.cached
        sum = (usage.input_tokens - cached) * price.input + cached * of_cached
        return round((sum + usage.output_tokens * price.output) / _MILLION, 9)


def read_price(given: Any) -> Any:
    """`0.15/0.60` or `0.15/0.60/0.075` (input, output, cached input) as a table; anything else as it is."""
    if not isinstance(given, str):
        return given
    return dict(zip(("input", "output", "cached"), given.split("/"), strict=False))
