"""Make text that others wrote safe to show on a terminal.

A terminal obeys what it prints: escape sequences move its cursor, set its title or fill its clipboard, and Unicode's
bidirectional overrides show text in another order than the one it has. Text from peers, files and databases goes through
`sanitize` before it is shown to a person. Programs that read a pipe get the text as it is.
"""

from __future__ import annotations

import re
import sys
from typing import TextIO

_LINE_BREAKS = "\u2028\u2029"
_INVISIBLE = (
    range(0x20),  # C0: bell, backspace, carriage return, escape, ...
    range(0x7F, 0xA0),  # delete, and C1: the same orders in one character
    range(0x180E, 0x180F),
    range(0x200B, 0x200C),  # zero width space; the joiners and the marks for right-to-left text stay
    range(0x202A, 0x202F),  # bidirectional embeddings and overrides
    range(0x2060, 0x2070),  # word joiner, invisible operators, bidirectional isolates, deprecated formats
    range(0xFEFF, 0xFF00),  # byte order mark
    range(0xFFF9, 0xFFFC),  # interlinear annotations
    range(0xE0000, 0xE0080),  # tags: a second alphabet that is not seen
)
_KEPT = "\n\t"

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]?"  # colours, cursor, screen
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*+(?:\x07|\x9c|\x1b\\)?"  # title, clipboard, links, ...
    r"|\x1b[ -/]*+[0-~]?"  # character sets, reset
)
_ACTIONS: dict[int, str | None] = {
    **{code: None for codes in _INVISIBLE for code in codes if chr(code) not in _KEPT},
    **{ord(each): "\n" for each in _LINE_BREAKS},
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # halves of characters cannot be encoded
}

UNSAFE = (
    "".join(
        f"{re.escape(chr(codes.start))}-{re.escape(chr(codes.stop - 1))}"
        for codes in (*_INVISIBLE, range(0xD800, 0xE000))
    )
    + _LINE_BREAKS
)
"""The characters that `sanitize` takes out, line breaks and tabs included, as the inside of a character class."""


def sanitize(text: str) -> str:
    """Remove escape sequences, control characters and invisible formatting. Line feeds and tabs stay."""
    return text if text.isprintable() else _SEQUENCES.sub("", text).translate(_ACTIONS)


def sanitize_for(text: str, to: TextIO | None = None) -> str:
    """Sanitize `text` if `to` (default: standard output) is a terminal."""
    return sanitize(text) if (to or sys.stdout).isatty() else text


def one_line(text: str) -> str:
    """Sanitize `text` and put it on one line, with single spaces."""
    return " ".join(sanitize(text).split())


def shorten(text: str, limit: int) -> str:
    """`text` on one line of at most `limit` characters. What is cut off leaves an ellipsis."""
    line = one_line(text[: 4 * limit])
    return line if len(line) <= limit else line[: limit - 1] + "…"
