"""A tool: what a `/command` in a model's reply runs.

Tools are plain: a command and a session in, text out. The loop does what is common to all of them: the capability gate,
budgets, the recorded step, truncation, the block around the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from dragoman.engine.turn import Turn, record_of
from dragoman.hub.agents.constitution import Constitution, bundle_of
from dragoman.hub.agents.event_writer import EventWriter
from dragoman.hub.models.model import Usage

_ONLY_IF = ("cache_read_tokens", "cache_create_tokens", "estimated")
"""What of a usage is told if there is any."""


class Command(Struct, frozen=True, kw_only=True):
    """One command of a reply: `/write notes.md` with its body, `/fetch https://example.com` without."""

    name: str
    """With the slash: `/fetch`."""
    args: str = ""
    body: str | None = None
    closed: bool = True
    """A block command whose end was found."""

    @property
    def title(self) -> str:
        return f"{self.name} {self.args}".strip()


class Budget:
    """The tokens a request may use, those of the agents it asks included. It only shrinks on the way down."""

    def __init__(self, *limits: int) -> None:
        self._limit = min((limit for limit in limits if limit > 0), default=0)
        self.spent = 0

    @property
    def left(self) -> int | None:
        """None: no limit."""
        return max(0, self._limit - self.spent) if self._limit else None


class Session(Struct, kw_only=True):
    """Where a command runs: for whom, as which agent, in which conversation."""

    tenant: str
    agent: str
    constitution: Constitution
    turn: Turn
    writer: EventWriter
    """For what others should hear of while the command runs."""
    budget: Budget
    key: str = ""
    """Names the command within the turn; the same after a restart."""
    conversation: int = 0
    """0: none (every call over A2A). Files then cannot be kept, and memory is not tied to a conversation."""
    depth: int = 0
    stream_id: int = 0
    original: str = ""
    """What the user asked in the first place."""
    pictures: list[str] = []
    """Keys of the pictures that commands gave since the model last spoke; it sees them with its next prompt."""
    scratch: dict[str, Any] = {}
    """What tools remember during one run of a turn."""

    async def count_usage(self, usage: Usage, model: str) -> None:
        """Count what a call of a model used, and say so."""
        self.budget.spent += usage.total
        more = {name: value for name in _ONLY_IF if (value := getattr(usage, name))}
        await self.writer.emit(
            "token_usage",
            model=model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            **more,
        )

    @property
    def write_key(self) -> str:
        """Names the command for good: what it writes under this key is written once, also if a restart runs it again."""
        turn, scope = self.turn, self.turn.scope
        return f"{scope.tenant}/{scope.agent}/{turn.task_id}/{turn.n}/{self.key}"

    @property
    def was_interrupted(self) -> bool:
        """The command was begun before a crash, as one that must not run twice."""
        return record_of(self.turn).steps.get(self._begun) is not None

    async def begin(self, label: str) -> None:
        """Put on record that the command begins."""
        await record_of(self.turn).record(self._begun, label)
        await record_of(self.turn).may_begin()

    @property
    def _begun(self) -> str:
        return f"begun/{self.key}"


async def always_repeatable(tool: object, command: Command, session: Session) -> bool:
    """`repeatable` of tools that only read, that write only here (`Session.write_key`), or that have us follow a task."""
    return True


class Tool(Protocol):
    @property
    def names(self) -> tuple[str, ...]:
        """The commands it answers: `("/fetch",)`."""
        ...

    @property
    def bundle(self) -> str:
        """What a constitution grants: web, exec, write, read, mem, delegation, mcp, a2a, advise, todos; empty: always."""
        ...

    @property
    def usage(self) -> str:
        """A line or more for the system prompt and for `/help`."""
        ...

    def label(self, command: Command) -> str:
        """What `tool_call` events call it: `fetch:https://...`, `agent:scout`, `mcp:server.tool`."""
        ...

    async def repeatable(self, command: Command, session: Session) -> bool:
        """Whether a command that a crash broke off may simply run again. One that may not is begun once, and never again."""
        ...

    async def run(self, command: Command, session: Session) -> str:
        """The body of the result block. A failure is a text that begins with `ERR:`; only a broken tool raises."""
        ...


class HelpTool:
    names = ("/help",)
    bundle = ""
    usage = "/help [command]   what a command does and how it is written"
    repeatable = always_repeatable

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._tools = tuple(tools)

    def label(self, command: Command) -> str:
        return f"help:{command.args[:40]}" if command.args else "help"

    async def run(self, command: Command, session: Session) -> str:
        granted = session.constitution.granted
        every: tuple[Tool, ...] = (*self._tools, self)
        shown = [tool for tool in every if not tool.bundle or tool.bundle in granted]
        topic = "/" + command.args.strip().removeprefix("/").partition(" ")[0]
        if topic == "/":
            return "\n".join(tool.usage for tool in shown)
        for tool in shown:
            if topic in tool.names:
                return tool.usage
        return f"ERR: there is no command {topic} for this agent"


class UnavailableTool:
    """A command that the hub knows and does not serve: refused in words, so that a model does not wait for a result."""

    usage = ""
    repeatable = always_repeatable

    def __init__(self, name: str, why: str) -> None:
        self.names = (name,)
        self.bundle = bundle_of(name)
        self._why = why

    def label(self, command: Command) -> str:
        return command.name[1:]

    async def run(self, command: Command, session: Session) -> str:
        return f"ERR: {command.name} is not available: {self._why}"
