"""Find the commands in a model's reply.

A command begins in column 0: `/fetch https://example.com`. A block command goes on to its end line: `/write notes.md` to
`/endwrite`. Inside a code fence nothing is a command, and an unknown command is text. The parser and the filter that
streams the text both use `Scan`, so they agree.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec import Struct

from dragoman.hub.models import ToolCall, ToolSpec
from dragoman.hub.tools import Command, Tool

TEXT, COMMAND, BODY, END, FRAME = "text", "command", "body", "end", "frame"
"""Kinds of lines. A frame is a line that only tool results have (`[END FETCH]`); models sometimes imitate them."""

ENDS = {
    "/write": "/endwrite",
    "/parallel": "/endparallel",
    "/mem": "/endmem",
    "/todo": "/endtodo",
    "/lesson": "/endlesson",
}
_STRAY = frozenset(ENDS.values())
_FENCE = re.compile(r"\s*+(?:(`{3,}+)[^`]*+|(~{3,}+).*+)")
"""As in Markdown: a line with at least as many marks, and nothing else, closes it."""
_RESULTS = "[TOOL RESULTS"
_CLOSED = re.compile(r"\[END [A-Z0-9 ]+\]")
_CLOSING = re.compile(r"\[END [A-Z0-9 ]*\]?")
_OPENED = re.compile(r"\[(/\w*)(.?)")


class ParsedReply(Struct, frozen=True):
    commands: tuple[Command, ...]
    open: bool
    """The last command is a block without its end."""


class Scan:
    """Classifies the lines of a reply. `names` are the known commands."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._prefixes = frozenset(
            name[:n] for name in (*self._names, *_STRAY) for n in range(1, len(name) + 1)
        )
        self._fence = ""
        self._end = ""

    @property
    def inside(self) -> bool:
        return bool(self._end)

    @property
    def fenced(self) -> bool:
        return bool(self._fence)

    def line(self, line: str) -> str:
        """Classify the next line, which has no newline."""
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
        """True if every line that begins with `part` is text."""
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
        """True if a line imitates a tool result: `[/fetch ...]`, `[END FETCH]`, but not `[/docs](...)`."""
        opened = _OPENED.match(line)
        if opened is not None:
            return opened[1] in self._names and opened[2] in ("", " ", "]")
        return line.startswith(_RESULTS) or _CLOSED.fullmatch(line) is not None

    def _could_frame(self, part: str) -> bool:
        """True if a line that begins with `part` may become a frame."""
        opened = _OPENED.match(part)
        if opened is not None:
            return self._frames(part) or (not opened[2] and opened[1] in self._prefixes)
        return (
            _RESULTS.startswith(part)
            or part.startswith(_RESULTS)
            or "[END ".startswith(part)
            or _CLOSING.fullmatch(part) is not None
        )


def parse(reply: str, names: Collection[str]) -> ParsedReply:
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
    return ParsedReply(tuple(found), scan.inside)


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


_UNDECIDED_CHARACTERS = 200
"""Characters of a line after which it is no longer checked before its end."""


class TextFilter:
    def __init__(self, names: Collection[str]) -> None:
        self._scan = Scan(names)
        self._line: list[str] = []
        """The line so far, in pieces, so that a long line costs linear time."""
        self._held = ""
        """The start of the line, until it is known to be text."""
        self._open = False
        """The line is text, and its start is written."""
        self._breaks = 0
        """Line breaks to write before the next text."""
        self._begun = False

    def feed(self, delta: str) -> str:
        """The text that can be written now."""
        out: list[str] = []
        *lines, rest = delta.split("\n")
        for line in lines:
            self._line.append(line)
            out += (line if self._open else "", self._end_line())
        self._line.append(rest)
        if self._open:
            out.append(rest)
        elif len(self._held) < _UNDECIDED_CHARACTERS:
            self._held += rest
            if self._scan.decided(self._held):
                out.append(self._begin("".join(self._line), self._scan.fenced))
                self._open = True
        return "".join(out)

    def close(self) -> str:
        """The rest of the text, at the end of the reply."""
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
        """Text at the start of a line, with the line breaks before it."""
        most = self._breaks if fenced else min(self._breaks, 2)
        breaks = "\n" * most if self._begun else ""
        self._breaks, self._begun = 0, True
        return breaks + text


def tool_spec(tool: Tool, name: str) -> ToolSpec:
    """A command as a tool: `args` is the rest of its line, `body` the block, if it has one."""
    properties = {"args": {"type": "string", "description": "What follows the command on its line."}}
    if name in ENDS:
        properties["body"] = {"type": "string", "description": f"What stands before {ENDS[name]}."}
    parameters = {"type": "object", "properties": properties}
    return ToolSpec(name=name[1:], description=tool.usage, parameters=parameters)


def command_of(call: ToolCall) -> Command:
    args, body = call.arguments.get("args", ""), call.arguments.get("body")
    return Command(
        name=f"/{call.name}",
        args=" ".join(str(args).split("\n")).strip(),
        body=None if body is None else str(body),
    )
