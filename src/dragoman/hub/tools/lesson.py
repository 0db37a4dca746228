"""`/lesson`: what an agent learned from a mistake, put before it when a request brings it to mind."""

from __future__ import annotations

from dragoman.errors import A2AError
from dragoman.hub.lessons import Lessons
from dragoman.hub.tool import Command, Session, harmless


class LessonTool:
    names = ("/lesson",)
    bundle = "lessons"
    usage = (
        "/lesson <where it went wrong>: <what to do instead> | /lesson list | /lesson search <words> | "
        "/lesson delete <id>   remember for next time (longer ones: the first line, the lesson, /endlesson)"
    )
    repeatable = harmless

    def __init__(self, lessons: Lessons) -> None:
        self._lessons = lessons

    def label(self, command: Command) -> str:
        return f"lesson:{command.args[:80]}"

    async def preamble(self, session: Session) -> str:
        """What stands before a request: the lessons it brings to mind."""
        once = f"{session.once}lessons"
        found = await self._lessons.remind(session.tenant, session.agent, session.original, once=once)
        lines = [f"- {lesson.line}" for lesson in found]
        return "\n".join(["[KNOWN PITFALLS]", *lines, "[END KNOWN PITFALLS]"]) if lines else ""

    async def run(self, command: Command, session: Session) -> str:
        verb, _, rest = command.args.partition(" ")
        try:
            match verb:
                case "list" if command.body is None:
                    found = await self._lessons.list(session.tenant, session.agent, limit=50)
                    return "\n".join(f"- {each.line}" for each in found) or "(no lessons yet)"
                case "search" if command.body is None:
                    found = await self._lessons.list(
                        session.tenant, session.agent, words=rest.strip(), limit=50
                    )
                    return "\n".join(f"- {each.line}" for each in found) or f"(no lessons about {rest!r})"
                case "delete" if command.body is None:
                    return await self._delete(rest, session)
            signature, text = command.args, command.body
            if text is None:
                signature, _, text = command.args.partition(": ")
            made = await self._lessons.add(session.tenant, session.agent, signature, text, once=session.once)
        except A2AError as error:
            return f"ERR: {error.message}"
        return f"OK: recorded lesson {made.line}"

    async def _delete(self, which: str, session: Session) -> str:
        id = which.strip().removeprefix("#")
        gone = (
            id.isdecimal()
            and len(id) < 16
            and await self._lessons.delete(session.tenant, int(id), session.agent, once=session.once)
        )
        return f"OK: lesson #{id} is deleted" if gone else f"ERR: there is no lesson {which!r} of yours"
