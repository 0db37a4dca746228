"""What a turn did before it was interrupted: the function that runs again does not do or say it a second time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from dragoman.engine.records import Building, Child, Note, Snapshot, Step
from dragoman.model.content import Message


class Replay:
    """Taken from the log when a turn begins again; empty when it begins. `steps` go on to grow with the turn."""

    __slots__ = ("_named", "_noted", "_said", "artifacts", "children", "steps")

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.steps: dict[str, Step] = dict(snapshot.steps) if snapshot else {}
        self.children: dict[str, Child] = dict(snapshot.children) if snapshot else {}
        self.artifacts: dict[str, Building] = {}
        self._said = list(snapshot.said) if snapshot else []
        self._named: frozenset[str] = frozenset()
        self._noted: dict[bytes, int] = {}
        if snapshot is not None:
            self.artifacts = {id: a for id, a in snapshot.artifacts.items() if a.turn == snapshot.turn}
            self._named = frozenset(
                said.status.message.message_id for said in self._said if said.status.message
            )
            self._noted = Counter(msgspec.json.encode(note) for note in snapshot.notes)

    def has_message(self, id: str) -> bool:
        return id in self._named

    def has_said(self, message: Message | None, metadata: dict[str, Any]) -> bool:
        """Whether this status comes next among those on record. If another one does, the function has changed its mind."""
        if not self._said:
            return False
        was = self._said.pop(0)
        parts = was.status.message.parts if was.status.message else None
        if parts == (message.parts if message else None) and was.metadata == metadata:
            return True
        self._said.clear()
        return False

    def has_noted(self, note: Note) -> bool:
        """Whether this remark is on record; each of those there counts once."""
        if not self._noted:
            return False
        raw = msgspec.json.encode(note)
        if self._noted.get(raw, 0) == 0:
            return False
        self._noted[raw] -= 1
        return True
