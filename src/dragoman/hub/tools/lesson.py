"""`/lesson`: what an agent learned from a mistake. A lesson is a memory of type `learning` whose source is the agent."""

from __future__ import annotations

from dragoman.errors import A2AError
from dragoman.hub.memory.entries import Entry
from dragoman.hub.memory.memories import Memories
from dragoman.hub.memory.search import Search
from dragoman.hub.tools.tool import Command, Session, harmless

TYPE = "learning"
REMINDED = 3
"""Lessons that are put before a request."""


class LessonTool:
    names = ("/lesson",)
    bundle = "lessons"
    usage = (
        "/lesson <where it went wrong>: <what to do instead> | /lesson list | /lesson search <words> | "
        "/lesson delete <id>   remember for next time (longer ones: the first line, the lesson, /endlesson)"
    )
    repeatable = harmless

    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    def label(self, command: Command) -> str:
        return f"lesson:{command.args[:80]}"

    async def preamble(self, session: Session) -> str:
        """The lessons that match a request, to be put before it."""
        lines = await self._search(session, session.original, REMINDED)
        return "\n".join(["[KNOWN PITFALLS]", *lines, "[END KNOWN PITFALLS]"]) if lines else ""

    async def run(self, command: Command, session: Session) -> str:
        verb, _, rest = command.args.partition(" ")
        try:
            match verb:
                case "list" if command.body is None:
                    found = await self._memories.list(session.tenant, types=(TYPE,), source=session.agent)
                    return "\n".join(map(_line, found)) or "(no lessons yet)"
                case "search" if command.body is None:
                    lines = await self._search(session, rest, 50)
                    return "\n".join(lines) or f"(no lessons about {rest!r})"
                case "delete" if command.body is None:
                    return await self._delete(rest, session)
            where, text = command.args, command.body
            if text is None:
                where, _, text = command.args.partition(": ")
            if not text.strip():
                return "ERR: a lesson says what to do instead"
            made = await self._memories.add(
                session.tenant, TYPE, where, text.strip(), source=session.agent, once=session.once
            )
        except A2AError as error:
            return f"ERR: {error.message}"
        return f"OK: recorded lesson {_line(made)[2:]}"

    async def _search(self, session: Session, words: str, limit: int) -> list[str]:
        search = Search(query=words, types=(TYPE,), source=session.agent, limit=limit)
        return [_line(entry) for entry in await self._memories.search(session.tenant, search)]

    async def _delete(self, which: str, session: Session) -> str:
        id = which.strip().removeprefix("#")
        entry = None
        if id.isdecimal() and len(id) < 16:
            entry = await self._memories.get(session.tenant, int(id))
        mine = entry is not None and (entry.type, entry.source) == (TYPE, session.agent)
        if not mine or not await self._memories.invalidate(session.tenant, int(id), once=session.once):
            return f"ERR: there is no lesson {which!r} of yours"
        return f"OK: lesson #{id} is deleted"


def _line(entry: Entry) -> str:
    return f"- [{entry.title}] {entry.content} (#{entry.id})"
