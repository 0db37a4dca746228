"""`/schedule`: work for the agent itself, later or again and again."""

from __future__ import annotations

from datetime import datetime

from dragoman.errors import A2AError
from dragoman.hub.schedules.schedules import ACTIVE, PAUSED, Schedule, Schedules
from dragoman.hub.tools.tool import Command, Session, harmless

_VERBS = {"pause": PAUSED, "resume": ACTIVE}


class ScheduleTool:
    names = ("/schedule",)
    bundle = "schedule"
    usage = (
        "/schedule <when>: <what to do then> | /schedule list | /schedule cancel|pause|resume <id>   have work done "
        "later (in 2 hours, tomorrow at 09:00) or again and again (every monday at 09:00)"
    )
    repeatable = harmless

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    def label(self, command: Command) -> str:
        return f"schedule:{command.args[:80]}"

    async def run(self, command: Command, session: Session) -> str:
        verb, _, rest = command.args.partition(" ")
        which = rest.strip().removeprefix("#")
        id = int(which) if which.isdecimal() and len(which) < 16 else 0
        try:
            if verb in ("", "list"):
                found = await self._schedules.list(session.tenant)
                return "\n".join(_line(each) for each in found) or "(nothing is scheduled)"
            if verb == "cancel":
                gone = await self._schedules.delete(session.tenant, id, once=session.once)
                return f"OK: #{id} is canceled" if gone else f"ERR: there is no schedule {rest!r}"
            if verb in _VERBS:
                changed = await self._schedules.mark(
                    session.tenant, id, _VERBS[verb], generation=session.turn.mail.generation
                )
                return f"OK: {_line(changed)}" if changed else f"ERR: there is no schedule {rest!r}"
            phrase, _, message = command.args.partition(": ")
            made, said = await self._schedules.add(
                session.tenant,
                session.agent,
                phrase,
                message,
                conversation=session.conversation,
                once=session.once,
                generation=session.turn.mail.generation,
            )
        except A2AError as error:
            return f"ERR: {error.message}"
        return f"OK: scheduled #{made.id}: {said} ({_time(made.next_fire_at)}), for {made.agent_id}"


def _line(schedule: Schedule) -> str:
    about = (
        f"[{schedule.status}] {schedule.schedule_phrase}, for {schedule.agent_id}: {schedule.message[:120]}"
    )
    return f"- #{schedule.id} {about} (next: {_time(schedule.next_fire_at)})"


def _time(at: int) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"
