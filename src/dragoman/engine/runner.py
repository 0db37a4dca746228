"""Runs tasks: a node with a name and a heartbeat, and one task while it runs.

The node holds leases, and only the holder of a lease writes a task's output. What ends a turn:

* the function returns, raises, or asks: the task settles (completed, failed, input-required, ...) and the lease goes back
* mail came meanwhile: the turn does not settle, another one begins
* somebody cancels: the function is cancelled, and after a grace period the task is canceled even if it is stuck
* the node stops: the function is cancelled, nothing settles, the lease goes back and another node runs the turn again
* the lease is lost: another node runs the task; nothing more is written

Only the function itself is ever interrupted (`Run.inside`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from mmap import mmap
from threading import Lock
from typing import Any, Protocol, TypedDict

from msgspec.structs import replace

from dragoman.engine.delegate import cancel_children, unfinished_children
from dragoman.engine.journal import MEMORY_WRITE_SECONDS, Journal
from dragoman.engine.protocols import (
    MAIL_TOPIC,
    Bus,
    Delivered,
    Lease,
    LeaseLost,
    NewMail,
    Peers,
    Store,
)
from dragoman.engine.recorded import Recorded
from dragoman.engine.records import Attempt, Child, Mail, Record, Snapshot, size_of, topic
from dragoman.engine.turn import Rejected, Turn
from dragoman.errors import A2AError, StoreUnavailable, TaskNotFound, Unavailable, keep_going
from dragoman.model.card import AgentCard
from dragoman.model.content import NOTHING, Message, Part, Role
from dragoman.model.ids import new_id, timestamp
from dragoman.model.ops import Call, Principal, Request, Scope, SendMessage
from dragoman.model.task import StatusUpdate, TaskState, TaskStatus

logger = logging.getLogger("dragoman.runner")

FAILED = "The agent could not complete this task."
DELEGATION_FAILED = "An agent that this task needs could not do its part."
GAVE_UP = "The task was interrupted too often and was given up."
INCOMPLETE = "This copy of a task was not finished."


TTL_SECONDS = 30.0
"""How long the leases of a node hold after its last heartbeat."""
CHECK_SECONDS = 0.1
"""Shortest time between two looks for cancels of the tasks that run here."""

_CELL_BYTES = 8
_MAX_TRIES = 4
"""Of a worker that takes a place while others do."""
_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """This machine's clock, which nobody sets. Where there is such a clock, it goes on while the machine sleeps, because
    the leases of other machines do."""
    return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


class Program(Protocol):
    """What the engine runs: an agent, as far as the engine needs to know one."""

    @property
    def card(self) -> AgentCard: ...

    def check_message(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        """Check a message before it is accepted; raises the `A2AError` to answer with. True: the answer may be a bare
        Message. `first` began the task that the message goes on with."""
        ...

    @property
    def authorize(self) -> Callable[[Call, Request], Awaitable[None]] | None:
        """Asked before each operation, and raises the `A2AError` to answer with; None: what the scope allows is allowed."""
        ...

    async def extended_card(self, principal: Principal) -> AgentCard | None:
        """The card for a caller who has said who it is; None: there is none. Raises `Forbidden`."""
        ...

    async def exists(self) -> bool:
        """Whether there is such an agent, or was."""
        ...

    def work(self, turn: Turn) -> Awaitable[Any]:
        """Do the work of one turn, writing through `turn`. Returning completes the task."""
        ...


class Observer(Protocol):
    """Watches what the runner does. It must neither fail nor wait."""

    def turn(self, turn: Turn) -> AbstractContextManager[None]:
        """Around each run of an agent's function."""
        ...

    def settled(self, snapshot: Snapshot) -> None:
        """A task came to rest: it ended, or waits for somebody."""
        ...


class NodeOptions(TypedDict, total=False):
    """Options of a node that whoever serves agents may set."""

    node: str
    """The name of the node; it must be the only one with this name."""
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


