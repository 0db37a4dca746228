"""One task while a node runs it: turn after turn, until the task settles.

What ends a turn:

* the function returns, raises, or asks: the task settles (completed, failed, input-required, ...) and the lease goes back
* mail came meanwhile: the turn does not settle, another one begins
* somebody cancels: the function is cancelled, and after a grace period the task is canceled even if it is stuck
* the node stops: the function is cancelled, nothing settles, the lease goes back and another node runs the turn again
* the lease is lost: another node runs the task; nothing more is written

Only the function itself is ever interrupted (`Run.in_function`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from dragoman.engine.delegate import cancel_children, unfinished_children
from dragoman.engine.journal import MEMORY_WRITE_SECONDS, Journal
from dragoman.engine.program import Observer, Program
from dragoman.engine.protocols import Bus, Lease, LeaseLost, NewMail, Peers, Store
from dragoman.engine.recorded import Recorded, open_record
from dragoman.engine.records import Attempt, Child, Record, TurnStarted, size_of, topic
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.turn import Rejected, Turn
from dragoman.errors import A2AError, StoreUnavailable, TaskNotFound, Unavailable
from dragoman.model.content import NOTHING, Message, Part, Role
from dragoman.model.ids import timestamp
from dragoman.model.ops import Scope
from dragoman.model.task import StatusUpdate, TaskState, TaskStatus

logger = logging.getLogger("dragoman.runner")

FAILED = "The agent could not complete this task."
DELEGATION_FAILED = "An agent that this task needs could not do its part."
GAVE_UP = "The task was interrupted too often and was given up."
INCOMPLETE = "This copy of a task was not finished."


class Node(Protocol):
    """The node of a run, as the run uses it (`runner.py`)."""

    store: Store
    bus: Bus
    programs: Callable[[Scope], Program | None]
    peers: Peers | None
    observer: Observer | None
    loop: asyncio.AbstractEventLoop
    node: str
    """Its name."""
    grace: float
    """Seconds that a cancelled function has to stop."""
    max_attempts: int
    """How often a turn that makes no progress is begun."""
    stopping: bool
    """Nothing more begins here."""
    stopped: bool
    """Nothing more is written here."""

    async def wait_for_heartbeat(self) -> None:
        """Wait until the leases of this node are valid by its own clock."""
        ...

    def check_for_cancel(self, run: Run) -> None:
        """Read the mail of the task of `run`: it may be a cancel."""
        ...

    def retry(self, lease: Lease) -> None:
        """Begin the run of this task again when the store is back."""
        ...

    def leave(self, run: Run) -> None:
        """Give back the place of a run."""
        ...

    def abandon(self, run: Run) -> None:
        """Give back the place of a run whose function does not stop, and call its `end_stuck`."""
        ...


class Run:
    """One task while this node runs it. The node holds its lease, or will hold it when the message is on disk (`stored`).

    A run begins at once, in a place that was taken before (`Runner.start_run`).
    """

    __slots__ = ("_listening", "_node", "_stored", "_topic", "asyncio_task", "cancel_pending", "grace_timer", "in_function", "lease", "log", "lost", "reason",
                 "recorded", "settled", "snapshot")  # fmt: skip

    def __init__(
        self, node: Node, lease: Lease, snapshot: Snapshot, stored: Awaitable[object] | None = None
    ) -> None:
        self._node = node
        self.lease, self.snapshot, self._stored = lease, snapshot, stored
        self.log = node.store.scope(lease.scope)
        self._topic = topic(lease.scope, lease.task)
        self._listening = node.bus.listen(self._topic, self._on_wake)
        self.recorded: Recorded | None = None
        """The turn that runs; None before the first one has begun."""
        self.grace_timer: asyncio.TimerHandle | None = None
        """Fires when the grace period of a cancelled function is over."""
        self.cancel_pending = False
        """A cancel came while the function was not running, or was interrupted already."""
        self.in_function = False
        """The agent's function is running: the only time when it can be interrupted."""
        self.lost = False
        """Another node has the task."""
        self.settled: asyncio.Future[Snapshot | None] = node.loop.create_future()
        """The settled task, for the sender of the message; None if another node settles it."""
        self.reason = ""
        """Why the function was interrupted: `cancel`, `stop` (the node stops), `lost` (the lease), `broken` (nothing more can be
        written), or `stuck` (it did not stop after a cancel, and the task is canceled without it)."""
        self.asyncio_task: asyncio.Task[None] = node.loop.create_task(self.work())

    # -- interruptions -----------------------------------------------------------------------------------------

    def interrupt(self, reason: str) -> None:
        if self.in_function and not self.reason:
            self.reason = reason
            self.asyncio_task.cancel()
            if reason == "lost":
                self.resolve(None)  # another node settles the task; this function may never stop

    def lose_lease(self) -> None:
        """Another node has the task: write nothing more and begin no step, also in a turn that has not begun."""
        self.lost = True
        self._stop_writing()
        self.interrupt("lost")

    def leave_behind(self) -> None:
        """The node has stopped, and the function has not: write nothing more, and let the sender read the log."""
        self.resolve(None)
        self._stop_writing()

    def _stop_writing(self) -> None:
        if self.recorded is not None:
            self.recorded.journal.close()

    def cancel(self) -> None:
        """Cancel the function. If it runs on after the grace period, the task is canceled without it."""
        if not self.in_function or self.reason:
            self.cancel_pending = True  # seen when the function begins, or at the settlement
            return
        if self.recorded is not None:
            self.recorded.cancelled = True
        self.interrupt("cancel")
        self.grace_timer = self._node.loop.call_later(self._node.grace, self._cancel_without_function)

    def _cancel_without_function(self) -> None:
        """The grace period is over. If the function still runs, cancel the task without it."""
        if self.reason != "cancel" or self.recorded is None:
            return
        logger.warning("task %s: the agent did not stop; canceled without it", self.lease.task)
        self._stop_writing()
        self.reason = "stuck"
        self._node.abandon(self)

    async def end_stuck(self) -> None:
        """Settle the task as canceled while its function still runs."""
        try:
            with suppress(LeaseLost, Unavailable, TaskNotFound):
                await self._end(TaskState.CANCELED)
        finally:
            self.resolve(None)

    def _on_wake(self, records: Sequence[Record]) -> None:
        if not records:
            self._node.check_for_cancel(self)  # a wake-up without the mail: it may be a cancel
        elif records[0].kind == "cancel":  # mail is never in a batch with other records
            self.cancel()

    # -- turns -------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Run the task until it settles, or until this node does not hold its lease any more."""
        lease = self.lease
        try:
            if not await self._turns():
                await self._give_back(failed=False)
        except LeaseLost:
            logger.info("task %s: the lease is lost, another node may run it", lease.task)
        except asyncio.CancelledError:
            if self.reason not in ("stop", "lost", "broken", "stuck"):
                raise
            if self.reason == "broken" and self.recorded is not None:
                logger.error("task %s could not be run", lease.task, exc_info=self.recorded.journal.broken)
            if self.reason == "stop" and self.recorded is not None:
                with suppress(LeaseLost):
                    await self.recorded.journal.commit()  # output from before the stop
            if self.reason not in ("lost", "stuck"):
                await self._give_back(failed=self.reason == "broken")
        except Unavailable as error:
            logger.warning("task %s: %s", lease.task, error)
            await self._retry()
        except Exception:
            logger.exception("task %s could not be run", lease.task)
            await self._give_back(failed=True)
        finally:
            self._listening.__exit__(None, None, None)
            # Both refer to this run: without them, no cycle is left for the garbage collector.
            del self._listening
            self.recorded = None
            self.resolve(None)
            if self.grace_timer is not None:
                self.grace_timer.cancel()
            self._node.leave(self)

    async def _give_back(self, *, failed: bool) -> None:
        try:
            await self._node.store.release(self.lease, failed=failed)
        except Unavailable:
            await self._retry()  # this node still holds the lease, so no other node runs the task

    async def _retry(self) -> None:
        if self._stored is not None:  # before that there is no task to load
            with suppress(Exception):
                await asyncio.shield(self._stored)
        self._node.retry(self.lease)

    async def _turns(self) -> bool:
        """Run turn after turn. True: the task has settled. False: the node stops, and another node continues the task."""
        lease, node = self.lease, self._node
        resume = self.snapshot.running
        again = lease.attempt > 1 or (resume and self.snapshot.rerun)
        while not node.stopping:
            snapshot, program = self.snapshot, node.programs(lease.scope)
            if snapshot.canceling is not None:
                if node.peers is not None:
                    await cancel_children(node.peers, snapshot)
                await self._end(TaskState.CANCELED)
                return True
            if snapshot.mails[0][1].copied > snapshot.seq:  # a part of another task's log (`fork.py`)
                await self._end(TaskState.FAILED, INCOMPLETE)
                return True
            waits_for: list[Child] = []
            if lease.attempt > 1 and node.peers is not None:
                waits_for = await unfinished_children(node.peers, snapshot)
            if lease.attempt > node.max_attempts and not waits_for:
                logger.error("task %s: given up after %d attempts", lease.task, lease.attempt - 1)
                await self._end(TaskState.FAILED, GAVE_UP)
                return True
            if program is None:
                logger.error("task %s: there is no agent %r here", lease.task, lease.scope.agent)
                await self._end(TaskState.FAILED, FAILED)
                return True
            if resume or snapshot.first_unread is not None:
                settled, resume = await self._turn(program, waits_for, resume=resume, again=again)
                again = False
            else:
                settled = await self._settle([], snapshot.mail)
            if settled:
                return True
            self.snapshot = await self.log.load(lease.task)
        return False

    async def _turn(
        self, program: Program, waits_for: Sequence[Child], *, resume: bool, again: bool
    ) -> tuple[bool, bool]:
        """Run one turn, and settle the task unless mail came meanwhile.

        `resume`: an earlier run of the turn was interrupted. `again`: that is a new attempt, and not the answer to a question.
        `waits_for`: calls of the earlier run that other agents still work on.

        Returns whether the task settled and, if not, whether the new mail is for this turn: it may be the answer to its
        question. Otherwise it gets a turn of its own.
        """
        lease, node, log = self.lease, self._node, self.log
        pause = 0.0 if node.store.persistent else MEMORY_WRITE_SECONDS
        journal = Journal(log, node.bus, lease, self.snapshot, self.interrupt, node.loop, pause)
        journal.on_question = partial(self.resolve, None)  # the sender reads the question from the log
        if self.lost:
            raise LeaseLost(lease.task)
        recorded = self.recorded = open_record(
            journal,
            resume=resume,
            version=getattr(program, "version", ""),
            stored=self._stored,
            wait_for_heartbeat=node.wait_for_heartbeat,
        )
        if not resume:
            started = TurnStarted(n=recorded.n, mail=recorded.begins_at, version=recorded.version)
            journal.put(Record("turn", started))
        if recorded.visible and self.snapshot.status.state is not TaskState.WORKING:
            journal.put(recorded.status_record(TaskState.WORKING))
        if resume:
            recorded.answer_last_question()
        if again:
            journal.put(
                Record("attempt", Attempt(n=self.snapshot.attempt + 1, node=node.node, at=timestamp()))
            )
        for child in waits_for:  # while a called agent works, this task counts as making progress
            journal.put(Record("child", child))

        final = await self._run_function(program, recorded)

        if recorded.resumed or recorded.rewound:
            recorded.finish_writers()
        records = await journal.take_rest()
        self.snapshot = journal.loaded
        if journal.closed:
            raise journal.broken or LeaseLost(lease.task)
        if final is None:
            await self._end(TaskState.CANCELED, after=records, metadata=recorded.with_usage(NOTHING))
            return True, False
        if final.kind == "ask" and recorded.question is not None:
            records.append(Record("question", recorded.question))  # it identifies the question of the `ask`
        if self.snapshot.mail <= recorded.read and await self._settle([*records, final], recorded.read):
            return True, False
        if records:
            await journal.append(records, size_of(records))
        return False, final.kind == "ask"

    async def _run_function(self, program: Program, recorded: Recorded) -> Record | None:
        """Run the function once. Returns the record that ends the turn, or None if the task is being canceled."""
        observer, journal = self._node.observer, recorded.journal
        turn = Turn(recorded, self._node.peers)
        if (hook := getattr(program, "event_hook", None)) is not None:
            journal.on_event = hook(turn)
        self.in_function = True
        if self.cancel_pending:  # since the snapshot of this turn
            self.cancel()
        try:
            with nullcontext() if observer is None else observer.turn(turn):
                await program.work(turn)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            final = self._end_after_error(recorded, error)
            if final is None:
                return None
        else:
            self.in_function = False
            if self.reason:
                await self._absorb_interruption()
            if recorded.resumed:
                recorded.report_differences()
            if recorded.parked is not None:
                logger.warning("task %s: the agent asked and did not wait for the answer", recorded.task_id)
                final = recorded.status_record(*recorded.parked, "ask")
            elif recorded.reply is not None and not recorded.visible:
                final = recorded.reply_record(recorded.reply)
            else:
                state, message, metadata = recorded.final
                if message is None and recorded.reply is not None:
                    message = replace(recorded.reply, task_id=recorded.task_id)
                final = recorded.status_record(state, message, metadata)
        finally:
            self.in_function = False
        try:
            if journal.on_event is not None:
                final = journal.change(final)
            final.encode()
        except Exception:
            logger.exception("task %s: its last record has no JSON form", recorded.task_id)
            final = _failed(recorded, FAILED)
        return final

    def _end_after_error(self, recorded: Recorded, error: BaseException) -> Record | None:
        """The record that ends the turn after the function raised `error`; None if the task is being canceled.

        Raises if the turn does not end."""
        if self.reason == "cancel":
            self.asyncio_task.uncancel()
            self.reason = ""
            return None
        if self.reason:
            raise asyncio.CancelledError from error
        if isinstance(error, BaseExceptionGroup):
            error = most_specific(error)
        if recorded.parked is not None and not isinstance(error, LeaseLost):
            recorded.report_differences()
            return recorded.status_record(*recorded.parked, "ask")
        match error:
            case Rejected():
                reason = recorded.message(str(error)) if str(error) else None
                return recorded.status_record(TaskState.REJECTED, reason)
            case LeaseLost() | StoreUnavailable():
                raise error
            case A2AError():
                return _failed(recorded, DELEGATION_FAILED if error.delegated else error.message)
            case asyncio.CancelledError() if self.asyncio_task.cancelling():
                raise error  # the event loop is ending
            case asyncio.CancelledError():
                logger.warning("task %s: the agent cancelled itself", recorded.task_id)
            case _:
                logger.error("task %s: the agent raised", recorded.task_id, exc_info=error)
        return _failed(recorded, FAILED)

    async def _absorb_interruption(self) -> None:
        """Handle an interruption of a function that returned all the same: its `CancelledError` must not reach the runner's code."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        self.asyncio_task.uncancel()
        reason, self.reason = self.reason, ""
        if reason in ("lost", "broken", "stuck"):
            broken = self.recorded.journal.broken if self.recorded is not None else None
            raise broken or LeaseLost(self.lease.task)

    # -- the end of the task -----------------------------------------------------------------------------------

    async def _end(
        self,
        state: TaskState,
        text: str = "",
        *,
        after: Sequence[Record] = (),
        metadata: dict[str, Any] = NOTHING,
    ) -> None:
        """Settle the task with a status that no function gave, also if more mail arrives. `after`: the output before it."""
        while not await self._settle(
            [*after, _status(self.snapshot, state, text, metadata)], self.snapshot.mail
        ):
            self.snapshot = await self.log.load(self.lease.task)

    async def _settle(self, records: list[Record], mail: int) -> bool:
        """Write the last records and give the lease back. False if there is mail after `mail`."""
        lease, node, pause = self.lease, self._node, 0.05
        while True:
            try:
                settled = await self.log.settle(lease, records, mail=mail)
                break
            except NewMail:
                return False
            except Unavailable:
                if node.stopped:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
        if records:
            node.bus.wake(self._topic, records)
            try:
                self.snapshot = settled or self._fold(records) or await self.log.load(lease.task)
            except (TaskNotFound, Unavailable):
                return True
            if node.observer is not None:
                node.observer.settled(self.snapshot)
            self.resolve(self.snapshot)
        return True

    def _fold(self, records: list[Record]) -> Snapshot | None:
        """The task after its last records; None if this run does not have all records before them."""
        known = self.snapshot if self.recorded is None else self.recorded.journal.snapshot
        return known.after(records).share() if records[0].seq == known.seq + 1 else None

    def resolve(self, snapshot: Snapshot | None) -> None:
        """Set the result of `settled`, unless it is set."""
        if not self.settled.done():
            self.settled.set_result(snapshot)


def most_specific(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The `LeaseLost`, `StoreUnavailable` or `Rejected` in a group of errors, else the group."""
    for kind in (LeaseLost, StoreUnavailable, Rejected):
        found: BaseException | None = group.subgroup(kind)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is not None:
            return found
    return group


def _failed(recorded: Recorded, text: str) -> Record:
    return recorded.status_record(TaskState.FAILED, recorded.message(text))


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
