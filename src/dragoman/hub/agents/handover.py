"""Give a request to the agent it is for, before the one that was asked thinks about it.

If its constitution wants that, and it is clear who that is (`intent.py`). Who is asked by another agent hands nothing on.
An advisor who stands at the gate reads this answer, too: what the other agent tells is kept back until then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dragoman.hub.agents.event_writer import ANSWERS
from dragoman.hub.agents.routing import Guess, resolve
from dragoman.hub.models.ask import respond
from dragoman.hub.models.model import about
from dragoman.hub.tools.delegate import delegate
from dragoman.hub.tools.tool import Session

if TYPE_CHECKING:
    from dragoman.hub.agents.constitution_agent import ConstitutionAgent


async def hand_over(agent: ConstitutionAgent, session: Session, text: str) -> tuple[str, str] | None:
    """The agent that `text` is for, and what it answers; None if there is no such agent, or it fails."""
    constitution, telling = session.constitution, session.telling
    intent, advisor = constitution.intent, constitution.advisor
    if intent.mode == "off" or session.depth:
        return None
    model = intent.model or (advisor.model if advisor is not None else "") or constitution.model

    async def guess() -> Guess:
        return await resolve(text, await agent.siblings(), intent, model, partial(respond, agent.model))

    found = await session.turn.step("intent", guess)
    sure = found.confidence >= intent.min_confidence and intent.apply_routing
    target = found.agent if sure else ""
    await telling.tell(
        "intent",
        kind="route" if found.agent else "none",
        confidence=found.confidence,
        source=found.source,
        target_agent=found.agent,
        applied=bool(target),
        requested_agent=agent.id,
        applied_agent=target or agent.id,
        todo_seed_count=0,
        plan_seed_count=0,
        **({"llm_used": True, "malformed": found.malformed} if found.asked else {}),
    )
    if found.asked:
        await session.pay(found.usage, about(agent.model, model).name)
    if not target or target == agent.id:
        return None
    if constitution.gated:
        telling.hold()
    stream, channel = telling.next_stream(), constitution.channel
    ok, answer = await delegate(session, target, text, "intent", stream, [], channel=channel)
    if ok:
        return target, answer
    await telling.release(without=ANSWERS)
    return None
