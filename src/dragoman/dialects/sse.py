"""Server-sent events: how a frame is written and read.

Both sides of the wire use it, and it does no I/O. The reader takes what peers really send: data in several lines, CR,
LF or CRLF, comments, a first byte-order mark, a last frame without its blank line; and it never holds more than
`limit` bytes of a frame.
"""

from __future__ import annotations

from typing import NamedTuple

from dragoman.errors import InvalidAgentResponse

MEDIA_TYPE = "text/event-stream"
KEEP_ALIVE = b": keep-alive\n\n"
MAX_EVENT_BYTES = 32 << 20


class Frame(NamedTuple):
    data: bytes
    id: str = ""
    """The id written on this very frame; empty when it has none."""
    event: str = ""


def frame(data: bytes, *, id: int = 0, event: str = "") -> bytes:
    """One frame. Data with line breaks becomes several lines, so nothing in it can end the frame."""
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    head = (b"event: %s\n" % event.encode() if event else b"") + (b"id: %d\n" % id if id else b"")
    return head + b"".join([b"data: %s\n" % line for line in lines]) + b"\n"


class SseReader:
    """Reads one stream, fed with its bytes however they were cut."""

    def __init__(self, *, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()
        """The beginning of a frame whose end has not come. Line breaks in it are LF."""
        self._began = False
        self._cr = False
        """The last byte was a CR: a LF that follows belongs to it."""

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that end in `chunk`. Raises `InvalidAgentResponse` if one is too large."""
        if not chunk:
            return []
        rest, chunk = self._rest, self._line_feeds(chunk)
        if self._began and not rest and chunk.endswith(b"\n\n"):
            return self._frames(chunk[:-2].split(b"\n\n"))
        seen = max(0, len(rest) - 1) if self._began else 0
        rest += chunk
        if not self._began and not self._begin():
            return []
        end = rest.rfind(b"\n\n", seen)
        if end < 0:
            if len(rest) > self._limit:
                raise self._too_large()
            return []
        with memoryview(rest) as whole:  # a slice would be one more copy
            blocks = bytes(whole[:end]).split(b"\n\n")
        del rest[: end + 2]
        if len(rest) > self._limit:
            raise self._too_large()
        return self._frames(blocks)

    def end(self) -> list[Frame]:
        """The stream is over; a last frame may have lost its blank line."""
        block = bytes(self._rest)
        self._rest.clear()
        return self._frames([block])

    def _begin(self) -> bool:
        """Step over a byte-order mark. False while there are too few bytes to tell."""
        if b"\xef\xbb\xbf".startswith(self._rest[:3]) and len(self._rest) < 3:
            return False
        if self._rest.startswith(b"\xef\xbb\xbf"):
            del self._rest[:3]
        self._began = True
        return True

    def _line_feeds(self, chunk: bytes) -> bytes:
        if self._cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            if not chunk:
                self._cr = False
                return chunk
        self._cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _frames(self, blocks: list[bytes]) -> list[Frame]:
        frames: list[Frame] = []
        for block in blocks:
            if len(block) > self._limit:
                raise self._too_large()
            # The usual frames, without a copy more of their data than it takes.
            cut = block.find(b"\n")
            if cut < 0 and block[:6] == b"data: ":
                frames.append(Frame(block[6:]))
                continue
            if (
                block[:4] == b"id: "
                and block[cut + 1 : cut + 7] == b"data: "
                and block.find(b"\n", cut + 1) < 0
                and b"\0" not in (id_line := block[4:cut])
            ):
                frames.append(Frame(block[cut + 7 :], id_line.decode("utf-8", "replace")))
                continue
            data: list[bytes] = []
            id = event = ""
            for line in block.split(b"\n"):
                name, _, value = line.partition(b":")
                if value[:1] == b" ":
                    value = value[1:]
                if name == b"data":
                    data.append(value)
                elif name == b"id" and b"\0" not in value:
                    id = value.decode("utf-8", "replace")
                elif name == b"event":
                    event = value.decode("utf-8", "replace")
            if data:
                frames.append(Frame(b"\n".join(data), id, event))
        return frames

    def _too_large(self) -> InvalidAgentResponse:
        return InvalidAgentResponse(f"an event of the stream is larger than {self._limit} bytes")
