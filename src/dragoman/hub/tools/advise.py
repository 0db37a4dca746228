"""`/advise`: ask the constitution's advisor, a stronger model that knows nothing of the conversation."""

from __future__ import annotations

from dragoman.hub.models.ask import ask
from dragoman.hub.models.model import ChatMessage, Model, Prompt, about
from dragoman.hub.tools.tool import Command, Session, harmless

_SYSTEM = "You advise another agent. Answer its question directly, in a few sentences, with your reasons."


class AdviseTool:
    names = ("/advise",)
    bundle = "advise"
    usage = "/advise <question>   ask a stronger model; it knows only what you write there (2 in one reply)"
    repeatable = harmless

    def __init__(self, model: Model) -> None:
        self._model = model

    def label(self, command: Command) -> str:
        return "advise"

    async def run(self, command: Command, session: Session) -> str:
        advisor = session.constitution.advisor
        if advisor is None:
            return "ERR: this agent has no advisor"
        if not command.args:
            return "ERR: usage: /advise <question>"
        prompt = Prompt(
            model=advisor.model,
            system=advisor.prompt if advisor.prompt and advisor.mode == "consult" else _SYSTEM,
            messages=(ChatMessage(role="user", content=command.args),),
            max_tokens=1024,
        )
        reply = await ask(session.turn, f"advise/{session.key}", self._model, prompt)
        await session.pay(reply.usage, about(self._model, advisor.model).name)
        await session.telling.tell("advisor", kind="consult", preview=reply.text[:200])
        return f"ERR: {reply.error}" if reply.error else reply.text or "(no advice)"
