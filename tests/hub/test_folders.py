"""Conversations in folders."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hub.house import Caller, house

FOLDERS = "/v1/conversation-folders"


async def conversations(caller: Caller, query: str = "") -> list[tuple[int, Any]]:
    answer = await caller("GET", f"/v1/conversations{query}")
    return sorted((each["id"], each["folder_id"]) for each in answer.json["conversations"])


async def test_conversations_are_put_into_folders_and_found_there() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        made = await acme("POST", FOLDERS, {"name": " Research "})
        assert made.status == 201
        folder = made.json["id"]
        assert made.json["name"] == "Research" and made.json["position"] == 0
        inside = (await acme("POST", "/v1/conversations", {"folder_id": folder})).json["id"]
        outside = (await acme("POST", "/v1/conversations", {"title": "loose"})).json["id"]
        assert await conversations(acme) == [(inside, folder), (outside, None)]
        assert await conversations(acme, f"?folder_id={folder}") == [(inside, folder)]
        assert await conversations(acme, "?folder_id=0") == [(outside, None)]

        moved = await acme("PATCH", f"/v1/conversations/{outside}", {"folder_id": folder})
        assert moved.json["folder_id"] == folder and moved.json["title"] == "loose"
        kept = await acme("PATCH", f"/v1/conversations/{outside}", {"archived": True})
        assert kept.json["folder_id"] == folder and kept.json["archived"] is True
        for none in (None, 0):
            await acme("PATCH", f"/v1/conversations/{outside}", {"folder_id": folder})
            taken = await acme("PATCH", f"/v1/conversations/{outside}", {"folder_id": none})
            assert taken.json["folder_id"] is None and taken.json["archived"] is True

        assert (await acme("DELETE", f"{FOLDERS}/{folder}")).status == 204
        assert await conversations(acme) == [(inside, None), (outside, None)]
        assert (await acme("DELETE", f"{FOLDERS}/{folder}")).status == 404


async def test_folders_stand_in_the_order_they_are_given() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        ids = [(await acme("POST", FOLDERS, {"name": name})).json["id"] for name in ("c", "b", "a")]
        changed = await acme("PATCH", f"{FOLDERS}/{ids[2]}", {"position": 1})
        assert (changed.json["name"], changed.json["position"]) == ("a", 1)
        await acme("PATCH", f"{FOLDERS}/{ids[0]}", {"name": "d"})
        listed = (await acme("GET", FOLDERS)).json
        assert [each["name"] for each in listed["folders"]] == ["b", "d", "a"] and listed["count"] == 3


@pytest.mark.parametrize(
    "body",
    [{}, {"name": ""}, {"name": "  "}, {"name": "x" * 201}, {"name": 1}, []],
    ids=["nothing", "empty", "blank", "long", "number", "list"],
)
async def test_a_folder_needs_a_name(body: Any) -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        assert (await acme("POST", FOLDERS, body)).status == 400


async def test_folders_of_another_tenant_are_not_there() -> None:
    async with house() as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        folder = (await acme("POST", FOLDERS, {"name": "ours"})).json["id"]
        theirs = (await other("POST", "/v1/conversations", {})).json["id"]
        assert (await other("GET", FOLDERS)).json == {"count": 0, "folders": []}
        assert (await other("PATCH", f"{FOLDERS}/{folder}", {"name": "mine"})).status == 404
        assert (await other("DELETE", f"{FOLDERS}/{folder}")).status == 404
        assert (await other("PATCH", f"/v1/conversations/{theirs}", {"folder_id": folder})).status == 400
        assert (await other("POST", "/v1/conversations", {"folder_id": folder})).status == 400
        assert (await other("PATCH", f"{FOLDERS}/{folder}", {"position": -1})).status == 400
        assert [each["name"] for each in (await acme("GET", FOLDERS)).json["folders"]] == ["ours"]
