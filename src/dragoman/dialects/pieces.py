"""Write a large task in pieces, so that a server can do other work between them.

One encode of 200 MB takes half a second, in which nothing else runs, in no thread. Here the task is written with a mark in
place of each list of parts, in whichever dialect, and the parts are written in groups of about a megabyte. A long text or
file is written in slices. The pieces together are what `write_result` writes.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.dialects.dialect import Dialect
from dragoman.model.content import Part
from dragoman.model.ops import Op, Request
from dragoman.model.task import Task

PIECE_BYTES = 1 << 20
LARGE_BYTES = 24 << 20
"""What is smaller is written at once, in a few dozen milliseconds: an echo of the largest request is. Many of those in pieces
would be in memory together."""
PART_BYTES = 64
"""Of a part beside its content."""
_DATA_BYTES = 4 << 10
"""Assumed of a data part. Its size is not known before it is written."""
_SLICE = PIECE_BYTES // 3 * 3
"""Base64 of slices is base64 of the whole if their length is a multiple of three."""

_EMPTY = Part(text="")
_encode = msgspec.json.Encoder().encode


def write_pieces(dialect: Dialect, op: Op, task: Task, request: Request | None = None) -> Iterator[bytes]:
    """The JSON of `dialect.write_result(op, task, request)`, piece by piece."""
    stamp = secrets.token_hex(16)  # nobody can have it in a text

    def mark(n: int) -> tuple[Part, ...]:
        return (Part(text=f"{stamp}.{n}."), Part(text=""))  # two: a dialect may join neighbours

    lists = list(_lists_of_parts(task))
    artifacts = len(task.artifacts)
    marked = replace(
        task,
        artifacts=tuple(replace(each, parts=mark(n)) for n, each in enumerate(task.artifacts)),
        history=tuple(replace(each, parts=mark(artifacts + n)) for n, each in enumerate(task.history)),
    )
    skeleton = dialect.write_result(op, marked, request)
    marks = [dialect.write_parts(mark(n)) for n in range(len(lists))]
    places = sorted((skeleton.find(each), n) for n, each in enumerate(marks))
    if skeleton.count(stamp.encode()) != len(lists) or (places and places[0][0] < 0):
        yield dialect.write_result(op, task, request)  # this version repeats or changes parts
        return
    at = 0
    for place, n in places:
        yield skeleton[at:place]
        yield from _write_parts(dialect, lists[n])
        at = place + len(marks[n])
    yield skeleton[at:]


def _lists_of_parts(task: Task) -> Iterator[Sequence[Part]]:
    for artifact in task.artifacts:
        yield artifact.parts
    for message in task.history:
        yield message.parts


def size_of(part: Part) -> int:
    """About the bytes of its JSON."""
    if part.text is not None:
        return len(part.text) + PART_BYTES
    if part.raw is not None:
        return len(part.raw) * 4 // 3 + PART_BYTES
    return _DATA_BYTES


def group_parts(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Groups of neighbouring parts of about a piece. A part that is larger is a group of its own."""
    group: list[Part] = []
    size = 0
    for part in parts:
        taken = size_of(part)
        if group and size + taken > PIECE_BYTES:
            yield group
            group, size = [], 0
        group.append(part)
        size += taken
    yield group


def _write_parts(dialect: Dialect, parts: Sequence[Part]) -> Iterator[bytes]:
    """The JSON array of parts."""
    opening = b"["
    for group in group_parts(parts):
        first = group[0] if group else _EMPTY
        if size_of(first) > PIECE_BYTES and (first.text is not None or first.raw is not None):
            yield opening
            yield from _write_part(dialect, first)
        else:
            yield opening + dialect.write_parts(group)[1:-1]
        opening = b","
    yield b"]"


def _write_part(dialect: Dialect, part: Part) -> Iterator[bytes]:
    """A part with a long text or file."""
    mark = secrets.token_bytes(24)
    if part.text is not None:
        around = dialect.write_parts((replace(part, text=mark.hex()),))[1:-1].split(mark.hex().encode())
    else:
        around = dialect.write_parts((replace(part, raw=mark),))[1:-1].split(b64encode(mark))
    if len(around) != 2:
        yield dialect.write_parts((part,))[1:-1]  # this version writes it in another way
        return
    yield around[0]
    if part.text is not None:
        for at in range(0, len(part.text), _SLICE):
            yield _encode(part.text[at : at + _SLICE])[1:-1]
    elif part.raw is not None:
        for at in range(0, len(part.raw), _SLICE):
            yield b64encode(part.raw[at : at + _SLICE])
    yield around[1]
