"""Run the commands of a reply, each once.

Checks, in order: the total size, the capability, the limits per reply, the cache of reads, the approval; then the tool runs.
The result is recorded before it is reported, and before the next command starts. The model gets one block per command, in
which the result is quoted: nobody knows who wrote it.

The start of a command that must not run twice is recorded too (`begun/tool/3/1`). If a crash interrupts it, its effect is
unknown: it does not run again, and its result says so.

The operator's policy lists the commands that the caller must approve (`approve`). The turn asks: over A2A the task is
`input-required`, native readers get a `question`, and the answer belongs to this command alone. A command that only lists or
stops something is not asked about.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.engine.protocols import LeaseLost
from dragoman.engine.turn import Turn, record_of
from dragoman.errors import A2AError, StoreUnavailable
from dragoman.hub.agents.commands import ENDS
from dragoman.hub.models import repair_text
from dragoman.hub.quote import MARK, flatten, quote, reveal
from dragoman.hub.tools import Command, Session, Tool, UnavailableTool
from dragoman.hub.tools.delegate import children
from dragoman.model.questions import Approval
from dragoman.model.task import TaskState

BODY_LIMIT = 16 * 1024
TOTAL_LIMIT = 32 * 1024
EXHAUSTED = "[TOOL RESULTS TRUNCATED: budget exhausted]"
END = "[END TOOL RESULTS]"
LOOP = "[LOOP DETECTED] {title} failed again in the same way. Do not repeat it: try another way, or answer without it."

_LIMITS = {
    "/fetch": ("pages", 3),
    "/browse": ("pages", 3),
    "/search": ("searches", 4),
    "/advise": ("questions", 2),
}
_SAFE = frozenset({"/fetch", "/search"})
"""Commands whose result is cached for the turn."""
INTERRUPTED = (
    "ERR: interrupted: the hub was restarted while this ran, so it may or may not have taken effect, in whole or in part. "
    "It was not run again. Find out what it did before you repeat it."
)
_CHILD_FAILED = re.compile(rf"^\[child \d+/\d+ — /agent [^\n]*\]\n{re.escape(MARK)}ERR:", re.MULTILINE)
_FAILURES = ("ERR:", "UPSTREAM FAILED", "SKIPPED:", "TRUNCATED:")

logger = logging.getLogger("dragoman.hub")


class CommandOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The recorded result of a command, and its effects on the turn."""

    body: str
    ok: bool
    size: int = 0
    """Bytes of the whole result, if `body` is not all of it."""
    spent: int = 0
    counts: dict[str, int] = {}
    pictures: tuple[str, ...] = ()
    interrupted: bool = False


class Dispatch:
    def __init__(self, tools: Sequence[Tool], session: Session) -> None:
        self._tools = {name: tool for tool in tools for name in tool.names}
        self._session = session
        self._read: dict[str, CommandOutcome] = {}
        self._failed: set[str] = set()

    async def run(self, iteration: int, commands: Sequence[Command]) -> list[str]:
        """A block for each command; fewer if the size limit is reached."""
        blocks: list[str] = []
        used: dict[str, int] = {}
        failed: set[str] = set()
        total = 0
        for n, command in enumerate(commands, 1):
            if total >= TOTAL_LIMIT:
                blocks.append(EXHAUSTED)
                break
            result = await self._run_one(f"tool/{iteration}/{n}", command, used)
            body = quote(result.body, min(BODY_LIMIT, TOTAL_LIMIT - total), size=result.size)
            block = f"[{_title(command)}]\n{body}\n[END {_block_name(command)}]"
            if not result.ok:
                failed.add(what := f"{command.title}\n{command.body}")
                if what in self._failed:
                    block = f"{LOOP.format(title=flatten(command.title, 200))}\n{block}"
            total += min(len(result.body.encode()), BODY_LIMIT)
            blocks.append(block)
        self._failed = failed
        return blocks

    async def _run_one(self, key: str, command: Command, used: dict[str, int]) -> CommandOutcome:
        session, turn = self._session, self._session.turn
        tool, refusal = self._tool(command), self._refusal(command, used)
        if (step := record_of(turn).steps.get(key)) is not None:
            result = msgspec.json.decode(step.value, type=CommandOutcome)
            session.budget.spent += result.spent
            session.writer.counts = dict(result.counts)
            session.pictures += result.pictures
        else:
            await record_of(turn).may_begin()
            before, seen = session.budget.spent, len(session.pictures)
            known = None if refusal else self._read.get(command.title)
            if not refusal and known is None:
                refusal = await self._ask_for_approval(command, key)
            body = refusal or (known.body if known else await self._run(tool, command, key))
            size = known.size if known else len(body.encode())
            result = CommandOutcome(
                body=body.encode()[:BODY_LIMIT].decode("utf-8", "ignore"),
                ok=_succeeded(body),
                size=size if size > BODY_LIMIT else 0,
                spent=session.budget.spent - before,
                counts=dict(session.writer.counts),
                pictures=tuple(session.pictures[seen:]),
                interrupted=body is INTERRUPTED,
            )
            await record_of(turn).record(key, result)
        how = {"ok": result.ok, **({"interrupted": True} if result.interrupted else {})}
        await session.writer.emit("tool_call", tool=tool.label(command), **how)
        if result.ok and command.name in _SAFE:
            self._read[command.title] = result
        return result

    async def _ask_for_approval(self, command: Command, key: str) -> str:
        """The result of a command that the caller does not approve; empty if it may run."""
        session = self._session
        if session.approve is None or not needs_approval(command, await session.approve(session.tenant)):
            return ""
        return await ask_for_approval(session.turn, session.agent, command, key)

    def _tool(self, command: Command) -> Tool:
        """A model that calls tools may call an unknown one."""
        return self._tools.get(command.name) or UnavailableTool(command.name, "there is no such command")

    def _refusal(self, command: Command, used: dict[str, int]) -> str:
        tool, granted = self._tool(command), self._session.constitution.granted
        if tool.bundle and tool.bundle not in granted:
            return f"ERR: capability not granted: this agent may not use {command.name}"
        if command.name in _LIMITS:
            what, most = _LIMITS[command.name]
            used[what] = used.get(what, 0) + 1
            if used[what] > most:
                return f"SKIPPED: max {most} {what} in one reply"
        if not command.closed:
            return f"ERR: the block was not closed with {ENDS[command.name]}; nothing was done"
        return ""

    async def _run(self, tool: Tool, command: Command, key: str) -> str:
        session = self._session
        session.key = key
        try:
            if not await tool.repeatable(command, session):
                if session.was_interrupted:
                    return INTERRUPTED
                await session.begin(tool.label(command))
            return repair_text(await tool.run(command, session))
        except (LeaseLost, StoreUnavailable):
            raise
        except A2AError as error:
            return f"ERR: {error.message}"
        except Exception:  # a broken tool does not fail the turn
            logger.exception("task %s: %s broke", session.turn.task_id, command.name)
            return f"ERR: {command.name} failed with an internal error; do not try again"


