"""A node: it has a name and a heartbeat, holds leases, and runs the tasks whose leases it holds.

Only the holder of a lease writes a task's output. What happens to one task while it runs is in `run.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypedDict

from dragoman.engine.load import Load
from dragoman.engine.program import Observer, Program
from dragoman.engine.protocols import MAIL_TOPIC, Bus, Delivered, Lease, Peers, Store
from dragoman.engine.run import Run
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import TaskNotFound, Unavailable, keep_going
from dragoman.model.ids import new_id
from dragoman.model.ops import Scope

logger = logging.getLogger("dragoman.runner")

TTL_SECONDS = 30.0
"""How long the leases of a node hold after its last heartbeat."""
CHECK_SECONDS = 0.1
"""Shortest time between two looks for cancels of the tasks that run here."""

_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", None)


def boot_time() -> float:
    """The time since this machine started: setting the clock does not change it. Where the system has such a clock, it includes
    the time in which the machine slept, because the leases of other machines go on then."""
    return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


class NodeOptions(TypedDict, total=False):
    """Options of a node, for those who serve agents."""

    node: str
    """The name of the node. No other node may have it."""
    ttl: float
    """Seconds that a lease lasts without a heartbeat."""
    grace: float
    """Seconds that a cancelled function has to stop."""
    max_attempts: int
    """How often a turn that makes no progress is begun."""
    max_running: int
    """How many tasks run here at a time."""


class RunnerOptions(NodeOptions, total=False):
    """See `Runner`."""

    queue: int | None
    load: Load | None
    observer: Observer | None


class Runner:
    """A node: it claims tasks, runs them, and keeps their leases alive."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        programs: Callable[[Scope], Program | None],
        *,
        node: str = "",
        ttl: float = TTL_SECONDS,
        grace: float = 5.0,
        max_attempts: int = 5,
        max_running: int = 10_000,
        queue: int | None = None,
        load: Load | None = None,
        peers: Peers | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`max_running`: how many tasks run here at a time. `queue`: how many run or wait, with all workers of `load`
        together, before new messages are refused; None: as many as can run."""
        self.store, self.bus, self.programs = store, bus, programs
        self.peers, self.observer = peers, observer
        self.node = node or f"node-{new_id()}"
        self.max_attempts, self.grace = max_attempts, grace
        self._ttl, self._max_running = ttl, max_running
        self.load = load or Load()
        self._queue = max_running * self.load.workers if queue is None else queue
        self._runs: set[Run] = set()
        self._arriving = 0
        """Messages that are being stored, and then run here."""
        self._left_waiting = False
        """Tasks may wait for which there was no room here."""
        self._unchecked: set[Run] = set()
        """Runs whose tasks got mail that was not read here."""
        self._claimed: deque[Lease] = deque()
        """Leases that this node holds and whose runs have not begun."""
        self._orphans: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._confirmed = float("-inf")
        """When the last heartbeat began that the store has confirmed. The lease is valid for `ttl` seconds from then on."""
        self._no_takeover_before = float("-inf")
        """Until this time, tasks of nodes without a heartbeat are not claimed."""
        self._beat_confirmed = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop
        self._wake_up = asyncio.Event()
        self.stopping = False
        """Nothing more begins here."""
        self.stopped = False
        """Nothing more is written here."""

    @property
    def ttl(self) -> float:
        """Seconds that a lease lasts without a heartbeat."""
        return self._ttl

    @property
    def running(self) -> int:
        return len(self._runs)

    def runs(self, scope: Scope, task: str) -> bool:
        """Whether a task runs here, or is about to."""
        leases = (*(run.lease for run in self._runs), *self._claimed)
        return any(lease.task == task and lease.scope == scope for lease in leases)

    @property
    def full(self) -> bool:
        """Whether new messages are refused."""
        return self.load.total >= self._queue

    @property
    def _room(self) -> int:
        """How many more tasks may run here."""
        return self._max_running - len(self._runs) - self._arriving - len(self._claimed)

    def reserve(self, *, inside: bool = False) -> str:
        """Take a place for a message. Returns the name of this node, to deliver the message with: then it runs here at once.
        Empty if there is no room and the task has to wait. Raises `Unavailable` if no more tasks may wait.

        `inside`: from a task that runs here and waits for the answer. It is never refused and never waits. Otherwise tasks
        that wait for each other could fill the node.
        """
        if self.stopping:
            raise Unavailable("shutting down", retry_after=1)
        if not self.load.enter(None if inside else self._queue):
            raise Unavailable("too much to do: try again in a moment", retry_after=1)
        if not inside and len(self._runs) + self._arriving + len(self._claimed) >= self._max_running:
            return ""
        self._arriving += 1
        return self.node

    def begin_reserved(self, node: str, delivered: Delivered | None) -> Run | None:
        """End a `reserve`. `delivered` is the delivery, or None if it failed. Begins the run if this node has the lease."""
        if node:
            self._arriving -= 1
        if delivered is not None and delivered.lease is not None:
            return self.start_run(delivered.lease, delivered.snapshot, delivered.stored)
        if delivered is not None and delivered.unclaimed:
            self.load.count_waiting(1)
        self.leave()
        return None

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        began = boot_time()
        await self.store.join(self.node, ttl=self._ttl)
        self._confirmed = began
        self._wake_up.set()  # claim the tasks of nodes that are gone
        self._tasks = [
            asyncio.create_task(self._claim_loop(), name="dragoman-runner"),
            asyncio.create_task(self._heartbeat_loop(), name="dragoman-heartbeat"),
        ]

    async def stop(self, drain: float = 10.0) -> None:
        """Claim no more tasks, give the runs `drain` seconds to finish, then give the rest back unfinished."""
        self.stopping = True
        self._wake_up.set()
        jobs = [run.asyncio_task for run in self._runs]
        if jobs and drain > 0:
            await asyncio.wait(jobs, timeout=drain)
        for run in tuple(self._runs):
            run.interrupt("stop")
        jobs = [*(run.asyncio_task for run in self._runs), *self._orphans]
        if jobs:
            await asyncio.wait(jobs, timeout=self.grace)
        self.stopped = True
        for run in self._runs:  # stuck: they may go on, and write nothing more
            run.leave_behind()
        self._wake_steps()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        with suppress(Unavailable):
            await self.store.leave(self.node)
            self.bus.wake(MAIL_TOPIC)  # other nodes can claim what this one gave back

    def begin(self, lease: Lease, snapshot: Snapshot) -> None:
        """Run a task whose lease this node holds, whether there is room or not."""
        self.load.enter()
        self.start_run(lease, snapshot)

    def start_run(self, lease: Lease, snapshot: Snapshot, stored: Awaitable[object] | None = None) -> Run:
        """Begin a run in a place that was taken (`reserve`, `Load.enter`). `stored`: done when the message is on disk."""
        run = Run(self, lease, snapshot, stored)
        self._runs.add(run)
        return run

    def leave(self, run: Run | None = None) -> None:
        """Give a place back, of `run` if given, and claim tasks that wait if there is room again."""
        if run is not None:
            if run not in self._runs:
                return  # its place was given back before it ended
            self._runs.remove(run)
        self.load.leave()
        if self._left_waiting and self._room > 0:
            self._wake_up.set()

    def abandon(self, run: Run) -> None:
        """Give back the place of a run whose function does not stop, and settle its task without it."""
        self.leave(run)
        orphan = asyncio.create_task(run.end_stuck())
        self._orphans.add(orphan)
        orphan.add_done_callback(self._orphans.discard)

    # -- the node ----------------------------------------------------------------------------------------------

    async def _claim_loop(self) -> None:
        """Claim tasks: when woken, and every third of a lease in any case."""
        loop = asyncio.get_running_loop()
        look = loop.time()
        with self.bus.listen(MAIL_TOPIC, lambda _: self._wake_up.set()):
            while True:
                again = loop.time() + self._ttl / 3
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(again, look) if self._unchecked else again):
                        await self._wake_up.wait()
                self._wake_up.clear()
                try:
                    if self._unchecked and loop.time() >= look:
                        await self._check_cancels()
                        look = loop.time() + CHECK_SECONDS
                    if not self.stopping:
                        await self._claim()
                except Unavailable as error:
                    logger.warning("the store is away: %s", error)
                    await asyncio.sleep(1.0)
                    self._wake_up.set()
                except Exception:
                    logger.exception("the runner failed")
                    await asyncio.sleep(1.0)

    async def _claim(self) -> None:
        while True:
            while self._claimed:
                lease, begun = self._claimed[0], False
                try:
                    self.start_run(lease, await self.store.scope(lease.scope).load(lease.task))
                    begun = True
                except Unavailable:
                    raise
                except TaskNotFound:
                    pass
                except Exception:  # keep the lease: no other node could read the task either
                    logger.exception("task %s cannot be read", lease.task)
                self._claimed.popleft()
                if not begun:
                    self.load.leave()
            limit = min(self._room, 100)
            self._left_waiting = limit <= 0
            if limit <= 0:
                return
            counted = self.load.counted
            claimed = await self.store.claim(
                self.node, limit=limit, serves=self._serves, may_take_over=self._may_take_over
            )
            self._claimed.extend(claimed)
            for _ in claimed:
                self.load.enter()
            if len(claimed) < limit and self.load.counted == counted:
                self.load.correct_waiting(0, counted)  # also what nodes had counted that are gone
            else:
                self.load.count_waiting(-len(claimed))
            if not self._claimed:
                return

    def _serves(self, scope: Scope) -> bool:
        """True if this node has the agent of these tasks. Tasks of other agents wait for a node that has them."""
        return self.programs(scope) is not None

    def retry(self, lease: Lease) -> None:
        """Begin a run again when the store is back: it went away while the run began or ended."""
        self.load.enter()
        self._claimed.append(lease)
        self._wake_up.set()

    async def _heartbeat_loop(self) -> None:
        """Send heartbeats on time, also while other work waits for the store."""
        while True:
            began, failed = boot_time(), True
            with keep_going(logger, "the heartbeat of this node", Unavailable):
                await self.beat()
                failed = False
            await asyncio.sleep(min(self._ttl / 3, 1.0) if failed else began + self._ttl / 3 - boot_time())

    async def beat(self) -> None:
        """Renew the leases of this node. Finds leases that were lost, and mail that the bus did not report."""
        began = boot_time()
        runs = [run for run in self._runs if run.lease.key]
        held = {h.key: h for h in await self.store.renew(self.node, ttl=self._ttl)}
        for run in runs:
            mine = held.get(run.lease.key)
            if mine is None or mine.fence != run.lease.fence:
                run.lose_lease()
            elif mine.mail > run.snapshot.mail:
                self.check_for_cancel(run)
        if not self._beat_in_time():
            self._no_takeover_before = boot_time() + self._ttl
        self._confirmed = max(self._confirmed, began)
        self._wake_steps()
        if self._left_waiting:  # other nodes may have claimed some of them, or added more
            counted = self.load.counted
            self.load.correct_waiting(await self.store.count_unclaimed_of(self._serves), counted)

    def _beat_in_time(self) -> bool:
        """True if the last heartbeat of this node was in time. If the database stops for so long that the lease of another node
        lapses, the next heartbeat of each node is later than this."""
        return boot_time() - self._confirmed <= self._ttl / 2

    def _may_take_over(self) -> bool:
        """True if a node whose lease has lapsed counts as dead. Not while our own heartbeats are late: then the database may have
        stopped, and the other nodes get time for their heartbeats."""
        return self._beat_in_time() and boot_time() >= self._no_takeover_before

    async def wait_for_heartbeat(self) -> None:
        """Wait until the leases of this node are valid by its own clock. The caller then checks whether it still has its task."""
        while boot_time() - self._confirmed >= self._ttl and not self.stopped:
            await self._beat_confirmed.wait()

    def _wake_steps(self) -> None:
        self._beat_confirmed.set()
        self._beat_confirmed.clear()

    # -- cancel ------------------------------------------------------------------------------------------------

    def check_for_cancel(self, run: Run) -> None:
        """Read mail of a task that another node delivered: it may be a cancel."""
        self._unchecked.add(run)
        self._wake_up.set()

    async def _check_cancels(self) -> None:
        for run in tuple(self._unchecked):
            self._unchecked.discard(run)  # before the load, so that later mail is checked again
            try:
                if run in self._runs and (await run.log.load(run.lease.task)).canceling is not None:
                    run.cancel()
            except TaskNotFound:
                pass
            except Unavailable:
                self._unchecked.add(run)
                raise
