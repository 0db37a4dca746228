"""Lists of the native API, read page by page."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.hub.house import Caller, house

CHANGED = ("before_updated_at", "updated_at"), ("before_id", "id")
"""Parameters of the next page, and the members of the last row that they come from."""


async def everything(who: Caller, path: str, name: str, turn: tuple[tuple[str, str], ...]) -> list[Any]:
    """The rows of all pages."""
    found: list[Any] = []
    query = ""
    while page := (await who("GET", f"{path}?limit=3{query}")).json[name]:
        assert len(page) <= 3
        found += page
        assert len(found) < 100, "it goes round in circles"
        query = "".join(f"&{parameter}={page[-1][member]}" for parameter, member in turn)
    return found


@pytest.mark.parametrize(
    ("path", "name", "turn"),
    [
        ("/v1/conversations", "conversations", CHANGED),
        ("/v1/memory/entries", "entries", CHANGED),
        ("/v1/artifacts", "artifacts", CHANGED),
        ("/v1/todos", "todos", (("after_id", "id"),)),
        ("/v1/memory/relations", "relations", (("after_id", "id"),)),
        ("/v1/requests", "requests", (("before_id", "request_id"),)),
    ],
)
async def test_the_pages_of_a_list_have_each_row_once_also_if_all_changed_in_one_second(
    path: str, name: str, turn: tuple[tuple[str, str], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    async with house(lambda prompt: "ok") as hub:
        for tenant in ("acme", "other"):
            who = await hub.tenant(tenant)
            made = [await make(who, name, n) for n in range(8)]
            found = await everything(who, path, name, turn)
            ids = [row.get("request_id") or row["id"] for row in found]
            assert sorted(ids) == sorted(made) and len(set(ids)) == 8


async def make(who: Caller, name: str, n: int) -> Any:
    """One more row of a list. Returns its id."""
    if name == "requests":
        return (await who("POST", "/v1/orchestrate", {"message": "hi"})).headers["x-request-id"]
    if name in ("artifacts", "conversations"):
        made = (await who("POST", "/v1/conversations", {})).json["id"]
        if name == "conversations":
            return made
        path, body = f"/v1/conversations/{made}/artifacts", {"path": f"f{n}", "content": "x"}
    elif name == "todos":
        path, body = "/v1/todos", {"subject": f"t{n}"}
    else:
        path, body = "/v1/memory/entries", {"type": "project", "title": f"m{n}"}
    id = (await who("POST", path, body)).json["id"]
    if name != "relations":
        return id
    other = (await who("POST", path, body)).json["id"]
    relation = {"source_id": id, "target_id": other, "relation": "supports"}
    return (await who("POST", "/v1/memory/relations", relation)).json["id"]


async def test_a_place_in_a_list_that_is_not_there_is_refused() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        for path in ("/v1/conversations", "/v1/memory/entries", "/v1/artifacts"):
            refused = await acme("GET", f"{path}?before_id=7")
            assert refused.status == 400 and refused.json["fields"][0]["field"] == "before_updated_at"
        assert (await acme("GET", "/v1/requests?before_id=none")).status == 404


async def test_all_files_of_a_conversation_and_all_schedules_are_listed() -> None:
    async with house(max_schedules=0) as hub:
        acme = await hub.tenant("acme")
        id = (await acme("POST", "/v1/conversations", {})).json["id"]
        for n in range(210):
            await hub.hub.artifacts.put(acme.tenant.id, id, f"{n:03}", b"")
            body = {"schedule": "in 2 hours", "message": "go"}
            assert (await acme("POST", "/v1/schedules", body)).status == 201
        assert (await acme("GET", f"/v1/conversations/{id}/artifacts")).json["count"] == 210
        assert (await acme("GET", "/v1/schedules")).json["count"] == 210
