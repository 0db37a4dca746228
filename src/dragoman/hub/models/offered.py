"""The models that a hub offers: which a tenant may name, what the names stand for, and what they cost.

A tenant may name the models of the hub's settings and their aliases, and what the patterns of its policy match. Naming none is
the hub's default model. Prices come from the settings, because providers do not say them in their answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from dragoman.errors import InvalidParams
from dragoman.hub.agents.constitution import Constitution
from dragoman.hub.models import Usage
from dragoman.hub.tenants.policy import Policy, matches_any, matches_glob


class ModelNames:
    """`own`: the models that the operator chose. `aliases` go before all other names."""

    def __init__(self, own: Iterable[str] = (), aliases: Mapping[str, str] | None = None) -> None:
        self.own = tuple(dict.fromkeys(name for name in own if name))
        self.aliases = dict(aliases or {})

    def resolve(self, name: str) -> str:
        """The model that a name stands for."""
        return self.aliases.get(name, name)

    def allows(self, policy: Policy, name: str) -> bool:
        return not name or name in self.aliases or name in self.own or matches_any(name, policy.models)

    def refusal(self, policy: Policy, name: str) -> str:
        """Why a tenant may not use a model; empty if it may."""
        if self.allows(policy, name):
            return ""
        known = (
            ", ".join((*self.aliases, *self.own, *policy.models))
            or "none: leave it out for the hub's default"
        )
        return f"is {name[:80]!r}, which this tenant may not use; it may name {known}"

    def check(self, policy: Policy, constitution: Constitution) -> None:
        """Raises `InvalidParams` with each model that the tenant may not use."""
        wrong = [(field, why) for field, name in _named(constitution) if (why := self.refusal(policy, name))]
        if wrong:
            reasons = "; ".join(f"{field} {why}" for field, why in wrong)
            raise InvalidParams(f"this agent cannot be used here: {reasons}", fields=wrong)


def _named(constitution: Constitution) -> Iterator[tuple[str, str]]:
    yield "model", constitution.model
    if constitution.advisor is not None:
        yield "advisor.model", constitution.advisor.model
    yield "intent.model", constitution.intent.model


# -- prices -------------------------------------------------------------------------------------------------

_MILLION = 1_000_000
_FREE = ("embedded", "echo", "demo", "scripted")
"""Models of this process: they cost nothing."""

Amount = Annotated[float, Meta(ge=0, le=1_000_000)]


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a million tokens cost."""

    input: Amount
    output: Amount
    cached: Amount | None = None
    """Input from the provider's cache; None: as other input."""


class Prices:
    """Prices by the name of a model or a pattern; a name goes before a pattern, and a longer pattern before a shorter one."""

    def __init__(self, prices: Mapping[str, Price] | None = None, currency: str = "USD") -> None:
        self._prices, self.currency = dict(prices or {}), currency

    def of(self, model: str) -> Price | None:
        if model in self._prices:
            return self._prices[model]
        fitting = [pattern for pattern in self._prices if matches_glob(model, pattern)]
        if fitting:
            return self._prices[max(fitting, key=len)]
        if model.partition("/")[0].partition(":")[0] in _FREE:
            return Price(input=0.0, output=0.0)
        return None

    def cost(self, model: str, usage: Usage) -> float:
        """0 if the price is not known."""
        price = self.of(model)
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
