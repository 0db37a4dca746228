"""Print for people on a terminal (with rich, if it is installed) and plainly everywhere else.

What agents say goes to programs as it is. A terminal gets only what can be read: an agent must not be able to move the
cursor, change the title or recolour what somebody else said.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec

from dragoman.client.reply import Piece
from dragoman.model.content import Message, Part
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task
from dragoman.observe.terminal import sanitize


def console() -> Any:
    """A rich console when there is a terminal to draw on, else None."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False)


def said(text: str, to: TextIO | None = None) -> str:
    """The text as `to` (standard output) may have it."""
    return sanitize(text) if (to or sys.stdout).isatty() else text


def say(text: str, to: TextIO | None = None) -> None:
    """Print something that an agent may have had a hand in."""
    print(said(text, to), file=to or sys.stdout)


def json(value: Any, *, pretty: bool = True) -> None:
    body = msgspec.json.encode(value)
    sys.stdout.write(said((msgspec.json.format(body, indent=2) if pretty else body).decode() + "\n"))
    sys.stdout.flush()


def event(piece: Piece) -> None:
    """An event on a line of its own, in the form of A2A 1.0."""
    json({_MEMBERS[type(piece.event)]: piece.event}, pretty=False)


_MEMBERS = {
    Task: "task",
    Message: "message",
    StatusUpdate: "statusUpdate",
    ArtifactUpdate: "artifactUpdate",
}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns for people, tab-separated lines for programs."""
    rich = console()
    if rich is None:
        for row in rows:
            say("\t".join(" ".join(cell.split()) for cell in row))
        return
    from rich.markup import escape
    from rich.table import Column, Table

    # What a row is called by is there to be copied, so it is the rest that has to make room.
    columns = [Column(heading, no_wrap=n == 0) for n, heading in enumerate(headings)]
    drawn = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        drawn.add_row(*(escape(sanitize(cell)) for cell in row))
    rich.print(drawn)


def fields(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values, one under the other."""
    rich = console()
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        if rich is not None:
            from rich.markup import escape

            rich.print(f"[bold]{escape(name.ljust(width))}[/]  {escape(sanitize(value))}")
        else:
            say(f"{name.ljust(width)}  {value}")


class Progress:
    """What the agent is doing, on one line of the terminal that is gone afterwards."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = False

    def say(self, text: str) -> None:
        if self._live:
            line = " ".join(sanitize(text).split())[:100]
            sys.stderr.write(f"\r\x1b[K\x1b[2m{line}\x1b[0m")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


class Answer:
    """Prints an answer as its pieces come: text as it is, data as JSON, files by name."""

    def __init__(self) -> None:
        self.progress = Progress()
        self._artifact = ""
        self._line_open = False

    def piece(self, piece: Piece) -> None:
        event = piece.event
        parts = event.artifact.parts if isinstance(event, ArtifactUpdate) else ()
        if isinstance(event, ArtifactUpdate) and event.artifact.artifact_id != self._artifact:
            self.end_line()
            self._artifact = event.artifact.artifact_id
        if piece.text:
            self._write(piece.text)
        for part in parts:
            self._other(part)
        if isinstance(event, Task):
            for artifact in event.artifacts:
                for part in artifact.parts:
                    self._other(part)
        if piece.status and not piece.text:
            self.progress.say(piece.status)

    def _write(self, text: str) -> None:
        self.progress.clear()
        sys.stdout.write(said(text))
        sys.stdout.flush()
        self._line_open = not text.endswith("\n")

    def _other(self, part: Part) -> None:
        line = described(part)
        if line:
            self.end_line()
            self._write(line + "\n")

    def end_line(self) -> None:
        self.progress.clear()
        if self._line_open:
            self._write("\n")


def described(part: Part) -> str:
    """A part that is not text, on one line."""
    if part.data is not msgspec.UNSET:
        return msgspec.json.encode(part.data).decode()
    name = part.filename or "file"
    if part.url is not None:
        return f"[{name}: {part.url}]"
    if part.raw is not None:
        return f"[{name}: {part.media_type or 'unknown type'}, {len(part.raw)} bytes]"
    return ""
