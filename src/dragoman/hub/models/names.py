"""Which models a tenant may name, and what their names stand for.

A tenant may name the models of the hub's settings and their aliases, and what the patterns of its policy match. Naming none is
the hub's default model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dragoman.errors import InvalidParams
from dragoman.hub.agents.constitution import Constitution
from dragoman.hub.tenants.policy import Policy, matches_any


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
