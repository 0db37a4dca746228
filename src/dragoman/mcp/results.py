"""The output of a task, as the content of a tool's result and as MCP resources.

Small texts and files are in the result. Large ones are links: the client reads them with `resources/read`, which gets the task from the
agent, so it also works after a restart.

    a2a://tasks/TASK/artifacts/ARTIFACT             the text of an artifact
    a2a://tasks/TASK/artifacts/ARTIFACT/files/0     a file of an artifact
    a2a://tasks/TASK/status ... /files/0            the same of the message of its status
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from mcp import types
from msgspec import Struct

from dragoman.client.reply import Reply
from dragoman.model.content import Message, Part, files_of
from dragoman.model.task import Task
from dragoman.observe.terminal import shorten

MAX_TEXT = 40_000
"""Characters of text in a result."""
MAX_INLINE_BYTES = 500_000
"""Bytes of files in a result, together. Some clients read no message of more than a megabyte over HTTP."""
MAX_RESOURCE_BYTES = 32 << 20
MAX_BLOCKS = 100
TEMPLATES = {
    "a2a://tasks/{task_id}/artifacts/{artifact_id}": "The text of an artifact of a task",
    "a2a://tasks/{task_id}/artifacts/{artifact_id}/files/{number}": "A file of an artifact of a task",
}


class _Piece(Struct, frozen=True):
    """The parts of an artifact or a message, and the URI of it; empty if it cannot be read later."""

    parts: tuple[Part, ...]
    uri: str
    name: str = ""


def pieces_of(result: Task | Message) -> list[_Piece]:
    """Everything that an agent answered, in order: its artifacts, and the status message unless the artifacts are the answer."""
    if isinstance(result, Message):
        return [_Piece(result.parts, "")]
    base = f"a2a://tasks/{quote(result.id, safe='')}"
    pieces = [
        _Piece(each.parts, f"{base}/artifacts/{quote(each.artifact_id, safe='')}", each.name)
        for each in result.artifacts
    ]
    message = result.status.message
    if message is not None:
        has_answer = bool(result.artifacts) and result.state.word == "completed"
        parts = files_of(message.parts) if has_answer else message.parts
        if parts:
            pieces.append(_Piece(parts, f"{base}/status"))
    return pieces


def content_of(result: Task | Message) -> list[Any]:
    """The content blocks of a result."""
    left_text, left_bytes = MAX_TEXT, MAX_INLINE_BYTES
    blocks: list[Any] = []
    for piece in pieces_of(result):
        text = _text(piece.parts)
        if text and left_text > 0:
            shown = text[:left_text]
            left_text -= len(shown)
            blocks.append(types.TextContent(text=shown))
        else:
            shown = ""
        if len(shown) < len(text):
            blocks += _cut_note(piece, len(text), len(shown))
        for number, file in enumerate(files_of(piece.parts)):
            size = len(file.raw or b"")
            inline = file.raw is not None and size <= left_bytes
            left_bytes -= size if inline else 0
            blocks.append(_file(file, f"{piece.uri}/files/{number}" if piece.uri else "", inline=inline))
        if len(blocks) > MAX_BLOCKS:
            blocks = [
                *blocks[:MAX_BLOCKS],
                types.TextContent(text="(There is more, which is left out here.)"),
            ]
            break
    return blocks


def _cut_note(piece: _Piece, size: int, shown: int) -> list[Any]:
    note = f"(The text has {size} characters. The first {shown} are shown."
    if not piece.uri:
        return [types.TextContent(text=f"{note})")]
    return [
        types.TextContent(text=f"{note} The resource {piece.uri} has all of it.)"),
        types.ResourceLink(
            uri=piece.uri, name=_name(piece.name or "text"), mime_type="text/plain", size=size
        ),
    ]


def _text(parts: Sequence[Part]) -> str:
    """Texts as they follow each other (they may be chunks of one), and data as JSON on lines of its own."""
    out: list[str] = []
    for part in parts:
        if part.text is not None:
            out.append(part.text)
        elif part.data is not msgspec.UNSET:
            if out and not out[-1].endswith("\n"):
                out.append("\n")
            out.append(msgspec.json.encode(part.data).decode() + "\n")
    return "".join(out).rstrip("\n") if out and out[-1].endswith("\n") else "".join(out)


def _file(part: Part, uri: str, *, inline: bool) -> Any:
    name = _name(part.filename or "file")
    kind = shorten(part.media_type, 100) or "application/octet-stream"
    if part.url is not None:
        if not part.url.startswith(("http://", "https://")):
            return types.TextContent(text=f"(A file that is somewhere else: {shorten(part.url, 300)})")
        return types.ResourceLink(uri=shorten(part.url, 2_000), name=name, mime_type=kind)
    raw = part.raw or b""
    if not inline:
        if not uri:
            return types.TextContent(text=f"(The file {name} has {len(raw)} bytes and is left out.)")
        return types.ResourceLink(uri=uri, name=name, mime_type=kind, size=len(raw))
    if kind.startswith("image/"):
        return types.ImageContent(data=b64encode(raw).decode(), mime_type=kind)
    if kind.startswith("audio/"):
        return types.AudioContent(data=b64encode(raw).decode(), mime_type=kind)
    return types.EmbeddedResource(resource=_contents(raw, kind, uri or f"a2a://files/{quote(name)}"))


def _contents(raw: bytes, kind: str, uri: str) -> Any:
    if kind.startswith("text/") or kind in ("application/json", "application/xml"):
        try:
            return types.TextResourceContents(uri=uri, mime_type=kind, text=raw.decode())
        except UnicodeDecodeError:
            pass
    return types.BlobResourceContents(uri=uri, mime_type=kind, blob=b64encode(raw).decode())


def _name(text: str) -> str:
    return shorten(text, 100) or "file"


# -- resources -------------------------------------------------------------------------------------------------------


class ResourceName(Struct, frozen=True):
    """The task, artifact and file that a URI names."""

    task: str
    artifact: str = ""
    """Empty: the message of the status."""
    file: int | None = None


def parse_uri(uri: str) -> ResourceName | None:
    """The resource of a URI; None if it is not one of these."""
    if not uri.startswith("a2a://tasks/"):
        return None
    match [unquote(each) for each in uri.removeprefix("a2a://tasks/").split("/")]:
        case [task, "artifacts", artifact]:
            return ResourceName(task, artifact)
        case [task, "artifacts", artifact, "files", number] if number.isdecimal() and len(number) < 6:
            return ResourceName(task, artifact, int(number))
        case [task, "status"]:
            return ResourceName(task)
        case [task, "status", "files", number] if number.isdecimal() and len(number) < 6:
            return ResourceName(task, "", int(number))
    return None


def read_resource(task: Task, name: ResourceName, uri: str) -> Any:
    """The contents of a resource; None if the task has no such thing. Raises ValueError if it is too large."""
    if name.artifact:
        parts = next((each.parts for each in task.artifacts if each.artifact_id == name.artifact), None)
    else:
        parts = task.status.message.parts if task.status.message is not None else None
    if parts is None:
        return None
    if name.file is None:
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=_text(parts))
    files = files_of(parts)
    if name.file >= len(files) or files[name.file].raw is None:
        return None
    file = files[name.file]
    raw = file.raw or b""
    if len(raw) > MAX_RESOURCE_BYTES:
        raise ValueError(
            f"the file has {len(raw)} bytes: more than {MAX_RESOURCE_BYTES >> 20} MiB are not passed on"
        )
    return _contents(raw, shorten(file.media_type, 100) or "application/octet-stream", uri)


def resources_of(task: Task) -> Iterator[Any]:
    """The files of a task, for a list of resources."""
    for piece in pieces_of(task):
        for number, file in enumerate(files_of(piece.parts)):
            if file.raw is not None:
                yield types.Resource(
                    uri=f"{piece.uri}/files/{number}",
                    name=_name(file.filename or piece.name or "file"),
                    mime_type=shorten(file.media_type, 100) or None,
                    size=len(file.raw),
                )


def structured_content(reply: Reply, note: str, *, result: Any = msgspec.UNSET) -> dict[str, Any]:
    """`structured_content` for a tool with an output schema. Some clients show a model nothing else."""
    content: dict[str, Any] = {"state": reply.state.word}
    if reply.id:
        content["task_id"] = reply.id
    if reply.context_id:
        content["context_id"] = reply.context_id
    if text := str(reply)[:MAX_TEXT]:
        content["text"] = text
    if note:
        content["note"] = note
    if result is not msgspec.UNSET:
        content["result"] = result
    return content
