"""`/v1/conversations`, and the files that belong to them: `/v1/conversations/{id}/artifacts`, `/v1/artifacts`."""

from __future__ import annotations

import base64
import re
from typing import Any

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.api import PAGE_START, ApiRequest, RouteList, page, page_start, page_type
from dragoman.hub.api.requests import IDEMPOTENCY_KEY, NewRequest, start_and_stream
from dragoman.hub.hub import Hub
from dragoman.hub.store.artifacts import StoredFile
from dragoman.hub.store.conversations import Conversation
from dragoman.hub.store.tokens import MANAGE
from dragoman.server.mount import Header
from dragoman.server.routes import ApiResponse, NotFound, Pieces, Route


class NewConversation(Struct):
    """The agent of the conversation: one of the catalogue, or one that exists only for this conversation."""

    title: str = ""
    agent_id: str = ""
    agent: str = ""
    agent_def: dict[str, Any] | None = None


class ConversationChange(Struct):
    title: str | None = None
    archived: bool | None = None


class NewFile(Struct):
    """A file: `content` is text, or `content_base64` its bytes."""

    path: str
    content: str | None = None
    content_base64: str | None = None
    mime_type: str = ""


class MessageInfo(Struct):
    id: int
    conversation_id: int
    role: str
    content: str
    input_tokens: int
    output_tokens: int
    created_at: int
    request_id: str | None = None


ConversationList = page_type("ConversationList", "conversations", Conversation)
MessageList = page_type("MessageList", "messages", MessageInfo)
FileList = page_type("FileList", "artifacts", StoredFile)


def routes(hub: Hub) -> list[Route]:
    api, conversations = RouteList("conversations"), hub.conversations
    all, one = "/v1/conversations", "/v1/conversations/{id}"

    @api.add("POST", all, "Create a conversation.", Conversation, status=201)
    async def create(request: ApiRequest, body: NewConversation) -> ApiResponse:
        agent = body.agent_id or body.agent
        if body.agent_def is not None:
            request.tenant.require(MANAGE)
            constitution = await hub.catalogue.read_inline(request.tenant.id, body.agent_def, agent)
            if agent and constitution.id != agent:
                raise InvalidParams("agent_def and agent_id name different agents")
            agent = constitution.id
        elif await hub.catalogue.find(request.tenant.id, agent or INDEX_ID) is None:
            raise NotFound(f"there is no agent {agent[:80]!r}")
        made = await conversations.create(
            request.tenant.id, title=body.title[:200], agent=agent or INDEX_ID, agent_def=body.agent_def
        )
        return ApiResponse(made, 201, ((b"location", f"/v1/conversations/{made.id}".encode()),))

    filters = {"limit": "50, at most 200.", **PAGE_START}

    @api.add("GET", all, "List conversations, the latest changed first.", ConversationList, query=filters)
    async def list_all(request: ApiRequest) -> Any:
        before, limit = page_start(request), request.query_limit(50, 200)
        found = await conversations.list(request.tenant.id, before=before, limit=limit)
        return page("conversations", found)

    @api.add("GET", one, "Get a conversation.", Conversation)
    async def get(request: ApiRequest) -> Any:
        return await conversations.find(request.tenant.id, request.path_id())

    @api.add("PATCH", one, "Change the title, or archive it.", Conversation)
    async def change(request: ApiRequest, body: ConversationChange) -> Any:
        title = None if body.title is None else body.title[:200]
        id = request.path_id()
        return await conversations.change(request.tenant.id, id, title=title, archived=body.archived)

    @api.add("DELETE", one, "Delete it with its messages, files and todos.", status=204)
    async def delete(request: ApiRequest) -> None:
        conversation = await conversations.find(request.tenant.id, request.path_id())
        for id in await conversations.unanswered(conversation.id):
            await hub.cancel(request.tenant, id)
        await conversations.delete(request.tenant.id, conversation.id)

    filters = {"after_id": "Only messages after this one.", "limit": "200, at most 500."}

    @api.add("GET", f"{one}/messages", "List messages, oldest first.", MessageList, query=filters)
    async def messages(request: ApiRequest) -> Any:
        conversation = await conversations.find(request.tenant.id, request.path_id())
        await hub.store_answers(request.tenant, conversation.id)
        after, limit = request.query_int("after_id"), request.query_limit(200, 500)
        return page("messages", await conversations.messages(conversation.id, after=after, limit=limit))

    send_summary = "Send a message and stream the answer. The agent sees up to a hundred earlier messages."

    @api.add("POST", f"{one}/messages", send_summary, headers=IDEMPOTENCY_KEY, streams=True)
    async def send_message(request: ApiRequest, body: NewRequest) -> None:
        conversation = await conversations.find(request.tenant.id, request.path_id())
        await start_and_stream(hub, request, body, agent=conversation.agent_id, conversation=conversation)

    return api + file_routes(hub)


