"""`/v1/todos`: what is still to do."""

from __future__ import annotations

from msgspec import Struct

from dragoman.hub.hub import Hub
from dragoman.hub.refusals import there
from dragoman.hub.routing import Answer, Natural, Route, Visit


class NewTodo(Struct):
    subject: str
    description: str = ""
    conversation_id: Natural = 0


class TodoChange(Struct):
    state: str


def routes(hub: Hub) -> list[Route]:
    todos = hub.todos

    async def list_todos(visit: Visit) -> Answer:
        found = await todos.list(visit.tenant.id, conversation=visit.count("conversation_id", 0))
        return Answer({"count": len(found), "todos": found})

    async def add_todo(visit: Visit) -> Answer:
        body = await visit.json(NewTodo)
        if body.conversation_id:
            hub.conversations.find(visit.tenant.id, body.conversation_id)
        made = await todos.add(
            visit.tenant.id, body.subject, body.description, conversation=body.conversation_id
        )
        return Answer(made, 201)

    async def mark_todo(visit: Visit) -> Answer:
        id, state = visit.number("id"), (await visit.json(TodoChange)).state
        return Answer(there(await todos.mark(visit.tenant.id, id, state), "todo", id))

    async def delete_todo(visit: Visit) -> Answer:
        id = visit.number("id")
        there(await todos.delete(visit.tenant.id, id) or None, "todo", id)
        return Answer(status=204)

    all, one = "/v1/todos", "/v1/todos/{id}"
    return [
        Route(
            "GET", all, list_todos, "What is still to do.", "todos", query={"conversation_id": "Of this one."}
        ),
        Route("POST", all, add_todo, "Something to do.", "todos", body=NewTodo, status=201),
        Route("PATCH", one, mark_todo, "Say how it stands.", "todos", body=TodoChange),
        Route("DELETE", one, delete_todo, "Forget it.", "todos", status=204),
    ]
