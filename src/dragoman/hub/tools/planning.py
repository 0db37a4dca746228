"""`/todo` and `/schedule`: open work, and work that runs later or repeatedly."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.hub.quote import flatten, quote
from dragoman.hub.schedules.run_times import find_zone, format_time
from dragoman.hub.store.schedules import ACTIVE, PAUSED, Schedule, Schedules
from dragoman.hub.store.todos import MAX_SUBJECT_CHARACTERS, OPEN, STATES, Todo, Todos
from dragoman.hub.tools import Command, Session, Tool, parse_id

_TODO_VERBS = {"start": "in_progress", "done": "completed", "cancel": "canceled", "reopen": "pending"}


class TodoTool(Tool):
    names = ("/todo",)
    usage = (
        "/todo list [all] | /todo add <what> | /todo start|done|cancel <id or subject> | "
        "/todo subject|describe <id>: <text>   keep track of work that is still open"
    )

    def __init__(self, todos: Todos) -> None:
        self._todos = todos

    def label(self, command: Command) -> str:
        return f"todo:{command.args.partition(' ')[0]}"

    async def preamble(self, session: Session) -> str:
        """The open todos, to be put before a request."""
        lines = await self.lines(session)
        quoted = quote("\n".join(lines))
        return f"[OPEN TODOS]\n{quoted}\n[END OPEN TODOS]" if lines else ""

    async def lines(self, session: Session, states: Sequence[str] = OPEN, limit: int = 20) -> list[str]:
        found = await self._todos.list(
            session.tenant, conversation=session.conversation, states=states, limit=limit
        )
        return [f"- #{todo.id} [{todo.state}] {flatten(todo.subject)}" for todo in found]

    async def run(self, command: Command, session: Session) -> str:
        verb, _, rest = command.args.partition(" ")
        rest = rest.strip()
        match verb:
            case "" | "list":
                lines = await (self.lines(session, STATES, 100) if rest == "all" else self.lines(session))
                return "\n".join(lines) or "(nothing to do)"
            case "add":
                return await self._add(rest or command.body or "", session)
            case _ if verb in _TODO_VERBS:
                return await self._change(rest, session, f"is {_TODO_VERBS[verb]}", state=_TODO_VERBS[verb])
            case "subject" | "describe" if ":" in rest:
                which, _, text = rest.partition(":")
                member = "subject" if verb == "subject" else "description"
                return await self._change(which, session, "is changed", **{member: text.strip()})
        return f"ERR: usage: {self.usage}"

    async def _change(self, which: str, session: Session, how: str, **change: str) -> str:
        id = await self._find(which.strip(), session)
        todos = self._todos.once(session.write_key)
        todo = await todos.change(session.tenant, id, **change) if id else None
        return f"OK: #{todo.id} {how}" if todo else f"ERR: there is no todo {which!r} (try /todo list)"

    async def _find(self, which: str, session: Session) -> int:
        """The id of a todo by its number, its subject, or a unique beginning of its subject, open todos first; 0: none."""
        if which.removeprefix("#").isdecimal():
            return parse_id(which)
        if len(which) > MAX_SUBJECT_CHARACTERS:
            return 0
        for states in (OPEN, STATES):
            found = await self._todos.list(
                session.tenant, conversation=session.conversation, states=states, limit=1000
            )
            for matches in (_has_subject, _subject_begins_with):
                ids = [todo.id for todo in found if matches(todo, which)]
                if len(ids) == 1:
                    return ids[0]
        return 0

    async def _add(self, text: str, session: Session) -> str:
        subject, _, description = text.strip().partition("\n")
        todo = await self._todos.once(session.write_key).add(
            session.tenant, subject, description.strip(), conversation=session.conversation
        )
        return f"OK: added #{todo.id} {todo.subject}"


def _has_subject(todo: Todo, words: str) -> bool:
    return todo.subject.casefold() == words.casefold()


def _subject_begins_with(todo: Todo, words: str) -> bool:
    return bool(words) and todo.subject.casefold().startswith(words.casefold())


_VERBS = {"pause": PAUSED, "resume": ACTIVE}


class ScheduleTool(Tool):
    names = ("/schedule",)
    usage = (
        "/schedule <when>: <what to do then> | /schedule list | /schedule cancel|pause|resume <id>   have work done "
        "later (in 2 hours, tomorrow at 09:00) or again and again (every monday at 09:00, cron 0 9 * * mon-fri); a time zone "
        "may follow (every day at 09:00 in Europe/Berlin)"
    )

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    def label(self, command: Command) -> str:
        return f"schedule:{command.args[:80]}"

    async def run(self, command: Command, session: Session) -> str:
        verb, _, rest = command.args.partition(" ")
        id = parse_id(rest)
        if verb in ("", "list"):
            found = await self._schedules.list(session.tenant)
            return "\n".join(self._line(each) for each in found) or "(nothing is scheduled)"
        if verb == "cancel":
            gone = await self._schedules.once(session.write_key).delete(session.tenant, id)
            return f"OK: #{id} is canceled" if gone else f"ERR: there is no schedule {rest!r}"
        if verb in _VERBS:
            changed = await self._schedules.set_status(
                session.tenant, id, _VERBS[verb], generation=session.turn.mail.generation
            )
            return f"OK: {self._line(changed)}" if changed else f"ERR: there is no schedule {rest!r}"
        phrase, _, message = command.args.partition(": ")
        made, note = await self._schedules.once(session.write_key).add(
            session.tenant,
            session.agent,
            phrase,
            message,
            conversation=session.conversation,
            generation=session.turn.mail.generation,
        )
        return f"OK: scheduled #{made.id}: {note} ({self._time(made)}), for {made.agent_id}"

    def _line(self, schedule: Schedule) -> str:
        phrase, message = flatten(schedule.schedule_phrase), flatten(schedule.message, 120)
        about = f"[{schedule.status}] {phrase}, for {schedule.agent_id}: {message}"
        return f"- #{schedule.id} {about} (next: {self._time(schedule)})"

    def _time(self, schedule: Schedule) -> str:
        zone = find_zone(schedule.timezone or self._schedules.timezone)
        return format_time(schedule.next_fire_at, zone)
