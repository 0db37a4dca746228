"""`/v1/lessons`: what agents learned from their mistakes, for people to see and correct."""

from __future__ import annotations

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.constitution import INDEX_ID
from dragoman.hub.hub import Hub
from dragoman.hub.refusals import there
from dragoman.hub.routing import Answer, Route, Visit


class NewLesson(Struct):
    """Where something goes wrong, and what to do instead."""

    signature: str
    lesson_text: str
    agent_id: str = INDEX_ID


class LessonChange(Struct):
    signature: str | None = None
    lesson_text: str | None = None


def routes(hub: Hub) -> list[Route]:
    lessons = hub.lessons

    async def add(visit: Visit) -> Answer:
        body = await visit.json(NewLesson)
        made = await lessons.add(visit.tenant.id, body.agent_id, body.signature, body.lesson_text)
        return Answer({"lesson": made}, 201)

    async def browse(visit: Visit) -> Answer:
        words = visit.asked("q")
        limit = visit.count("limit", 50 if words else 200, 50 if words else 200)
        found = await lessons.list(visit.tenant.id, visit.asked("agent_id"), words=words, limit=limit)
        return Answer({"count": len(found), "lessons": found})

    async def get(visit: Visit) -> Answer:
        return Answer(
            {
                "lesson": there(
                    await lessons.get(visit.tenant.id, visit.number("id")), "lesson", visit.values["id"]
                )
            }
        )

    async def change(visit: Visit) -> Answer:
        there(await lessons.get(visit.tenant.id, visit.number("id")), "lesson", visit.values["id"])
        body = await visit.json(LessonChange)
        if body.signature is None and body.lesson_text is None:
            raise InvalidParams("nothing is to be changed: say signature or lesson_text")
        changed = await lessons.change(
            visit.tenant.id, visit.number("id"), signature=body.signature, text=body.lesson_text
        )
        return Answer({"lesson": there(changed, "lesson", visit.values["id"])})

    async def delete(visit: Visit) -> Answer:
        gone = await lessons.delete(visit.tenant.id, visit.number("id"))
        there(gone or None, "lesson", visit.values["id"])
        return Answer(status=204)

    all, one = "/v1/lessons", "/v1/lessons/{id}"
    filters = {
        "agent_id": "Only those of this agent.",
        "q": "Only those that have these words; the most needed first.",
        "limit": "200, in a search 50, and no more.",
    }

    return [
        Route(
            "POST", all, add, "Something to do otherwise next time.", "lessons", body=NewLesson, status=201
        ),
        Route("GET", all, browse, "What was learned, seen last first.", "lessons", query=filters),
        Route("GET", one, get, "One lesson.", "lessons"),
        Route("PATCH", one, change, "Put it otherwise.", "lessons", body=LessonChange),
        Route("DELETE", one, delete, "Forget it.", "lessons", status=204),
    ]
