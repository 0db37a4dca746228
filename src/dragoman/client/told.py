"""The parts of an artifact as a stream tells them, held against those that are known.

A stream may tell an artifact from its beginning again (`Repetition`), or go on somewhere in what the peer's picture of the
task has shown already (`Place`). How text was cut makes no difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile, groupby, islice

import msgspec
from msgspec.structs import replace

from dragoman.model.content import Part

_MAX_PLACES = 200
"""Of so many places a stream can be at in a text that repeats itself, the first are kept in mind."""


class Repetition:
    """Parts told again, from the first."""

    def __init__(self, known: Iterable[Part]) -> None:
        self._known = _joined(known)
        self._part = 0
        self._offset = 0
        self.told: list[Part] = []

    def complete(self) -> bool:
        """Everything known was told again."""
        return self._part == len(self._known)

    def read(self, parts: Iterable[Part]) -> tuple[Part, ...] | None:
        """The parts that are new. None when they contradict what is known."""
        new: list[Part] = []
        for part in parts:
            self.told.append(part)
            if part.text == "":
                continue
            if self.complete():
                new.append(part)
                continue
            known = self._known[self._part]
            if part.text is None or known.text is None:
                if part != known:
                    return None
                self._part += 1
            elif replace(part, text="") != replace(known, text=""):
                return None
            else:
                left = len(known.text) - self._offset
                if not known.text.startswith(part.text[:left], self._offset):
                    return None
                self._offset += len(part.text)
                if len(part.text) >= left:
                    self._part, self._offset = self._part + 1, 0
                    if len(part.text) > left:
                        if not self.complete():
                            return None
                        new.append(replace(part, text=part.text[left:]))
        return tuple(new)


def rest_of(whole: Iterable[Part], start: Iterable[Part]) -> tuple[Part, ...] | None:
    """What `whole` has beyond `start`; None if it does not begin with it."""
    repetition = Repetition(start)
    rest = repetition.read(whole)
    return rest if repetition.complete() else None


def continued(whole: Sequence[Part], start: Sequence[Part]) -> tuple[Part, ...] | None:
    """`rest_of`, also if chunks were written down twice in `whole`: there are servers that do so (a2a-sdk 0.3)."""
    rest = rest_of(whole, start)
    if rest is not None or len(whole) <= len(start):
        return rest
    left = deque(whole)
    last: Part | None = None
    for part in start:
        while left and left[0] == last != part:
            left.popleft()
        if not left or left[0] != part:
            return None
        last = left.popleft()
    return tuple(part for part, _ in groupby(dropwhile(lambda part: part == last, left)))


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Neighbouring texts as one; empty ones left out."""
    out: list[Part] = []
    for bare, group in groupby((part for part in parts if part.text != ""), _likeness):
        if bare is None:
            out += group
        else:
            out.append(replace(bare, text="".join(part.text or "" for part in group)))
    return out


def _likeness(part: Part) -> Part | None:
    """Texts that could be one text have the same."""
    return None if part.text is None else replace(part, text="")


class Place:
    """Where a stream may be in `shown`: what the peer's picture of an artifact has beyond what its streams have told.

    A picture is made after the stream began, so the stream can come to tell what the picture has shown.
    """

    def __init__(self, shown: str, at: Sequence[int] | None = None) -> None:
        self.shown = shown
        self._at = at
        """All the places where it may be; None when nothing is known yet."""

    def knows(self, chunk: str) -> bool | None:
        """Whether the next chunk was shown. None when it may be that, or something new that reads the same."""
        inside, behind = self._after(chunk), self._at is None or len(self.shown) in self._at
        return None if inside and behind else bool(inside)

    def step(self, chunk: str) -> bool:
        """Go past a chunk that was shown. False once the stream has come to the end of that, or contradicts it."""
        self._at = self._after(chunk)
        return bool(self._at) and self._at != [len(self.shown)]

    def _after(self, chunk: str) -> list[int]:
        at = self._at if self._at is not None else islice(_found(chunk, self.shown), _MAX_PLACES)
        return [i + len(chunk) for i in at if self.shown.startswith(chunk, i)]


def _found(chunk: str, text: str) -> Iterator[int]:
    at = text.find(chunk)
    while at >= 0:
        yield at
        at = text.find(chunk, at + 1)


def written(parts: Iterable[Part]) -> str:
    """Parts as one text, so that they can be found in one another."""
    return "".join(
        part.text if part.text is not None and part == Part(text=part.text) else _other(part)
        for part in parts
    )


def _other(part: Part) -> str:
    return f"\ue000{msgspec.json.encode(part).decode()}\ue001"
