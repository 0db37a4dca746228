"""Find the commands in a model's reply.

A command begins in column 0: `/fetch https://example.com`. A block command goes on to its end line: `/write notes.md` to
`/endwrite`. Inside a code fence nothing is a command, and an unknown command is text. A line that the prompt quotes is text, too: a
model may show a page or a file whose lines look like commands, and a code fence around it ends where the page has a fence. The parser
and the filter that streams the text both use `LineClassifier`, so they agree.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec import Struct

from dragoman.hub.models import ToolCall, ToolSpec
from dragoman.hub.quote import join_words
from dragoman.hub.tools import Command, Tool

TEXT, COMMAND, BODY, END, FRAME = "text", "command", "body", "end", "frame"
"""Kinds of lines. A frame is a line that only tool results have (`[END FETCH]`); models sometimes imitate them."""

BLOCK_ENDS = {
    "/write": "/endwrite",
    "/parallel": "/endparallel",
    "/mem": "/endmem",
    "/todo": "/endtodo",
    "/lesson": "/endlesson",
}
"""Block commands, and the lines that end them."""
_END_LINES = frozenset(BLOCK_ENDS.values())
_FENCE = re.compile(r"\s*+(?:(`{3,}+)[^`]*+|(~{3,}+).*+)")
"""As in Markdown: a line with at least as many marks, and nothing else, closes it."""
_RESULTS_START = "[TOOL RESULTS"
_FRAME_END = re.compile(r"\[END [A-Z0-9 ]+\]")
_FRAME_END_SO_FAR = re.compile(r"\[END [A-Z0-9 ]*\]?")
_FRAME_START = re.compile(r"\[(/\w*)(.?)")


class ParsedReply(Struct, frozen=True):
    commands: tuple[Command, ...]
    open: bool
    """The last command is a block without its end."""


class LineClassifier:
    """Says of each line of a reply whether it is text or belongs to a command.

    `names` are the known commands, `quoted` the lines that the prompt quotes.
    """

    def __init__(self, names: Collection[str], quoted: Collection[str] = ()) -> None:
        self._names, self._quoted = frozenset(names), quoted
        self._prefixes = frozenset(
            name[:n] for name in (*self._names, *_END_LINES) for n in range(1, len(name) + 1)
        )
        self._fence = ""
        """The marks that opened the code fence."""
        self._end = ""
        """The line that ends the block."""

    @property
    def in_block(self) -> bool:
        return bool(self._end)

    @property
    def in_fence(self) -> bool:
        return bool(self._fence)

    def classify(self, line: str) -> str:
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
        if line in _END_LINES or (line.startswith("[") and self._is_frame(line)):
            return FRAME
        name, _, args = line.partition(" ")
        if name not in self._names or join_words(line) in self._quoted:
            return TEXT
        self._end = _end_of(name, args.strip())
        return COMMAND

    def is_text(self, part: str) -> bool:
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
            return word not in (self._prefixes if bare == part else {*self._names, *_END_LINES})
        if bare.startswith("["):
            return not self._may_become_frame(bare)
        return bool(bare)

    def _is_frame(self, line: str) -> bool:
        """True if a line imitates a tool result: `[/fetch ...]`, `[END FETCH]`, but not `[/docs](...)`."""
        start = _FRAME_START.match(line)
        if start is not None:
            return start[1] in self._names and start[2] in ("", " ", "]")
        return line.startswith(_RESULTS_START) or _FRAME_END.fullmatch(line) is not None

    def _may_become_frame(self, part: str) -> bool:
        """True if a line that begins with `part` may become a frame."""
        start = _FRAME_START.match(part)
        if start is not None:
            return self._is_frame(part) or (not start[2] and start[1] in self._prefixes)
        return (
            _RESULTS_START.startswith(part)
            or part.startswith(_RESULTS_START)
            or "[END ".startswith(part)
            or _FRAME_END_SO_FAR.fullmatch(part) is not None
        )


def parse(reply: str, names: Collection[str], quoted: Collection[str] = ()) -> ParsedReply:
    """The commands of a reply, in order."""
    classifier = LineClassifier(names, quoted)
    commands: list[Command] = []
    name = args = ""
    body: list[str] = []
    for line in reply.split("\n"):
        kind = classifier.classify(line)
        if kind == COMMAND:
            name, _, args = line.rstrip().partition(" ")
            args, body = args.strip(), []
            if not classifier.in_block:
                commands.append(Command(name=name, args=args))
        elif kind == BODY:
            body.append(line.removesuffix("\r"))
        elif kind == END:
            commands.append(Command(name=name, args=args, body="\n".join(body)))
    if classifier.in_block:
        commands.append(Command(name=name, args=args, body="\n".join(body), closed=False))
    return ParsedReply(tuple(commands), classifier.in_block)


def _end_of(name: str, args: str) -> str:
    """The line that ends a block command; empty for a command of one line."""
    words = args.lower().split()
    match name:
        case "/write" | "/parallel":
            return BLOCK_ENDS[name]
        case "/mem" if words[:2] == ["add", "entry"]:
            return BLOCK_ENDS[name]
        case "/todo" if words == ["add"]:
            return BLOCK_ENDS[name]
        case "/lesson" if words[:1] not in (["list"], ["search"], ["delete"]) and ": " not in args:
            return BLOCK_ENDS[name]
    return ""


_UNDECIDED_CHARACTERS = 200
"""A line that may still be a command after so many characters is checked again only at its end."""


class TextFilter:
    """Returns the text of a reply as it is generated, without its commands."""

    def __init__(self, names: Collection[str], quoted: Collection[str] = ()) -> None:
        self._classifier = LineClassifier(names, quoted)
        self._line: list[str] = []
        """The line so far, in pieces, so that a long line costs linear time."""
        self._start = ""
        """The start of the line, until it is known to be text."""
        self._is_text = False
        """The line is text, and its start is written."""
        self._breaks = 0
        """Line breaks to write before the next text."""
        self._wrote_text = False

    def feed(self, delta: str) -> str:
        """The text that can be written now."""
        out: list[str] = []
        *lines, rest = delta.split("\n")
        for line in lines:
            self._line.append(line)
            out += (line if self._is_text else "", self._end_line())
        self._line.append(rest)
        if self._is_text:
            out.append(rest)
        elif len(self._start) < _UNDECIDED_CHARACTERS:
            self._start += rest
            if self._classifier.is_text(self._start):
                out.append(self._start_line("".join(self._line), self._classifier.in_fence))
                self._is_text = True
        return "".join(out)

    def close(self) -> str:
        """The rest of the text, at the end of the reply."""
        return self._end_line()

    def _end_line(self) -> str:
        line, opened, fenced = "".join(self._line), self._is_text, self._classifier.in_fence
        self._line, self._start, self._is_text = [], "", False
        kind = self._classifier.classify(line)
        if kind != TEXT and not opened:
            return ""
        out = self._start_line(line, fenced) if not opened and (line.strip() or fenced) else ""
        self._breaks += 1
        return out

    def _start_line(self, text: str, fenced: bool) -> str:
        """Text at the start of a line, with the line breaks before it."""
        count = self._breaks if fenced else min(self._breaks, 2)
        breaks = "\n" * count if self._wrote_text else ""
        self._breaks, self._wrote_text = 0, True
        return breaks + text


def tool_spec(tool: Tool, name: str) -> ToolSpec:
    """A command as a tool: `args` is the rest of its line, `body` the block, if it has one."""
    properties = {"args": {"type": "string", "description": "What follows the command on its line."}}
    if name in BLOCK_ENDS:
        properties["body"] = {"type": "string", "description": f"What stands before {BLOCK_ENDS[name]}."}
    parameters = {"type": "object", "properties": properties}
    return ToolSpec(name=name[1:], description=tool.usage, parameters=parameters)


def command_of(call: ToolCall) -> Command:
    """The command that a tool call of a model stands for (`tool_spec`)."""
    args, body = call.arguments.get("args", ""), call.arguments.get("body")
    return Command(
        name=f"/{call.name}",
        args=" ".join(str(args).split("\n")).strip(),
        body=None if body is None else str(body),
    )