def file_routes(hub: Hub) -> list[Route]:
    api, artifacts = RouteList("files"), hub.artifacts
    of = "/v1/conversations/{id}/artifacts"

    @api.add("POST", of, "Store a file, or replace the one at its path.", StoredFile, status=201, also=(200,))
    async def put(request: ApiRequest, body: NewFile) -> ApiResponse:
        tenant = request.tenant.id
        conversation = await hub.conversations.find(tenant, request.path_id())
        stored = await artifacts.put(tenant, conversation.id, body.path, _content(body), body.mime_type)
        return ApiResponse(stored, 201 if stored.created else 200)

    upload_summary = "Store a file of up to 50 MiB, or replace the one at its path: the body is the content."
    place = {"path": "Where it is stored, such as `reports/may.pdf`."}

    @api.add("PUT", of, upload_summary, StoredFile, body=bytes, query=place, status=201, also=(200,))
    async def upload(request: ApiRequest) -> ApiResponse:
        tenant = request.tenant.id
        conversation = await hub.conversations.find(tenant, request.path_id())
        pieces, mime = request.exchange.body_pieces(), request.exchange.header(b"content-type")
        length = request.exchange.header(b"content-length")
        stored = await artifacts.put_pieces(
            tenant,
            conversation.id,
            request.query("path"),
            pieces,
            mime,
            size=int(length) if length.isdecimal() else None,
        )
        return ApiResponse(stored, 201 if stored.created else 200)

    @api.add("GET", of, "List the files of a conversation.", FileList)
    async def list_of(request: ApiRequest) -> Any:
        conversation = await hub.conversations.find(request.tenant.id, request.path_id())
        return page("artifacts", await artifacts.of_conversation(request.tenant.id, conversation.id))

    filters = {"limit": "200, at most 500.", **PAGE_START}

    @api.add("GET", "/v1/artifacts", "List all files, newest first.", FileList, query=filters)
    async def list_all(request: ApiRequest) -> Any:
        before, limit = page_start(request), request.query_limit(200, 500)
        return page("artifacts", await artifacts.list(request.tenant.id, before=before, limit=limit))

    async def find(request: ApiRequest) -> StoredFile:
        """The file of the path, which is in the conversation of the path, if that names one."""
        found = await artifacts.get(request.tenant.id, request.path_id("aid"))
        if found is None or ("id" in request.path and found.conversation_id != request.path_id()):
            raise NotFound(f"there is no artifact {request.path['aid'][:40]}")
        return found

    async def read(request: ApiRequest) -> ApiResponse:
        stored = await find(request)
        etag: Header = (b"etag", b'"%b"' % stored.sha256.encode())
        known = request.exchange.header(b"if-none-match")
        if known.strip() == "*" or stored.sha256 in re.findall(r"[0-9a-f]{64}", known):
            return ApiResponse(status=304, headers=(etag,))
        name = stored.path.rpartition("/")[2].encode("ascii", "replace").decode().replace('"', "")
        headers = (
            (b"content-type", stored.mime.encode("latin-1", "replace")),
            (b"content-disposition", f'attachment; filename="{name}"'.encode()),
            (b"x-content-type-options", b"nosniff"),
            etag,
        )
        if (pieces := await artifacts.pieces(request.tenant.id, stored.id)) is None:
            raise NotFound(f"there is no artifact {stored.id}")
        return ApiResponse(Pieces(pieces, stored.size), headers=headers)

    async def delete(request: ApiRequest) -> None:
        await artifacts.delete(request.tenant.id, (await find(request)).id)

    known = {"If-None-Match": "The `ETag` of a content that is known: 304 if it is still the same."}
    for one in (f"{of}/{{aid}}", "/v1/artifacts/{aid}"):
        api.add("GET", one, "Get the metadata of a file.", StoredFile)(find)
        api.add("GET", f"{one}/raw", "Get the content of a file.", bytes, headers=known, also=(304,))(read)
        api.add("DELETE", one, "Delete a file.", status=204)(delete)
    return api


def _content(body: NewFile) -> bytes:
    if (body.content is None) == (body.content_base64 is None):
        raise InvalidParams("a file has either content or content_base64")
    if body.content is not None:
        return body.content.encode()
    try:
        return base64.b64decode(body.content_base64 or "", validate=True)
    except ValueError:
        why = "is not base64"
        raise InvalidParams(f"content_base64 {why}", fields=(("content_base64", why),)) from None
