"""The names of models: which ones a tenant may use, and what aliases stand for.

A tenant may name the models of the hub's settings and their aliases, and models that match the patterns of its policy. A constitution
that names no model gets the hub's default.
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
        # a name with a colon contains the path of a file, which tenants must not see
        own = [each for each in self.own if ":" not in each.partition("/")[0]]
        known = ", ".join((*self.aliases, *own, *policy.models)) or "none: leave it out for the hub's default"
        return f"is {name[:80]!r}, which this tenant may not use; it may name {known}"

    def check(self, policy: Policy, constitution: Constitution) -> None:
        """Raises `InvalidParams` with each model that the tenant may not use."""
        mistakes = [
            (field, why) for field, name in _models_of(constitution) if (why := self.refusal(policy, name))
        ]
        if mistakes:
            reasons = "; ".join(f"{field} {why}" for field, why in mistakes)
            raise InvalidParams(f"this agent cannot be used here: {reasons}", fields=mistakes)


def _models_of(constitution: Constitution) -> Iterator[tuple[str, str]]:
    yield "model", constitution.model
    if constitution.advisor is not None:
        yield "advisor.model", constitution.advisor.model
    yield "intent.model", constitution.intent.model
