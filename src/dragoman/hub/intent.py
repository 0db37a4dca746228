"""Who a request is for, judged by its words alone: the same answer every time, and no model is asked.

A request that names an agent is for that agent. Otherwise the words of the request are compared with what each agent says
it is and is for. Confidence is how far the best one is ahead of the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from dragoman.hub.constitution import INDEX_ID, Constitution

_ENOUGH = 2.0
"""One chance word is no intent."""
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "about and any are can could for from get give have how into just like make may more need not now one our out "
        "please should some tell than that the them then there these they this use want was what when where which who "
        "why will with would you your",
    )
)


class Guess(Struct, frozen=True):
    agent: str = ""
    confidence: float = 0.0


def guess(text: str, agents: Iterable[Constitution]) -> Guess:
    """The agent that `text` is most likely for; empty if nothing speaks for any."""
    words, named = _words(text), set(re.findall(r"@([A-Za-z0-9_-]+)", text))
    scores: list[tuple[float, str]] = []
    for agent in agents:
        if agent.id == INDEX_ID:
            continue
        if agent.id in named:
            return Guess(agent.id, 1.0)
        is_, does = _words(f"{agent.id} {agent.name} {agent.role}"), _words(agent.goal)
        scores.append((2.0 * len(words & is_) + len(words & (does - is_)), agent.id))
    scores.sort(key=lambda pair: (-pair[0], pair[1]))
    if not scores or scores[0][0] < _ENOUGH:
        return Guess()
    best, second = scores[0][0], scores[1][0] if len(scores) > 1 else 0.0
    return Guess(scores[0][1], round(best / (best + second), 2))


def _words(text: str) -> set[str]:
    """The words that mean something, without their endings."""
    found = re.findall(r"[^\W_]{3,}", text.lower())
    return {re.sub(r"(ing|ers?|ed|es|s|e|y|ies)$", "", word) or word for word in found if word not in _COMMON}
