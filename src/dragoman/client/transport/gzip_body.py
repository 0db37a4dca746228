"""Decompress bodies. The client does not ask for compression, but some peers compress all the same.

zlib returns the input that it has not used as a copy, so it gets small windows: decompressing costs time in proportion to
the bytes of a body, and the output comes in small pieces.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from dragoman.client.transport.transport import AnswerTooLarge
from dragoman.errors import Unreachable

_KNOWN = ("gzip", "x-gzip", "deflate")
_WINDOW_BYTES = 4 << 10
_OUTPUT_BYTES = 256 << 10
_MAX_MEMBERS = 4096
"""A gzip body has one member, or a few. Each costs some microseconds, however small it is."""


class Inflater:
    """Decompresses one body, whose bytes may come in any pieces."""

    def __init__(self, encoding: str, url: str) -> None:
        used = [name.strip().lower() for name in encoding.split(",")]
        used = [name for name in used if name not in ("", "identity")]
        if len(used) > 1 or (used and used[0] not in _KNOWN):
            raise Unreachable(f"{url} compressed its answer with {encoding[:80]!r}, which was not asked for")
        self._encoding = used[0] if used else ""
        self._url = url
        self._begun = b""
        """The first bytes: they show the format."""
        self._members = 0
        self._zlib = None if self._encoding == "deflate" else zlib.decompressobj(zlib.MAX_WBITS | 32)

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """What the piece decompresses to, at most `_OUTPUT_BYTES` at a time, so that a reader can stop early."""
        if not self._encoding:
            yield piece
            return
        if self._zlib is None:
            piece = self._begun = self._begun + piece
            if len(piece) < 2:
                return
            self._zlib = zlib.decompressobj(_window_bits(piece))
        view = memoryview(piece)
        try:
            for start in range(0, len(view), _WINDOW_BYTES):
                yield from self._window(view[start : start + _WINDOW_BYTES])
        except zlib.error as error:
            raise Unreachable(f"{self._url} sent a damaged body: {error}") from error

    def _window(self, window: bytes | memoryview) -> Iterator[bytes]:
        assert self._zlib is not None
        while window:
            if self._zlib.eof:  # the next member follows
                self._members += 1
                if self._members > _MAX_MEMBERS:
                    raise AnswerTooLarge(f"{self._url} sent a body of more than {_MAX_MEMBERS} gzip members")
                self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)
            out = self._zlib.decompress(window, _OUTPUT_BYTES)
            if out:
                yield out
            window = self._zlib.unused_data if self._zlib.eof else self._zlib.unconsumed_tail
            if not window and len(out) == _OUTPUT_BYTES and not self._zlib.eof:
                while out := self._zlib.decompress(b"", _OUTPUT_BYTES):  # zlib has more output
                    yield out


def _window_bits(begun: bytes) -> int:
    """`deflate` means zlib's format. Some peers send raw deflate data."""
    wrapped = begun[0] & 0x0F == 8 and int.from_bytes(begun[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS
