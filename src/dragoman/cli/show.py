"""Prints answers: for people on a terminal (with rich, if it is installed), plainly everywhere else. Saves their files.

Programs get the text of agents as it is. A terminal gets it without escape sequences: an agent must not move the cursor, change
the title or recolour other text.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO
from unicodedata import combining, east_asian_width

import msgspec

from dragoman.client.reply import Piece
from dragoman.dialects.v1_0 import EVENT_MEMBERS
from dragoman.model.content import Message, Part
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task
from dragoman.observe.terminal import sanitize, sanitize_for


def console() -> Any:
    """A rich console when there is a terminal to draw on, else None."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False)


def say(text: str, to: TextIO | None = None) -> None:
    """Print text that may come from an agent."""
    print(sanitize_for(text, to), file=to or sys.stdout)


def json(value: Any, *, pretty: bool = True) -> None:
    body = msgspec.json.encode(value)
    sys.stdout.write(sanitize_for((msgspec.json.format(body, indent=2) if pretty else body).decode() + "\n"))
    sys.stdout.flush()


def event(piece: Piece) -> None:
    """Print an event as one line, in the form of A2A 1.0."""
    json({EVENT_MEMBERS[type(piece.event)]: piece.event}, pretty=False)


def response(result: Task | Message) -> None:
    """Print the result of a send in the form of A2A 1.0."""
    json({EVENT_MEMBERS[type(result)]: result})


def identifiers(result: Task | Message, to: TextIO | None = None) -> None:
    if isinstance(result, Task):
        say(f"Task: {result.id}", to)
    if result.context_id:
        say(f"Context: {result.context_id}", to)
    if isinstance(result, Task):
        say(f"State: {result.state.word}", to)


def text_form(result: Task | Message, *, content: bool = True) -> None:
    """Print `-o text`: one field per line. A text of several lines is a block that ends with an empty line."""
    identifiers(result)
    if not content:
        return
    if isinstance(result, Message):
        _block("Message", result.parts)
        return
    for artifact in result.artifacts:
        _block(f"Artifact {artifact.name or artifact.artifact_id}", artifact.parts)
    if result.status.message is not None:
        _block("Message", result.status.message.parts)


def event_text(piece: Piece) -> None:
    """Print an event in the form of `-o text`."""
    event = piece.event
    if isinstance(event, ArtifactUpdate):
        _block(f"Artifact {event.artifact.name or event.artifact.artifact_id}", event.artifact.parts)
    elif isinstance(event, StatusUpdate):
        say(f"State: {event.status.state.word}")
        if event.status.message is not None:
            _block("Message", event.status.message.parts)
    else:
        text_form(event)
    sys.stdout.flush()


def _block(label: str, parts: Sequence[Part]) -> None:
    text = "".join(part.text for part in parts if part.text is not None)
    lines = [text] if text else []
    lines += [line for part in parts if (line := describe_part(part, pretty=True))]
    if lines:
        say(f"{label}:")
        for line in lines:
            say(line.rstrip("\n"))
        say("")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns for people, tab-separated lines for programs."""
    rich = console()
    if rich is None:
        for row in rows:
            say("\t".join(" ".join(cell.split()) for cell in row))
        return
    from rich.markup import escape
    from rich.table import Column, Table

    # People copy the first column, so only the others wrap.
    columns = [Column(heading, no_wrap=n == 0) for n, heading in enumerate(headings)]
    drawn = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        drawn.add_row(*(escape(sanitize(cell)) for cell in row))
    rich.print(drawn)


def fields(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    rich = console()
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        if rich is not None:
            from rich.markup import escape

            rich.print(f"[bold]{escape(name.ljust(width))}[/]  {escape(sanitize(value))}")
        else:
            say(f"{name.ljust(width)}  {value}")


class Progress:
    """What the agent is doing, on a line of its own. The next one takes its place, but a note stays. Text is never on that
    line."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._line = ""
        self._stays = False

    def say(self, text: str, *, stays: bool = False) -> None:
        """Show `text`. The cursor is at the beginning of a line, or behind what `say` showed before."""
        line = _fit(" ".join(sanitize(text[:4096]).split()))
        if self._live and line and line != self._line:
            if self._stays:
                self.leave()
            self._stays = stays
            sys.stderr.write(f"\r\x1b[K\x1b[2m{line}\x1b[0m" if self._line else f"\x1b[2m{line}\x1b[0m")
            sys.stderr.flush()
            self._line = line

    def leave(self) -> None:
        """Go to the next line, so that what was shown stays."""
        if self._line:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._line, self._stays = "", False


def _fit(line: str) -> str:
    """As much of `line` as one line of the terminal holds: what wraps cannot be taken back."""
    room = shutil.get_terminal_size().columns - 1
    cells = 0
    for n, letter in enumerate(line):
        cells += 0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1
        if cells > room:
            return line[:n]
    return line


