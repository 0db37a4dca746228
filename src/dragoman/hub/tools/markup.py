"""What a web page says, without how it says it.

The page is a stranger's, and may have been written to keep its readers busy: every character is looked at a bounded number
of times, whatever it is. (The parser of the standard library needs minutes for some pages of a few kilobytes.)
"""

from __future__ import annotations

import html
import re

_NAME = re.compile(r"/?[A-Za-z][A-Za-z0-9]*")
_LONG_NUMBER = re.compile(r"&#(?:[0-9]{20,}+|[xX][0-9a-fA-F]{20,}+);?")
"""References to characters that there are not. Python refuses to read numbers of thousands of digits."""
_PIECE = 32_768
_LONGEST_NAME = 40
"""Characters of the longest reference: `&CounterClockwiseContourIntegral;`."""
_SILENT = frozenset(["script", "style", "noscript", "template", "svg", "head", "title"])
_END = {name: re.compile(rf"</{name}\b", re.IGNORECASE) for name in _SILENT} | {
    "head": re.compile(r"</head\b|<body\b", re.IGNORECASE)  # pages need not close it
}
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "p div br li ul ol tr table h1 h2 h3 h4 h5 h6 section article header footer pre blockquote dt dd main nav aside hr",
    )
)


def html_text(source: str) -> str:
    """The text of a page, a line for each block."""
    lines = [" ".join(line.split()) for line in "".join(_said(source)).splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _said(source: str) -> list[str]:
    out: list[str] = []
    at, silent = 0, set(_SILENT)
    while (tag := source.find("<", at)) >= 0:
        out.append(_unescaped(source[at:tag]))
        named = _NAME.match(source, tag + 1)
        if named is None and source[tag + 1 : tag + 2] not in ("!", "?", "/"):
            out.append("<")  # only a sign
            at = tag + 1
            continue
        comment = source.startswith("<!--", tag)
        end = source.find("-->" if comment else ">", tag + 1)
        if end < 0:
            return out
        at = end + (3 if comment else 1)
        name = named[0].lower() if named is not None else ""
        if name.lstrip("/") in _BLOCKS:
            out.append("\n")
        elif name in silent and source[end - 1] != "/":
            if (closed := _END[name].search(source, at)) is not None:
                at = closed.start()
            else:
                silent.discard(name)  # it is not closed anywhere, so nobody looks again
    out.append(_unescaped(source[at:]))
    return out


def _unescaped(text: str) -> str:
    """In pieces: an expression holds on to the interpreter, and other threads wait for it."""
    if "&" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        end = at + _PIECE
        if end < len(text) and (reference := text.rfind("&", end - _LONGEST_NAME, end)) > at:
            end = reference
        out.append(html.unescape(_LONG_NUMBER.sub("\ufffd", text[at:end])))
        at = end
    return "".join(out)
