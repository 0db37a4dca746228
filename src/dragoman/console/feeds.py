"""Live streams of the console: one reader for all viewers of a task, and one for all viewers of the list of tasks.

A feed follows a log, encodes what comes once, and gives the same bytes to all its viewers. A viewer that joins, or that does not
read fast enough, reads what it lacks from the log, a page at a time: it costs disk, never memory.
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
"""Bytes that wait for one viewer. One that is further behind reads the log."""
PAGE_RECORDS, PAGE_BYTES = 500, 256 << 10
"""Of a log, read at a time for a viewer that is behind."""
LOOK_SECONDS = 5.0
"""How often a feed looks at a row that may have changed without a record: a lease that lapsed."""
GATHER_SECONDS = 0.1
"""Changes of the list of tasks are collected so long: a task that streams changes a thousand times in a second."""
GATHER_RECORDS_SECONDS = 0.05
"""Records of a task are collected so long after each write to its viewers: people do not see the difference."""
MAX_ROWS = 200
"""Rows that the list sends at a time."""
STATE_KINDS = frozenset({"message", "cancel", "turn", "status", "ask", "reply", "attempt"})
"""Records that change the row of a task."""

Rows = Callable[[TaskInfo], Awaitable[Any]]
"""Makes the row of a task that viewers see."""


def first_mail(info: TaskInfo) -> Mail | None:
    """The first message of a task, if `info.head` has all of it."""
    try:
        body = unpack(info.head.partition(b"\n")[0], 1)[0].body
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError):
        return None
    return body if isinstance(body, Mail) else None


def has_one_attempt(info: TaskInfo) -> bool:
    """True if nothing of a task ran twice, as its row says: one lease is one attempt, but a copy has the records of others."""
    mail = first_mail(info)
    return info.fence <= 1 and mail is not None and not mail.copy_of


def attempt_at(attempts: Sequence[tuple[int, int]], seq: int) -> int:
    """Which attempt wrote record `seq`, from `Snapshot.attempts`."""
    if not attempts:
        return 1
    place = bisect_right(attempts, (seq, 1 << 60))
    return attempts[place - 1][1] if place else 1


def note_attempts(
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


class _Viewer:
    """What waits for one stream."""

    __slots__ = ("_waiter", "bytes", "chunks", "failed", "lost", "tenant")

    def __init__(self, tenant: str | None = None) -> None:
        self.chunks: deque[tuple[int, int, bytes]] = deque()
        """The first and the last record in it, and the frames. Frames that are not of records have 0."""
        self.bytes = 0
        self.lost = False
        """Frames that are not of records were dropped."""
        self.failed: A2AError | None = None
        self.tenant = tenant
        self._waiter: asyncio.Future[None] | None = None

    def put(self, first: int, last: int, chunk: bytes) -> None:
        if self.bytes > MAX_WAITING_BYTES:
            self.chunks.clear()
            self.bytes, self.lost = 0, True
        self.chunks.append((first, last, chunk))
        self.bytes += len(chunk)
        self.wake()

    def wake(self) -> None:
        """Look whether there is something, or whether the viewer may still see it."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> tuple[int, int, bytes]:
        item = self.chunks.popleft()
        self.bytes -= len(item[2])
        return item

    async def wait(self) -> None:
        """Until there is something, or until `wake`, which comes every few seconds. Without a timer of its own."""
        if not self.chunks and self.failed is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.failed is not None:
            raise self.failed


