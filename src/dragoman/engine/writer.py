"""Writes one artifact, chunk by chunk, and knows what of it is on record from before an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman.engine.records import Building, Record
from dragoman.model.content import Artifact, Part
from dragoman.model.task import ArtifactUpdate
from dragoman.model.values import part_of

if TYPE_CHECKING:
    from dragoman.engine.turn import Turn


class ArtifactWriter:
    """`await turn.artifact("report").write("text")`: each write is a chunk that peers see as it comes."""

    def __init__(
        self,
        turn: Turn,
        head: Artifact,
        recorded: Building | None,
        media_type: str,
        before: tuple[Part, ...] = (),
    ) -> None:
        self._turn, self._head, self._media_type = turn, head, media_type
        self._journal = turn.journal
        self._before = before
        """Of earlier turns, and there to stay."""
        self._old: list[Part] = recorded.parts[recorded.before :] if recorded else []
        """On record, and not yet said again by this run."""
        self._replayed: list[Part] = []
        """Said again by this run; kept only while there is more on record."""
        self._begun = recorded is not None or bool(before)
        self._closed = recorded is not None and recorded.closed
        self._last: Record | None = None
        self._written = False

    @property
    def id(self) -> str:
        return self._head.artifact_id

    async def write(self, content: Any, *, last: bool = False) -> None:
        """Add a chunk: text, bytes, a part, or a value as data. `last` says that the artifact is whole."""
        self.put(content, last=last)
        if self._journal.full:
            await self._journal.commit()

    def put(self, content: Any, *, last: bool = False) -> None:
        """`write`, without waiting for room."""
        part = part_of(content, self._media_type)
        self._written = True
        rest = self._unsaid(part) if self._old else part
        if rest is not None:
            self._emit((rest,), append=self._begun, last=last)
        elif last and not self._old and not self._closed:
            self.close()

    def put_together(self, contents: Sequence[Any], *, last: bool = False) -> None:
        """Several parts as one chunk."""
        if self._old or len(contents) < 2:  # what is on record is compared part by part
            for i, content in enumerate(contents, 1):
                self.put(content, last=last and i == len(contents))
            return
        self._written = True
        parts = tuple(part_of(content, self._media_type) for content in contents)
        self._emit(parts, append=self._begun, last=last)

    def keep(self) -> tuple[Part, ...]:
        """What a run before this one wrote stays as it is, and what comes is added to it. Returns it."""
        kept, self._old = tuple(self._old), []
        return kept

    def restart(self) -> None:
        """What comes next replaces what this run has written so far; what a run before it wrote is compared as ever."""
        if self._written:
            self._begun, self._old, self._replayed, self._written = False, [], [], False
            self._before = ()

    def close(self) -> None:
        """Say that the artifact is whole."""
        if self._closed or not self._begun or self._old:
            return
        buffer, record = self._journal.waiting, self._last
        if record is not None and buffer and buffer[-1] is record:
            body = record.body
            assert isinstance(body, ArtifactUpdate)
            buffer[-1] = self._last = Record(record.kind, replace(body, last_chunk=True))
            self._closed = True
        else:
            self._emit((Part(text=""),), append=True, last=True)

    def finish(self) -> None:
        """The function has returned. If it said less than is on record, what it did say replaces it."""
        if self._old:
            self._old = []
            if self._replayed:
                self._emit(tuple(self._replayed), append=False, last=True)

    def _unsaid(self, part: Part) -> Part | None:
        """What of `part` is not on record; None if all of it is. Text may come in other pieces than before."""
        self._replayed.append(part)
        while self._old:
            old = self._old[0]
            if part == old:
                self._old.pop(0)
                break
            if not part.text or not old.text or replace(part, text="") != replace(old, text=""):
                self._diverge()
                return None
            if old.text.startswith(part.text):
                self._old[0] = replace(old, text=old.text[len(part.text) :])
                break
            if not part.text.startswith(old.text):
                self._diverge()
                return None
            part = replace(part, text=part.text[len(old.text) :])
            self._old.pop(0)
        else:
            self._replayed = []
            return part
        if not self._old:
            self._replayed = []
        return None

    def _diverge(self) -> None:
        said, self._replayed, self._old = tuple(self._replayed), [], []
        self._emit(said, append=False, last=False)

    def _emit(self, parts: tuple[Part, ...], *, append: bool, last: bool) -> None:
        turn, head = self._turn, self._head
        artifact = (
            Artifact(artifact_id=head.artifact_id, parts=parts)
            if append
            else replace(head, parts=self._before + parts)
        )
        update = ArtifactUpdate(
            task_id=turn.task_id,
            context_id=turn.context_id,
            artifact=artifact,
            append=append,
            last_chunk=last,
        )
        self._last = Record("artifact", update)
        self._begun, self._closed = True, last
        self._journal.put(self._last)
