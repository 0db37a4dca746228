"""Runs tasks: claim, run a turn, settle.

A runner is a node with a name and a heartbeat. It holds leases, and only the holder of a lease writes a task's output.
What ends a turn:

* the function returns, raises, or asks: the task settles (completed, failed, input-required, ...) and the lease goes back
* mail came meanwhile: the turn does not settle, another one begins
* somebody cancels: the function is cancelled, and after a grace period the task is canceled even if it is stuck
* the node stops: the function is cancelled, nothing settles, the lease goes back and another node runs the turn again
* the lease is lost: somebody else runs it already; nothing more is written
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from dragoman.engine.log import Record, Snapshot
from dragoman.engine.seams import MAIL, Bus, Lease, LeaseLost, Log, NewMail, Observer, Peers, Program, Store, topic
from dragoman.engine.turn import Parked, Rejected, Turn
from dragoman.errors import A2AError, TaskNotFound, Unavailable
from dragoman.model.content import Message, Part, Role
from dragoman.model.ids import new_id, timestamp
from dragoman.model.ops import Scope
from dragoman.model.task import StatusUpdate, TaskState, TaskStatus

logger = logging.getLogger("dragoman.runner")

FAILED = "The agent could not complete this task."
GAVE_UP = "The task was interrupted too often and was given up."


class _Run:
    """A task this node is running."""

    __slots__ = ("lease", "snapshot", "job", "why", "turn", "inside")

    def __init__(self, lease: Lease, snapshot: Snapshot) -> None:
        self.lease, self.snapshot = lease, snapshot
        self.job: asyncio.Task[None]
        self.turn: Turn | None = None
        self.inside = False
        """The agent's function is running: the only time when it can be interrupted."""
        self.why = ""
        """Why it was interrupted: `cancel`, `stop` or `lost`."""

    def interrupt(self, why: str) -> None:
        if self.inside and not self.why:
            self.why = why
            self.job.cancel()


