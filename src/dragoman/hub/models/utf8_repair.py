"""Whole characters of what models say.

Some providers cut a reply in the middle of a character, so that half of an emoji ends one piece and the other half begins
the next; and some models write half of one. Halves can neither be kept nor sent.
"""

from __future__ import annotations

import re

_HALF = re.compile("[\ud800-\udfff]")
_FIRST = re.compile("[\ud800-\udbff]\\Z")


def mended(text: str) -> str:
    """With halves that belong together as one character, and U+FFFD for those that do not."""
    if text.isascii() or _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Characters:
    """Text that comes in pieces."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be said by now."""
        text, self._held = self._held + piece, ""
        if _FIRST.search(text) is not None:
            text, self._held = text[:-1], text[-1]
        return mended(text)

    def close(self) -> str:
        """What is left."""
        return mended(self._held)
