"""The engine: the operations of the protocol on a log.

A message is checked, stored, and run on this node if there is room (`_accept_message`). Every answer is read from the log: a
blocking send reads to the end of the turn, a stream yields the records as they come, `GetTask` is a fold. The engine uses
only the model, and has no code for versions or bindings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Unpack

from msgspec.structs import replace

from dragoman.engine.follow import Reader, Readers
from dragoman.engine.program import Program
from dragoman.engine.protocols import (
    MAIL_TOPIC,
    Bus,
    Delivered,
    Head,
    Log,
    Peers,
    Push,
    Store,
    TaskExists,
    WaitForMemory,
    snapshot_at,
)
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.push_operations import PushRequest, for_task, perform_on_push_configs
from dragoman.engine.records import PUBLIC, Cancel, Mail, Record, topic
from dragoman.engine.retention import purge_old
from dragoman.engine.run import Run
from dragoman.engine.runner import Runner, RunnerOptions
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import (
    A2AError,
    ExtendedCardNotConfigured,
    ExtensionRequired,
    InvalidParams,
    PushNotSupported,
    StreamingNotSupported,
    TaskClosed,
    TaskNotCancelable,
    TaskNotFound,
    Unavailable,
    UnsupportedOperation,
)
from dragoman.model.byte_budget import HOLD_SECONDS, ByteBudget
from dragoman.model.card import AgentCard
from dragoman.model.content import Message
from dragoman.model.ids import new_id, timestamp
from dragoman.model.ops import (
    Batch,
    Call,
    CancelTask,
    CreatePushConfig,
    DeletePushConfig,
    GetExtendedCard,
    GetOrigin,
    GetPushConfig,
    GetTask,
    ListPushConfigs,
    ListTasks,
    PushConfig,
    PushConfigPage,
    Request,
    Scope,
    SendMessage,
    Service,
    StreamResponse,
    SubscribeToTask,
    TaskPage,
    ends_stream,
    trim_history,
)
from dragoman.model.task import Task, TaskState

logger = logging.getLogger("dragoman.engine")

PAGE_TASKS = 50
"""Tasks on a page of a list without a page size."""
LARGE_TASKS_BYTES, LARGE_TASKS_SECONDS = 64 << 20, 60.0
"""Bytes of large tasks in memory for answers at a time, and how long a task counts whose reader is slow."""


class Engine:
    """A `Service` for every agent of this process, on one store. `programs` finds the agent of a scope; None if there is none."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        programs: Callable[[Scope], Program | None],
        *,
        peers: Peers | None = None,
        push: Push | None = None,
        **runner: Unpack[RunnerOptions],
    ) -> None:
        self._store, self._bus, self._programs = store, bus, programs
        self._peers, self._push = peers, push
        self.runner = Runner(store, bus, programs, peers=self, **runner)
        self.readers = Readers(store, bus)
        self._large = ByteBudget(LARGE_TASKS_BYTES, hold=LARGE_TASKS_SECONDS)
        self._background: list[asyncio.Task[None]] = []

    async def start(self, *, retain: float | None = None, retain_unfinished: float | None = None) -> None:
        """Open the store, and continue the tasks that were interrupted.

        `retain`: purge finished tasks after this number of seconds. `retain_unfinished`: purge unfinished tasks that did not
        change for this number of seconds and that no node runs.
        """
        await self._store.open()
        await self._bus.open()
        await self.runner.start()
        if self._push is not None:
            await self._push.start()
        self._background = [
            asyncio.create_task(self.readers.poll(), name="dragoman-readers"),
            asyncio.create_task(purge_old(self._store, retain, retain_unfinished), name="dragoman-retention"),
        ]

    def waits_for(self, drain: float) -> str:
        """A sentence about the tasks for which `stop(drain)` would wait; empty if there are none."""
        if not (tasks := self.runner.running):
            return ""
        what = "1 task runs and has" if tasks == 1 else f"{tasks} tasks run and have"
        after = "goes on at the next start" if self._store.persistent else "is lost: its store is in memory"
        return f"{what} {drain:g} s to finish; what is not finished then {after}"

    async def drain(self, seconds: float) -> None:
        """Accept no more work, and give running tasks `seconds` to finish. The store stays open until `stop`."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.runner.stop(seconds)

    async def stop(self, drain: float = 10.0) -> None:
        if not self.runner.stopped:
            await self.drain(drain)
        self.readers.close()
        if self._push is not None:
            await self._push.stop(drain)
        if self._peers is not None:
            await self._peers.close()
        await self._bus.close()
        await self._store.close()

    # -- Service -----------------------------------------------------------------------------------------------

    async def call(self, call: Call, request: Request) -> Any:
        if (program := self._programs(call.scope)) is None:
            raise TaskNotFound("", message="there is no such agent")
        if program.authorize is not None and not isinstance(request, GetOrigin):
            await program.authorize(call, request)
        match request:
            case SendMessage():
                return await self._send(program, call, request)
            case GetTask():
                return await self._get(call, request)
            case ListTasks():
                return await self._list(call, request)
            case CancelTask():
                return await self.cancel(call, request)
            case GetOrigin():
                return await self._origin(call, request)
            case CreatePushConfig() | GetPushConfig() | ListPushConfigs() | DeletePushConfig():
                return await self._perform_on_push_configs(program, call, request)
            case GetExtendedCard():
                return await self._extended_card(program, call)
        raise UnsupportedOperation(f"{type(request).__name__} is not an operation of this agent")

    def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        if isinstance(request, SendMessage):
            return self._send_stream(call, request)
        return self._subscribe(call, request)

    async def _find_program(
        self, call: Call, request: SendMessage | SubscribeToTask, *, streams: bool = True
    ) -> Program:
        if (program := self._programs(call.scope)) is None:
            raise TaskNotFound("", message="there is no such agent")
        if program.authorize is not None:
            await program.authorize(call, request)
        if streams and not program.card.capabilities.streaming:
            raise StreamingNotSupported("this operation is not supported: the agent does not stream")
        return program

    # -- sending -----------------------------------------------------------------------------------------------

    async def deliver(self, call: Call, request: SendMessage) -> Delivered:
        """Store a message and do not wait for its answer. Raises as `call` does."""
        program = await self._find_program(call, request, streams=False)
        delivered, _ = await self._accept_message(program, call, request)
        return delivered

    async def _send(self, program: Program, call: Call, request: SendMessage) -> Task | Message:
        length = request.configuration.history_length
        blocking = not request.configuration.return_immediately
        delivered, run = await self._accept_message(program, call, request, blocking=blocking)
        snapshot = delivered.snapshot
        if not blocking:
            if snapshot.hidden:
                snapshot = await self._wait_for_decision(delivered)
            return snapshot.reply or trim_history(snapshot.task, length)
        if run is not None and (settled := await run.settled) is not None:
            snapshot = settled
        elif delivered.stored is not None:
            await asyncio.shield(delivered.stored)
        if not _is_answered(snapshot, delivered.seq):  # another node runs the task, or another message came
            with Reader(self.readers, snapshot, snapshot.seq, stale=True) as reader:
                snapshot = await _read_until(reader, snapshot, lambda task: _is_answered(task, delivered.seq))
        return snapshot.reply or trim_history(snapshot.task, length)

    async def _send_stream(self, call: Call, request: SendMessage) -> AsyncIterator[Batch]:
        program = await self._find_program(call, request)
        length = request.configuration.history_length
        delivered, _ = await self._accept_message(program, call, request)
        snapshot, resumed = delivered.snapshot, False
        if hidden := snapshot.hidden:
            snapshot = await self._wait_for_decision(delivered)
            if snapshot.reply is not None:
                yield (StreamResponse(snapshot.reply, snapshot.seq),)
                return
        if hidden or delivered.duplicate:  # a task after all, or a repeated send: there may be events already
            snapshot, resumed = await self._find_start(call, delivered, snapshot)
            if resumed and (snapshot.terminal or snapshot.state is TaskState.INPUT_REQUIRED):
                return  # the sender has the last event, too
        stale = hidden or delivered.duplicate or delivered.seq > 1
        with Reader(self.readers, snapshot, snapshot.seq, stale=stale) as reader:
            if not resumed:
                ended = snapshot.status.state.settled
                yield (StreamResponse(trim_history(snapshot.task, length), snapshot.seq),)
                if ended:
                    return
            ended = False
            while not ended:
                batch, ended = _select_public(await reader.next(), question_ends=True)
                if batch:
                    yield batch

    async def _find_start(
        self, call: Call, delivered: Delivered, snapshot: Snapshot
    ) -> tuple[Snapshot, bool]:
        """Where the stream of a send begins: the task at its message. If the sender of a repeated message has later events: the
        task at the last of them, and True."""
        start, resumed = delivered.seq, False
        if delivered.duplicate and call.after is not None and start <= call.after <= snapshot.seq:
            start, resumed = call.after, True
        return await snapshot_at(self._store.scope(call.scope), snapshot, start), resumed

    async def _wait_for_decision(self, delivered: Delivered) -> Snapshot:
        """Wait until the answer is known to be a Message, or peers see a task."""
        snapshot = delivered.snapshot
        with Reader(self.readers, snapshot, snapshot.seq, stale=delivered.duplicate) as reader:
            return await _read_until(reader, snapshot, lambda task: not task.hidden or task.reply is not None)

    # -- accepting messages ------------------------------------------------------------------------------------

    async def _accept_message(
        self, program: Program, call: Call, request: SendMessage, *, blocking: bool = False
    ) -> tuple[Delivered, Run | None]:
        """Check a message, store it, and start a run for it if there is room here.

        If the sender waits for the end of the turn (`blocking`), the message may not be on disk yet (`Delivered.stored`).
        """
        for extension in program.card.capabilities.extensions:
            if extension.required and extension.uri not in call.extensions:
                raise ExtensionRequired(f"this agent needs the extension {extension.uri}")
        webhook = None
        if (config := request.configuration.task_push_notification_config) is not None:
            webhook = await self._require_push(program).check_config(call, config)
        node = self.runner.reserve(inside=call.inside)
        delivered: Delivered | None = None
        try:
            if request.message.task_id:
                delivered = await self._continue_or_create(program, call, request, node, webhook)
            else:
                reply = program.check_message(request, call.principal)
                delivered = await self._create(
                    call, request, new_id(), node, webhook, reply=reply, blocking=blocking
                )
        except asyncio.CancelledError:
            self._wake_runners_soon()
            raise
        finally:
            run = self.runner.begin_reserved(node, delivered)
        if not delivered.duplicate:
            if run is None:
                self._bus.wake(MAIL_TOPIC)
            if delivered.snapshot.seq > 1:
                self._bus.wake(topic(call.scope, delivered.snapshot.task_id))
        return delivered, run

    def _wake_runners_soon(self) -> None:
        """Wake runners after a caller left while its message was stored: the store releases the lease, and a node claims the task."""
        asyncio.get_running_loop().call_later(0.1, self._bus.wake, MAIL_TOPIC)

    async def _continue_or_create(
        self, program: Program, call: Call, request: SendMessage, node: str, webhook: StoredPushConfig | None
    ) -> Delivered:
        """Deliver to an existing task, or to a new one if the caller chooses the ids of its tasks."""
        log = self._store.scope(call.scope)
        try:
            return await self._continue(program, log, call, request, node, webhook)
        except TaskNotFound:
            if not call.names_tasks:
                raise
        task, fresh = request.message.task_id, replace(request, message=replace(request.message, task_id=""))
        # The result is not used: a caller that chooses an id gets a task, not a bare Message.
        program.check_message(fresh, call.principal)
        try:
            return await self._create(call, fresh, task, node, webhook)
        except TaskExists:  # another message created the task meanwhile
            return await self._continue(program, log, call, request, node, webhook)

    async def _create(
        self,
        call: Call,
        request: SendMessage,
        task: str,
        node: str,
        webhook: StoredPushConfig | None,
        *,
        reply: bool = False,
        blocking: bool = False,
    ) -> Delivered:
        log = self._store.scope(call.scope)
        context = request.message.context_id or new_id()
        mail = _make_mail(call, request, task, context, reply=reply)
        if request.message.context_id:
            mail = replace(mail, names_context=True)
        webhook = for_task(webhook, task) if webhook else None
        if blocking and node and not call.idempotency_key:
            begun = log.begin(task, context, mail, node=node, webhook=webhook)
            if begun is not None:
                return begun
        return await log.create(task, context, mail, dedupe=call.idempotency_key, node=node, webhook=webhook)

    async def _continue(
        self,
        program: Program,
        log: Log,
        call: Call,
        request: SendMessage,
        node: str,
        webhook: StoredPushConfig | None,
    ) -> Delivered:
        task, context = request.message.task_id, request.message.context_id
        key = call.idempotency_key
        if key and (seen := await log.find_delivered(key)):
            return seen
        snapshot = await log.load(task)
        if key and (seen := await log.find_delivered(key)):  # the same message created the task in between
            return seen
        if snapshot.hidden:
            raise TaskNotFound(task)
        if context and context != snapshot.context_id:
            raise InvalidParams(
                f"task {task!r} does not belong to context {context!r}",
                fields=(("message.contextId", "differs from the context of the task"),),
            )
        program.check_message(request, call.principal, snapshot.mails[0][1])
        return await log.deliver(
            task,
            _make_mail(call, request, task, snapshot.context_id),
            dedupe=key,
            node=node,
            webhook=for_task(webhook, task) if webhook else None,
        )

    # -- reading -----------------------------------------------------------------------------------------------

    async def _load_visible(
        self, call: Call, task: str, wait_for_memory: WaitForMemory | None = None
    ) -> Snapshot:
        """A task that peers can see. Raises `TaskNotFound`."""
        snapshot = await self._store.scope(call.scope).load(task, wait_for_memory=wait_for_memory)
        if snapshot.hidden:
            raise TaskNotFound(task)
        return snapshot

    async def _head(self, call: Call, task: str) -> Head:
        """The head of a task that peers can see. Raises `TaskNotFound`."""
        head = await self._store.scope(call.scope).head(task)
        if head.hidden:
            raise TaskNotFound(task)
        return head

    async def _get(self, call: Call, request: GetTask) -> Task:
        snapshot = await self._store.scope(call.scope).load(request.id, wait_for_memory=self._large.hold)
        if snapshot.hidden:
            raise TaskNotFound(request.id)
        return trim_history(snapshot.task, request.history_length)

    async def _list(self, call: Call, request: ListTasks) -> TaskPage:
        request = request.check()
        size, length = request.page_size or PAGE_TASKS, request.history_length
        found = await self._store.scope(call.scope).find(request, limit=size)
        tasks = [trim_history(snapshot.task, length) for snapshot in found.snapshots]
        if not request.include_artifacts:
            tasks = [replace(task, artifacts=()) for task in tasks]
        return TaskPage(
            tasks=tuple(tasks), next_page_token=found.next, page_size=size, total_size=found.total
        )

    async def _subscribe(self, call: Call, request: SubscribeToTask) -> AsyncIterator[Batch]:
        await self._find_program(call, request)
        head = await self._head(call, request.id)
        if call.after is not None and call.after <= head.seq:  # the reader continues: only what it missed
            after, ended = call.after, head.terminal and call.after == head.seq
            first: Batch = ()
        else:
            if head.terminal and not call.reads_finished:
                raise UnsupportedOperation(
                    f"task {request.id!r} is {head.state.word}: nothing more will come"
                )
            # Not for the whole stream, which may go on for hours.
            wait_for_memory = partial(self._large.hold, seconds=HOLD_SECONDS)
            snapshot = await self._load_visible(call, request.id, wait_for_memory)
            after, ended = snapshot.seq, snapshot.terminal
            first = (StreamResponse(snapshot.task, after),)
            head = replace(head, seq=after)
        if ended and not first:
            return
        with Reader(self.readers, head, after) as reader:
            if first:
                yield first
                first = ()  # it may be large, and the stream may be long
            while not ended:
                batch, ended = _select_public(await reader.next(), question_ends=False)
                if batch:
                    yield batch

    async def replay(
        self, call: Call, request: SubscribeToTask
    ) -> AsyncIterator[tuple[Head, Sequence[Record]]]:
        """The records of a task, up to its end: for services that show more of a log than A2A's events.

        They begin after `call.after`, or with the first one. Without `call.after`, a finished task has none. Raises as `stream`
        does.
        """
        await self._find_program(call, request)
        head = await self._head(call, request.id)
        known = call.after is not None and call.after <= head.seq
        after = call.after if known and call.after is not None else 0
        if head.terminal and (not known or after == head.seq):
            return
        with Reader(self.readers, head, after) as reader:
            ended = False
            while not ended:
                records = await reader.next()
                ended = any(record.terminal for record in records)
                yield head, records

    def _require_push(self, program: Program) -> Push:
        """The push sender, if this agent has webhooks. Raises `PushNotSupported`."""
        if self._push is None or not program.card.capabilities.push_notifications:
            raise PushNotSupported("push notifications are not supported by this agent")
        return self._push

    async def _perform_on_push_configs(
        self, program: Program, call: Call, request: PushRequest
    ) -> PushConfig | PushConfigPage | None:
        push = self._require_push(program)
        task = request.config.task_id if isinstance(request, CreatePushConfig) else request.task_id
        await self._head(call, task)
        return await perform_on_push_configs(push, self._store.push_configs, call, request)

    async def _extended_card(self, program: Program, call: Call) -> AgentCard:
        if not program.card.capabilities.extended_agent_card:
            raise UnsupportedOperation("this operation is not supported: the agent has no extended card")
        # The extended card is for authenticated callers only.
        card = await program.extended_card(call.principal) if call.principal.id else None
        if card is None:
            raise ExtendedCardNotConfigured("no extended card is configured")
        return card

    async def _origin(self, call: Call, request: GetOrigin) -> str:
        try:
            head = await self._head(call, request.id)
            (first,) = await self._store.scope(call.scope).read(head.task_id, limit=1)
        except (A2AError, ValueError):
            return ""
        return first.body.origin if isinstance(first.body, Mail) else ""

    # -- cancel ------------------------------------------------------------------------------------------------

    async def cancel(self, call: Call, request: CancelTask) -> Task:
        """Cancel a task. Does not call `Program.authorize`: operators use this, too."""
        await self._head(call, request.id)
        mail = Cancel(metadata=request.metadata, principal=call.principal.id)
        try:
            delivered = await self._store.scope(call.scope).deliver(
                request.id, mail, node="" if self.runner.stopping else self.runner.node
            )
        except asyncio.CancelledError:
            self._wake_runners_soon()
            raise
        except TaskClosed:
            snapshot = await self._load_visible(call, request.id)
            if snapshot.state is TaskState.CANCELED and not call.strict_cancel:
                return snapshot.task
            raise TaskNotCancelable(f"task {request.id!r} is {snapshot.state.word} already") from None
        snapshot = delivered.snapshot
        if delivered.lease is not None:
            self.runner.begin(delivered.lease, snapshot)
        else:
            self._bus.wake(MAIL_TOPIC)
        if not snapshot.terminal:
            self._bus.wake(topic(call.scope, request.id), [Record("cancel", mail, delivered.seq)])
            with Reader(self.readers, snapshot, snapshot.seq, stale=True) as reader:
                snapshot = await _read_until(reader, snapshot, lambda task: task.terminal)
        return snapshot.task

    # -- agents that call agents -------------------------------------------------------------------------------

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        """The agent with this name: one of this process, or a remote one."""
        sibling = Scope(scope.tenant, name, scope.owner)
        if (program := self._programs(sibling)) is not None and await program.exists():
            return self, sibling
        if self._peers is None:
            raise Unavailable(f"there is no agent {name[:80]!r} here")
        return await self._peers.find(name, scope)

    async def close(self) -> None:
        """For `Peers`. `stop` closes the engine."""


async def _read_until(reader: Reader, snapshot: Snapshot, done: Callable[[Snapshot], bool]) -> Snapshot:
    """Read until `done` is true for the task, and return it as it is then."""
    while not done(snapshot):
        snapshot = snapshot.after(await reader.next())
    return snapshot


def _select_public(records: Sequence[Record], *, question_ends: bool) -> tuple[list[StreamResponse], bool]:
    """The records that peers see, up to the one that ends the stream; True if that one is among them.

    A stream ends with its task. The stream of a send also ends when the task asks for input (`question_ends`). It goes on when
    the task waits for an authorisation, which the caller may give in another way.
    """
    batch: list[StreamResponse] = []
    pauses = (TaskState.INPUT_REQUIRED,) if question_ends else ()
    for record in records:
        if record.kind == "artifact":
            batch.append(record)
        elif record.kind in PUBLIC:
            batch.append(record)
            if ends_stream(record.event, pauses):
                return batch, True
    return batch, False


def _is_answered(snapshot: Snapshot, seq: int) -> bool:
    """True if the message at `seq` was answered, and no later message waits for an answer."""
    return snapshot.terminal or (snapshot.settled and snapshot.mail <= max(snapshot.read, seq))


def _make_mail(call: Call, request: SendMessage, task: str, context: str, *, reply: bool = False) -> Mail:
    principal = call.principal
    return Mail(
        message=replace(request.message, task_id=task, context_id=context),
        metadata=request.metadata,
        accepted_output_modes=request.configuration.accepted_output_modes,
        extensions=call.extensions,
        principal=principal.id,
        scopes=tuple(sorted(principal.scopes)) if principal.scopes else (),
        generation=principal.generation,
        trace=call.trace,
        depth=call.depth,
        deadline=call.deadline,
        origin=call.dialect,
        reply=reply,
        at=timestamp(),
        answers=call.answers,
    )
