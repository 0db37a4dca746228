"""The text of a reply without its commands, as it streams.

Text goes out as soon as its line cannot become a command any more, which for most lines is the first character. What
comes out, piece by piece, is the clean answer: no commands, no bodies, no imitated tool results, no gaps where they were.
"""

from __future__ import annotations

from collections.abc import Collection

from dragoman.hub.commands import TEXT, Scan


class TextFilter:
    def __init__(self, names: Collection[str]) -> None:
        self._scan = Scan(names)
        self._line = ""
        """The line so far that is not yet known to be text."""
        self._open = False
        """The line so far went out; the rest of it goes the same way."""
        self._head = ""
        """What of the line went out: it may be a fence."""
        self._breaks = 0
        """Line breaks that go out before the next text, if there is one."""
        self._begun = False

    def feed(self, delta: str) -> str:
        """What can go out now."""
        out: list[str] = []
        while delta:
            piece, newline, delta = delta.partition("\n")
            if self._open:
                self._head += piece
                out.append(piece)
            else:
                self._line += piece
                if not newline and self._scan.decided(self._line):
                    out.append(self._begin(self._line, self._scan.fenced))
                    self._open, self._head, self._line = True, self._line, ""
            if newline:
                out.append(self._end_line())
        return "".join(out)

    def close(self) -> str:
        """What was held back, at the end of the reply."""
        return self._end_line()

    def _end_line(self) -> str:
        if self._open:
            self._scan.line(self._head)
            self._open, self._head = False, ""
            self._breaks += 1
            return ""
        line, self._line = self._line, ""
        fenced = self._scan.fenced
        if self._scan.line(line) != TEXT:
            return ""
        out = self._begin(line, fenced) if line.strip() or fenced else ""
        self._breaks += 1
        return out

    def _begin(self, text: str, fenced: bool) -> str:
        """Text at the start of a line, after the breaks that lead to it."""
        most = self._breaks if fenced else min(self._breaks, 2)
        breaks = "\n" * most if self._begun else ""
        self._breaks, self._begun = 0, True
        return breaks + text