class _TaskFeed:
    """Follows one task for all its viewers."""

    def __init__(self, server: ServerParts, rows: Rows, info: TaskInfo) -> None:
        self._server, self._rows = server, rows
        self.scope, self.task, self.seq = info.scope, info.id, info.seq
        self.viewers: set[_Viewer] = set()
        self.attempts: Sequence[tuple[int, int]] = ()
        self._shown: Any = None
        self._jobs = [
            asyncio.create_task(self._guard(self._follow())),
            asyncio.create_task(self._guard(self._look())),
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
        for viewer in self.viewers:
            viewer.failed = error
            viewer.wake()

    async def _follow(self) -> None:
        head = await self._server.store.scope(self.scope).head(self.task)
        with Reader(self._server.engine.readers, head, self.seq, look=True) as reader:
            while True:
                records = await reader.next()
                self.attempts = note_attempts(self.attempts, records)
                chunk = encode_records(records, self.attempts)
                if any(record.kind in STATE_KINDS for record in records):
                    chunk += await self._row() or b""
                self.seq = records[-1].seq
                for viewer in self.viewers:
                    viewer.put(records[0].seq, self.seq, chunk)
                await asyncio.sleep(GATHER_RECORDS_SECONDS)

    async def _look(self) -> None:
        """Send the row when it changes without a record."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            chunk = await self._row()
            for viewer in self.viewers:
                if chunk is not None:
                    viewer.put(0, 0, chunk)
                viewer.wake()

    async def _row(self) -> bytes | None:
        """The frame of the row, if it is not the one that was sent last."""
        row = await self._rows(await self._server.store.index.get(self.scope, self.task))
        if row == self._shown:
            return None
        self._shown = row
        return frame(row, event="state")


class TaskFeeds:
    """The feeds of the tasks that somebody looks at."""

    def __init__(self, server: ServerParts, rows: Rows) -> None:
        self._server, self._rows = server, rows
        self._feeds: dict[tuple[Scope, str], _TaskFeed] = {}

    async def follow(
        self, info: TaskInfo, after: int, check: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[bytes]:
        """The log of a task from `after` on, live, and its row when it changes. `check` raises when the viewer may not see it any
        more."""
        log, key = self._server.store.scope(info.scope), (info.scope, info.id)
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _TaskFeed(self._server, self._rows, info)
        viewer = _Viewer()
        feed.viewers.add(viewer)
        try:
            if not has_one_attempt(info) and len(attempts := (await log.load(info.id)).attempts) > len(
                feed.attempts
            ):
                feed.attempts = attempts
            yield frame(await self._rows(info), event="state")
            while True:
                ready: list[bytes] = []
                while viewer.chunks:
                    first, last, chunk = viewer.chunks[0]
                    if last and after + 1 < first:
                        break  # read what lies between
                    viewer.take()
                    if first == after + 1:
                        after = last
                        ready.append(chunk)
                    elif not last:
                        ready.append(chunk)
                    else:
                        viewer.lost = True  # it was read from the log, and its row was not
                if ready:
                    yield ready[0] if len(ready) == 1 else b"".join(ready)
                if after < feed.seq:
                    records = await log.read(info.id, after=after, limit=PAGE_RECORDS, max_bytes=PAGE_BYTES)
                    if not records:
                        raise TaskNotFound(info.id)
                    after = records[-1].seq
                    yield encode_records(records, feed.attempts)
                    continue
                if viewer.lost:
                    viewer.lost = False
                    yield frame(await self._rows(await self._server.store.index.get(*key)), event="state")
                await check()
                await viewer.wait()
        finally:
            feed.viewers.discard(viewer)
            if not feed.viewers and self._feeds.get(key) is feed:
                del self._feeds[key]
                feed.close()


class ListFeed:
    """Sends the rows of tasks that change, of all scopes. The bus says which; a look into the store finds what it missed."""

    def __init__(self, server: ServerParts, rows: Rows) -> None:
        self._server, self._rows = server, rows
        self._viewers: set[_Viewer] = set()
        self._job: asyncio.Task[None] | None = None
        self._changed: dict[tuple[Scope, str], None] = {}
        self._woken = asyncio.Event()
        self._search = False
        self._since = ""
        self._sent: dict[int, tuple[int, str]] = {}
        """By the key of a task: the last record and the node that its viewers know."""

    async def follow(self, tenant: str | None, check: Callable[[], Awaitable[None]]) -> AsyncIterator[bytes]:
        """The rows that change. `tenant`: only those of one tenant."""
        viewer = _Viewer(tenant)
        self._viewers.add(viewer)
        if self._job is None:
            self._since = timestamp()
            self._job = asyncio.create_task(self._run(), name="dragoman-console")
        try:
            yield b""  # the stream has begun
            while True:
                while viewer.chunks:
                    yield viewer.take()[2]
                if viewer.lost:
                    viewer.lost = False
                    yield frame({}, event="reset")
                await check()
                await viewer.wait()
        finally:
            self._viewers.discard(viewer)
            if not self._viewers and self._job is not None:
                self._job.cancel()
                self._job = None
                self._changed.clear()
                self._sent.clear()

    def _on_wake(self, topic: str) -> None:
        found = read_topic(topic)
        if found is None:
            self._search = True
        else:
            self._changed[found] = None
        self._woken.set()

    async def _run(self) -> None:
        searched = time.monotonic()
        with self._server.bus.listen_all(self._on_wake):
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._woken.wait()
                await asyncio.sleep(GATHER_SECONDS)
                self._woken.clear()
                try:
                    await self._send_changed()
                    if (self._search or time.monotonic() > searched + LOOK_SECONDS) and not self._changed:
                        self._search = False
                        searched = time.monotonic()
                        await self._look()
                        for viewer in self._viewers:
                            viewer.wake()
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
            self._woken.set()

    async def _look(self) -> None:
        found = await self._server.store.index.find(TaskQuery(since=self._since), limit=MAX_ROWS)
        for info in reversed(found.tasks):
            if self._sent.get(info.key) != (info.seq, info.node):
                await self._send(info)
        if found.tasks:
            self._since = max(self._since, timestamp(_seconds(found.tasks[0].updated) - LOOK_SECONDS))

    async def _send(self, info: TaskInfo) -> None:
        if len(self._sent) > 10_000:
            self._sent.clear()
        self._sent[info.key] = (info.seq, info.node)
        chunk = frame(await self._rows(info), event="task")
        for viewer in self._viewers:
            if viewer.tenant is None or viewer.tenant == info.scope.tenant:
                viewer.put(0, 0, chunk)


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time()