class Answer:
    """Prints an answer: text as it is, data as JSON, files by name.

    A terminal gets each piece when it comes, and what was printed stays as it is. What is no terminal cannot be told that a
    text is void, so it gets the whole answer at the `end`. With an `output` format, each event is printed in that format, or, if
    the command does not stream, the caller prints the whole task at the end.
    """

    def __init__(self, output: str | None = None, *, streams: bool = False) -> None:
        self._output = output
        self.is_whole = output is not None and not streams
        self.progress = Progress()
        self._live = sys.stdout.isatty()
        self._artifact = ""
        self._pieces: dict[str, list[str]] = {}
        """The text of each artifact so far. Messages have the name "". """
        self._line_open = False

    def piece(self, piece: Piece) -> None:
        if self.is_whole:
            return self.progress.say(piece.status)
        if self._output is not None:
            return event(piece) if self._output == "json" else event_text(piece)
        self._print(piece)

    def _print(self, piece: Piece) -> None:
        event = piece.event
        artifact = event.artifact.artifact_id if isinstance(event, ArtifactUpdate) else ""
        if piece.replaces:
            self._discard([artifact] if artifact else list(self._pieces))
        if piece.text:
            self._add(artifact, piece.text)
        for part in piece.parts:
            if (aside := _describe_hub_note(part)) is not None:
                self._break_line()
                self.progress.say(aside, stays=True)
            elif line := describe_part(part):
                self._add(artifact, line, whole=True)
        if (
            piece.status
            and not piece.text
            and not (piece.state.terminal and self._repeats_answer(piece.status))
        ):
            self._break_line()
            self.progress.say(piece.status)

    def end(self) -> None:
        """Print the pending text, and end the line."""
        self.progress.leave()
        if not self._live:
            for pieces in self._pieces.values():
                self._break_line()
                for text in pieces:
                    self._write(text)
            self._pieces.clear()
        self._break_line()

    def _add(self, artifact: str, text: str, *, whole: bool = False) -> None:
        pieces = self._pieces.setdefault(artifact, [])
        if whole:
            text = ("\n" if pieces and not pieces[-1].endswith("\n") else "") + text + "\n"
        pieces.append(text)
        if self._live:
            self.progress.leave()
            if artifact != self._artifact:
                self._break_line()
                self._artifact = artifact
            elif whole and not self._line_open:
                text = text.lstrip("\n")
            self._write(text)

    def _discard(self, artifacts: Sequence[str]) -> None:
        printed = [text for each in artifacts for text in self._pieces.pop(each, ())]
        if printed and self._live:
            self.progress.leave()
            self._break_line()
            self._write("(the answer starts again)\n")

    def _repeats_answer(self, status: str) -> bool:
        """Whether a status only repeats the answer, as that of a finished task may."""
        return any("".join(pieces).strip() == status.strip() for pieces in self._pieces.values())

    def _write(self, text: str) -> None:
        if text := sanitize_for(text):
            sys.stdout.write(text)
            sys.stdout.flush()
            self._line_open = not text.endswith("\n")

    def _break_line(self) -> None:
        if self._line_open:
            self._write("\n")


def _describe_hub_note(part: Part) -> str | None:
    """The line for an event of a hub beside the answer (a delegated answer, a command); None for every other part."""
    if not isinstance(part.data, dict) or not any(name.startswith("x-arbiter.") for name in part.metadata):
        return None
    data = part.data
    if "x-arbiter.sub_agent_response" in part.metadata:
        return f"{data.get('agent', '')}: {data.get('content', '')}"
    tool = str(data.get("tool", ""))
    return "" if tool.startswith("agent:") else tool if data.get("ok", True) else f"{tool} failed"


def describe_part(part: Part, *, pretty: bool = False) -> str:
    """A part that is not text, on one line; data on as many as it needs if it is to be `pretty`."""
    if part.data is not msgspec.UNSET:
        body = msgspec.json.encode(part.data)
        return (msgspec.json.format(body, indent=2) if pretty else body).decode()
    name = part.filename or "file"
    if part.url is not None:
        return f"[{name}: {part.url}]"
    if part.raw is not None:
        return f"[{name}: {part.media_type or 'unknown type'}, {len(part.raw)} bytes]"
    return ""


def save_files(parts: Sequence[Part], directory: Path) -> None:
    """Write the files of an answer into `directory`; paths in their names are ignored. No file is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    for n, part in enumerate(parts, 1):
        if part.raw is not None:
            path = _write(directory, _safe_name(part.filename) or f"file-{n}", part.raw)
            print(f"saved {path}", file=sys.stderr)


def _write(directory: Path, name: str, content: bytes) -> Path:
    """Write to the first name that is free: `a.txt`, `a-2.txt`, `a-3.txt` ..."""
    path, n = directory / name, 1
    while True:
        try:
            with path.open("xb") as new:
                new.write(content)
            return path
        except FileExistsError:
            n += 1
            path = directory / f"{Path(name).stem}-{n}{Path(name).suffix}"


def _safe_name(filename: str) -> str:
    """The last part of an agent's file name. Empty if it is hidden, an option, not printable or too long."""
    name = Path(filename.replace("\\", "/")).name
    return (
        name if name.isprintable() and not name.startswith((".", "-")) and len(name.encode()) <= 255 else ""
    )