class Runner:
    def __init__(
        self,
        store: Store,
        bus: Bus,
        programs: Callable[[Scope], Program | None],
        *,
        node: str = "",
        ttl: float = 30.0,
        grace: float = 5.0,
        max_attempts: int = 5,
        concurrency: int = 10_000,
        peers: Peers | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._peers, self._observer = peers, observer
        self._store, self._bus, self._programs = store, bus, programs
        self.node = node or f"node-{new_id()}"
        self._ttl, self._grace, self._max_attempts, self._concurrency = ttl, grace, max_attempts, concurrency
        self._runs: dict[int, _Run] = {}
        self._orphans: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None
        self._work = asyncio.Event()
        self.stopping = False

    @property
    def running(self) -> int:
        return len(self._runs)

    @property
    def claims_as(self) -> str:
        """The name to deliver mail under, so that it runs here at once; empty when this node is full or stopping."""
        return "" if self.stopping or len(self._runs) >= self._concurrency else self.node

    async def start(self) -> None:
        await self._store.join(self.node, ttl=self._ttl)
        self._work.set()  # whatever a dead node left behind
        self._loop_task = asyncio.create_task(self._loop(), name="dragoman-runner")

    async def stop(self, drain: float = 10.0) -> None:
        """Take no more work, give what runs `drain` seconds to finish, then give it back unfinished."""
        self.stopping = True
        self._work.set()
        jobs = [run.job for run in self._runs.values()]
        if jobs and drain > 0:
            await asyncio.wait(jobs, timeout=drain)
        for run in list(self._runs.values()):
            run.interrupt("stop")
        if jobs := [run.job for run in self._runs.values()]:
            await asyncio.wait(jobs, timeout=self._grace)
        if self._loop_task is not None:
            self._loop_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop_task
        with suppress(Unavailable):
            await self._store.leave(self.node)

    def begin(self, lease: Lease, snapshot: Snapshot) -> None:
        """Run a task whose lease we hold."""
        run = _Run(lease, snapshot)
        self._runs[lease.key] = run
        run.job = asyncio.create_task(self._run(run))

    # -- the node ----------------------------------------------------------------------------------------------

    async def _loop(self) -> None:
        """Claim what can be claimed, when woken and at each heartbeat."""
        with self._bus.listen(MAIL, lambda _: self._work.set()):
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._ttl / 3):
                        await self._work.wait()
                beat = not self._work.is_set()
                self._work.clear()
                try:
                    if beat:
                        await self._beat()
                    if not self.stopping:
                        await self._claim()
                except Unavailable as error:
                    logger.warning("the store is away: %s", error)
                    await asyncio.sleep(1.0)
                    self._work.set()
                except Exception:
                    logger.exception("the runner stumbled")
                    await asyncio.sleep(1.0)

    async def _claim(self) -> None:
        while (room := self._concurrency - len(self._runs)) > 0:
            leases = await self._store.claim(self.node, limit=min(room, 100))
            for lease in leases:
                try:
                    snapshot = await self._store.scope(lease.scope).load(lease.task)
                except TaskNotFound:
                    continue
                self.begin(lease, snapshot)
            if len(leases) < min(room, 100):
                return

    async def _beat(self) -> None:
        """Stay alive, and find out what we lost and what mail the bus did not tell us of."""
        held = {h.key: h for h in await self._store.renew(self.node, ttl=self._ttl)}
        for key, run in list(self._runs.items()):
            mine = held.get(key)
            if mine is None or mine.fence != run.lease.fence:
                run.interrupt("lost")
            elif mine.mail > run.snapshot.mail:
                await self._store.scope(run.lease.scope).load(run.lease.task)
                if run.snapshot.canceling is not None:
                    self._cancel(run)

    # -- one task ----------------------------------------------------------------------------------------------

    async def _run(self, run: _Run) -> None:
        lease = run.lease
        name = topic(lease.scope, lease.task)

        def mail(records: Sequence[Record]) -> None:
            if any(record.kind == "cancel" for record in records):
                self._cancel(run)

        try:
            with self._bus.listen(name, mail):
                await self._turns(run, self._store.scope(lease.scope))
        except LeaseLost:
            logger.info("task %s is run by another node now", lease.task)
        except asyncio.CancelledError:
            if run.why == "stop":
                with suppress(Unavailable, LeaseLost):
                    await self._store.release(lease)
            elif run.why != "lost":
                raise
        except Exception:
            logger.exception("task %s could not be run", lease.task)
            with suppress(Unavailable, LeaseLost):
                await self._store.release(lease)
        finally:
            if self._runs.get(lease.key) is run:
                del self._runs[lease.key]
            if len(self._runs) == self._concurrency - 1:
                self._work.set()

    async def _turns(self, run: _Run, log: Log) -> None:
        """Take turns until the task settles."""
        lease, snapshot = run.lease, run.snapshot
        resume = snapshot.running
        while not self.stopping:
            program = self._programs(lease.scope)
            if snapshot.canceling is not None:
                return await self._end(run, log, [], TaskState.CANCELED)
            if lease.attempt > self._max_attempts:
                logger.error("task %s: given up after %d attempts", lease.task, lease.attempt - 1)
                return await self._end(run, log, [], TaskState.FAILED, GAVE_UP)
            if program is None:
                logger.error("task %s: there is no agent %r here", lease.task, lease.scope.agent)
                return await self._end(run, log, [], TaskState.FAILED, FAILED)
            if not resume and not snapshot.unread:
                with suppress(NewMail):
                    return await self._settle(run, log, [], snapshot.mail)
                await log.load(lease.task)
                continue
            turn = run.turn = Turn(
                log,
                self._bus,
                lease,
                snapshot,
                lambda: run.interrupt("lost"),
                resume=resume,
                peers=self._peers,
            )
            final = await self._turn(run, program, turn)
            records = await turn.rest()
            if turn.dead:
                raise LeaseLost(lease.task)
            if final is None:
                return await self._end(run, log, records, TaskState.CANCELED)
            if snapshot.mail <= turn.read:
                with suppress(NewMail):
                    return await self._settle(run, log, [*records, final], turn.read)
            if records:
                await turn._append(records)
            resume = final.kind == "ask"  # the mail may be the answer; anything else begins a turn of its own
            await log.load(lease.task)
        await self._store.release(lease)

    async def _end(
        self, run: _Run, log: Log, records: list[Record], state: TaskState, text: str = ""
    ) -> None:
        """Settle whatever mail there is."""
        while True:
            try:
                return await self._settle(
                    run, log, [*records, _status(run.snapshot, state, text)], run.snapshot.mail
                )
            except NewMail:
                await log.load(run.lease.task)

    async def _turn(self, run: _Run, program: Program, turn: Turn) -> Record | None:
        """Run the function once. Returns the record that ends the turn, or None if the task is being canceled."""
        try:
            run.inside = True
            if self._observer is None:
                await program.work(turn)
            else:
                with self._observer.turn(turn):
                    await program.work(turn)
        except Parked as parked:
            return turn._status_record(parked.state, parked.message, parked.metadata, "ask")
        except Rejected as rejected:
            return turn._status_record(
                TaskState.REJECTED, turn._agent_message(str(rejected)) if str(rejected) else None, {}
            )
        except asyncio.CancelledError:
            if run.why == "cancel":
                run.job.uncancel()
                run.why = ""
                return None
            if run.why:
                raise
            logger.warning("task %s: the agent cancelled itself", turn.task_id)
            return turn._status_record(TaskState.FAILED, turn._agent_message(FAILED), {})
        except LeaseLost:
            raise
        except A2AError as error:
            return turn._status_record(TaskState.FAILED, turn._agent_message(error.message), {})
        except Exception:
            logger.exception("task %s: the agent raised", turn.task_id)
            return turn._status_record(TaskState.FAILED, turn._agent_message(FAILED), {})
        finally:
            run.inside = False
        if turn.answer_message is not None and not turn.shown:
            return Record("reply", turn.answer_message)
        return turn._status_record(*turn.final)

    async def _settle(self, run: _Run, log: Log, records: list[Record], mail: int) -> None:
        lease, pause = run.lease, 0.05
        while True:
            try:
                await log.settle(lease, records, mail=mail)
                break
            except Unavailable:
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
        self._bus.wake(topic(lease.scope, lease.task), records)
        if self._observer is not None and records:
            self._observer.settled(run.snapshot)

    # -- cancel ------------------------------------------------------------------------------------------------

    def _cancel(self, run: _Run) -> None:
        if not run.inside or run.why:
            return  # it will find the cancel when it settles
        run.interrupt("cancel")
        asyncio.get_running_loop().call_later(self._grace, self._abandon, run)

    def _abandon(self, run: _Run) -> None:
        """The grace period is over. A function that is still there is stuck: cancel the task without it."""
        if self._runs.get(run.lease.key) is not run or run.why != "cancel" or run.turn is None:
            return
        logger.warning("task %s: the agent did not stop; canceled without it", run.lease.task)
        run.turn.dead = True
        run.why = "lost"
        del self._runs[run.lease.key]
        orphan = asyncio.create_task(self._cancel_stuck(run))
        self._orphans.add(orphan)
        orphan.add_done_callback(self._orphans.discard)

    async def _cancel_stuck(self, run: _Run) -> None:
        with suppress(LeaseLost):
            await self._end(run, self._store.scope(run.lease.scope), [], TaskState.CANCELED)


def _status(snapshot: Snapshot, state: TaskState, text: str = "") -> Record:
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
    return Record(
        "status", StatusUpdate(task_id=snapshot.task_id, context_id=snapshot.context_id, status=status)
    )
