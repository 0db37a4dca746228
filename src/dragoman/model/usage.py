"""Tokens and money that a task used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.model.content import Wire

USAGE = "urn:dragoman:extension:usage:v1"
"""The URI of the extension, and the key of its data in metadata. See `docs/extensions.md`."""

_COST_DIGITS = 9
_COUNTS = ("calls", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")


class TokenUsage(Wire, frozen=True):
    """What one call of a model used."""

    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Those of the input that came from the provider's cache."""
    reasoning_tokens: int = 0
    """Those of the output that were not shown."""
    cost: float = 0.0
    currency: str = ""
    calls: int = 1
    called: str = ""
    """The task of a called agent that used it, with all that it called: the sum so far, in place of the one before."""

    @property
    def tokens(self) -> list[tuple[str, int]]:
        """How many of each kind, as metrics name the kinds; none that are zero."""
        kinds = (
            ("input", self.input_tokens),
            ("output", self.output_tokens),
            ("cached", self.cached_tokens),
            ("reasoning", self.reasoning_tokens),
        )
        return [each for each in kinds if each[1]]


class TaskUsage(Wire, frozen=True):
    """What a task used so far itself, of all models together and of each; and what the agents used that it called."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: dict[str, float] = {}
    """By currency."""
    models: dict[str, TaskUsage] = {}
    """By the name of the model, where it is known."""
    children: TaskUsage | None = None
    """What called agents used, with those that they called in turn. It is not in the numbers above."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def with_children(self) -> TaskUsage:
        """Everything: what the task used itself, and what called agents used."""
        if self.children is None:
            return self
        cost = dict(self.cost)
        for currency, amount in self.children.cost.items():
            cost[currency] = round(cost.get(currency, 0.0) + amount, _COST_DIGITS)
        sums = {name: getattr(self, name) + getattr(self.children, name) for name in _COUNTS}
        return TaskUsage(cost=cost, **sums)

    def plus(self, used: TokenUsage) -> TaskUsage:
        """The sum after one more call."""
        out = self._add(used)
        if not used.model:
            return out
        known = self.models.get(used.model) or TaskUsage()
        return replace(out, models={**self.models, used.model: known._add(used)})

    def _add(self, used: TokenUsage) -> TaskUsage:
        cost = self.cost
        if used.cost:
            sum = cost.get(used.currency, 0.0) + used.cost
            cost = {**cost, used.currency: round(sum, _COST_DIGITS)}
        return TaskUsage(
            calls=self.calls + used.calls,
            input_tokens=self.input_tokens + used.input_tokens,
            output_tokens=self.output_tokens + used.output_tokens,
            cached_tokens=self.cached_tokens + used.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + used.reasoning_tokens,
            cost=cost,
            models=self.models,
            children=self.children,
        )


def usage_of_called(task: str, used: TaskUsage) -> list[TokenUsage]:
    """What a called agent reports, to be recorded: one entry, and one more for each further currency."""
    total = used.with_children
    counts = {name: getattr(total, name) for name in _COUNTS}
    if min(counts.values()) < 0 or min(total.cost.values(), default=0.0) < 0:
        return []
    (currency, cost), *more = total.cost.items() or [("", 0.0)]
    entries = [TokenUsage(called=task, cost=cost, currency=currency, **counts)]
    return entries + [TokenUsage(called=task, cost=cost, currency=name, calls=0) for name, cost in more]


def with_called(used: TaskUsage | None, called: Mapping[tuple[str, str], TokenUsage]) -> TaskUsage:
    """What a task used, with the sum of what it is known that called agents used."""
    children = TaskUsage()
    for each in called.values():
        children = children._add(each)
    return replace(used or TaskUsage(), children=children)


def usage_in(metadata: dict[str, Any]) -> TaskUsage | None:
    """The usage that metadata of a task or a message reports; None if there is none."""
    found = metadata.get(USAGE)
    if found is None:
        return None
    try:
        return msgspec.convert(found, TaskUsage, strict=False)
    except msgspec.ValidationError:
        return None
