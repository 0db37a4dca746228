"""Who a request is for: judged by its words, or by a model.

A request that names an agent is for that agent. Otherwise its words are compared with what each agent says it is and is
for; confidence is how far the best one is ahead of the next. That is the same every time (`heuristic`). A model is asked
instead (`llm`), or when words leave it open (`hybrid`); one that fails, or is not understood, routes nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.hub.agents.constitution import INDEX_ID, Constitution, Intent
from dragoman.hub.models.ask import Reply
from dragoman.hub.models.model import ChatMessage, Prompt, Usage

_REQUEST = 8 * 1024
"""Characters of a request that are looked at."""
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


_SYSTEM = """You route requests to agents. Read the request and the agents, and reply with one JSON object and nothing else:
{"agent": "<the id of the agent it is for, or empty if none clearly is>", "confidence": <0 to 1>}"""
_OBJECT = re.compile(r"\{[^{}]*\}")


class Guess(Struct, frozen=True, omit_defaults=True):
    agent: str = ""
    confidence: float = 0.0
    source: str = "heuristic"
    """Or `llm`."""
    malformed: bool = False
    """A model was asked, and could not be understood."""
    usage: Usage = Usage()

    @property
    def asked(self) -> bool:
        """A model was."""
        return self.malformed or self.source == "llm"


Ask = Callable[[Prompt], Awaitable[Reply]]


async def resolve(text: str, agents: Sequence[Constitution], how: Intent, model: str, ask: Ask) -> Guess:
    """The agent that `text` is for, as `how` wants it to be found; `model` is the one to ask."""
    found = await asyncio.to_thread(guess, text[:_REQUEST], agents) if how.mode != "llm" else Guess()
    if how.mode == "heuristic" or found.confidence >= how.min_confidence:
        return found
    said = [f"- {each.id}: {each.role}. {each.goal}" for each in agents if each.id != INDEX_ID]
    content = "\n".join(
        ["[AGENTS]", *said, "[END AGENTS]", "", "[REQUEST]", text[:_REQUEST], "[END REQUEST]"]
    )
    reply = await ask(
        Prompt(
            model=model,
            system=_SYSTEM,
            messages=(ChatMessage(role="user", content=content),),
            max_tokens=100,
            temperature=0.0,
        )
    )
    judged = _read(reply.text, agents)
    if reply.error or judged is None:
        return replace(found, malformed=True, usage=reply.usage)
    return replace(judged, usage=reply.usage)


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


def _read(reply: str, agents: Sequence[Constitution]) -> Guess | None:
    """What a model said; None if it named nobody we know, or said something else."""
    try:
        found = _OBJECT.search(reply)
        answer = msgspec.json.decode(found[0] if found else "", type=_Answer)
    except msgspec.MsgspecError:
        return None
    if answer.agent and answer.agent not in [each.id for each in agents if each.id != INDEX_ID]:
        return None
    return Guess(answer.agent, min(1.0, max(0.0, answer.confidence)), source="llm")


class _Answer(Struct):
    agent: str
    confidence: float


def _words(text: str) -> set[str]:
    """The words that mean something, without their endings."""
    found = re.findall(r"[^\W_]{3,}", text.lower())
    return {re.sub(r"(ing|ers?|ed|es|s|e|y|ies)$", "", word) or word for word in found if word not in _COMMON}
