"""What the operator lets a tenant use and store, and the patterns by which names are allowed.

The policy of the hub comes from its settings. `store/policies.py` has what differs for a tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.errors import A2AError, InvalidParams

Whole = Annotated[int, Meta(ge=0, le=10**15)]
Money = Annotated[float, Meta(ge=0, le=1_000_000)]
Patterns = Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=200)]

APPROVABLE = ("/exec", "/mcp", "/a2a", "/schedule", "/fetch", "/fetch?", "/browse", "/write", "/search")
"""Commands that may need an approval. `/fetch?` is `/fetch` of an address with a query."""
DEFAULT_APPROVE = ("/exec", "/mcp", "/a2a", "/schedule", "/fetch?")
EMPTY_LIST = "none"
"""This word alone stands for an empty list, because a flag cannot be empty."""


class QuotaExceeded(A2AError):
    """A tenant has reached a limit of what it may store."""

    reason, rpc, http, grpc = "QUOTA_EXCEEDED", -32000, 413, "RESOURCE_EXHAUSTED"


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
            why = f"has {word[:80]!r}, which is none of {', '.join(APPROVABLE)}"
            raise InvalidParams(f"approve {why}", fields=(("approve", why),))
    return policy


def override_policy(policy: Policy, document: Mapping[str, Any]) -> Policy:
    """`policy` with what a tenant has of its own. Raises `InvalidParams`."""
    try:
        own = msgspec.convert(dict(document), Policy)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"this is no policy: {error}") from None
    return validate(replace(policy, **{name: getattr(own, name) for name in document}))


# -- patterns with `*` and `?` -----------------------------------------------------------------------------


def matches_glob(text: str, pattern: str) -> bool:
    """`*` is any text, `?` any character, `[a-z]` one of these, `[!a-z]` none of them. Upper and lower case differ.

    Follows all matches at once: bit n of `state` is set if the first n characters of the pattern, without stars, match the
    text so far. The cost is linear in the text for every pattern.
    """
    fits, otherwise, stars, end = _automaton(pattern)
    state = 1
    for character in text:
        state = (state & fits.get(character, otherwise)) << 1 | (state & stars)
        if not state:
            return False
    return bool(state & end)


def _automaton(pattern: str) -> tuple[dict[str, int], int, int, int]:
    """Bit masks of a pattern: positions by character, for other characters, with a star, and the end."""
    fits: dict[str, int] = {}
    anything = stars = place = at = 0
    refused: list[tuple[int, set[str]]] = []
    while at < len(pattern):
        character, bit = pattern[at], 1 << place
        close = pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] == "!")) if character == "[" else -1
        at += 1
        if character == "*":
            stars |= bit
            continue
        if character == "?":
            anything |= bit
        elif close > 0:
            inside = pattern[at:close]
            at = close + 1
            if inside.startswith("!"):
                anything |= bit
                refused.append((bit, _members(inside[1:])))
            else:
                for each in _members(inside):
                    fits[each] = fits.get(each, 0) | bit
        else:
            fits[character] = fits.get(character, 0) | bit
        place += 1
    for each in {each for _, members in refused for each in members}:
        fits.setdefault(each, 0)
    fits = {each: mask | anything for each, mask in fits.items()}
    for bit, members in refused:
        for each in members:
            fits[each] &= ~bit
    return fits, anything, stars, 1 << place


def _members(inside: str) -> set[str]:
    """The characters of a class; at most 512 of a range."""
    out: set[str] = set()
    at = 0
    while at < len(inside):
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside):
            low, high = ord(inside[at]), ord(inside[at + 2])
            out.update(chr(code) for code in range(low, min(high + 1, low + 512)))
            at += 3
        else:
            out.add(inside[at])
            at += 1
    return out
