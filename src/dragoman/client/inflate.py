"""Bodies that come compressed. We ask for none of it; a peer that compresses all the same is understood, within bounds."""

from __future__ import annotations

import zlib

from dragoman.errors import Unreachable

_KNOWN = ("gzip", "x-gzip", "deflate")


class Inflater:
    """Unpacks one body, fed with its bytes however they were cut. `limit` is for what one piece may become."""

    def __init__(self, encoding: str, url: str, *, limit: int) -> None:
        used = [name.strip().lower() for name in encoding.split(",")]
        used = [name for name in used if name not in ("", "identity")]
        if len(used) > 1 or (used and used[0] not in _KNOWN):
            raise Unreachable(f"{url} compressed its answer with {encoding!r}, which nobody asked for")
        self._encoding = used[0] if used else ""
        self._url = url
        self._limit = limit
        self._begun = b""
        """The first bytes, which tell how it is packed."""
        self._zlib = None if self._encoding == "deflate" else zlib.decompressobj(zlib.MAX_WBITS | 32)

    def feed(self, piece: bytes) -> bytes:
        if not self._encoding:
            return piece
        if self._zlib is None:
            self._begun += piece
            if len(self._begun) < 2:
                return b""
            piece, self._zlib = self._begun, zlib.decompressobj(_wrapping(self._begun))
        out = b""
        try:
            while piece:
                out += self._zlib.decompress(piece, self._limit + 1 - len(out))
                if len(out) > self._limit:
                    raise Unreachable(f"{self._url} answered with more than {self._limit >> 20} MB")
                piece = self._zlib.unused_data
                if self._zlib.eof:  # the next member may follow
                    self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)
        except zlib.error as error:
            raise Unreachable(f"{self._url} sent a damaged body: {error}") from error
        return out


def _wrapping(begun: bytes) -> int:
    """`deflate` should mean zlib's format; some send it without the wrapping."""
    wrapped = begun[0] & 0x0F == 8 and int.from_bytes(begun[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS
