"""Live streams of the console: one reader for all viewers of a task, and one for all viewers of the list of tasks.

A feed follows a log, encodes each record once, and gives the same bytes to all its viewers. A viewer that joins, or that reads too slowly,
gets the missing records from the log, a page at a time, so nothing is buffered for it in memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from dragoman.console.api import frame
from dragoman.console.records import encode_frames
from dragoman.engine.follow import Reader
from dragoman.engine.protocols import TaskInfo, TaskQuery
from dragoman.engine.records import Mail, Record, read_topic, unpack
from dragoman.errors import A2AError, TaskNotFound, Unavailable
from dragoman.model.ids import timestamp
from dragoman.model.ops import Scope
from dragoman.server.options import ServerParts

logger = logging.getLogger("dragoman.console")

MAX_WAITING_BYTES = 1 << 20
"""Bytes that wait for one viewer. If there are more, they are dropped, and the viewer reads the log."""
PAGE_RECORDS, PAGE_BYTES = 500, 256 << 10
"""How much of a log is read at a time for a viewer that is behind."""
ROW_CHECK_SECONDS = 5.0
"""How often a feed checks a row that may have changed without a record, for example because a lease expired."""
LIST_BATCH_SECONDS = 0.1
"""How long changes of the list of tasks are collected: a task that streams changes a thousand times in a second."""
RECORD_BATCH_SECONDS = 0.05
"""How long records of a task are collected after each write to its viewers: people do not notice it."""
MAX_ROWS = 200
"""Rows that the list sends at a time."""
STATE_KINDS = frozenset({"message", "cancel", "turn", "status", "ask", "reply", "attempt"})
"""Records that change the row of a task."""

Rows = Callable[[TaskInfo], Awaitable[Any]]
"""Returns the row of a task for viewers."""


def first_mail(info: TaskInfo) -> Mail | None:
    """The first message of a task, if `info.head` has all of it."""
    try:
        body = unpack(info.head.partition(b"\n")[0], 1)[0].body
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError):
        return None
    return body if isinstance(body, Mail) else None


def has_one_attempt(info: TaskInfo) -> bool:
    """True if the row shows that a task had one attempt: it had one lease, and is not a copy of another task."""
    mail = first_mail(info)
    return info.fence <= 1 and mail is not None and not mail.copy_of


def attempt_at(attempts: Sequence[tuple[int, int]], seq: int) -> int:
    """Which attempt wrote record `seq`, from `Snapshot.attempts`."""
    if not attempts:
        return 1
    place = bisect_right(attempts, (seq, 1 << 60))
    return attempts[place - 1][1] if place else 1


def extend_attempts(
    attempts: Sequence[tuple[int, int]], records: Sequence[Record]
) -> Sequence[tuple[int, int]]:
    """`Snapshot.attempts` after these records, which come next in the log."""
    for record in records:
        if attempts and attempts[-1][0] >= record.seq:
            continue
        if record.kind == "attempt":
            attempts = (*attempts, (record.seq, record.body.n))  # type: ignore[union-attr]
        elif record.kind == "turn" and attempts and attempts[-1][1] > 1 and attempts[-1][0] != record.seq - 1:
            attempts = (*attempts, (record.seq, 1))
    return attempts


def encode_records(records: Sequence[Record], attempts: Sequence[tuple[int, int]]) -> bytes:
    """Records as frames of a stream."""
    return encode_frames(records, partial(attempt_at, attempts))


class _Subscription:
    """The frames that wait for the stream of one viewer."""

    __slots__ = ("_waiter", "bytes", "chunks", "error", "dropped", "tenant")

    def __init__(self, tenant: str | None = None) -> None:
        self.chunks: deque[tuple[int, int, bytes]] = deque()
        """The first and the last record in a chunk, and its bytes. Chunks without records have 0."""
        self.bytes = 0
        self.dropped = False
        """A row may have been dropped: it has to be sent again."""
        self.error: A2AError | None = None
        self.tenant = tenant
        self._waiter: asyncio.Future[None] | None = None

    def put(self, first: int, last: int, chunk: bytes) -> None:
        if self.bytes > MAX_WAITING_BYTES:
            self.chunks.clear()
            self.bytes, self.dropped = 0, True
        self.chunks.append((first, last, chunk))
        self.bytes += len(chunk)
        self.wake()

    def wake(self) -> None:
        """Make the stream check for frames, and whether the viewer still has access."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> bytes:
        _, _, chunk = self.chunks.popleft()
        self.bytes -= len(chunk)
        return chunk

    def take_after(self, after: int) -> tuple[int, bytes]:
        """The frames that follow record `after` without a gap, and the last record in them."""
        ready: list[bytes] = []
        while self.chunks:
            first, last, _ = self.chunks[0]
            if last and after + 1 < first:
                break  # records are missing in between
            chunk = self.take()
            if first == after + 1:
                after = last
                ready.append(chunk)
            elif not last:
                ready.append(chunk)
            else:
                self.dropped = True  # its records were read from the log, but not the row in it
        return after, b"".join(ready)

    async def wait(self) -> None:
        """Wait for frames, or for `wake`, which the feed calls every few seconds."""
        if not self.chunks and self.error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.error is not None:
            raise self.error


