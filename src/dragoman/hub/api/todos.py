"""`/v1/todos`: what is still to do."""

from __future__ import annotations

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.api.routes import Answer, Natural, Route, Visit
from dragoman.hub.conversations.todos import OPEN, STATES
from dragoman.hub.errors import there
from dragoman.hub.hub import Hub


class NewTodo(Struct):
    subject: str
    description: str = ""
    conversation_id: Natural = 0


class TodoChange(Struct):
    state: str | None = None
    subject: str | None = None
    description: str | None = None


def routes(hub: Hub) -> list[Route]:
    todos = hub.todos

    async def list_todos(visit: Visit) -> Answer:
        states = [word for word in visit.asked("state").split(",") if word] or OPEN
        if unknown := [word for word in states if word not in STATES]:
            raise InvalidParams(
                f"there is no state {unknown[0][:40]!r}",
                fields=(("state", f"is one of {', '.join(STATES)}"),),
            )
        found = await todos.list(
            visit.tenant.id,
            conversation=visit.count("conversation_id", 0) or None,
            states=states,
            limit=visit.count("limit", 200, 500),
        )
        return Answer({"count": len(found), "todos": found})

    async def get_todo(visit: Visit) -> Answer:
        id = visit.number("id")
        return Answer(there(await todos.get(visit.tenant.id, id), "todo", id))

    async def add_todo(visit: Visit) -> Answer:
        body = await visit.json(NewTodo)
        if body.conversation_id:
            hub.conversations.find(visit.tenant.id, body.conversation_id)
        made = await todos.add(
            visit.tenant.id, body.subject, body.description, conversation=body.conversation_id
        )
        return Answer(made, 201)

    async def change_todo(visit: Visit) -> Answer:
        id, body = visit.number("id"), await visit.json(TodoChange)
        changed = await todos.change(
            visit.tenant.id, id, state=body.state, subject=body.subject, description=body.description
        )
        return Answer(there(changed, "todo", id))

    async def delete_todo(visit: Visit) -> Answer:
        id = visit.number("id")
        there(await todos.delete(visit.tenant.id, id) or None, "todo", id)
        return Answer(status=204)

    all, one = "/v1/todos", "/v1/todos/{id}"
    filters = {
        "conversation_id": "Of this conversation, or of none; without it, all.",
        "state": "Only these, with commas between them; without it, what is pending or in progress.",
        "limit": "200, and no more than 500.",
    }
    return [
        Route("GET", all, list_todos, "What is still to do.", "todos", query=filters),
        Route("POST", all, add_todo, "Something to do.", "todos", body=NewTodo, status=201),
        Route("GET", one, get_todo, "One of them.", "todos"),
        Route("PATCH", one, change_todo, "Say how it stands, or what it is.", "todos", body=TodoChange),
        Route("DELETE", one, delete_todo, "Forget it.", "todos", status=204),
    ]
