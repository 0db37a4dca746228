"""One task while this node runs it: take turns until it settles.

Only the function itself is ever interrupted (`inside`). What its end means for the task depends on why: a cancel
settles the task, a stop gives it back, a lost lease leaves it to whoever has it now. Whatever else the function does
ends the turn: it returns, asks, rejects or raises.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from dragoman.engine.delegate import abandon, at_work
from dragoman.engine.journal import caught_up
from dragoman.engine.protocols import Lease, LeaseLost, NewMail, Program, topic
from dragoman.engine.records import Child, Record, Snapshot
from dragoman.engine.turn import Rejected, Turn
from dragoman.errors import A2AError, TaskNotFound, Unavailable
from dragoman.model.content import Message, Part, Role
from dragoman.model.ids import timestamp
from dragoman.model.task import StatusUpdate, TaskState, TaskStatus

if TYPE_CHECKING:
    from dragoman.engine.runner import Runner

logger = logging.getLogger("dragoman.runner")

FAILED = "The agent could not complete this task."
DELEGATION_FAILED = "An agent that this task needs could not do its part."
GAVE_UP = "The task was interrupted too often and was given up."


class Run:
    """A task and the lease to run it."""

    def __init__(
        self, runner: Runner, lease: Lease, snapshot: Snapshot, stored: Awaitable[object] | None = None
    ) -> None:
        self._runner = runner
        self.lease, self.snapshot, self._stored = lease, snapshot, stored
        self.log = runner.store.scope(lease.scope)
        self._topic = topic(lease.scope, lease.task)
        self.job: asyncio.Task[None]
        self.turn: Turn | None = None
        self.alarm: asyncio.TimerHandle | None = None
        """Rings when the function was told to stop and had its time to do so."""
        self.inside = False
        """The agent's function is running: the only time when it can be interrupted."""
        self.settled: asyncio.Future[Snapshot | None] = runner.loop.create_future()
        """The task as it came to rest; None if that is not for us to say. For the one who sent the message."""
        self.why = ""
        """Why it was interrupted: `cancel`, `stop`, `lost`, or `broken` (nothing more can be written)."""

    def interrupt(self, why: str) -> None:
        if self.inside and not self.why:
            self.why = why
            self.job.cancel()
            if why == "lost":
                self.tell(None)  # somebody else will say how it ends; the function may not even stop

    def lose(self) -> None:
        """Somebody else has the task: nothing more is written, and nothing begins that must happen once."""
        if self.turn is not None:
            self.turn.journal.dead = True
        self.interrupt("lost")

    async def work(self) -> None:
        """Run the task until it settles, or is not ours any more."""
        lease = self.lease
        try:
            with self._runner.bus.listen(self._topic, self._hear):
                settled = await self._turns()
            if not settled:
                await self._give_back(failed=False)
        except LeaseLost:
            logger.info("task %s is not ours any more", lease.task)
        except asyncio.CancelledError:
            if self.why not in ("stop", "lost", "broken"):
                raise
            if self.why == "broken" and self.turn is not None:
                logger.error("task %s could not be run", lease.task, exc_info=self.turn.journal.broken)
            if self.why != "lost":
                await self._give_back(failed=self.why == "broken")
        except Unavailable as error:
            logger.warning("task %s: %s", lease.task, error)
            self._runner.again(lease)
        except Exception:
            logger.exception("task %s could not be run", lease.task)
            await self._give_back(failed=True)
        finally:
            self.turn = None  # it holds us: together we would wait for the collector

    async def _give_back(self, *, failed: bool) -> None:
        try:
            await self._runner.store.release(self.lease, failed=failed)
        except Unavailable:
            self._runner.again(self.lease)  # it is still ours, and nobody else would run it

    def _hear(self, records: Sequence[Record]) -> None:
        if not records:
            self._runner.doubt(self)  # something was said, and we were not told what
        elif records[0].kind == "cancel":  # mail comes alone
            self._runner.cancel(self)

    async def _turns(self) -> bool:
        """Take turns. False: this node stops, and the task goes on elsewhere."""
        lease, runner, log = self.lease, self._runner, self.log
        resume = self.snapshot.running
        while not runner.stopping:
            snapshot = self.snapshot
            program = runner.programs(lease.scope)
            if snapshot.canceling is not None:
                if runner.peers is not None:
                    await abandon(runner.peers, snapshot)
                await self.end([], TaskState.CANCELED)
                return True
            waits_for: list[Child] = []
            if lease.attempt > 1 and runner.peers is not None:
                waits_for = await at_work(runner.peers, snapshot)
            if lease.attempt > runner.max_attempts and not waits_for:
                logger.error("task %s: given up after %d attempts", lease.task, lease.attempt - 1)
                await self.end([], TaskState.FAILED, GAVE_UP)
                return True
            if program is None:
                logger.error("task %s: there is no agent %r here", lease.task, lease.scope.agent)
                await self.end([], TaskState.FAILED, FAILED)
                return True
            if not resume and not snapshot.unread:
                if await self._settle([], snapshot.mail):
                    return True
                self.snapshot = await log.load(lease.task)
                continue
            turn = self.turn = Turn(
                log,
                runner.bus,
                lease,
                snapshot,
                self.interrupt,
                runner.loop,
                resume=resume,
                peers=runner.peers,
                stored=self._stored,
                confirmed=runner.confirmed,
            )
            for child in waits_for:  # as long as they work, it is not this task that does not get on
                turn.journal.put(Record("child", child))
            final = await self._turn(program, turn)
            records = await turn.rest()
            self.snapshot = turn.snapshot
            if turn.journal.dead:
                raise turn.journal.broken or LeaseLost(lease.task)
            if final is None:
                await self.end(records, TaskState.CANCELED)
                return True
            if final.kind == "ask" and turn.question is not None:
                records.append(Record("question", turn.question))  # which one the `ask` after it is
            if self.snapshot.mail <= turn.read and await self._settle([*records, final], turn.read):
                return True
            if records:
                await turn.journal.append(records)
            resume = final.kind == "ask"  # the mail may be the answer; anything else begins a turn of its own
            self.snapshot = await log.load(lease.task)
        return False

    async def _turn(self, program: Program, turn: Turn) -> Record | None:
        """Run the function once. Returns the record that ends the turn, or None if the task is being canceled."""
        final = await self._outcome(program, turn)
        try:
            if final is not None:
                final.encode()
        except Exception:
            logger.exception("task %s: how it ended cannot be written down", turn.task_id)
            final = _failed(turn, FAILED)
        return final

    async def _outcome(self, program: Program, turn: Turn) -> Record | None:
        observer = self._runner.observer
        try:
            self.inside = True
            if observer is None:
                await program.work(turn)
            else:
                with observer.turn(turn):
                    await program.work(turn)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            return self._ended(turn, error)
        finally:
            self.inside = False
        if self.why:
            await self._absorb()
        turn.compare()
        if turn.parked is not None:
            logger.warning("task %s: the agent asked and did not wait for the answer", turn.task_id)
            return turn._status_record(*turn.parked, "ask")
        if turn.answer_message is not None and not turn.shown:
            return Record("reply", turn.answer_message)
        return turn._status_record(*turn.final)

    def _ended(self, turn: Turn, error: BaseException) -> Record | None:
        """What it means that the function did not return."""
        if self.why == "cancel":
            self.job.uncancel()
            self.why = ""
            return None
        if self.why:
            raise asyncio.CancelledError from error
        if isinstance(error, BaseExceptionGroup):
            error = _gist(error)
        if turn.parked is not None and not isinstance(error, LeaseLost):
            turn.compare()
            return turn._status_record(*turn.parked, "ask")
        match error:
            case Rejected():
                said = turn._agent_message(str(error)) if str(error) else None
                return turn._status_record(TaskState.REJECTED, said, {})
            case LeaseLost():
                raise error
            case A2AError():
                return _failed(turn, DELEGATION_FAILED if error.delegated else error.message)
            case asyncio.CancelledError() if self.job.cancelling():
                raise error  # not by us: the loop itself is ending
            case asyncio.CancelledError():
                logger.warning("task %s: the agent cancelled itself", turn.task_id)
            case _:
                logger.error("task %s: the agent raised", turn.task_id, exc_info=error)
        return _failed(turn, FAILED)

    async def _absorb(self) -> None:
        """The function returned before, or although, it was interrupted. The interruption shall not hit us instead."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        self.job.uncancel()
        why, self.why = self.why, ""
        if why in ("lost", "broken"):
            raise LeaseLost(self.lease.task)

    async def end(self, records: list[Record], state: TaskState, text: str = "") -> None:
        """Settle whatever mail there is."""
        while not await self._settle([*records, _status(self.snapshot, state, text)], self.snapshot.mail):
            self.snapshot = await self.log.load(self.lease.task)

    async def _settle(self, records: list[Record], mail: int) -> bool:
        """Write the last of it and give the lease back. False if there is mail after `mail`."""
        lease, runner, pause = self.lease, self._runner, 0.05
        while True:
            try:
                await self.log.settle(lease, records, mail=mail)
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
                self.snapshot = await caught_up(self.log, self.snapshot, records)
            except (TaskNotFound, Unavailable):
                return True
            if runner.observer is not None:
                runner.observer.settled(self.snapshot)
            self.tell(self.snapshot)
        return True

    def tell(self, snapshot: Snapshot | None) -> None:
        """Say how the task came to rest, to whoever waits for that."""
        if not self.settled.done():
            self.settled.set_result(snapshot)


def _gist(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a group of errors comes to: the refusal among them, else the group."""
    for kind in (LeaseLost, Rejected):
        found: BaseException | None = group.subgroup(kind)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is not None:
            return found
    return group


def _failed(turn: Turn, text: str) -> Record:
    return turn._status_record(TaskState.FAILED, turn._agent_message(text), {})


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
