"""Files that agents keep with a conversation: `/v1/conversations/{id}/artifacts`, and all of a tenant's."""

from __future__ import annotations

import base64
import re

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.api.routes import Answer, Route, Visit
from dragoman.hub.conversations.artifacts import KeptFile
from dragoman.hub.errors import NotFound
from dragoman.hub.hub import Hub
from dragoman.server.exchange import Header


class NewFile(Struct):
    """A file: `content` is text, or `content_base64` its bytes."""

    path: str
    content: str | None = None
    content_base64: str | None = None
    mime_type: str = ""


def routes(hub: Hub) -> list[Route]:
    artifacts = hub.artifacts

    async def put(visit: Visit) -> Answer:
        conversation = hub.conversations.find(visit.tenant.id, visit.number("id"))
        body = await visit.json(NewFile)
        kept = await artifacts.put(visit.tenant.id, conversation.id, body.path, _bytes(body), body.mime_type)
        return Answer(kept, 201 if kept.created else 200)

    async def list_of(visit: Visit) -> Answer:
        conversation = hub.conversations.find(visit.tenant.id, visit.number("id"))
        found = await artifacts.list(visit.tenant.id, conversation.id)
        return Answer({"count": len(found), "artifacts": found})

    async def list_all(visit: Visit) -> Answer:
        found = await artifacts.list(visit.tenant.id, limit=visit.count("limit", 200, 500))
        return Answer({"count": len(found), "artifacts": found})

    async def get(visit: Visit) -> Answer:
        return Answer(await _find(visit))

    async def raw(visit: Visit) -> Answer:
        kept = await _find(visit)
        etag: Header = (b"etag", b'"%b"' % kept.sha256.encode())
        known = visit.exchange.header(b"if-none-match")
        if known.strip() == "*" or kept.sha256 in re.findall(r"[0-9a-f]{64}", known):
            return Answer(status=304, headers=(etag,))
        content = await artifacts.content(visit.tenant.id, kept.id)
        name = kept.path.rpartition("/")[2].encode("ascii", "replace").decode().replace('"', "")
        headers = (
            (b"content-type", kept.mime.encode("latin-1", "replace")),
            (b"content-disposition", f'attachment; filename="{name}"'.encode()),
            (b"x-content-type-options", b"nosniff"),
            etag,
        )
        return Answer(content or b"", headers=headers)

    async def delete(visit: Visit) -> Answer:
        await artifacts.delete(visit.tenant.id, (await _find(visit)).id)
        return Answer(status=204)

    async def _find(visit: Visit) -> KeptFile:
        """The file of a path, in the conversation that the path names, if it names one."""
        kept = await artifacts.get(visit.tenant.id, visit.number("aid"))
        if kept is None or ("id" in visit.values and kept.conversation_id != visit.number("id")):
            raise NotFound(f"there is no artifact {visit.values['aid'][:40]}")
        return kept

    of = "/v1/conversations/{id}/artifacts"
    out = [
        Route(
            "POST", of, put, "Keep a file, or replace the one at its path.", "files", body=NewFile, status=201
        ),
        Route("GET", of, list_of, "The files of a conversation.", "files"),
        Route("GET", "/v1/artifacts", list_all, "All files, newest first.", "files"),
    ]
    for base in (of, "/v1/artifacts"):
        one = base + "/{aid}"
        out += [
            Route("GET", one, get, "About a file.", "files"),
            Route("GET", f"{one}/raw", raw, "What is in a file.", "files"),
            Route("DELETE", one, delete, "Delete a file.", "files", status=204),
        ]
    return out


def _bytes(body: NewFile) -> bytes:
    if (body.content is None) == (body.content_base64 is None):
        raise InvalidParams("a file has either content or content_base64")
    if body.content is not None:
        return body.content.encode()
    try:
        return base64.b64decode(body.content_base64 or "", validate=True)
    except ValueError:
        raise InvalidParams(
            "content_base64 is not base64", fields=(("content_base64", "is not base64"),)
        ) from None
