"""Results of MCP tools as parts of A2A, up to a size limit."""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.engine.tools import ToolResult
from dragoman.model.content import Part
from dragoman.observe.terminal import one_line

DEFAULT_MAX_RESULT = 1_000_000
"""Characters of a result, files in base64 included. The rest is cut."""
MAX_PARTS = 1000


def read_result(answer: Any, limit: int) -> ToolResult:
    """The library's `CallToolResult` as a `ToolResult`. What is above the limit is left out, and the text says so."""
    left, truncated = limit, False
    data = answer.structured_content
    encoded = b"" if data is None else msgspec.json.encode(data)
    if len(encoded) > left:
        data, truncated = None, True
    else:
        left -= len(encoded)
    parts: list[Part] = []
    if data is not None:
        parts.append(Part(data=data))
    for block in answer.content[:MAX_PARTS]:
        part = _part(block)
        size = len(part.text or part.url or "") + len(part.raw or b"") * 4 // 3
        if size > left:
            truncated = True
            part = _cut(part, left, size)
            size = left
        left -= size
        parts.append(part)
    return ToolResult(parts=tuple(parts), data=data, truncated=truncated or len(answer.content) > MAX_PARTS)


def _cut(part: Part, left: int, size: int) -> Part:
    if part.text is not None:
        return Part(text=f"{part.text[:left]}\n[cut: {size} characters in all]")
    return Part(text=f"[left out: {part.media_type or 'a file'} of {size} characters]")


def without_repeated_data(result: ToolResult) -> tuple[Part, ...]:
    """The parts without texts that only repeat the data. (Servers add them for clients that do not read data.)"""
    return tuple(part for part in result.parts if part.text is None or not _repeats(part.text, result.data))


def _repeats(text: str, data: Any) -> bool:
    if data is None or text[:1] not in ("{", "["):
        return False
    try:
        return bool(msgspec.json.decode(text) == data)
    except msgspec.DecodeError:
        return False


def _part(block: Any) -> Part:
    match block.type:
        case "text":
            return Part(text=_encodable(block.text))
        case "image" | "audio":
            return _file(block.data, block.mime_type or "", "")
        case "resource_link":
            return _link(str(block.uri), block.name or "", block.mime_type or "")
        case "resource":
            resource = block.resource
            uri, kind = str(resource.uri), resource.mime_type or ""
            name = one_line(urlsplit(uri).path.rpartition("/")[2])[:200]
            if (text := getattr(resource, "text", None)) is not None:
                raw = text.encode("utf-8", "replace")
                return Part(raw=raw, media_type=_media_type(kind) or "text/plain", filename=name)
            return _file(resource.blob, kind, name)
        case other:
            return Part(text=f"[{one_line(str(other))[:80]}]")


def _file(encoded: str, kind: str, name: str) -> Part:
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return Part(text=f"[{_media_type(kind) or 'a file'} that cannot be read]")
    return Part(raw=raw, media_type=_media_type(kind) or "application/octet-stream", filename=name)


def _link(uri: str, name: str, kind: str) -> Part:
    """A link over HTTP becomes a file; any other becomes a text, because only the server can read it."""
    if uri.startswith(("https://", "http://")):
        return Part(url=uri, filename=one_line(name)[:200], media_type=_media_type(kind))
    return Part(text=f"[resource {one_line(name)[:200]}: {one_line(uri)[:500]}]")


def _media_type(kind: str) -> str:
    return one_line(kind)[:100]


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