class Load:
    """Counts the turns of a server, over all its workers: those that run, those that arrive, and those that wait for room.

    Each worker writes its own two counters, in shared memory, and reads those of all. A worker takes a place before it knows
    whether one is free, and gives it back if none is. So two workers may both refuse for a moment where one had room, but
    together they never take more than the limit.
    """

    def __init__(self, workers: int = 1, worker: int = 0, memory: mmap | bytearray | None = None) -> None:
        self.workers, self._worker = workers, worker
        size = 2 * workers * _CELL_BYTES
        self._memory = memory if memory is not None else mmap(-1, size) if workers > 1 else bytearray(size)
        self._cells = memoryview(self._memory)[:size].cast("q")
        self._barrier = Lock()

    def of(self, worker: int) -> Load:
        """The same, as worker number `worker` sees it: nothing runs there yet."""
        load = Load(self.workers, worker, self._memory)
        load._cells[worker] = 0
        return load

    @property
    def running(self) -> int:
        """What runs, or arrives and may run at once."""
        return sum(self._cells[: self.workers])

    @property
    def waiting(self) -> int:
        """What is stored and waits for room, as far as we know."""
        return max(0, self.counted)

    @property
    def total(self) -> int:
        return self.running + self.waiting

    def enter(self, limit: int | None = None) -> bool:
        """Take a place. False if there would be more than `limit`."""
        for _ in range(_MAX_TRIES):
            self._cells[self._worker] += 1
            if limit is None:
                return True
            if self.workers > 1:
                with self._barrier:  # others see what we wrote before we read what they wrote
                    pass
            running, waiting = self._cells if self.workers == 1 else (self.running, self.waiting)
            if running + max(0, waiting) <= limit:
                return True
            self._cells[self._worker] -= 1
            if self.total >= limit:
                return False
        return False

    def leave(self) -> None:
        """Give a place back."""
        self._cells[self._worker] -= 1

    def wait(self, more: int) -> None:
        """So many more wait than before; fewer, if that is negative."""
        self._cells[self.workers + self._worker] += more

    @property
    def counted(self) -> int:
        """What was counted as waiting. Negative while somebody has not yet counted what this worker has claimed."""
        return sum(self._cells[self.workers :])

    def correct(self, waiting: int, counted: int) -> None:
        """So many wait in fact, as somebody found who had `counted` before. Nothing is corrected if others count meanwhile."""
        if self.counted == counted:
            self.wait(waiting - counted)


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
        self.max_attempts = max_attempts
        self._ttl, self._grace, self._max_running = ttl, grace, max_running
        self.load = load or Load()
        self._queue = max_running * self.load.workers if queue is None else queue
        self._runs: set[Run] = set()
        self._arriving = 0
        """Messages that are being stored, and then run here."""
        self._left_waiting = False
        """Tasks may wait that we had no room for."""
        self._unchecked: set[Run] = set()
        """Runs whose tasks got mail that we have not read."""
        self._claimed: deque[Lease] = deque()
        """Leases that are ours and whose runs have not begun."""
        self._orphans: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._confirmed = float("-inf")
        """When the last heartbeat began that the store has confirmed. The lease is valid for `ttl` seconds from then on."""
        self._no_takeover_before = float("-inf")
        """Until then other nodes without a heartbeat are not taken for dead."""
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
        return any(run.lease.task == task and run.lease.scope == scope for run in self._runs)

    @property
    def full(self) -> bool:
        """Whether new messages are refused."""
        return self.load.total >= self._queue

    @property
    def _room(self) -> int:
        """How many more tasks may run here."""
        return self._max_running - len(self._runs) - self._arriving - len(self._claimed)

    def reserve(self, *, inside: bool = False) -> str:
        """Take a place for a message. Returns the name to deliver it under, so that it runs here at once; empty if there is no
        room, and it has to wait. Raises `Unavailable` if it may not even do that.

        `inside`: from a task that runs here and waits for the answer. It is never refused, and never waits: else tasks that
        wait for each other could fill the node and keep all of them waiting.
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
        """The end of `reserve`: what became of the message, or None if nothing did. Begins the run if it is ours."""
        if node:
            self._arriving -= 1
        if delivered is not None and delivered.lease is not None:
            return Run(self, delivered.lease, delivered.snapshot, delivered.stored)
        if delivered is not None and delivered.unclaimed:
            self.load.wait(1)
        self.leave()
        return None

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        began = now()
        await self.store.join(self.node, ttl=self._ttl)
        self._confirmed = began
        self._wake_up.set()  # whatever a dead node left behind
        self._tasks = [
            asyncio.create_task(self._claim_loop(), name="dragoman-runner"),
            asyncio.create_task(self._heartbeat(), name="dragoman-heartbeat"),
        ]

    async def stop(self, drain: float = 10.0) -> None:
        """Take no more work, give what runs `drain` seconds to finish, then give it back unfinished."""
        self.stopping = True
        self._wake_up.set()
        jobs = [run.job for run in self._runs]
        if jobs and drain > 0:
            await asyncio.wait(jobs, timeout=drain)
        for run in tuple(self._runs):
            run.interrupt("stop")
        jobs = [*(run.job for run in self._runs), *self._orphans]
        if jobs:
            await asyncio.wait(jobs, timeout=self._grace)
        self.stopped = True
        for run in self._runs:  # stuck: they may go on, and nobody listens
            run.resolve(None)
            if run.record is not None:
                run.record.journal.dead = True
        self._wake_steps()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        with suppress(Unavailable):
            await self.store.leave(self.node)
            self.bus.wake(MAIL_TOPIC)  # for other nodes: what we gave back is theirs

    def begin(self, lease: Lease, snapshot: Snapshot) -> None:
        """Run a task whose lease we hold, whether there is room or not."""
        self.load.enter()
        Run(self, lease, snapshot)

    def leave(self, run: Run | None = None) -> None:
        """Give a place back, of `run` if it had one, and claim what waits if there is room again."""
        if run is not None:
            if run not in self._runs:
                return  # it was given up before it ended
            self._runs.remove(run)
        self.load.leave()
        if self._left_waiting and self._room > 0:
            self._wake_up.set()

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
                    Run(self, lease, await self.store.scope(lease.scope).load(lease.task))
                    begun = True
                except Unavailable:
                    raise
                except TaskNotFound:
                    pass
                except Exception:  # we keep it: whoever claims it next cannot read it either
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
                self.node, limit=limit, fits=self._serves, takes_over=self._may_take_over
            )
            self._claimed.extend(claimed)
            for _ in claimed:
                self.load.enter()
            if len(claimed) < limit and self.load.counted == counted:
                self.load.correct(
                    0, counted
                )  # nothing waits, whatever was counted, also what a dead node left
            else:
                self.load.wait(-len(claimed))
            if not self._claimed:
                return

    def _serves(self, scope: Scope) -> bool:
        """True if the agent of these tasks is here. Tasks of other agents wait for a node that has them."""
        return self.programs(scope) is not None

    def retry(self, lease: Lease) -> None:
        """The store went away while a task of ours was begun or ended: begin once more, when it is back."""
        self.load.enter()
        self._claimed.append(lease)
        self._wake_up.set()

    async def _heartbeat(self) -> None:
        """Send heartbeats on time, whatever else waits for the store."""
        while True:
            began, failed = now(), True
            with keep_going(logger, "the heartbeat of this node", Unavailable):
                await self.beat()
                failed = False
            await asyncio.sleep(min(self._ttl / 3, 1.0) if failed else began + self._ttl / 3 - now())

    async def beat(self) -> None:
        """Renew our leases, and find out which we lost and which tasks got mail that the bus did not report."""
        began = now()
        runs = [run for run in self._runs if run.lease.key]
        held = {h.key: h for h in await self.store.renew(self.node, ttl=self._ttl)}
        for run in runs:
            mine = held.get(run.lease.key)
            if mine is None or mine.fence != run.lease.fence:
                run.lose_lease()
            elif mine.mail > run.snapshot.mail:
                self.check_for_cancel(run)
        if not self._beat_in_time():
            self._no_takeover_before = now() + self._ttl
        self._confirmed = max(self._confirmed, began)
        self._wake_steps()
        if self._left_waiting:  # others may have taken some of it, and we have not seen all of it
            counted = self.load.counted
            self.load.correct(await self.store.backlog(self._serves), counted)

    def _beat_in_time(self) -> bool:
        """Whether our last heartbeat came in time. A database that stands still for so long that the lease of another node
        lapses delays the next heartbeat of each node by more than this."""
        return now() - self._confirmed <= self._ttl / 2

    def _may_take_over(self) -> bool:
        """Whether a node whose lease has lapsed is dead. Not if we had to wait for our own heartbeat as well: the others get
        time to make up for theirs."""
        return self._beat_in_time() and now() >= self._no_takeover_before

    async def confirmed(self) -> None:
        """Wait until our lease is valid by our own clock. Whoever waits looks then whether the task is still theirs."""
        while now() - self._confirmed >= self._ttl and not self.stopped:
            await self._beat_confirmed.wait()

    def _wake_steps(self) -> None:
        self._beat_confirmed.set()
        self._beat_confirmed.clear()

    # -- cancel ------------------------------------------------------------------------------------------------

    def check_for_cancel(self, run: Run) -> None:
        """A task got mail from elsewhere: look whether it is a cancel."""
        self._unchecked.add(run)
        self._wake_up.set()

    async def _check_cancels(self) -> None:
        for run in tuple(self._unchecked):
            self._unchecked.discard(run)  # before we look: what comes meanwhile is looked for again
            try:
                if run in self._runs and (await run.log.load(run.lease.task)).canceling is not None:
                    self.cancel(run)
            except TaskNotFound:
                pass
            except Unavailable:
                self._unchecked.add(run)
                raise

    def cancel(self, run: Run) -> None:
        if not run.inside or run.why:
            run.canceled = True  # it finds the cancel when it begins its function, or settles
            return
        if run.record is not None:
            run.record.cancelled = True
        run.interrupt("cancel")
        run.alarm = asyncio.get_running_loop().call_later(self._grace, self._cancel_without_function, run)

    def _cancel_without_function(self, run: Run) -> None:
        """The grace period is over. A function that is still there is stuck: cancel the task without it."""
        if run not in self._runs or run.why != "cancel" or run.record is None:
            return
        logger.warning("task %s: the agent did not stop; canceled without it", run.lease.task)
        run.record.journal.dead = True
        run.why = "stuck"
        self.leave(run)
        orphan = asyncio.create_task(self._cancel_stuck(run))
        self._orphans.add(orphan)
        orphan.add_done_callback(self._orphans.discard)

    async def _cancel_stuck(self, run: Run) -> None:
        try:
            with suppress(LeaseLost, Unavailable, TaskNotFound):
                await run.end([], TaskState.CANCELED)
        finally:
            run.resolve(None)


class Run:
    """One task while this node runs it, and the lease to do so, which we hold or will hold once it is `stored`.

    It begins at once, in a place that was taken (`Runner.reserve`, `Load.enter`).
    """

    __slots__ = ("_listening", "_runner", "_stored", "_topic", "alarm", "canceled", "inside", "job", "lease", "log", "lost", "record", "settled",
                 "snapshot", "why")  # fmt: skip

    def __init__(
        self, runner: Runner, lease: Lease, snapshot: Snapshot, stored: Awaitable[object] | None = None
    ) -> None:
        self._runner = runner
        self.lease, self.snapshot, self._stored = lease, snapshot, stored
        self.log = runner.store.scope(lease.scope)
        self._topic = topic(lease.scope, lease.task)
        self._listening = runner.bus.listen(self._topic, self._on_wake)
        self.record: Recorded | None = None
        self.alarm: asyncio.TimerHandle | None = None
        """Fires when the grace period of a cancelled function is over."""
        self.canceled = False
        """A cancel came while the function was not running."""
        self.inside = False
        """The agent's function is running: the only time when it can be interrupted."""
        self.lost = False
        """Another node has the task."""
        self.settled: asyncio.Future[Snapshot | None] = runner.loop.create_future()
        """The settled task, for the sender of the message; None if another node settles it."""
        self.why = ""
        """Why it was interrupted: `cancel`, `stop`, `lost`, `broken` (nothing more can be written), or `stuck` (it was to be
        canceled, did not stop, and is canceled without its function)."""
        self.job: asyncio.Task[None] = runner.loop.create_task(self.work())
        runner._runs.add(self)

    def interrupt(self, why: str) -> None:
        if self.inside and not self.why:
            self.why = why
            self.job.cancel()
            if why == "lost":
                self.resolve(None)  # another node settles it; the function may not even stop

    def lose_lease(self) -> None:
        """Another node has the task: nothing more is written, and no step begins, also not in a turn that is yet to begin."""
        self.lost = True
        if self.record is not None:
            self.record.journal.dead = True
        self.interrupt("lost")

    async def work(self) -> None:
        """Run the task until it settles, or is not ours any more."""
        lease = self.lease
        try:
            if not await self._turns():
                await self._give_back(failed=False)
        except LeaseLost:
            logger.info("task %s is not ours any more", lease.task)
        except asyncio.CancelledError:
            if self.why not in ("stop", "lost", "broken", "stuck"):
                raise
            if self.why == "broken" and self.record is not None:
                logger.error("task %s could not be run", lease.task, exc_info=self.record.journal.broken)
            if self.why == "stop" and self.record is not None:
                with suppress(LeaseLost):
                    await self.record.journal.commit()  # what the function said before it was stopped
            if self.why not in ("lost", "stuck"):
                await self._give_back(failed=self.why == "broken")
        except Unavailable as error:
            logger.warning("task %s: %s", lease.task, error)
            self._runner.retry(lease)
        except Exception:
            logger.exception("task %s could not be run", lease.task)
            await self._give_back(failed=True)
        finally:
            self._listening.__exit__(None, None, None)
            del self._listening  # it and the record hold us: together we would wait for the garbage collector
            self.record = None
            self.resolve(None)
            if self.alarm is not None:
                self.alarm.cancel()
            self._runner.leave(self)

    async def _give_back(self, *, failed: bool) -> None:
        try:
            await self._runner.store.release(self.lease, failed=failed)
        except Unavailable:
            self._runner.retry(self.lease)  # it is still ours, and nobody else would run it

    def _on_wake(self, records: Sequence[Record]) -> None:
        if not records:
            self._runner.check_for_cancel(self)  # the task got mail, and we do not know what
        elif records[0].kind == "cancel":  # mail comes alone
            self._runner.cancel(self)

    async def _turns(self) -> bool:
        """Take turns. False: this node stops, and the task goes on elsewhere."""
        lease, runner, log = self.lease, self._runner, self.log
        resume = self.snapshot.running
        again = lease.attempt > 1 or (resume and self.snapshot.rerun)
        while not runner.stopping:
            snapshot = self.snapshot
            program = runner.programs(lease.scope)
            if snapshot.canceling is not None:
                if runner.peers is not None:
                    await cancel_children(runner.peers, snapshot)
                await self.end([], TaskState.CANCELED)
                return True
            if snapshot.mails[0][1].copied > snapshot.seq:  # a part of another task's log (`fork.py`)
                await self.end([], TaskState.FAILED, INCOMPLETE)
                return True
            waits_for: list[Child] = []
            if lease.attempt > 1 and runner.peers is not None:
                waits_for = await unfinished_children(runner.peers, snapshot)
            if lease.attempt > runner.max_attempts and not waits_for:
                logger.error("task %s: given up after %d attempts", lease.task, lease.attempt - 1)
                await self.end([], TaskState.FAILED, GAVE_UP)
                return True
            if program is None:
                logger.error("task %s: there is no agent %r here", lease.task, lease.scope.agent)
                await self.end([], TaskState.FAILED, FAILED)
                return True
            if not resume and snapshot.first_unread is None:
                if await self._settle([], snapshot.mail):
                    return True
                self.snapshot = await log.load(lease.task)
                continue
            pause = 0.0 if runner.store.persistent else MEMORY_WRITE_SECONDS
            journal = Journal(log, runner.bus, lease, snapshot, self.interrupt, runner.loop, pause)
            journal.on_question = partial(self.resolve, None)  # its sender reads it from the log
            if self.lost:
                raise LeaseLost(lease.task)
            record = self.record = Recorded(
                journal,
                resume=resume,
                stored=self._stored,
                confirmed=runner.confirmed,
                version=getattr(program, "version", ""),
            )
            if again:
                attempt = Attempt(n=snapshot.attempt + 1, node=runner.node, at=timestamp())
                journal.put(Record("attempt", attempt))
                again = False
            for child in waits_for:  # as long as they work, it is not this task that makes no progress
                journal.put(Record("child", child))
            final = await self._run_function(program, record)
            if record.resumed or record.rewound:
                record.finish_writers()
            record.writers.clear()  # each holds the record: see `work`
            records = await journal.take_rest()
            self.snapshot = journal.loaded
            if journal.dead:
                raise journal.broken or LeaseLost(lease.task)
            if final is None:
                await self.end(records, TaskState.CANCELED, metadata=record.with_usage(NOTHING))
                return True
            if final.kind == "ask" and record.question is not None:
                records.append(Record("question", record.question))  # which one the `ask` after it is
            if self.snapshot.mail <= record.read and await self._settle([*records, final], record.read):
                return True
            if records:
                await journal.append(records, size_of(records))
            resume = final.kind == "ask"  # the mail may be the answer; anything else begins a turn of its own
            self.snapshot = await log.load(lease.task)
        return False

    async def _run_function(self, program: Program, record: Recorded) -> Record | None:
        """Run the function once. Returns the record that ends the turn, or None if the task is being canceled."""
        observer = self._runner.observer
        turn = Turn(record, self._runner.peers)
        if (hook := getattr(program, "event_hook", None)) is not None:
            record.journal.on_event = hook(turn)
        self.inside = True
        if self.canceled:  # it came after the snapshot that this turn began with
            self._runner.cancel(self)
        try:
            if observer is None:
                await program.work(turn)
            else:
                with observer.turn(turn):
                    await program.work(turn)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            final = self._raised(record, error)
            if final is None:
                return None
        else:
            self.inside = False
            if self.why:
                await self._absorb_interruption()
            if record.resumed:
                record.report_differences()
            if record.parked is not None:
                logger.warning("task %s: the agent asked and did not wait for the answer", record.task_id)
                final = record.status_record(*record.parked, "ask")
            elif record.reply is not None and not record.visible:
                reply = record.reply
                if record.used is not None:
                    reply = replace(reply, metadata=record.with_usage(reply.metadata))
                final = Record("reply", reply)
            else:
                final = record.status_record(*record.final)
        finally:
            self.inside = False
        try:
            if record.journal.on_event is not None:
                final = record.journal.change(final)
            final.encode()
        except Exception:
            logger.exception("task %s: its last record has no JSON form", record.task_id)
            final = _failed(record, FAILED)
        return final

    def _raised(self, record: Recorded, error: BaseException) -> Record | None:
        """How the turn ends if the function raised `error`. Raises if the turn does not end."""
        if self.why == "cancel":
            self.job.uncancel()
            self.why = ""
            return None
        if self.why:
            raise asyncio.CancelledError from error
        if isinstance(error, BaseExceptionGroup):
            error = _most_specific(error)
        if record.parked is not None and not isinstance(error, LeaseLost):
            record.report_differences()
            return record.status_record(*record.parked, "ask")
        match error:
            case Rejected():
                reason = record.message(str(error)) if str(error) else None
                return record.status_record(TaskState.REJECTED, reason)
            case LeaseLost() | StoreUnavailable():
                raise error
            case A2AError():
                return _failed(record, DELEGATION_FAILED if error.delegated else error.message)
            case asyncio.CancelledError() if self.job.cancelling():
                raise error  # not by us: the loop itself is ending
            case asyncio.CancelledError():
                logger.warning("task %s: the agent cancelled itself", record.task_id)
            case _:
                logger.error("task %s: the agent raised", record.task_id, exc_info=error)
        return _failed(record, FAILED)

    async def _absorb_interruption(self) -> None:
        """The function returned before, or although, it was interrupted. Take the interruption before it reaches our own code."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        self.job.uncancel()
        why, self.why = self.why, ""
        if why in ("lost", "broken", "stuck"):
            broken = self.record.journal.broken if self.record is not None else None
            raise broken or LeaseLost(self.lease.task)

    async def end(
        self, records: list[Record], state: TaskState, text: str = "", metadata: dict[str, Any] = NOTHING
    ) -> None:
        """Settle whatever mail there is."""
        while not await self._settle(
            [*records, _status(self.snapshot, state, text, metadata)], self.snapshot.mail
        ):
            self.snapshot = await self.log.load(self.lease.task)

    async def _settle(self, records: list[Record], mail: int) -> bool:
        """Write the last of it and give the lease back. False if there is mail after `mail`."""
        lease, runner, pause = self.lease, self._runner, 0.05
        while True:
            try:
                settled = await self.log.settle(lease, records, mail=mail)
                break
            except NewMail:
                return False
            except Unavailable:
                if runner.stopped:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
        if records:
            runner.bus.wake(self._topic, records)
            try:
                self.snapshot = settled or self._fold(records) or await self.log.load(lease.task)
            except (TaskNotFound, Unavailable):
                return True
            if runner.observer is not None:
                runner.observer.settled(self.snapshot)
            self.resolve(self.snapshot)
        return True

    def _fold(self, records: list[Record]) -> Snapshot | None:
        """The task after the last records, which are on disk; None if this run does not know all before them."""
        known = self.snapshot if self.record is None else self.record.journal.snapshot
        return known.after(records).share() if records[0].seq == known.seq + 1 else None

    def resolve(self, snapshot: Snapshot | None) -> None:
        """Set the result of `settled`, unless it is set."""
        if not self.settled.done():
            self.settled.set_result(snapshot)


def _most_specific(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The lost lease or the rejection in a group of errors, else the group."""
    for kind in (LeaseLost, Rejected):
        found: BaseException | None = group.subgroup(kind)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is not None:
            return found
    return group


def _failed(record: Recorded, text: str) -> Record:
    return record.status_record(TaskState.FAILED, record.message(text))


def _status(
    snapshot: Snapshot, state: TaskState, text: str = "", metadata: dict[str, Any] = NOTHING
) -> Record:
    message = None
    if text:
        message = Message(
            message_id=f"{snapshot.task_id}-{snapshot.turn}-end",
            role=Role.AGENT,
            parts=(Part(text=text),),
            task_id=snapshot.task_id,
            context_id=snapshot.context_id,
        )
    status = TaskStatus(state=state, message=message, timestamp=timestamp())
    update = StatusUpdate(
        task_id=snapshot.task_id, context_id=snapshot.context_id, status=status, metadata=metadata
    )
    return Record("status", update)
