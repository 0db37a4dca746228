"""Find the commands in a model's reply.

A command begins in column 0: `/fetch https://example.com`. A block command goes on to its end line: `/write notes.md` to
`/endwrite`. Inside a code fence nothing is a command, and a word that is no command of ours is text. `Scan` reads line
by line, so that the filter that streams the text and the parser that runs the commands cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec import Struct

from dragoman.hub.tools.tool import Command

TEXT, COMMAND, BODY, END, FRAME = "text", "command", "body", "end", "frame"
"""What a line can be. A frame is one that only tool results have (`[END FETCH]`), and models sometimes imitate."""

ENDS = {
    "/write": "/endwrite",
    "/parallel": "/endparallel",
    "/mem": "/endmem",
    "/todo": "/endtodo",
    "/lesson": "/endlesson",
}
_STRAY = frozenset(ENDS.values())
_FENCE = re.compile(r"\s*+(?:(`{3,}+)[^`]*+|(~{3,}+).*+)")
"""As in Markdown: it is closed by a line that has as many marks, or more, and nothing else."""
_RESULTS = "[TOOL RESULTS"
_CLOSED = re.compile(r"\[END [A-Z0-9 ]+\]")
_CLOSING = re.compile(r"\[END [A-Z0-9 ]*\]?")
_OPENED = re.compile(r"\[(/\w*)(.?)")


class Parsed(Struct, frozen=True):
    commands: tuple[Command, ...]
    open: bool
    """The last command is a block that the reply does not close."""


class Scan:
    """Reads a reply line by line and says what each line is. `names` are the commands there are."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._prefixes = frozenset(
            name[:n] for name in (*self._names, *_STRAY) for n in range(1, len(name) + 1)
        )
        self._fence = ""
        self._end = ""

    @property
    def inside(self) -> bool:
        """Within a block command."""
        return bool(self._end)

    @property
    def fenced(self) -> bool:
        return bool(self._fence)

    def line(self, line: str) -> str:
        """What the next line is; it comes without its newline."""
        line = line.rstrip()
        if self._end:
            if line != self._end:
                return BODY
            self._end = ""
            return END
        if self._fence:
            marks = line.lstrip()
            if marks.startswith(self._fence) and not marks.strip(self._fence[0]):
                self._fence = ""
            return TEXT
        if (fence := _FENCE.fullmatch(line)) is not None:
            self._fence = fence[1] or fence[2]
            return TEXT
        if line in _STRAY or (line.startswith("[") and self._frames(line)):
            return FRAME
        name, _, args = line.partition(" ")
        if name not in self._names:
            return TEXT
        self._end = _end_of(name, args.strip())
        return COMMAND

    def decided(self, part: str) -> bool:
        """Whether a line that begins with `part` is text, whatever else is on it."""
        if self._end:
            return False
        if self._fence:
            return True
        bare = part.rstrip()
        if bare.startswith("/"):
            word, space, _ = bare.partition(" ")
            if space:
                return word not in self._names
            return word not in (self._prefixes if bare == part else {*self._names, *_STRAY})
        if bare.startswith("["):
            return not self._could_frame(bare)
        return bool(bare)

    def _frames(self, line: str) -> bool:
        """Whether a line only imitates a tool result: `[/fetch ...]`, `[END FETCH]`. `[/docs](...)` does not."""
        opened = _OPENED.match(line)
        if opened is not None:
            return opened[1] in self._names and opened[2] in ("", " ", "]")
        return line.startswith(_RESULTS) or _CLOSED.fullmatch(line) is not None

    def _could_frame(self, part: str) -> bool:
        """Whether a line that begins with `part` may turn out to be one."""
        opened = _OPENED.match(part)
        if opened is not None:
            return self._frames(part) or (not opened[2] and opened[1] in self._prefixes)
        return (
            _RESULTS.startswith(part)
            or part.startswith(_RESULTS)
            or "[END ".startswith(part)
            or _CLOSING.fullmatch(part) is not None
        )


def parse(reply: str, names: Collection[str]) -> Parsed:
    """The commands of a reply, in order."""
    scan = Scan(names)
    found: list[Command] = []
    name = args = ""
    body: list[str] = []
    for line in reply.split("\n"):
        kind = scan.line(line)
        if kind == COMMAND:
            name, _, args = line.rstrip().partition(" ")
            args, body = args.strip(), []
            if not scan.inside:
                found.append(Command(name=name, args=args))
        elif kind == BODY:
            body.append(line.removesuffix("\r"))
        elif kind == END:
            found.append(Command(name=name, args=args, body="\n".join(body)))
    if scan.inside:
        found.append(Command(name=name, args=args, body="\n".join(body), closed=False))
    return Parsed(tuple(found), scan.inside)


def _end_of(name: str, args: str) -> str:
    """The line that ends a block command; empty for a command of one line."""
    words = args.lower().split()
    match name:
        case "/write" | "/parallel":
            return ENDS[name]
        case "/mem" if words[:2] == ["add", "entry"]:
            return ENDS[name]
        case "/todo" if words == ["add"]:
            return ENDS[name]
        case "/lesson" if words[:1] not in (["list"], ["search"], ["delete"]) and ": " not in args:
            return ENDS[name]
    return ""