def _block_name(command: Command) -> str:
    if command.name == "/mem":
        return "SHARED MEMORY" if command.args.lower().startswith("shared") else "MEMORY"
    return command.name[1:].upper()


def _title(command: Command) -> str:
    if command.name == "/parallel":
        return f"{command.name} {len(children(command.body or ''))} children"
    return flatten(command.title, 400)


def _succeeded(body: str) -> bool:
    if body.startswith(_FAILURES) or _CHILD_FAILED.search(body) is not None:
        return False
    last = body.rstrip().rpartition("\n")[2]
    return not (last.startswith("[exit ") and last != "[exit 0]") and not last.startswith("[timed out")


# -- approvals ----------------------------------------------------------------------------------------------

MAX_SHOWN_CHARACTERS = 32_000
"""Characters of a command and its body that a person is asked about. A longer one does not run: nobody would have seen all of it."""
TOO_LONG = (
    "ERR: not approved: a person has to read this command before it runs, and it has {size} characters; at most {most} are shown. "
    "Do it in smaller steps."
)
REFUSED = "ERR: not approved: the user refused this command{why}. Do not try it again; go on without it, or say what is missing."

_VERBS_WITH_APPROVAL = {"/mcp": ("call",), "/a2a": ("call",)}
"""The verbs of a command that need an approval. Its other verbs only list."""
_VERBS_WITHOUT_APPROVAL = {"/schedule": ("", "list", "cancel", "pause")}


def needs_approval(command: Command, approve: Collection[str]) -> bool:
    """True if the policy says so. `/fetch?` is an address with a query, also in a browser."""
    name, verb = command.name, command.args.partition(" ")[0]
    if name in ("/fetch", "/browse") and "/fetch?" in approve and "?" in command.args:
        return True
    if name not in approve:
        return False
    if name in _VERBS_WITH_APPROVAL:
        return verb in _VERBS_WITH_APPROVAL[name]
    return verb not in _VERBS_WITHOUT_APPROVAL.get(name, ())


async def ask_for_approval(turn: Turn, agent: str, command: Command, key: str) -> str:
    """Ask the caller. Returns the result for a command that is refused; empty if it may run.

    What is shown is all that runs, and nothing in it is invisible.
    """
    title, body = reveal(command.title), reveal(command.body or "")
    if (size := len(title) + len(body)) > MAX_SHOWN_CHARACTERS:
        return TOO_LONG.format(size=size, most=MAX_SHOWN_CHARACTERS)
    details: dict[str, Any] = {
        "agent": agent,
        "command": command.name,
        "arguments": title[len(command.name) :].strip(),
    }
    if command.body is not None:
        details["body"] = body
    question = f"The agent {agent} wants to run this command. May it?\n{title}"
    answer: Approval = await record_of(turn).ask(
        TaskState.INPUT_REQUIRED, question, Approval, f"approve/{key}", {}, details, fresh=True
    )
    if answer:
        return ""
    return REFUSED.format(why=f": {answer.comment[:500]}" if answer.comment else "")
