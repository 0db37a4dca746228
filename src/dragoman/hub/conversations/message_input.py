"""Messages of the native API: text and images.

An image comes in base64, or is fetched from its URL with the address guard of `/fetch`. It is fetched once, after the request
is admitted and before it starts.
"""

from __future__ import annotations

import base64
import binascii

from msgspec import Struct

from dragoman.errors import A2AError, InvalidParams
from dragoman.hub.models import IMAGE_TYPE
from dragoman.hub.tools.fetcher import PageFetcher
from dragoman.model.content import Part

MAX_PICTURE_BYTES = 20 << 20
"""Bytes of all images of a message."""
MAX_PICTURES = 20
MAX_PARTS = 1000


class ImageSource(Struct):
    """An image: `base64` with `media_type` and `data`, or a `url`."""

    type: str = ""
    media_type: str = ""
    data: str = ""
    url: str = ""


class MessagePart(Struct):
    """A part of a message: `text`, or an `image` with its `source`."""

    type: str = "text"
    text: str = ""
    source: ImageSource | None = None


async def read_parts(message: str | list[MessagePart], fetcher: PageFetcher | None) -> tuple[Part, ...]:
    """The parts of a message. Raises `InvalidParams`, also if an image cannot be fetched."""
    given = [MessagePart(text=message)] if isinstance(message, str) else message
    out: list[Part] = []
    room = MAX_PICTURE_BYTES
    if len(given) > MAX_PARTS:
        raise _invalid("message", f"has more than {MAX_PARTS} parts")
    if sum(given_part.type == "image" for given_part in given) > MAX_PICTURES:
        raise _invalid("message", f"has more than {MAX_PICTURES} pictures")
    for n, given_part in enumerate(given):
        field = f"message[{n}]"
        if given_part.type == "text":
            out.append(Part(text=given_part.text))
        elif given_part.type == "image" and given_part.source is not None:
            picture = await _picture(given_part.source, field, fetcher, room)
            room -= len(picture.raw or b"")
            out.append(picture)
        else:
            raise _invalid(
                f"{field}.type", f"is {given_part.type[:40]!r}: text, or image with a source, is understood"
            )
    if not any(part.raw or (part.text or "").strip() for part in out):
        raise _invalid("message", "has no text and no picture")
    return tuple(out)


def message_text(parts: tuple[Part, ...]) -> str:
    """The text of a message in a conversation."""
    lines = [part.text if part.text is not None else f"[a picture: {part.media_type}]" for part in parts]
    return "\n".join(lines)


async def _picture(source: ImageSource, field: str, fetcher: PageFetcher | None, room: int) -> Part:
    kind = source.media_type.strip().lower()
    if source.type == "base64":
        try:
            content = base64.b64decode(source.data, validate=True)
        except (binascii.Error, ValueError):
            raise _invalid(f"{field}.source.data", "is not base64") from None
    elif source.type == "url" and fetcher is not None:
        try:
            page = await fetcher.fetch(source.url, limit=room)
        except A2AError as error:
            raise _invalid(f"{field}.source.url", error.message) from None
        if page.status >= 400:
            raise _invalid(f"{field}.source.url", f"answered HTTP {page.status}")
        content, kind = page.content, page.media_type
    else:
        raise _invalid(f"{field}.source.type", f"is {source.type[:40]!r}: base64 and url are understood")
    if not IMAGE_TYPE.fullmatch(kind) or not content:
        raise _invalid(f"{field}.source", f"is not a picture: its media type is {kind[:80] or 'missing'}")
    if len(content) > room:
        raise _invalid(f"{field}.source", f"pictures may have {MAX_PICTURE_BYTES >> 20} MB together")
    return Part(raw=content, media_type=kind)


def _invalid(field: str, why: str) -> InvalidParams:
    return InvalidParams(f"{field} {why}", fields=((field, why),))
