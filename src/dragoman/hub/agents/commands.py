"""Find the commands in a model's reply.

A command begins in column 0: `/fetch https://example.com`. A block command goes on to its end line: `/write notes.md` to
`/endwrite`. Inside a code fence nothing is a command, and a word that is no command of ours is text. `Scan` reads line
by line, so that the filter that streams the text and the parser that runs the commands cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec import Struct

from dragoman.hub.models.model import ToolCall, ToolSpec
from dragoman.hub.tools.tool import Command, Tool

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


_UNDECIDED_CHARACTERS = 200
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
        elif len(self._held) < _UNDECIDED_CHARACTERS:
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


def tool_spec(tool: Tool, name: str) -> ToolSpec:
    """A tool for a model that calls tools: the words that would follow the command, and the block's body if it has one."""
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
