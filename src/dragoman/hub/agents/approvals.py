"""Which commands run only after the caller said yes, and the question about them.

The operator's policy lists them (`approve`). The turn asks: over A2A the task is `input-required`, native readers get a `question`,
and the answer belongs to this command alone. A command that only lists or stops something is not asked about.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dragoman.engine.turn import Turn, record_of
from dragoman.hub.tools.tool import Command
from dragoman.model.questions import Approval
from dragoman.model.task import TaskState

MAX_SHOWN_CHARACTERS = 4000
REFUSED = "ERR: not approved: the user refused this command{why}. Do not try it again; go on without it, or say what is missing."

_ASKED_VERBS = {"/mcp": ("call",), "/a2a": ("call",)}
"""Other verbs of these commands only list."""
_UNASKED_VERBS = {"/schedule": ("", "list", "cancel", "pause")}


def needs_approval(command: Command, approve: Collection[str]) -> bool:
    """True if the policy says so. `/fetch?` is an address with a query, also in a browser."""
    name, verb = command.name, command.args.partition(" ")[0]
    if name in ("/fetch", "/browse") and "/fetch?" in approve and "?" in command.args:
        return True
    if name not in approve:
        return False
    if name in _ASKED_VERBS:
        return verb in _ASKED_VERBS[name]
    return verb not in _UNASKED_VERBS.get(name, ())


async def ask_for_approval(turn: Turn, agent: str, command: Command, key: str) -> str:
    """Ask the caller. Returns the result for a command that is refused; empty if it may run."""
    title = command.title[:MAX_SHOWN_CHARACTERS]
    details: dict[str, Any] = {
        "agent": agent,
        "command": command.name,
        "arguments": title[len(command.name) :].strip(),
    }
    if command.body is not None:
        details["body"] = command.body[:MAX_SHOWN_CHARACTERS]
    question = f"The agent {agent} wants to run this command. May it?\n{title}"
    answer: Approval = await record_of(turn).ask(
        TaskState.INPUT_REQUIRED, question, Approval, f"approve/{key}", {}, details, fresh=True
    )
    if answer:
        return ""
    return REFUSED.format(why=f": {answer.comment[:500]}" if answer.comment else "")
