"""What is still to do, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hub.house import Caller, house

TODOS = "/v1/todos"


async def subjects(caller: Caller, query: str = "") -> list[str]:
    return [todo["subject"] for todo in (await caller("GET", TODOS + query)).json["todos"]]


async def test_todos_are_listed_by_conversation_and_state() -> None:
    async with house() as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        here, there = [(await acme("POST", "/v1/conversations", {})).json["id"] for _ in range(2)]
        for subject, conversation in (("all", 0), ("here", here), ("there", there)):
            await acme("POST", TODOS, {"subject": subject, "conversation_id": conversation})
        assert await subjects(acme) == ["all", "here", "there"]
        assert await subjects(acme, f"?conversation_id={here}") == ["all", "here"]
        done = await acme("PATCH", f"{TODOS}/2", {"state": "completed"})
        assert done.json["state"] == "completed" and done.json["subject"] == "here"
        assert await subjects(acme) == ["all", "there"]
        assert await subjects(acme, "?state=completed,pending&limit=2") == ["all", "here"]
        assert (await acme("GET", f"{TODOS}?state=asleep")).status == 400
        assert await subjects(other, "?state=pending,completed") == []


async def test_a_todo_is_read_and_put_otherwise() -> None:
    async with house() as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        made = (await acme("POST", TODOS, {"subject": "tea", "description": "green"})).json
        path = f"{TODOS}/{made['id']}"
        changed = (await acme("PATCH", path, {"subject": " coffee "})).json
        assert (changed["subject"], changed["description"], changed["state"]) == (
            "coffee",
            "green",
            "pending",
        )
        assert (await acme("PATCH", path, {"description": ""})).json["description"] == ""
        assert (await acme("GET", path)).json["subject"] == "coffee"
        for method, body in (("GET", None), ("PATCH", {"state": "completed"}), ("DELETE", None)):
            assert (await other(method, path, body)).status == 404


@pytest.mark.parametrize(
    "change", [{"state": "asleep"}, {"subject": " "}, {"subject": "x" * 201}, {"description": "x" * 4097}]
)
async def test_a_todo_that_makes_no_sense_is_refused(acme: Caller, change: dict[str, Any]) -> None:
    await acme("POST", TODOS, {"subject": "tea"})
    assert (await acme("PATCH", f"{TODOS}/1", change)).status == 400
