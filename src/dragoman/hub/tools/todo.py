"""`/todo`: what is still to do, kept across requests and put before the agent at the next one."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.errors import A2AError
from dragoman.hub.conversations.todos import LONGEST_SUBJECT, OPEN, STATES, Todo, Todos
from dragoman.hub.tools.tool import Command, Session, harmless

_STATES = {"start": "in_progress", "done": "completed", "cancel": "canceled", "reopen": "pending"}


class TodoTool:
    names = ("/todo",)
    bundle = "todos"
    usage = (
        "/todo list [all] | /todo add <what> | /todo start|done|cancel <id or subject> | "
        "/todo subject|describe <id>: <text>   keep track of work that is still open"
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

    async def lines(self, session: Session, states: Sequence[str] = OPEN, limit: int = 20) -> list[str]:
        found = await self._todos.list(
            session.tenant, conversation=session.conversation, states=states, limit=limit
        )
        return [f"- #{todo.id} [{todo.state}] {todo.subject}" for todo in found]

    async def run(self, command: Command, session: Session) -> str:
        verb, _, rest = command.args.partition(" ")
        rest = rest.strip()
        try:
            match verb:
                case "" | "list":
                    lines = await (self.lines(session, STATES, 100) if rest == "all" else self.lines(session))
                    return "\n".join(lines) or "(nothing to do)"
                case "add":
                    return await self._add(rest or command.body or "", session)
                case _ if verb in _STATES:
                    return await self._change(rest, session, f"is {_STATES[verb]}", state=_STATES[verb])
                case "subject" | "describe" if ":" in rest:
                    which, _, text = rest.partition(":")
                    member = "subject" if verb == "subject" else "description"
                    return await self._change(which, session, "is changed", **{member: text.strip()})
        except A2AError as error:
            return f"ERR: {error.message}"
        return f"ERR: usage: {self.usage}"

    async def _change(self, which: str, session: Session, how: str, **change: str) -> str:
        id = await self._find(which.strip(), session)
        todo = await self._todos.change(session.tenant, id, **change, once=session.once) if id else None
        return f"OK: #{todo.id} {how}" if todo else f"ERR: there is no todo {which!r} (try /todo list)"

    async def _find(self, which: str, session: Session) -> int:
        """The one that is meant: by its number, its subject, or how only its subject begins; an open one, if there is
        one. (After a crash it may be done already.) 0: none."""
        number = which.removeprefix("#")
        if number.isdecimal():
            return int(number) if len(number) < 16 else 0
        if len(which) > LONGEST_SUBJECT:
            return 0
        for states in (OPEN, STATES):
            found = await self._todos.list(
                session.tenant, conversation=session.conversation, states=states, limit=1000
            )
            for same in (_is, _begins):
                ids = [todo.id for todo in found if same(todo, which)]
                if len(ids) == 1:
                    return ids[0]
        return 0

    async def _add(self, text: str, session: Session) -> str:
        subject, _, description = text.strip().partition("\n")
        todo = await self._todos.add(
            session.tenant, subject, description.strip(), conversation=session.conversation, once=session.once
        )
        return f"OK: added #{todo.id} {todo.subject}"


def _is(todo: Todo, words: str) -> bool:
    return todo.subject.casefold() == words.casefold()


def _begins(todo: Todo, words: str) -> bool:
    return bool(words) and todo.subject.casefold().startswith(words.casefold())
