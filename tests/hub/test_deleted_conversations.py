"""What goes with a conversation, and what stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.server.routes import NotFound
from tests.hub.house import Caller, events, house


async def new(caller: Caller, path: str, /, **body: Any) -> int:
    made = await caller("POST", path, body)
    assert made.status == 201
    id: int = made.json["id"]
    return id


async def test_todos_go_with_their_conversation_and_what_was_learned_stays_with_the_tenant(
    acme: Caller,
) -> None:
    gone, other = await new(acme, "/v1/conversations"), await new(acme, "/v1/conversations")
    for at in (gone, other, 0):
        await new(acme, "/v1/todos", subject=f"in {at}", conversation_id=at)
    file = await new(
        acme, f"/v1/conversations/{gone}/artifacts", path="a.txt", content="tea", mime_type="text/plain"
    )
    fact = {"type": "user", "title": "likes tea", "content": "green"}
    learned = await new(acme, "/v1/memory/entries", **fact, conversation_id=gone, artifact_id=file)
    await new(acme, "/v1/memory/entries", **fact, conversation_id=other)

    assert (await acme("DELETE", f"/v1/conversations/{gone}")).status == 204
    todos = (await acme("GET", "/v1/todos")).json["todos"]
    assert [todo["subject"] for todo in todos] == [f"in {other}", "in 0"]
    entry = (await acme("GET", f"/v1/memory/entries/{learned}")).json
    assert entry["title"] == "likes tea" and entry["artifact_id"] is None
    assert not entry["conversation_id"]
    found = (await acme("GET", f"/v1/memory/entries?q=tea&conversation_id={other}")).json["entries"]
    assert learned in [each["id"] for each in found]


async def test_deleting_a_conversation_cancels_its_running_requests() -> None:
    async with house([("word\n", asyncio.Event())]) as hub:
        acme = await hub.tenant("acme")
        id = await new(acme, "/v1/conversations")
        live = acme.open("POST", f"/v1/conversations/{id}/messages", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        assert (await acme("DELETE", f"/v1/conversations/{id}")).status == 204
        done = events(await live.end())[-1][1]
        assert done["ok"] is False and done["error_code"] == "cancelled"


async def test_a_tenant_cannot_delete_the_conversation_of_another() -> None:
    held = asyncio.Event()
    async with house([("word\n", held, "done")]) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        id = await new(acme, "/v1/conversations")
        live = acme.open("POST", f"/v1/conversations/{id}/messages", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        assert (await other("DELETE", f"/v1/conversations/{id}")).status == 404
        held.set()
        assert events(await live.end())[-1][1]["ok"] is True


async def test_a_message_to_a_deleted_conversation_is_not_found() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        with pytest.raises(NotFound, match="no conversation 7"):
            await hub.hub.conversations.add_question(acme.tenant.id, 7, "r-1", "still there?")
