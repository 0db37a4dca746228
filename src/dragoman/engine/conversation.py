"""The conversation of a context: the messages of callers and of the agent in all its tasks, without status lines.

It ends with the message that the turn answers. Later messages of other tasks are not in it, so a turn that runs again gets the same
conversation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

import msgspec

from dragoman.engine.protocols import Log
from dragoman.engine.records import PIECE_BYTES, Mail, Record
from dragoman.model.content import Message, Role, Wire, text_of
from dragoman.model.ops import ListTasks
from dragoman.model.task import ArtifactUpdate

PAGE_TASKS = 20
"""Tasks of one search."""


class ConversationMessage(Wire, frozen=True):
    """One entry of a conversation."""

    role: Role
    text: str
    task_id: str = ""

    @property
    def by_user(self) -> bool:
        return self.role is Role.USER


async def read_conversation(
    log: Log, context: str, task: str, mail: Mail, seq: int, *, limit: int, characters: int
) -> list[ConversationMessage]:
    """The last `limit` entries before `mail`, the message at `seq` of `task`, and that message. The oldest are left out if all
    have more than `characters`."""
    newest = [ConversationMessage(role=Role.USER, text=_text(mail.message), task_id=task)]
    room = characters - len(newest[0].text)
    if seq > 1:
        room = _add_last(newest, await _entries(log, task, before=seq), limit, room)
    others = _newest_first(_tasks(log, context), _replies(log, context))
    async with aclosing(others):
        async for at, other in others:
            if room <= 0 or len(newest) >= limit:
                break
            if other != task and at <= mail.at:
                room = _add_last(newest, await _entries(log, other, replied_by=mail.at), limit, room)
    return newest[::-1]


async def _tasks(log: Log, context: str) -> AsyncGenerator[tuple[str, str], None]:
    """The settled tasks of a context: when they settled, and their ids."""
    token = ""
    while True:
        found = await log.find(ListTasks(context_id=context, page_token=token), limit=PAGE_TASKS)
        ended = [(known.status.timestamp or "", known.task_id) for known in found.snapshots if known.settled]
        for each in sorted(ended, reverse=True):  # those of one millisecond, by their ids
            yield each
        token = found.next
        if not token:
            return


async def _replies(log: Log, context: str) -> AsyncGenerator[tuple[str, str], None]:
    """The tasks of a context that were answered with a bare message: when they began, and their ids."""
    last: tuple[str, str] | None = None
    while page := await log.find_replies(context, after=last, limit=PAGE_TASKS):
        for each in page:
            yield each
        last = page[-1]


async def _newest_first(
    *sources: AsyncGenerator[tuple[str, str], None],
) -> AsyncGenerator[tuple[str, str], None]:
    """Merge several sources, each newest first."""
    heads = [await anext(source, None) for source in sources]
    while known := [(head, n) for n, head in enumerate(heads) if head is not None]:
        newest, n = max(known)
        yield newest
        heads[n] = await anext(sources[n], None)


def _add_last(
    newest: list[ConversationMessage], entries: Sequence[ConversationMessage], limit: int, room: int
) -> int:
    """Add the last of `entries`, newest first, while there is room. Returns what is left of it."""
    for entry in reversed(entries):
        if len(newest) >= limit or len(entry.text) > room:
            return 0
        newest.append(entry)
        room -= len(entry.text)
    return room


async def _entries(log: Log, task: str, before: int = 0, replied_by: str = "") -> list[ConversationMessage]:
    """The entries of one task, oldest first; with `before`, only those before that record. None if the task was answered with a
    bare message after `replied_by`."""
    reader, after = _TaskReader(task), 0
    latest = datetime.fromisoformat(replied_by).timestamp() * 1000 if replied_by else 0.0
    while records := await log.read(task, after=after, max_bytes=PIECE_BYTES):
        for record in records:
            if before and record.seq >= before:
                break
            if record.kind == "reply" and latest and record.at > latest:
                return []
            reader.read(record)
        after = records[-1].seq
        if before and after >= before:
            break
    reader.end_turn()
    return reader.entries


class _TaskReader:
    """Makes entries of the records of one task."""

    def __init__(self, task: str) -> None:
        self._task = task
        self.entries: list[ConversationMessage] = []
        self._artifacts: dict[str, list[str]] = {}
        """The texts of this turn's artifacts, since the last question."""
        self._entered: dict[str, str] = {}
        """The text of each artifact that is in the entries already."""

    def read(self, record: Record) -> None:
        body: Any = record.body
        match record.kind:
            case "message":
                self._add(Role.USER, _text(body.message))
            case "turn":
                self.end_turn()
            case "artifact":
                self._read_artifact(body)
            case "ask" | "status" if body.status.state.settled:
                wrote = self.end_turn()
                if body.status.message is not None and not (wrote and body.status.state.terminal):
                    self._add(Role.AGENT, _text(body.status.message))
            case "reply":
                self._add(Role.AGENT, _text(body))

    def _read_artifact(self, update: ArtifactUpdate) -> None:
        id, text = update.artifact.artifact_id, text_of(update.artifact.parts)
        if update.append:
            self._artifacts.setdefault(id, []).append(text)
        else:
            self._artifacts[id] = [text.removeprefix(self._entered.get(id, ""))]

    def end_turn(self) -> bool:
        """Add the text that the agent wrote in this turn. True if there is some."""
        texts = {id: "".join(pieces) for id, pieces in self._artifacts.items()}
        for id, text in texts.items():
            self._entered[id] = self._entered.get(id, "") + text
        whole = "\n".join(filter(None, texts.values()))
        self._artifacts = {}
        self._add(Role.AGENT, whole)
        return bool(whole)

    def _add(self, role: Role, text: str) -> None:
        if text:
            self.entries.append(ConversationMessage(role=role, text=text, task_id=self._task))


def _text(message: Message) -> str:
    """The text of a message, else its data as JSON."""
    if message.text or message.data is None:
        return message.text
    return msgspec.json.encode(message.data).decode()
