"""The text of a reply without its commands, as it streams.

Text goes out as soon as its line cannot become a command any more, which for most lines is the first character. What
comes out, piece by piece, is the clean answer: no commands, no bodies, no imitated tool results, no gaps where they were.
"""

from __future__ import annotations

from collections.abc import Collection

from dragoman.hub.agents.commands import TEXT, Scan

_SURE = 200
"""Characters after which a line that may still be a command is one, or waits for its end."""


class TextFilter:
    def __init__(self, names: Collection[str]) -> None:
        self._scan = Scan(names)
        self._line: list[str] = []
        """The line so far, in pieces: a line may be very long, and is put together once."""
        self._held = ""
        """Its beginning, as long as it is not known to be text."""
        self._open = False
        """The line so far went out; the rest of it goes the same way."""
        self._breaks = 0
        """Line breaks that go out before the next text, if there is one."""
        self._begun = False

    def feed(self, delta: str) -> str:
        """What can go out now."""
        out: list[str] = []
        *lines, rest = delta.split("\n")
        for line in lines:
            self._line.append(line)
            out += (line if self._open else "", self._end_line())
        self._line.append(rest)
        if self._open:
            out.append(rest)
        elif len(self._held) < _SURE:
            self._held += rest
            if self._scan.decided(self._held):
                out.append(self._begin("".join(self._line), self._scan.fenced))
                self._open = True
        return "".join(out)

    def close(self) -> str:
        """What was held back, at the end of the reply."""
        return self._end_line()

    def _end_line(self) -> str:
        line, opened, fenced = "".join(self._line), self._open, self._scan.fenced
        self._line, self._held, self._open = [], "", False
        kind = self._scan.line(line)
        if kind != TEXT and not opened:
            return ""
        out = self._begin(line, fenced) if not opened and (line.strip() or fenced) else ""
        self._breaks += 1
        return out

    def _begin(self, text: str, fenced: bool) -> str:
        """Text at the start of a line, after the breaks that lead to it."""
        most = self._breaks if fenced else min(self._breaks, 2)
        breaks = "\n" * most if self._begun else ""
        self._breaks, self._begun = 0, True
        return breaks + text
