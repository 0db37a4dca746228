"""`/v1/advise/gate`: an advisor's read_verdict on an answer of an agent that runs elsewhere.

It starts no request, and counts as one against the tenant's limits.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.errors import InvalidParams, Unauthenticated
from dragoman.hub.agents.constitution import Advisor, Short
from dragoman.hub.agents.programs import speaking_for
from dragoman.hub.api.routes import Answer, Route, Visit
from dragoman.hub.hub import Hub
from dragoman.hub.models.ask import respond
from dragoman.hub.models.model import Model
from dragoman.hub.tools.advisor import HALT, Verdict, gate_prompt, read_verdict


class Gate(Struct):
    """An answer before it leaves: what was asked, what would be said, and which tools were used on the way."""

    advisor_model: Short
    original_task: str
    terminating_text: str
    tool_summary: str = ""
    prompt: str = ""


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
                model, gate_prompt(advisor, asked.original_task, asked.terminating_text, calls)
            )
        if reply.error_code == "unauthorized":
            raise Unauthenticated(reply.error)
        judged = read_verdict(reply.text, advisor)
        if reply.error:
            judged = Verdict(signal=HALT, text=reply.error, malformed=True)
        return Answer({"signal": judged.signal, "text": judged.text, "malformed": judged.malformed})

    return [
        Route(
            "POST",
            "/v1/advise/gate",
            gate,
            "What an advisor says to an answer before it leaves: `CONTINUE`, `REDIRECT` or `HALT`, and why.",
            "judge",
            body=Gate,
        )
    ]