class _TaskFeed:
    """Follows one task for all its viewers."""

    def __init__(self, server: ServerParts, rows: Rows, info: TaskInfo) -> None:
        self._server, self._rows = server, rows
        self.scope, self.task, self.seq = info.scope, info.id, info.seq
        self.subscriptions: set[_Subscription] = set()
        self.attempts: Sequence[tuple[int, int]] = ()
        self._last_row: Any = None
        self._jobs = [
            asyncio.create_task(self._guard(self._follow())),
            asyncio.create_task(self._guard(self._watch_row())),
        ]

    def close(self) -> None:
        for job in self._jobs:
            job.cancel()

    async def _guard(self, work: Awaitable[None]) -> None:
        try:
            await work
        except A2AError as error:
            self._fail(error)
        except Exception:
            logger.exception("following task %s failed", self.task)
            self._fail(Unavailable("the log cannot be read at the moment"))

    def _fail(self, error: A2AError) -> None:
        for subscription in self.subscriptions:
            subscription.error = error
            subscription.wake()

    async def _follow(self) -> None:
        head = await self._server.store.scope(self.scope).head(self.task)
        with Reader(self._server.engine.readers, head, self.seq, stale=True) as reader:
            while True:
                records = await reader.next()
                self.attempts = extend_attempts(self.attempts, records)
                chunk = encode_records(records, self.attempts)
                if any(record.kind in STATE_KINDS for record in records):
                    chunk += await self._row() or b""
                self.seq = records[-1].seq
                for subscription in self.subscriptions:
                    subscription.put(records[0].seq, self.seq, chunk)
                await asyncio.sleep(RECORD_BATCH_SECONDS)

    async def _watch_row(self) -> None:
        """Send the row when it changes without a record."""
        while True:
            await asyncio.sleep(ROW_CHECK_SECONDS)
            chunk = await self._row()
            for subscription in self.subscriptions:
                if chunk is not None:
                    subscription.put(0, 0, chunk)
                subscription.wake()

    async def _row(self) -> bytes | None:
        """The frame of the row, if it is not the one that was sent last."""
        row = await self._rows(await self._server.store.index.get(self.scope, self.task))
        if row == self._last_row:
            return None
        self._last_row = row
        return frame(row, event="state")


