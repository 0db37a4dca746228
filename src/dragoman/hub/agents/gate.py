"""The advisor gate: a second model reads an answer before it leaves.

It says `<signal>CONTINUE</signal>`, `<signal>REDIRECT</signal>` with what to do instead, or `<signal>HALT</signal>` with
why. The first signal counts; what cannot be read is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from dragoman.hub.agents.constitution import Advisor
from dragoman.hub.models.model import ChatMessage, Prompt

CONTINUE, REDIRECT, HALT = "CONTINUE", "REDIRECT", "HALT"

_TASK_LIMIT, _TOOLS_LIMIT = 32 * 1024, 8 * 1024
_SYSTEM = """You review an agent's answer before it is delivered. Judge only whether it does what the task asks, is supported by
what the tools returned, and is safe to deliver. Reply with exactly one of:
<signal>CONTINUE</signal>
<signal>REDIRECT</signal> followed by what the agent must do instead
<signal>HALT</signal> followed by why a person must look at this"""
_SIGNAL = re.compile(r"<signal>\s*(\w+)\s*</signal>(.*)", re.IGNORECASE | re.DOTALL)


class Verdict(Struct, frozen=True, kw_only=True):
    signal: str
    text: str = ""
    malformed: bool = False


def question(advisor: Advisor, task: str, answer: str, calls: Sequence[str]) -> Prompt:
    """What the advisor is asked."""
    blocks = {
        "TASK": task[:_TASK_LIMIT],
        "ANSWER": answer[:_TASK_LIMIT],
        "TOOLS USED": "\n".join(calls)[:_TOOLS_LIMIT] or "(none)",
    }
    content = "\n\n".join(f"[{name}]\n{text}\n[END {name}]" for name, text in blocks.items())
    return Prompt(
        model=advisor.model,
        system=advisor.prompt or _SYSTEM,
        messages=(ChatMessage(role="user", content=content),),
        max_tokens=512,
    )


def verdict(reply: str, advisor: Advisor) -> Verdict:
    """What the advisor said. A malformed verdict halts, or lets the answer pass, as the constitution wants it."""
    found = _SIGNAL.search(reply)
    if found is not None:
        signal, text = found.group(1).upper(), found.group(2).strip()
        if signal == CONTINUE or (signal in (REDIRECT, HALT) and text):
            return Verdict(signal=signal, text=text)
    if advisor.malformed_halts:
        return Verdict(signal=HALT, text="the advisor's verdict could not be read", malformed=True)
    return Verdict(signal=CONTINUE, malformed=True)
