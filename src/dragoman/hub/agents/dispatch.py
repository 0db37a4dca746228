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
from dragoman.hub.agents.commands import BLOCK_ENDS
from dragoman.hub.models import repair_text
from dragoman.hub.quote import MARK, flatten, quote, reveal
from dragoman.hub.store.policies import Policies
from dragoman.hub.tools import Command, Session, Tool, UnavailableTool
from dragoman.hub.tools.delegate import parse_children
from dragoman.model.questions import Approval
from dragoman.model.task import TaskState

MAX_RESULT_BYTES = 16 * 1024
MAX_RESULTS_BYTES = 32 * 1024
EXHAUSTED = "[TOOL RESULTS TRUNCATED: budget exhausted]"
RESULTS_END = "[END TOOL RESULTS]"
LOOP = "[LOOP DETECTED] {title} failed again in the same way. Do not repeat it: try another way, or answer without it."

_LIMITS = {
    "/fetch": ("pages", 3),
    "/browse": ("pages", 3),
    "/search": ("searches", 4),
    "/advise": ("questions", 2),
}
_CACHED_COMMANDS = frozenset({"/fetch", "/search"})
"""Commands whose result is cached until the end of the turn."""
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
    def __init__(self, tools: Sequence[Tool], session: Session, policies: Policies) -> None:
        self._tools = {name: tool for tool in tools for name in tool.names}
        self._session, self._policies = session, policies
        self._cached_reads: dict[str, CommandOutcome] = {}
        self._failed_commands: set[str] = set()

    async def run(self, iteration: int, commands: Sequence[Command]) -> list[str]:
        """A block for each command; fewer if the size limit is reached."""
        blocks: list[str] = []
        used: dict[str, int] = {}
        failed: set[str] = set()
        total = 0
        for n, command in enumerate(commands, 1):
            if total >= MAX_RESULTS_BYTES:
                blocks.append(EXHAUSTED)
                break
            result = await self._run_one(f"tool/{iteration}/{n}", command, used)
            body = quote(result.body, min(MAX_RESULT_BYTES, MAX_RESULTS_BYTES - total), size=result.size)
            block = f"[{_title(command)}]\n{body}\n[END {_block_name(command)}]"
            if not result.ok:
                failed.add(whole := f"{command.title}\n{command.body}")
                if whole in self._failed_commands:
                    block = f"{LOOP.format(title=flatten(command.title, 200))}\n{block}"
            total += min(len(result.body.encode()), MAX_RESULT_BYTES)
            blocks.append(block)
        self._failed_commands = failed
        return blocks

    async def _run_one(self, key: str, command: Command, used: dict[str, int]) -> CommandOutcome:
        """Run a command, or load its recorded result, and report it."""
        refusal = self._refusal(command, used)
        result = self._load(key)
        if result is None:
            result = await self._run_and_record(key, command, refusal)
        status = {"ok": result.ok, **({"interrupted": True} if result.interrupted else {})}
        await self._session.writer.emit("tool_call", tool=self._tool(command).label(command), **status)
        if result.ok and command.name in _CACHED_COMMANDS:
            self._cached_reads[command.title] = result
        return result

    def _load(self, key: str) -> CommandOutcome | None:
        """The recorded result of a command, after repeating its effects on the session; None if there is none."""
        session, record = self._session, record_of(self._session.turn)
        if (step := record.steps.get(key)) is None:
            return None
        record.skip_question(_approval_key(key))
        result = msgspec.json.decode(step.value, type=CommandOutcome)
        session.budget.spent += result.spent
        session.writer.counts = dict(result.counts)
        session.pictures += result.pictures
        return result

    async def _run_and_record(self, key: str, command: Command, refusal: str) -> CommandOutcome:
        """`refusal`: the result of a command that does not run."""
        session, record = self._session, record_of(self._session.turn)
        with record.running(key):
            await record.may_begin()
            spent_before, pictures_before = session.budget.spent, len(session.pictures)
            cached = None if refusal else self._cached_reads.get(command.title)
            if not refusal and cached is None:
                refusal = await self._ask_for_approval(command, key)
            body = refusal or (cached.body if cached else await self._run(command, key))
            size = cached.size if cached else len(body.encode())
            result = CommandOutcome(
                body=body.encode()[:MAX_RESULT_BYTES].decode("utf-8", "ignore"),
                ok=_succeeded(body),
                size=size if size > MAX_RESULT_BYTES else 0,
                spent=session.budget.spent - spent_before,
                counts=dict(session.writer.counts),
                pictures=tuple(session.pictures[pictures_before:]),
                interrupted=body is INTERRUPTED,
            )
            await record.record_step(key, result)
        return result

    async def _ask_for_approval(self, command: Command, key: str) -> str:
        """The result of a command that the caller does not approve; empty if it may run."""
        session = self._session
        approve = (await self._policies.of(session.tenant)).approve
        # an answer counts, also if the policy has changed since the question
        if not record_of(session.turn).has_answer(_approval_key(key)) and not needs_approval(
            command, approve
        ):
            return ""
        try:
            await self._tool(command).check(command, session)
        except StoreUnavailable:
            raise
        except A2AError as error:
            return f"ERR: {error.message}"
        return await ask_for_approval(session.turn, session.agent, command, key)

    def _tool(self, command: Command) -> Tool:
        """The tool of a command. (A model that calls tools may call an unknown one.)"""
        return self._tools.get(command.name) or UnavailableTool(command.name, "there is no such command")

    def _refusal(self, command: Command, used: dict[str, int]) -> str:
        """The result of a command that does not run; empty if it may. `used`: how many of each kind this reply had so far."""
        if not self._session.constitution.grants(self._tool(command).bundle):
            return f"ERR: capability not granted: this agent may not use {command.name}"
        if command.name in _LIMITS:
            what, most = _LIMITS[command.name]
            used[what] = used.get(what, 0) + 1
            if used[what] > most:
                return f"SKIPPED: max {most} {what} in one reply"
        if not command.closed:
            return f"ERR: the block was not closed with {BLOCK_ENDS[command.name]}; nothing was done"
        return ""

    async def _run(self, command: Command, key: str) -> str:
        """The result of the command's tool, or the error."""
        session, tool = self._session, self._tool(command)
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
    return flatten(command.name[1:].upper(), 80)  # a model that calls tools may call one of any name


def _title(command: Command) -> str:
    if command.name == "/parallel":
        return f"{command.name} {len(parse_children(command.body or ''))} children"
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


def _approval_key(command: str) -> str:
    """The key of the question about a command; `command`: the key of its result."""
    return f"approve/{command}"


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
        TaskState.INPUT_REQUIRED, question, Approval, _approval_key(key), {}, details, fresh=True
    )
    if answer:
        return ""
    return REFUSED.format(why=f": {answer.comment[:500]}" if answer.comment else "")
