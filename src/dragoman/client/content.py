"""What a user says, as parts: text, files, data."""

from __future__ import annotations

import dataclasses
import mimetypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.model.content import Part


def part_of(content: Any) -> Part:
    """Text is text, a path is a file, bytes are bytes; anything else is data."""
    if isinstance(content, Part):
        return content
    if isinstance(content, str):
        return Part(text=str(content))
    if isinstance(content, Path | bytes | bytearray):
        return file(content)
    return Part(data=plain(content), media_type="application/json")


def file(source: str | Path | bytes | bytearray, *, name: str = "", media_type: str = "") -> Part:
    """A file: from a path, from bytes, or by its URL (which the agent fetches itself)."""
    if isinstance(source, bytes | bytearray):
        kind = media_type or _guess(name) or "application/octet-stream"
        return Part(raw=bytes(source), filename=name, media_type=kind)
    if isinstance(source, str) and "://" in source:
        name = name or urlsplit(source).path.rpartition("/")[2]
        return Part(url=source, filename=name, media_type=media_type or _guess(name))
    path = Path(source)
    name = name or path.name
    kind = media_type or _guess(name) or "application/octet-stream"
    return Part(raw=path.read_bytes(), filename=name, media_type=kind)


def parts_of(
    content: Iterable[Any], files: Iterable[Any] = (), data: Any = msgspec.UNSET
) -> tuple[Part, ...]:
    parts = [part_of(each) for each in content]
    parts += [each if isinstance(each, Part) else file(each) for each in files]
    if data is not msgspec.UNSET:
        parts.append(part_of(plain(data)) if not isinstance(data, str | bytes) else Part(data=plain(data)))
    if not parts:
        raise TypeError("there is nothing to send: give some text, files or data")
    return tuple(parts)


def plain(value: Any) -> Any:
    """A dataclass, a msgspec struct, a pydantic model or anything JSON-like, as plain JSON values."""
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json")
    return msgspec.to_builtins(value, enc_hook=_plain_inside)


def _plain_inside(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as data")


def _guess(name: str) -> str:
    return mimetypes.guess_type(name)[0] or ""
