"""Send push notifications: read the logs of tasks, and send what is new to their webhooks.

The sender is a reader of the log with its cursor in the store. What was committed is sent in order, at least once,
whatever happens to the server or the webhook meanwhile. One node at a time holds a webhook. A notification that fails is
tried again with growing pauses. After too many attempts, or too long, the webhook is given up; later notifications wait
until `redeliver`. The store wakes the sender, and the sender also polls, so a lost wake-up costs latency, never data.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import replace

from dragoman.auth.keys import KeyRing
from dragoman.client.transport.network import AddressRefused, HttpTransport
from dragoman.client.transport.transport import Transport
from dragoman.engine.protocols import LeaseLost, Log, Store, snapshot_at
from dragoman.engine.push_configs import Delivery, StoredPushConfig, steady_time
from dragoman.engine.records import PIECE_BYTES, Mail, Record
from dragoman.errors import InvalidParams, TaskNotFound, Unavailable
from dragoman.model.ids import new_id
from dragoman.model.ops import Call, PushConfig
from dragoman.model.task import Task
from dragoman.push.guard import Guard
from dragoman.push.notification import build_auth_headers, build_notification, check_credentials
from dragoman.push.options import DEFAULTS, PushOptions
from dragoman.push.post import Origins, Undelivered, answers_challenge, post
from dragoman.push.seal import Seal

logger = logging.getLogger("dragoman.push")

_TTL_SECONDS = 30.0
"""How long a node holds its webhooks after its last heartbeat."""
_POLL_SECONDS = 5.0
_MAX_ORIGIN_PAUSE_SECONDS = 30.0
"""The longest that one webhook without an answer pauses the others of its origin."""
_MAX_HELD_WEBHOOKS = 1000
"""How many webhooks a node holds at a time; most of them wait for their turn."""


class _OriginPaused(Exception):
    """Requests to the origin are paused."""

    def __init__(self, pause: float) -> None:
        self.pause = pause


MaySend = Callable[[Delivery], Awaitable[bool]]
"""Whether a webhook may still be called: whoever set it may have lost the right to read. Raises `Unavailable`."""


class PushSender:
    """`transport` must dial through `guard`. With `keys`, notifications carry our signed token."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        guard: Guard,
        options: PushOptions = DEFAULTS,
        *,
        keys: KeyRing | None = None,
        may_send: MaySend | None = None,
    ) -> None:
        self._may_send = may_send
        self._store, self._transport, self._guard, self._options = store, transport, guard, options
        self._keys, self._seal = keys, Seal(options.seal)
        self._node = f"push-{new_id()}"
        self._origins = Origins(
            slots=options.per_origin,
            pause=options.pause,
            longest=min(options.longest_pause, _MAX_ORIGIN_PAUSE_SECONDS),
        )
        self._longest = max(options.longest_pause, _MAX_ORIGIN_PAUSE_SECONDS) * 2
        """No pause is longer, jitter included."""
        self._slots = asyncio.Semaphore(options.concurrency)
        self._jobs: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._stopping = False
        self.outcomes: Counter[str] = Counter()
        """How often a notification was `sent`, `failed`, or was the last of a webhook that was `given up`."""

    async def check_config(self, call: Call, config: PushConfig) -> StoredPushConfig:
        try:
            self._guard.check(config.url)
        except AddressRefused as refused:
            why = f"is not allowed: {refused}"
            raise InvalidParams(f"the push config's url {why}", fields=(("url", why),)) from None
        check_credentials(config)
        if self._options.challenge and not await answers_challenge(
            self._transport, self._guard, config.url, timeout=self._options.timeout
        ):
            why = "does not answer as the owner of this push config would"
            raise InvalidParams(f"the push config's url {why}", fields=(("url", why),))
        config = self._seal.seal(replace(config, id=config.id or new_id(), tenant=""))
        return StoredPushConfig(
            config=config, dialect=call.dialect, uid=new_id(), generation=call.principal.generation
        )

    def show_config(self, webhook: StoredPushConfig) -> PushConfig:
        return self._seal.open(webhook.config)

    # -- the node ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._stopping = False
        await self._store.join(self._node, ttl=_TTL_SECONDS)
        self._loop_task = asyncio.create_task(self._loop(), name="dragoman-push")

    async def stop(self, drain: float) -> None:
        self._stopping = True
        if self._loop_task is not None:
            # Not cancelled at once: a claim that is cut off would hold deliveries that nobody sends.
            self._wake.set()
            await asyncio.wait([self._loop_task], timeout=drain)
            self._loop_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop_task
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(drain):
                while await self._claim() or self._jobs:
                    await asyncio.wait(self._jobs, return_when=asyncio.FIRST_COMPLETED)
        for job in self._jobs:
            job.cancel()
        if self._jobs:
            await asyncio.wait(self._jobs)
        with suppress(Unavailable):
            await self._store.leave(self._node)
        await self._transport.close()

    async def _loop(self) -> None:
        """Claim webhooks that are due: when the store wakes us, when a pause ends, and at every poll."""
        loop = asyncio.get_running_loop()
        look = beat = loop.time()
        with self._store.push_queue.listen(self._wake.set):
            while not self._stopping:
                self._wake.clear()
                wait = _POLL_SECONDS
                try:
                    if loop.time() >= beat:
                        await self._store.renew(self._node, ttl=_TTL_SECONDS)
                        beat = loop.time() + _TTL_SECONDS / 3
                    due = await self._store.push_queue.next_due()
                    if loop.time() >= look or (due is not None and due <= steady_time()):
                        await self._claim()
                        look = loop.time() + _POLL_SECONDS
                        due = await self._store.push_queue.next_due()
                    if due is not None and len(self._jobs) < _MAX_HELD_WEBHOOKS:
                        wait = min(wait, max(0.01, due - steady_time()))
                except Unavailable as error:
                    logger.warning("the store is not available: %s", error)
                except Exception:
                    logger.exception("the push sender failed")
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()

    async def _claim(self) -> bool:
        """Start the deliveries that are due. True if there was one."""
        claimed = False
        while (room := min(100, _MAX_HELD_WEBHOOKS - len(self._jobs))) > 0:
            deliveries = await self._store.push_queue.claim_due(self._node, limit=room, longest=self._longest)
            for delivery in deliveries:
                claimed = True
                job = asyncio.create_task(self._deliver(delivery))
                self._jobs.add(job)
                job.add_done_callback(self._done)
            if len(deliveries) < room:
                break
        return claimed

    def _done(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            logger.error("a push config could not be released", exc_info=error)
        self._wake.set()  # there may be more to send by now

    # -- one webhook ----------------------------------------------------------------------------------------------

    async def _deliver(self, delivery: Delivery) -> None:
        """Send a webhook what it has not received, as far as possible, and release it."""
        push_queue, sent = self._store.push_queue, [delivery.cursor]
        try:
            await self._send_all(delivery, sent)
            await _write_until_stored(lambda: push_queue.release(delivery, sent[-1]))
        except (LeaseLost, TaskNotFound):
            pass  # another node has it, or it was deleted
        except _OriginPaused as paused:
            pause = paused.pause * random.uniform(1.0, 1.2)
            await _write_until_stored(lambda: push_queue.release(delivery, sent[-1], retry_in=pause))
        except Undelivered as failure:
            await self._failed(delivery, sent[-1], failure)
        except Exception as error:
            logger.exception("the push config %s of task %s", delivery.webhook.config.id, delivery.task)
            await self._failed(delivery, sent[-1], Undelivered(f"internal error: {type(error).__name__}"))

    async def _send_all(self, delivery: Delivery, sent: list[int]) -> None:
        """`sent[-1]` is the last record sent; the caller reads it after a failure."""
        log = self._store.scope(delivery.scope)
        while records := await log.read(delivery.task, after=sent[-1], max_bytes=PIECE_BYTES):
            for record in records:
                if self._stopping and record.seq > delivery.last:
                    return  # or a task that never ends would block the stop
                await self._send_record(delivery, log, record)
                sent[-1] = record.seq

    async def _send_record(self, delivery: Delivery, log: Log, record: Record) -> None:
        webhook = delivery.webhook
        notification = await build_notification(
            webhook.dialect,
            record,
            lambda: _task_at(log, delivery.task, record.seq),
            every_status=self._options.every_status,
        )
        if notification is None:
            return
        headers = {
            "Content-Type": notification.content_type,
            "User-Agent": "dragoman",
            **({"A2A-Version": notification.version} if notification.version else {}),
            **await _trace_at(log, delivery.task, record.seq),
        }
        try:
            if self._may_send is not None and not await self._may_send(delivery):
                raise Undelivered("the token that set it is revoked", gone=True)
            webhook = replace(webhook, config=self.show_config(webhook))
        except Unavailable as unavailable:
            raise Undelivered(unavailable.message) from None
        id = f"{webhook.uid}.{record.seq}"
        origin = self._origins.of(webhook.config.url)
        async with origin.slots:
            if pause := origin.pause_left():
                raise _OriginPaused(pause)
            async with self._slots:
                headers |= build_auth_headers(
                    webhook,
                    id,
                    delivery.task,
                    notification.body,
                    secret=self._options.secret,
                    keys=self._keys,
                    issuer=self._options.issuer or f"urn:dragoman:{delivery.scope.agent}",
                )
                began = asyncio.get_running_loop().time()
                try:
                    await post(
                        self._transport,
                        self._guard,
                        webhook.config.url,
                        headers,
                        notification.body,
                        timeout=self._options.timeout,
                    )
                except Undelivered as failure:
                    if failure.silent:
                        origin.note_silence(began)
                    else:
                        origin.note_answer()
                    raise
        origin.note_answer()
        self.outcomes["sent"] += 1
        await _write_until_stored(lambda: self._store.push_queue.advance(delivery, record.seq))

    async def _failed(self, delivery: Delivery, cursor: int, failure: Undelivered) -> None:
        options = self._options
        before, since = (delivery.attempt, delivery.since) if cursor == delivery.cursor else (0, 0.0)
        attempts = before + 1
        given_up = (
            failure.gone
            or attempts >= options.max_attempts
            or (before > 0 and steady_time() - since >= options.give_up_after)
        )
        pause = min(options.longest_pause, options.pause * 2 ** min(before, 30)) * random.uniform(0.5, 1.0)
        pause = min(max(pause, failure.retry_in), options.longest_pause)
        self.outcomes["given up" if given_up else "failed"] += 1
        log = logger.warning if given_up else logger.info
        outcome = "given up" if given_up else f"again in {pause:.1f} s"
        log("push to %s of task %s: %s; %s", delivery.webhook.config.id, delivery.task, failure, outcome)
        await _write_until_stored(
            lambda: self._store.push_queue.release(
                delivery, cursor, retry_in=pause, error=str(failure)[:500], dead=given_up
            )
        )


def open_push_sender(
    store: Store,
    options: PushOptions,
    *,
    keys: KeyRing | None = None,
    issuer: str = "",
    may_send: MaySend | None = None,
) -> PushSender:
    """A `PushSender` on the network."""
    guard = Guard(
        allow_private=options.allow_private,
        only=options.only,
        trust=options.trust,
        http=options.http,
        ports=options.ports,
    )
    if issuer and not options.issuer:
        options = dataclasses.replace(options, issuer=issuer)
    return PushSender(store, HttpTransport(dial=guard.dial), guard, options, keys=keys, may_send=may_send)


async def _task_at(log: Log, task: str, seq: int) -> Task:
    """The task as it was when record `seq` was written."""
    return (await snapshot_at(log, await log.load(task), seq)).task


async def _trace_at(log: Log, task: str, seq: int) -> dict[str, str]:
    """The trace of the message that the task answered at that record."""
    head = await log.head(task)
    last = await log.read(task, after=head.mail - 1, limit=1) if head.mail < seq else ()
    if last and isinstance(last[0].body, Mail):
        trace = last[0].body.trace
    else:  # it was canceled, or there is a later message: the log is searched
        mails = (await log.load(task)).mails
        trace = next((mail.trace for at, mail in reversed(mails) if at < seq), {})
    # a log may hold text that a header cannot
    return {name: value for name, value in trace.items() if value.isascii() and value.isprintable()}


async def _write_until_stored(write: Callable[[], Awaitable[None]]) -> None:
    """Write, however long the store is not available: a webhook that is not released stays held by this node."""
    pause = 0.05
    while True:
        try:
            return await write()
        except Unavailable:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)
