"""`/exec`: a shell command. Refused unless the operator has said where commands may run."""

from __future__ import annotations

from dragoman.errors import Unavailable
from dragoman.hub.sandbox.sandbox import Sandbox
from dragoman.hub.tools.tool import Command, Session

DISABLED = "commands are disabled on this hub"


class ExecTool:
    names = ("/exec",)
    bundle = "exec"
    usage = "/exec <command>   run a shell command in a confined place"

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._sandbox = sandbox

    def label(self, command: Command) -> str:
        return f"exec:{command.args[:80]}"

    async def repeatable(self, command: Command, session: Session) -> bool:
        return not session.broken_off and (self._sandbox is None or not command.args)

    async def run(self, command: Command, session: Session) -> str:
        if self._sandbox is None:
            return f"ERR: {DISABLED}"
        if not command.args:
            return "ERR: usage: /exec <command>"
        try:
            ran = await self._sandbox.run(session.tenant, command.args)
        except Unavailable as error:
            return f"ERR: {error.message}"
        how = f"[timed out after {ran.seconds:g}s]" if ran.timed_out else f"[exit {ran.code}]"
        return f"{ran.output.rstrip()}\n{how}".lstrip("\n")
