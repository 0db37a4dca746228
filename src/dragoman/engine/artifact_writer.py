"""Artifacts that a turn writes: each write is a chunk that peers see as it comes.

Chunks that an earlier run of the turn wrote are compared with those of this run. Equal ones are not written again, a
continuation is added, and at the first difference the artifact is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.engine.journal import Journal
from dragoman.engine.records import Record
from dragoman.engine.snapshot import ArtifactInProgress
from dragoman.model.content import Artifact, Part, part_of
from dragoman.model.task import ArtifactUpdate


class ArtifactWriter:
    """`await turn.artifact("report").write("text")`"""

    __slots__ = ("_before", "_begun", "_closed", "_head", "_journal", "_last", "_media_type", "_old", "_rewound",
                 "_rewritten", "_written", "amend")  # fmt: skip

    def __init__(
        self,
        journal: Journal,
        head: Artifact,
        recorded: ArtifactInProgress | None,
        media_type: str,
        before: tuple[Part, ...],
    ) -> None:
        self._journal, self._head, self._media_type = journal, head, media_type
        self._before = before
        """Parts of earlier turns, which stay."""
        self._old: list[Part] = recorded.parts[recorded.before :] if recorded else []
        """Parts of an earlier run that this run has not written again yet."""
        self._rewritten: list[Part] = []
        """Parts that this run has written again; only while there are more in `_old`."""
        self._begun = recorded is not None or bool(before)
        self._closed = recorded is not None and recorded.closed
        self._last: Record | None = None
        self._written = self._rewound = False
        self.amend: Callable[[ArtifactUpdate], ArtifactUpdate] | None = None
        """Changes each update before it is written."""

    @property
    def id(self) -> str:
        return self._head.artifact_id

    async def write(self, content: Any, *, last: bool = False) -> None:
        """Add a chunk: text, bytes, a part, or a value as data. `last` says that the artifact is complete."""
        self.put(content, last=last)
        if self._journal.full:
            await self._journal.commit()

    def put(self, content: Any, *, last: bool = False) -> None:
        """`write`, without waiting for the disk when much has been written."""
        part = part_of(content, self._media_type)
        self._written = True
        rest = self._not_recorded(part) if self._old else part
        if rest is not None:
            self._emit((rest,), append=self._begun, last=last)
        elif last and not self._old and not self._closed:
            self.close()

    def put_together(self, contents: Sequence[Any], *, last: bool = False) -> None:
        """Add several parts as one chunk."""
        if self._old or len(contents) < 2:  # recorded parts are compared one by one
            for i, content in enumerate(contents, 1):
                self.put(content, last=last and i == len(contents))
            return
        self._written = True
        parts = tuple(part_of(content, self._media_type) for content in contents)
        self._emit(parts, append=self._begun, last=last)

    def keep(self) -> tuple[Part, ...]:
        """Return the parts that an earlier run of this turn wrote. They stay, and later writes are added to them."""
        recorded, self._old = tuple(self._old), []
        return recorded

    def restart(self) -> None:
        """Have the next write replace what this run has written so far. Parts of an earlier run are compared as before."""
        if self._written:
            self._begun, self._old, self._rewritten, self._written = False, [], [], False
            self._before = ()

    async def mark(self) -> tuple[Part, ...]:
        """The parts that the artifact has now, for `rewind`."""
        if self._old:
            return (*self._before, *self._rewritten)
        if not self._begun:
            return self._before
        await self._journal.commit()
        known = self._journal.snapshot.artifacts.get(self.id)
        return tuple(known.parts) if known is not None else ()

    def rewind(self, parts: tuple[Part, ...]) -> None:
        """Withdraw what was written since `mark` returned `parts`: the next write replaces it (see `Recorded.rewind`)."""
        self._before, self._old, self._rewritten = parts, [], []
        self._begun, self._rewound = False, True

    def close(self) -> None:
        """Tell peers that the artifact is complete."""
        if self._rewound:
            self._emit((Part(text=""),) if not self._before else (), append=False, last=True)
        if self._closed or not self._begun or self._old:
            return
        if self._last is not None:
            body = self._last.body
            assert isinstance(body, ArtifactUpdate)
            closed = Record("artifact", replace(body, last_chunk=True))
            if self._journal.replace_last(self._last, closed):
                self._last, self._closed = closed, True
                return
        self._emit((Part(text=""),), append=True, last=True)

    def finish(self) -> None:
        """End the artifact after the function returned. If it wrote less than an earlier run, its parts replace the recorded ones."""
        if self._old:
            self._old = []
            if self._rewritten:
                self._emit(tuple(self._rewritten), append=False, last=True)
        if self._rewound:
            self.close()

    def _not_recorded(self, part: Part) -> Part | None:
        """The part without what is on record; None if all of it is. The chunks of a text may be cut differently than before."""
        self._rewritten.append(part)
        while self._old:
            old = self._old[0]
            if part == old:
                self._old.pop(0)
                break
            if not part.text or not old.text or replace(part, text="") != replace(old, text=""):
                self._replace_recorded()
                return None
            if old.text.startswith(part.text):
                self._old[0] = replace(old, text=old.text[len(part.text) :])
                break
            if not part.text.startswith(old.text):
                self._replace_recorded()
                return None
            part = replace(part, text=part.text[len(old.text) :])
            self._old.pop(0)
        else:
            self._rewritten = []
            return part
        if not self._old:
            self._rewritten = []
        return None

    def _replace_recorded(self) -> None:
        parts, self._rewritten, self._old = tuple(self._rewritten), [], []
        self._emit(parts, append=False, last=False)

    def _emit(self, parts: tuple[Part, ...], *, append: bool, last: bool) -> None:
        journal, head = self._journal, self._head
        artifact = (
            Artifact(artifact_id=head.artifact_id, parts=parts)
            if append
            else replace(head, parts=self._before + parts)
        )
        update = ArtifactUpdate(
            task_id=journal.lease.task,
            context_id=journal.loaded.context_id,
            artifact=artifact,
            append=append,
            last_chunk=last,
        )
        if self.amend is not None:
            update = self.amend(update)
        if journal.on_event is not None:
            update = journal.on_event(update)
        self._last = Record("artifact", update)
        self._begun, self._closed, self._rewound = True, last, False
        journal.put(self._last)
