"""What the operator lets a tenant use and store, and the patterns by which names are allowed.

The policy of the hub comes from its settings. `store/policies.py` has what differs for a tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.errors import InvalidParams
from dragoman.server.routes import explain

Whole = Annotated[int, Meta(ge=0, le=10**15)]
Money = Annotated[float, Meta(ge=0, le=1_000_000)]
Patterns = Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=200)]

APPROVABLE = ("/exec", "/mcp", "/a2a", "/schedule", "/fetch", "/fetch?", "/browse", "/write", "/search")
"""Commands that may need an approval. `/fetch?` is `/fetch` of an address with a query."""
DEFAULT_APPROVE = ("/exec", "/mcp", "/a2a", "/schedule", "/fetch?")
EMPTY_LIST = "none"
"""A list with only this word is an empty list: the value of a flag cannot be empty."""


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant may use and store. 0 means no limit."""

    models: Patterns = ()
    """Models that constitutions may name beside the hub's own and its aliases: `openai/gpt-*`, `*`."""
    remotes: Patterns = ("*",)
    """Agents of a2a_agents.json that its agents see."""
    mcp_servers: Patterns = ("*",)
    """Servers of mcp_servers.json that its agents see."""
    approve: Patterns = DEFAULT_APPROVE
    """Commands that run only after the caller approved them."""
    tokens_per_day: Whole = 10_000_000
    cost_per_day: Money = 0.0
    """Tokens and money of models per day (UTC). Money is in the currency of the prices."""
    reads_per_min: Whole = 1200
    """Requests that start nothing: reads, lists, changes of stored things."""
    max_open_requests: Whole = 128
    """Requests that one hub answers at the same time, streams included: each has one of the hub's connections."""
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
    max_request_mb: Whole = 2000
    """The logs of all stored requests: messages, answers, events, results of commands."""
    max_todos: Whole = 2000
    max_schedules: Whole = 200

    def allows_remote(self, name: str) -> bool:
        return matches_any(name, self.remotes)

    def allows_mcp(self, name: str) -> bool:
        return matches_any(name, self.mcp_servers)


LISTS = ("models", "remotes", "mcp_servers", "approve")


def matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(matches_glob(name, pattern) for pattern in patterns)


def validate(policy: Policy) -> Policy:
    """Return the policy with `none` read as an empty list. Raises `InvalidParams` for a command that cannot need an approval."""
    for name in LISTS:
        if getattr(policy, name) == (EMPTY_LIST,):
            policy = replace(policy, **{name: ()})
    for word in policy.approve:
        if word not in APPROVABLE:
            why = f"has {word[:80]!r}, which is not one of {', '.join(APPROVABLE)}"
            raise InvalidParams(f"approve {why}", fields=(("approve", why),))
    return policy


def override_policy(policy: Policy, document: Mapping[str, Any]) -> Policy:
    """`policy` with the members that a tenant overrides. Raises `InvalidParams`."""
    try:
        own = msgspec.convert(dict(document), Policy)
    except msgspec.ValidationError as error:
        member, why = explain(error)
        raise InvalidParams(f"this is not a valid policy: {member}: {why}", fields=((member, why),)) from None
    return validate(replace(policy, **{name: getattr(own, name) for name in document}))


# -- patterns with `*` and `?` -----------------------------------------------------------------------------


def matches_glob(text: str, pattern: str) -> bool:
    """`*` is any text, `?` any character, `[a-z]` one of these, `[!a-z]` none of them. Upper and lower case differ.

    Only the last star is tried again, so the cost is at most that of comparing each character with each part of the pattern.
    """
    parts = _parts(pattern)
    at = part = retry_at = 0
    star = -1  # the last star so far; the part after it was compared with the text from `retry_at` on
    while at < len(text):
        if part < len(parts) and parts[part] == "*":
            star, retry_at = part, at
            part += 1
        elif part < len(parts) and _matches(text[at], parts[part]):
            at, part = at + 1, part + 1
        elif star >= 0:
            retry_at += 1
            at, part = retry_at, star + 1
        else:
            return False
    return all(each == "*" for each in parts[part:])


def _parts(pattern: str) -> list[str]:
    """The characters and classes (`[a-z]`) of a pattern."""
    out, at = [], 0
    while at < len(pattern):
        close = pattern.find("]", at + 2 + pattern.startswith("!", at + 1)) if pattern[at] == "[" else -1
        end = close + 1 if close > 0 else at + 1
        out.append(pattern[at:end])
        at = end
    return out


def _matches(character: str, part: str) -> bool:
    if len(part) == 1:
        return part in ("?", character)
    negated = part.startswith("[!")
    inside, at, found = part[1 + negated : -1], 0, False
    while at < len(inside):
        last = at + 2 if inside.startswith("-", at + 1) and at + 2 < len(inside) else at
        found |= inside[at] <= character <= inside[last]
        at = last + 1
    return found != negated
