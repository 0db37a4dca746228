"""The advisor of a constitution: a second model.

An agent asks it with `/advise`. A gate asks it before an answer leaves: it replies `<signal>CONTINUE</signal>`,
`<signal>REDIRECT</signal>` with what to do instead, or `<signal>HALT</signal>` with the reason. The first signal counts; a reply
without one is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from dragoman.hub.agents.constitution import Advisor
from dragoman.hub.models import ChatMessage, Model, Prompt
from dragoman.hub.models.calls import ask
from dragoman.hub.quote import HOW_TO_READ, quote
from dragoman.hub.tools import Command, Session, Tool

CONTINUE, REDIRECT, HALT = "CONTINUE", "REDIRECT", "HALT"

_TASK_LIMIT, _TOOLS_LIMIT = 32 * 1024, 8 * 1024
_GATE_PROMPT = """You review an agent's answer before it is delivered. Judge only whether it does what the task asks, is supported by
what the tools returned, and is safe to deliver. Reply with exactly one of:
<signal>CONTINUE</signal>
<signal>REDIRECT</signal> followed by what the agent must do instead
<signal>HALT</signal> followed by why a person must look at this"""
_SIGNAL = re.compile(r"<signal>\s*(\w+)\s*</signal>(.*)", re.IGNORECASE | re.DOTALL)


class Verdict(Struct, frozen=True, kw_only=True):
    signal: str
    text: str = ""
    malformed: bool = False


def gate_prompt(advisor: Advisor, task: str, answer: str, calls: Sequence[str]) -> Prompt:
    """The prompt of the gate."""
    blocks = {
        "TASK": task[:_TASK_LIMIT],
        "ANSWER": answer[:_TASK_LIMIT],
        "TOOLS USED": "\n".join(calls)[:_TOOLS_LIMIT] or "(none)",
    }
    content = "\n\n".join(f"[{name}]\n{quote(text)}\n[END {name}]" for name, text in blocks.items())
    return Prompt(
        model=advisor.model,
        system=f"{advisor.prompt or _GATE_PROMPT}\n\n{HOW_TO_READ}",
        messages=(ChatMessage(role="user", content=content),),
        max_tokens=512,
    )


def read_verdict(reply: str, advisor: Advisor) -> Verdict:
    """The verdict in a reply. `malformed_halts` decides whether a malformed one halts or continues."""
    found = _SIGNAL.search(reply)
    if found is not None:
        signal, text = found.group(1).upper(), found.group(2).strip()
        if signal == CONTINUE or (signal in (REDIRECT, HALT) and text):
            return Verdict(signal=signal, text=text)
    if advisor.malformed_halts:
        return Verdict(signal=HALT, text="the advisor's verdict could not be read", malformed=True)
    return Verdict(signal=CONTINUE, malformed=True)


_ADVICE_PROMPT = (
    "You advise another agent. Answer its question directly, in a few sentences, with your reasons."
)


class AdviseTool(Tool):
    names = ("/advise",)
    usage = "/advise <question>   ask a stronger model; it knows only what you write there (2 in one reply)"

    def __init__(self, model: Model) -> None:
        self._model = model

    async def run(self, command: Command, session: Session) -> str:
        advisor = session.constitution.advisor
        if advisor is None:
            return "ERR: this agent has no advisor"
        if not command.args:
            return "ERR: usage: /advise <question>"
        prompt = Prompt(
            model=advisor.model,
            system=advisor.prompt if advisor.prompt and advisor.mode == "consult" else _ADVICE_PROMPT,
            messages=(ChatMessage(role="user", content=command.args),),
            max_tokens=1024,
        )
        reply = await ask(session.turn, f"advise/{session.key}", self._model, prompt)
        await session.count_usage(reply.usage, self._model.traits(advisor.model).name)
        await session.writer.emit("advisor", kind="consult", preview=reply.text[:200])
        return f"ERR: {reply.error}" if reply.error else reply.text or "(no advice)"