class TaskFeeds:
    """The feeds of the tasks that have viewers."""

    def __init__(self, server: ServerParts, rows: Rows) -> None:
        self._server, self._rows = server, rows
        self._feeds: dict[tuple[Scope, str], _TaskFeed] = {}

    async def follow(
        self, info: TaskInfo, after: int, check: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[bytes]:
        """The log of a task from `after` on, live, and its row when it changes. `check` raises when the viewer has no access any
        more."""
        log, key = self._server.store.scope(info.scope), (info.scope, info.id)
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _TaskFeed(self._server, self._rows, info)
        subscription = _Subscription()
        feed.subscriptions.add(subscription)
        try:
            if not has_one_attempt(info):
                feed.attempts = max(feed.attempts, (await log.load(info.id)).attempts, key=len)
            yield frame(await self._rows(info), event="state")
            while True:
                after, ready = subscription.take_after(after)
                if ready:
                    yield ready
                if after < feed.seq:
                    records = await log.read(info.id, after=after, limit=PAGE_RECORDS, max_bytes=PAGE_BYTES)
                    if not records:
                        raise TaskNotFound(info.id)
                    after = records[-1].seq
                    yield encode_records(records, feed.attempts)
                    continue
                if subscription.dropped:
                    subscription.dropped = False
                    yield frame(await self._rows(await self._server.store.index.get(*key)), event="state")
                await check()
                await subscription.wait()
        finally:
            feed.subscriptions.discard(subscription)
            if not feed.subscriptions and self._feeds.get(key) is feed:
                del self._feeds[key]
                feed.close()


class ListFeed:
    """Sends the rows of tasks that change, of all scopes. The bus names them; a search in the store finds those that the bus missed."""

    def __init__(self, server: ServerParts, rows: Rows) -> None:
        self._server, self._rows = server, rows
        self._subscriptions: set[_Subscription] = set()
        self._job: asyncio.Task[None] | None = None
        self._changed: dict[tuple[Scope, str], None] = {}
        self._changes_waiting = asyncio.Event()
        self._search_needed = False
        self._since = ""
        self._sent: dict[int, tuple[int, str]] = {}
        """By the key of a task: the last record and the node that were sent."""

    async def follow(self, tenant: str | None, check: Callable[[], Awaitable[None]]) -> AsyncIterator[bytes]:
        """The rows that change. `tenant`: only those of one tenant."""
        subscription = _Subscription(tenant)
        self._subscriptions.add(subscription)
        if self._job is None:
            self._since = timestamp()
            self._job = asyncio.create_task(self._run(), name="dragoman-console")
        try:
            yield b""  # the stream has begun
            while True:
                while subscription.chunks:
                    yield subscription.take()
                if subscription.dropped:
                    subscription.dropped = False
                    yield frame({}, event="reset")
                await check()
                await subscription.wait()
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions and self._job is not None:
                self._job.cancel()
                self._job = None
                self._changed.clear()
                self._sent.clear()

    def _on_wake(self, topic: str) -> None:
        found = read_topic(topic)
        if found is None:
            self._search_needed = True
        else:
            self._changed[found] = None
        self._changes_waiting.set()

    async def _run(self) -> None:
        searched = time.monotonic()
        with self._server.bus.listen_all(self._on_wake):
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ROW_CHECK_SECONDS):
                        await self._changes_waiting.wait()
                await asyncio.sleep(LIST_BATCH_SECONDS)
                self._changes_waiting.clear()
                try:
                    await self._send_changed()
                    if (
                        self._search_needed or time.monotonic() > searched + ROW_CHECK_SECONDS
                    ) and not self._changed:
                        self._search_needed = False
                        searched = time.monotonic()
                        await self._search_store()
                        for subscription in self._subscriptions:
                            subscription.wake()
                except Unavailable as error:
                    logger.warning("the list of tasks waits for the store: %s", error)
                except Exception:
                    logger.exception("the list of tasks failed, and continues")

    async def _send_changed(self) -> None:
        names = list(self._changed)[:MAX_ROWS]
        for name in names:
            self._changed.pop(name, None)
            with suppress(TaskNotFound):
                await self._send(await self._server.store.index.get(*name))
        if self._changed:
            self._changes_waiting.set()

    async def _search_store(self) -> None:
        found = await self._server.store.index.find(TaskQuery(since=self._since), limit=MAX_ROWS)
        for info in reversed(found.tasks):
            if self._sent.get(info.key) != (info.seq, info.node):
                await self._send(info)
        if found.tasks:
            self._since = max(self._since, timestamp(_seconds(found.tasks[0].updated) - ROW_CHECK_SECONDS))

    async def _send(self, info: TaskInfo) -> None:
        if len(self._sent) > 10_000:
            self._sent.clear()
        self._sent[info.key] = (info.seq, info.node)
        chunk = frame(await self._rows(info), event="task")
        for subscription in self._subscriptions:
            if subscription.tenant is None or subscription.tenant == info.scope.tenant:
                subscription.put(0, 0, chunk)


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time()
