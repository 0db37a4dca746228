"""A tool: what a `/command` in a model's reply runs.

A tool takes a command and a session, and returns text. `agents/dispatch.py` does the rest: capabilities, limits, recording,
truncation, errors, the block around the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.engine.turn import Turn, record_of
from dragoman.hub.agents.constitution import Constitution, bundle_of
from dragoman.hub.agents.event_writer import HubEventWriter
from dragoman.hub.models import Usage
from dragoman.hub.models.prices import Prices

_OPTIONAL_MEMBERS = ("cache_read_tokens", "cache_create_tokens", "estimated")
"""Members of a usage that are reported only if they are set."""


class Command(Struct, frozen=True, kw_only=True):
    """One command of a reply: `/write notes.md` with its body, `/fetch https://example.com` without."""

    name: str
    """With the slash: `/fetch`."""
    args: str = ""
    body: str | None = None
    closed: bool = True
    """False for a block command without its end."""

    @property
    def title(self) -> str:
        return f"{self.name} {self.args}".strip()


def parse_id(text: str) -> int:
    """The id that a model writes as `7` or `#7`; 0 for anything else. No row has the id 0."""
    text = text.strip().removeprefix("#")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


class Budget:
    """The tokens that a request may use, those of delegated agents included."""

    def __init__(self, *limits: int) -> None:
        self._limit = min((limit for limit in limits if limit > 0), default=0)
        self.spent = 0

    @property
    def left(self) -> int | None:
        """None: no limit."""
        return max(0, self._limit - self.spent) if self._limit else None


class Session(Struct, kw_only=True):
    """The context of a command: tenant, agent, conversation, turn."""

    tenant: str
    agent: str
    constitution: Constitution
    turn: Turn
    writer: HubEventWriter
    """Reports events while the command runs."""
    budget: Budget
    prices: Prices = Prices()
    key: str = ""
    """Identifies the command within the turn, also after a restart."""
    conversation: int = 0
    """0: none (every call over A2A). Then files cannot be stored, and memories belong to the tenant."""
    depth: int = 0
    stream_id: int = 0
    original: str = ""
    """The first question of the user."""
    pictures: list[str] = []
    """Keys of images for the model's next prompt."""

    async def count_usage(self, usage: Usage, model: str) -> None:
        """Count the tokens of a model call, and report them."""
        self.budget.spent += usage.total
        self.turn.usage(
            model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            cost=self.prices.cost(model, usage),
            currency=self.prices.currency,
        )
        more = {name: value for name in _OPTIONAL_MEMBERS if (value := getattr(usage, name))}
        await self.writer.emit(
            "token_usage",
            model=model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            **more,
        )

    @property
    def write_key(self) -> str:
        """A unique key of the command: a write under this key happens once, also if the command runs again after a restart."""
        turn, scope = self.turn, self.turn.scope
        return f"{scope.tenant}/{scope.agent}/{turn.task_id}/{turn.n}/{self.key}"

    @property
    def was_interrupted(self) -> bool:
        """A crash interrupted the command, which must not run twice."""
        return record_of(self.turn).steps.get(self._start_key) is not None

    async def begin(self, label: str) -> None:
        """Record the start of the command."""
        await record_of(self.turn).record_step(self._start_key, label)
        await record_of(self.turn).may_begin()

    @property
    def _start_key(self) -> str:
        return f"begun/{self.key}"


class Tool:
    """What a command runs. A tool has `names`, mostly a `usage`, and `run`."""

    names: tuple[str, ...]
    """The commands it answers: `("/fetch",)`."""

    @property
    def usage(self) -> str:
        """A line or more for the system prompt and for `/help`."""
        return ""

    @property
    def bundle(self) -> str:
        """The bundle that grants it; empty: always granted."""
        return bundle_of(self.names[0])

    def label(self, command: Command) -> str:
        """Its name in `tool_call` events: `fetch:https://...`, `agent:scout`, `mcp:server.tool`."""
        return command.name[1:]

    async def preamble(self, session: Session) -> str:
        """Text that precedes a request in the prompt."""
        return ""

    async def repeatable(self, command: Command, session: Session) -> bool:
        """True if the command may run again after a crash interrupted it: it only reads, writes under `Session.write_key`, or
        follows a task."""
        return True

    async def check(self, command: Command, session: Session) -> None:
        """Raises `A2AError` for a command that cannot run here: nobody is asked to approve it."""

    async def run(self, command: Command, session: Session) -> str:
        """The body of the result block. A failure is a text that begins with `ERR:`, or an `A2AError`."""
        raise NotImplementedError


class HelpTool(Tool):
    names = ("/help",)
    usage = "/help [command]   what a command does and how it is written"

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._tools = tuple(tools)

    def label(self, command: Command) -> str:
        return f"help:{command.args[:40]}" if command.args else "help"

    async def run(self, command: Command, session: Session) -> str:
        every: tuple[Tool, ...] = (*self._tools, self)
        tools = [tool for tool in every if session.constitution.grants(tool.bundle)]
        topic = "/" + command.args.strip().removeprefix("/").partition(" ")[0]
        if topic == "/":
            return "\n".join(tool.usage for tool in tools)
        for tool in tools:
            if topic in tool.names:
                return tool.usage
        return f"ERR: there is no command {topic} for this agent"


class UnavailableTool(Tool):
    """A known command that this hub does not have. It answers with the reason."""

    def __init__(self, name: str, why: str) -> None:
        self.names, self._why = (name,), why

    async def run(self, command: Command, session: Session) -> str:
        return f"ERR: {command.name} is not available: {self._why}"
