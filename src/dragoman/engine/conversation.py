"""The conversation of a context: what callers and the agent said to each other in its tasks, without status lines.

It ends with the message that the turn answers. What other tasks add later does not count, so a turn that runs again gets the
same conversation.
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
"""Tasks that are looked up at a time."""


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
    """The last `limit` entries before `mail`, the message at `seq` of `task`, and that message. The oldest are left out if
    there are more than so many characters."""
    newest = [ConversationMessage(role=Role.USER, text=_text(mail.message), task_id=task)]
    room = characters - len(newest[0].text)
    if seq > 1:
        room = _take(newest, await _entries(log, task, before=seq), limit, room)
    others = _newest_first(_tasks(log, context), _replies(log, context))
    async with aclosing(others):
        async for at, other in others:
            if room <= 0 or len(newest) >= limit:
                break
            if other != task and at <= mail.at:
                room = _take(newest, await _entries(log, other, replied_by=mail.at), limit, room)
    return newest[::-1]


async def _tasks(log: Log, context: str) -> AsyncGenerator[tuple[str, str], None]:
    """The tasks of a context that ended or asked: when, and their ids."""
    token = ""
    while True:
        found = await log.find(ListTasks(context_id=context, page_token=token), limit=PAGE_TASKS)
        ended = [(known.status.timestamp or "", known.task_id) for known in found.snapshots if known.over]
        for each in sorted(ended, reverse=True):  # those of one millisecond, by their ids
            yield each
        token = found.next
        if not token:
            return


async def _replies(log: Log, context: str) -> AsyncGenerator[tuple[str, str], None]:
    """The exchanges of a context that were answered with a bare message: when they began, and their ids."""
    last: tuple[str, str] | None = None
    while page := await log.replies(context, after=last, limit=PAGE_TASKS):
        for each in page:
            yield each
        last = page[-1]


async def _newest_first(
    *sources: AsyncGenerator[tuple[str, str], None],
) -> AsyncGenerator[tuple[str, str], None]:
    """Several sources, each newest first, as one."""
    heads = [await anext(source, None) for source in sources]
    while known := [(head, n) for n, head in enumerate(heads) if head is not None]:
        newest, n = max(known)
        yield newest
        heads[n] = await anext(sources[n], None)


def _take(
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
    """What was said in one task, oldest first; only what came before record `before`, if given. Nothing if it was answered
    with a bare message after `replied_by`."""
    reader, after = _Reader(task), 0
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


class _Reader:
    def __init__(self, task: str) -> None:
        self._task = task
        self.entries: list[ConversationMessage] = []
        self._artifacts: dict[str, list[str]] = {}
        """The texts of this turn's artifacts, since the last question."""
        self._entered: dict[str, str] = {}
        """The text of each artifact that is among the entries."""

    def read(self, record: Record) -> None:
        body: Any = record.body
        match record.kind:
            case "message":
                self._say(Role.USER, _text(body.message))
            case "turn":
                self.end_turn()
            case "artifact":
                self._read_artifact(body)
            case "ask" | "status" if body.status.state.over:
                wrote = self.end_turn()
                if body.status.message is not None and not (wrote and body.status.state.terminal):
                    self._say(Role.AGENT, _text(body.status.message))
            case "reply":
                self._say(Role.AGENT, _text(body))

    def _read_artifact(self, update: ArtifactUpdate) -> None:
        id, text = update.artifact.artifact_id, text_of(update.artifact.parts)
        if update.append:
            self._artifacts.setdefault(id, []).append(text)
        else:
            self._artifacts[id] = [text.removeprefix(self._entered.get(id, ""))]

    def end_turn(self) -> bool:
        """Add what the agent wrote. True if there was something."""
        texts = {id: "".join(pieces) for id, pieces in self._artifacts.items()}
        for id, text in texts.items():
            self._entered[id] = self._entered.get(id, "") + text
        whole = "\n".join(filter(None, texts.values()))
        self._artifacts = {}
        self._say(Role.AGENT, whole)
        return bool(whole)

    def _say(self, role: Role, text: str) -> None:
        if text:
            self.entries.append(ConversationMessage(role=role, text=text, task_id=self._task))


def _text(message: Message) -> str:
    """The text of a message, else its data as JSON."""
    if message.text or message.data is None:
        return message.text
    return msgspec.json.encode(message.data).decode()
