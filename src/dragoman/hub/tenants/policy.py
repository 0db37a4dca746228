"""What the operator lets a tenant use and store.

The policy of the hub comes from its settings. `store/policies.py` has what differs for a tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.errors import A2AError, InvalidParams
from dragoman.hub.agents.globs import matches_glob

Whole = Annotated[int, Meta(ge=0, le=10**15)]
Money = Annotated[float, Meta(ge=0, le=1_000_000)]
Patterns = Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=200)]

APPROVABLE = ("/exec", "/mcp", "/a2a", "/schedule", "/fetch", "/fetch?", "/browse", "/write", "/search")
"""Commands that may need an approval. `/fetch?` is `/fetch` of an address with a query."""
DEFAULT_APPROVE = ("/exec", "/mcp", "/a2a", "/schedule", "/fetch?")
NONE = "none"
"""A list that is only this word is empty: a way to say so in a flag."""


class QuotaExceeded(A2AError):
    """A tenant has as much of something as the operator lets it have."""

    reason, rpc, http, grpc = "QUOTA_EXCEEDED", -32000, 413, "RESOURCE_EXHAUSTED"


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant may use and store. 0 means no limit, except where nothing is what 0 says."""

    models: Patterns = ()
    """Models that constitutions may name beside the hub's own and its aliases: `openai/gpt-*`, `*`."""
    remotes: Patterns = ("*",)
    """Agents of a2a_agents.json that its agents see."""
    mcp_servers: Patterns = ("*",)
    """Servers of mcp_servers.json that its agents see."""
    approve: Patterns = DEFAULT_APPROVE
    """Commands that run only after the caller said yes."""
    tokens_per_day: Whole = 10_000_000
    cost_per_day: Money = 0.0
    """Tokens and money of models per day (UTC). Money is in the currency of the prices."""
    reads_per_min: Whole = 1200
    """Requests that start nothing: reads, lists, changes of stored things."""
    max_agents: Whole = 200
    max_versions: Whole = 50
    """Stored versions of one agent; older ones that no request uses are deleted. Of all agents together: twenty times that."""
    max_conversations: Whole = 1000
    max_messages: Whole = 2000
    max_conversation_mb: Whole = 8
    """Messages of one conversation, and the size of their text."""
    max_memories: Whole = 5000
    """Entries of structured memory; four times as many relations."""
    max_artifacts: Whole = 5000
    max_artifact_mb: Whole = 500
    max_scratchpads: Whole = 250
    max_scratchpad_mb: Whole = 64
    max_todos: Whole = 2000
    max_schedules: Whole = 200

    def allows_remote(self, name: str) -> bool:
        return matches_any(name, self.remotes)

    def allows_mcp(self, name: str) -> bool:
        return matches_any(name, self.mcp_servers)


LISTS = ("models", "remotes", "mcp_servers", "approve")


def matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(matches_glob(name, pattern) for pattern in patterns)


def checked(policy: Policy) -> Policy:
    """The policy with `none` read as an empty list. Raises `InvalidParams` for a command that cannot need an approval."""
    for name in LISTS:
        if getattr(policy, name) == (NONE,):
            policy = replace(policy, **{name: ()})
    for word in policy.approve:
        if word not in APPROVABLE:
            why = f"has {word[:80]!r}, which is none of {', '.join(APPROVABLE)}"
            raise InvalidParams(f"approve {why}", fields=(("approve", why),))
    return policy


def override_policy(policy: Policy, document: Mapping[str, Any]) -> Policy:
    """`policy` with what a tenant has of its own. Raises `InvalidParams`."""
    try:
        own = msgspec.convert(dict(document), Policy)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"this is no policy: {error}") from None
    return checked(replace(policy, **{name: getattr(own, name) for name in document}))
