"""`/v1/advise/gate` and `/v1/intent`: what the hub thinks of an answer, or of a request, for those who run agents themselves.

Neither begins a request. Both count as one against the tenant's limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from msgspec import Struct

from dragoman.errors import InvalidParams, Unauthenticated
from dragoman.hub.asking import respond
from dragoman.hub.constitution import INDEX_ID, Advisor, Constitution, Short
from dragoman.hub.constitution import Intent as Wanted
from dragoman.hub.gate import HALT, Verdict, question, verdict
from dragoman.hub.hub import Hub
from dragoman.hub.intent import Guess, resolve
from dragoman.hub.model import Model
from dragoman.hub.residents import speaking_for
from dragoman.hub.routing import Answer, Route, Visit

MAX_MESSAGE = 64 * 1024
MAX_ROSTER = 128
_BY = {"heuristic": "words", "llm": "meaning"}


class Gate(Struct):
    """An answer before it leaves: what was asked, what would be said, and which tools were used on the way."""

    advisor_model: Short
    original_task: str
    terminating_text: str
    tool_summary: str = ""
    prompt: str = ""


class Somebody(Struct):
    """An agent that a request may be for."""

    id: str
    role: str = ""
    goal: str = ""


class How(Struct):
    mode: Literal["off", "heuristic", "hybrid", "llm"] = "heuristic"
    min_confidence: float = 0.8
    apply_routing: bool = True
    model: Short = ""


class Intent(How):
    """Whom a message is for, among the tenant's agents or those of `roster`. `intent` goes before what stands beside it."""

    message: str = ""
    requested_agent: str = INDEX_ID
    roster: list[Somebody] | None = None
    intent: How | None = None


def routes(hub: Hub, model: Model) -> list[Route]:
    async def gate(visit: Visit) -> Answer:
        asked = await visit.json(Gate)
        for name in ("advisor_model", "original_task", "terminating_text"):
            if not getattr(asked, name).strip():
                raise InvalidParams(f"{name} is empty", fields=((name, "is empty"),))
        advisor = Advisor(model=asked.advisor_model, mode="gate", prompt=asked.prompt)
        calls = [asked.tool_summary] if asked.tool_summary else []
        with hub.admission.anything(visit.tenant, "gate"), speaking_for(visit.tenant):
            reply = await respond(
                model, question(advisor, asked.original_task, asked.terminating_text, calls)
            )
        if reply.error_code == "unauthorized":
            raise Unauthenticated(reply.error)
        judged = verdict(reply.text, advisor)
        if reply.error:
            judged = Verdict(signal=HALT, text=reply.error, malformed=True)
        return Answer({"signal": judged.signal, "text": judged.text, "malformed": judged.malformed})

    async def intent(visit: Visit) -> Answer:
        asked = await visit.json(Intent)
        how, whom = asked.intent or asked, asked.requested_agent
        _check(asked)
        explicit = whom != INDEX_ID
        with hub.admission.anything(visit.tenant, "intent"), speaking_for(visit.tenant):
            found = Guess()
            if how.mode != "off" and not explicit:
                wanted = Wanted(mode=how.mode, min_confidence=how.min_confidence)
                company = await _roster(visit, asked)
                found = await resolve(asked.message, company, wanted, how.model, partial(respond, model))
        sure = bool(found.agent) and found.confidence >= how.min_confidence
        return Answer(
            {
                "kind": "route" if found.agent else "none",
                "confidence": 1.0 if explicit else found.confidence,
                "source": "explicit" if explicit else found.source if how.mode != "off" else "none",
                "target_agent": found.agent,
                "brief": f"For {found.agent}, by its {_BY[found.source]}." if found.agent else "",
                "applied": sure and how.apply_routing,
                "requested_agent": whom,
                "llm_used": found.asked,
                "malformed": found.malformed,
                "todo_seeds": [],
                "plan_seeds": [],
            }
        )

    async def _roster(visit: Visit, asked: Intent) -> Sequence[Constitution]:
        if asked.roster is not None:
            return [
                Constitution(id=each.id[:64], role=each.role[:200], goal=each.goal[:20_000])
                for each in asked.roster
            ]
        return await hub.catalogue.company(visit.tenant.id)

    return [
        Route(
            "POST",
            "/v1/advise/gate",
            gate,
            "What an advisor says to an answer before it leaves: `CONTINUE`, `REDIRECT` or `HALT`, and why.",
            "judge",
            body=Gate,
        ),
        Route(
            "POST",
            "/v1/intent",
            intent,
            "Which agent a message is for. It is not handed over.",
            "judge",
            body=Intent,
        ),
    ]


def _check(asked: Intent) -> None:
    if not asked.message.strip():
        raise InvalidParams("the message says nothing", fields=(("message", "is empty"),))
    if len(asked.message.encode()) > MAX_MESSAGE:
        raise InvalidParams(f"a message may have {MAX_MESSAGE} bytes", fields=(("message", "is too long"),))
    if asked.roster is not None and len(asked.roster) > MAX_ROSTER:
        raise InvalidParams(f"a roster may have {MAX_ROSTER} agents", fields=(("roster", "is too long"),))
