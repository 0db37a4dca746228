"""`/todo`: what is still to do, kept across requests and put before the agent at the next one."""

from __future__ import annotations

from dragoman.errors import A2AError
from dragoman.hub.todos import Todos
from dragoman.hub.tool import Command, Session, harmless

_STATES = {"start": "in_progress", "done": "completed", "cancel": "canceled", "reopen": "pending"}


class TodoTool:
    names = ("/todo",)
    bundle = "todos"
    usage = (
        "/todo list | /todo add <what> | /todo start|done|cancel <id>   keep track of work that is still open"
    )
    repeatable = harmless

    def __init__(self, todos: Todos) -> None:
        self._todos = todos

    def label(self, command: Command) -> str:
        return f"todo:{command.args.partition(' ')[0]}"

    async def preamble(self, session: Session) -> str:
        """What stands before a request: the open ones."""
        lines = await self.lines(session)
        return "\n".join(["[OPEN TODOS]", *lines, "[END OPEN TODOS]"]) if lines else ""

    async def lines(self, session: Session) -> list[str]:
        found = await self._todos.list(session.tenant, conversation=session.conversation, limit=20)
        return [f"- #{todo.id} [{todo.state}] {todo.subject}" for todo in found]

    async def run(self, command: Command, session: Session) -> str:
        verb, _, rest = command.args.partition(" ")
        try:
            match verb:
                case "" | "list":
                    return "\n".join(await self.lines(session)) or "(nothing to do)"
                case "add":
                    return await self._add(rest or command.body or "", session)
                case _ if verb in _STATES:
                    id = rest.strip().removeprefix("#")
                    todo = await self._todos.change(
                        session.tenant,
                        int(id) if id.isdecimal() else 0,
                        state=_STATES[verb],
                        once=session.once,
                    )
                    return f"OK: #{todo.id} is {todo.state}" if todo else f"ERR: there is no todo {rest!r}"
        except A2AError as error:
            return f"ERR: {error.message}"
        return f"ERR: usage: {self.usage}"

    async def _add(self, text: str, session: Session) -> str:
        subject, _, description = text.strip().partition("\n")
        todo = await self._todos.add(
            session.tenant, subject, description.strip(), conversation=session.conversation, once=session.once
        )
        return f"OK: added #{todo.id} {todo.subject}"
