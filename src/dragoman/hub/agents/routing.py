"""Which agent a request or an event is for.

A request that names an agent is for that agent. Otherwise its words are compared with the role and the goal of each agent; the
confidence says how far the best agent is ahead of the second. This always has the same result (`heuristic`). With `llm` a model is
asked instead, with `hybrid` only if the words leave it open. If the model fails, or its reply cannot be read, the request stays with the
agent that has it. `hand_over` delegates a request to the chosen agent, if the constitution of the agent that has it says so.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.hub.agents.constitution import INDEX_ID, Constitution, Intent
from dragoman.hub.agents.event_writer import ANSWER_EVENTS
from dragoman.hub.models import ChatMessage, Model, Prompt, Usage
from dragoman.hub.models.calls import ModelReply, respond
from dragoman.hub.quote import HOW_TO_READ, flatten, quote
from dragoman.hub.tenants.policy import matches_glob
from dragoman.hub.tools import Session
from dragoman.hub.tools.delegate import delegate

_REQUEST_CHARACTERS = 8 * 1024
"""Characters of a request that are compared."""
_MIN_SCORE = 2.0
"""With a lower score no agent matches."""
_COMMON_WORDS = frozenset(
    re.findall(
        r"\w+",
        "about and any are can could for from get give have how into just like make may more need not now one our out "
        "please should some tell than that the them then there these they this use want was what when where which who "
        "why will with would you your",
    )
)


_ROUTER_PROMPT = """You route requests to agents. Read the request and the agents, and reply with one JSON object and nothing else:
{"agent": "<the id of the agent it is for, or empty if none clearly is>", "confidence": <0 to 1>}"""
_OBJECT = re.compile(r"\{[^{}]*\}")


class Guess(Struct, frozen=True, omit_defaults=True):
    """The agent that a request is probably for; empty: none."""

    agent: str = ""
    confidence: float = 0.0
    source: str = "heuristic"
    """`heuristic` or `llm`."""
    malformed: bool = False
    """The reply of the model could not be read."""
    usage: Usage = Usage()

    @property
    def asked_model(self) -> bool:
        return self.malformed or self.source == "llm"


Ask = Callable[[Prompt], Awaitable[ModelReply]]


async def choose_agent(
    text: str, agents: Sequence[Constitution], intent: Intent, model: str, ask: Ask
) -> Guess:
    """The agent that `text` is for. `model` is the one to ask, if `intent` says so."""
    found = (
        await asyncio.to_thread(guess, text[:_REQUEST_CHARACTERS], agents)
        if intent.mode != "llm"
        else Guess()
    )
    if intent.mode == "heuristic" or found.confidence >= intent.min_confidence:
        return found
    lines = [
        f"- {each.id}: {flatten(each.role)}. {flatten(each.goal)}" for each in agents if each.id != INDEX_ID
    ]
    content = "\n".join(
        [
            "[AGENTS]",
            *lines,
            "[END AGENTS]",
            "",
            "[REQUEST]",
            quote(text[:_REQUEST_CHARACTERS]),
            "[END REQUEST]",
        ]
    )
    reply = await ask(
        Prompt(
            model=model,
            system=f"{_ROUTER_PROMPT}\n{HOW_TO_READ}",
            messages=(ChatMessage(role="user", content=content),),
            max_tokens=100,
            temperature=0.0,
        )
    )
    judged = _parse_reply(reply.text, agents)
    if reply.error or judged is None:
        return replace(found, malformed=True, usage=reply.usage)
    return replace(judged, usage=reply.usage)


def guess(text: str, agents: Iterable[Constitution]) -> Guess:
    """The most likely agent for `text`; empty if none matches."""
    words, named = _stems(text), set(re.findall(r"@([A-Za-z0-9_-]+)", text))
    scores: list[tuple[float, str]] = []
    for agent in agents:
        if agent.id == INDEX_ID:
            continue
        if agent.id in named:
            return Guess(agent.id, 1.0)
        role, goal = _stems(f"{agent.id} {agent.name} {agent.role}"), _stems(agent.goal)
        scores.append((2.0 * len(words & role) + len(words & (goal - role)), agent.id))
    scores.sort(key=lambda pair: (-pair[0], pair[1]))
    if not scores or scores[0][0] < _MIN_SCORE:
        return Guess()
    best, second = scores[0][0], scores[1][0] if len(scores) > 1 else 0.0
    return Guess(scores[0][1], round(best / (best + second), 2))


def _parse_reply(reply: str, agents: Sequence[Constitution]) -> Guess | None:
    """Parse a model's reply; None if it names no known agent."""
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


def _stems(text: str) -> set[str]:
    """The significant words, without their endings."""
    found = re.findall(r"[^\W_]{3,}", text.lower())
    return {
        re.sub(r"(ing|ers?|ed|es|s|e|y|ies)$", "", word) or word
        for word in found
        if word not in _COMMON_WORDS
    }


def agent_for_event(type: str, agents: Iterable[Constitution]) -> str:
    """The id of the agent with the longest pattern that matches, `index` if none does."""
    matching = [
        (-len(pattern), agent.id)
        for agent in agents
        for pattern in agent.event_types
        if matches_glob(type, pattern)
    ]
    return min(matching, default=(0, INDEX_ID))[1]


async def hand_over(
    session: Session, text: str, model: Model, siblings: Callable[[], Awaitable[Sequence[Constitution]]]
) -> tuple[str, str] | None:
    """Hand `text` to the agent it is for. Returns the agent and its answer; None if there is none or it fails."""
    constitution, writer = session.constitution, session.writer
    intent, advisor = constitution.intent, constitution.advisor
    if intent.mode == "off" or session.depth:
        return None
    name = intent.model or (advisor.model if advisor is not None else "") or constitution.model

    async def guess() -> Guess:
        return await choose_agent(text, await siblings(), intent, name, partial(respond, model))

    found = await session.turn.step("intent", guess)
    sure = found.confidence >= intent.min_confidence and intent.apply_routing
    target = found.agent if sure else ""
    await writer.emit(
        "intent",
        kind="route" if found.agent else "none",
        confidence=found.confidence,
        source=found.source,
        target_agent=found.agent,
        applied=bool(target),
        requested_agent=session.agent,
        applied_agent=target or session.agent,
        todo_seed_count=0,
        plan_seed_count=0,
        **({"llm_used": True, "malformed": found.malformed} if found.asked_model else {}),
    )
    if found.asked_model:
        await session.count_usage(found.usage, model.traits(name).name)
    if not target or target == session.agent:
        return None
    if constitution.gated:
        writer.hold()
    stream, channel = writer.next_stream(), constitution.channel
    ok, answer = await delegate(session, target, text, "intent", stream, [], channel=channel)
    if ok:
        return target, answer
    await writer.release(without=ANSWER_EVENTS)
    return None
