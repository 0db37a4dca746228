"""`/v1/conversation-folders`: where conversations are kept."""

from __future__ import annotations

from msgspec import Struct

from dragoman.hub.hub import Hub
from dragoman.hub.routing import Answer, Natural, Route, Visit


class NewFolder(Struct):
    name: str


class FolderChange(Struct):
    name: str | None = None
    position: Natural | None = None


def routes(hub: Hub) -> list[Route]:
    folders = hub.folders

    async def add(visit: Visit) -> Answer:
        return Answer(await folders.add(visit.tenant.id, (await visit.json(NewFolder)).name), 201)

    async def browse(visit: Visit) -> Answer:
        found = await folders.list(visit.tenant.id)
        return Answer({"count": len(found), "folders": found})

    async def change(visit: Visit) -> Answer:
        body, id = await visit.json(FolderChange), visit.number("id")
        return Answer(await folders.change(visit.tenant.id, id, name=body.name, position=body.position))

    async def delete(visit: Visit) -> Answer:
        await folders.delete(visit.tenant.id, visit.number("id"))
        return Answer(status=204)

    all, one = "/v1/conversation-folders", "/v1/conversation-folders/{id}"
    return [
        Route("POST", all, add, "A folder for conversations.", "conversations", body=NewFolder, status=201),
        Route("GET", all, browse, "The folders there are, by their position and name.", "conversations"),
        Route(
            "PATCH",
            one,
            change,
            "Give it another name, or another place.",
            "conversations",
            body=FolderChange,
        ),
        Route(
            "DELETE", one, delete, "Delete it. Its conversations stay, in none.", "conversations", status=204
        ),
    ]
