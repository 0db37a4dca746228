"""The engine: the operations of the protocol on a log.

A message is checked, stored, and, if there is room, run on this node (`_accept_message`). Every answer is read from the
log: a blocking send reads to the end of the turn, a stream yields the records as they come, `GetTask` is a fold. The
engine knows the model and nothing of versions or bindings.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2s
from typing import Any, Generic, TypeVar, Unpack

from msgspec.structs import replace

from dragoman.engine.follow import Reader, Readers
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
)
from dragoman.engine.push_configs import StoredPushConfig, now
from dragoman.engine.records import PIECE_BYTES, PUBLIC, Cancel, Mail, Record, Snapshot, topic, trimmed
from dragoman.engine.runner import Program, Run, Runner, RunnerOptions
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
    keep_going,
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
)
from dragoman.model.task import Task, TaskState

logger = logging.getLogger("dragoman.engine")

PAGE_TASKS, MAX_PAGE_TASKS = 50, 100
LARGE_TASKS_BYTES, LARGE_TASKS_SECONDS = 64 << 20, 60.0
"""Bytes of large tasks that are read and answered with at a time, and how long one counts whose reader is slow."""


P = TypeVar("P", bound=Program)


class ProgramsById(Generic[P]):
    """The programs of one application, by the agent in the scope of their tasks."""

    def __init__(self, programs: Mapping[str, P]) -> None:
        self._programs = programs

    def find(self, scope: Scope) -> P | None:
        return self._programs.get(scope.agent)


PushRequest = CreatePushConfig | GetPushConfig | ListPushConfigs | DeletePushConfig


class Engine:
    """A `Service` for every agent of this process, on one store. `programs` says which agent a scope's tasks belong to."""

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
        self._remote, self._push = peers, push
        self.runner = Runner(store, bus, programs, peers=self, **runner)
        self.readers = Readers(store, bus)
        self._large = ByteBudget(LARGE_TASKS_BYTES, hold=LARGE_TASKS_SECONDS)
        self._background: list[asyncio.Task[None]] = []

    async def start(self, *, retain: float | None = None, retain_unfinished: float | None = None) -> None:
        """Open the store, take over what was interrupted.

        `retain`: forget finished tasks after so many seconds; `retain_unfinished`: and those that are not, if nothing
        has happened to them for so long and no node runs them.
        """
        await self._store.open()
        await self._bus.open()
        await self.runner.start()
        if self._push is not None:
            await self._push.start()
        self._background = [
            asyncio.create_task(self.readers.poll(), name="dragoman-readers"),
            asyncio.create_task(self._purge_old(retain, retain_unfinished), name="dragoman-retention"),
        ]

    def waits_for(self, drain: float) -> str:
        """What `stop(drain)` would wait for, in a sentence; empty if for nothing."""
        if not (tasks := self.runner.running):
            return ""
        what = "1 task runs and has" if tasks == 1 else f"{tasks} tasks run and have"
        after = "goes on at the next start" if self._store.persistent else "is lost: its store is in memory"
        return f"{what} {drain:g} s to finish; what is not finished then {after}"

    async def stop(self, drain: float = 10.0) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.runner.stop(drain)
        self.readers.close()
        if self._push is not None:
            await self._push.stop(drain)
        if self._remote is not None:
            await self._remote.close()
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
                return await self._cancel(call, request)
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

    async def _find_streaming_program(self, call: Call, request: SendMessage | SubscribeToTask) -> Program:
        if (program := self._programs(call.scope)) is None:
            raise TaskNotFound("", message="there is no such agent")
        if program.authorize is not None:
            await program.authorize(call, request)
        if not program.card.capabilities.streaming:
            raise StreamingNotSupported("this operation is not supported: the agent does not stream")
        return program

    # -- sending -----------------------------------------------------------------------------------------------

    async def deliver(self, call: Call, request: SendMessage) -> Delivered:
        """Store a message and do not wait for its answer. Raises as `call` does."""
        if (program := self._programs(call.scope)) is None:
            raise TaskNotFound("", message="there is no such agent")
        if program.authorize is not None:
            await program.authorize(call, request)
        delivered, _ = await self._accept_message(program, call, request)
        return delivered

    async def _send(self, program: Program, call: Call, request: SendMessage) -> Task | Message:
        length = request.configuration.history_length
        now = request.configuration.return_immediately
        delivered, run = await self._accept_message(program, call, request, blocking=not now)
        snapshot = delivered.snapshot
        if now:
            if snapshot.hidden:
                snapshot = await self._wait_for_decision(delivered)
            return snapshot.reply or trimmed(snapshot.task, length)
        if run is not None and (settled := await run.settled) is not None:
            snapshot = settled
        elif delivered.stored is not None:
            await asyncio.shield(delivered.stored)
        if not _over(snapshot, delivered.seq):  # another node runs it, or another message came
            with Reader(self.readers, snapshot, snapshot.seq, look=True) as reader:
                snapshot = await _until(reader, snapshot, lambda now: _over(now, delivered.seq))
        return snapshot.reply or trimmed(snapshot.task, length)

    async def _send_stream(self, call: Call, request: SendMessage) -> AsyncIterator[Batch]:
        program = await self._find_streaming_program(call, request)
        length = request.configuration.history_length
        delivered, _ = await self._accept_message(program, call, request)
        snapshot = delivered.snapshot
        if hidden := snapshot.hidden:
            snapshot = await self._wait_for_decision(delivered)
            if snapshot.reply is not None:
                yield (StreamResponse(snapshot.reply, snapshot.seq),)
                return
        resumed = delivered.duplicate and call.after is not None
        repeated = delivered.duplicate and not resumed
        if hidden or repeated:  # a task after all, or a repeated send: the stream begins at the message
            snapshot = await self._as_of(call, snapshot, delivered.seq)
        look = hidden or delivered.duplicate or delivered.seq > 1
        after = call.after if resumed and call.after is not None else snapshot.seq
        with Reader(self.readers, snapshot, after, look=look) as reader:
            if not resumed:
                ended = snapshot.status.state.over
                yield (StreamResponse(trimmed(snapshot.task, length), after),)
                if ended:
                    return
            ended = False
            while not ended:
                batch, ended = _public(await reader.next(), question_ends=True)
                if batch:
                    yield batch

    async def _wait_for_decision(self, delivered: Delivered) -> Snapshot:
        """Wait until it is known whether the answer is a Message, or peers see a task."""
        snapshot = delivered.snapshot
        with Reader(self.readers, snapshot, snapshot.seq, look=delivered.duplicate) as reader:
            return await _until(reader, snapshot, lambda now: not now.hidden or now.reply is not None)

    async def _as_of(self, call: Call, snapshot: Snapshot, seq: int) -> Snapshot:
        """A task as it was at `seq`."""
        then = Snapshot(snapshot.scope, snapshot.task_id, snapshot.context_id)
        log = self._store.scope(call.scope)
        while then.seq < seq:
            records = await log.read(
                snapshot.task_id, after=then.seq, limit=seq - then.seq, max_bytes=PIECE_BYTES
            )
            if not records:
                raise TaskNotFound(snapshot.task_id)  # purged meanwhile
            then = then.after(records)
        return then

    # -- accepting messages ------------------------------------------------------------------------------------

    async def _accept_message(
        self, program: Program, call: Call, request: SendMessage, *, blocking: bool = False
    ) -> tuple[Delivered, Run | None]:
        """Check a message, store it, and start a run for it if there is room here.

        If it is `blocking`, its sender waits for the end of the turn, and it may not be on disk yet (`Delivered.stored`).
        """
        for extension in program.card.capabilities.extensions:
            if extension.required and extension.uri not in call.extensions:
                raise ExtensionRequired(f"this agent needs the extension {extension.uri}")
        webhook = None
        if (config := request.configuration.task_push_notification_config) is not None:
            webhook = await self._push_for(program).check_config(call, config)
        node = self.runner.reserve(inside=call.depth > 0)
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
        """A caller left while its message was stored. The store takes back the lease it gave us, and some node claims it."""
        asyncio.get_running_loop().call_later(0.1, self._bus.wake, MAIL_TOPIC)

    async def _continue_or_create(
        self, program: Program, call: Call, request: SendMessage, node: str, webhook: StoredPushConfig | None
    ) -> Delivered:
        """Deliver to a task that exists; or to a new one, if this caller chooses the ids of its tasks."""
        log = self._store.scope(call.scope)
        try:
            return await self._continue(program, log, call, request, node, webhook)
        except TaskNotFound:
            if not call.names_tasks:
                raise
        task, fresh = request.message.task_id, replace(request, message=replace(request.message, task_id=""))
        program.check_message(
            fresh, call.principal
        )  # who names a task wants to find it again: its answer is a task
        try:
            return await self._create(call, fresh, task, node, webhook)
        except TaskExists:  # somebody was faster with the same id
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
        mail = _mail(call, request, task, context, reply=reply)
        if request.message.context_id:
            mail = replace(mail, names_context=True)
        webhook = _for_task(webhook, task) if webhook else None
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
        if key and (seen := await log.seen(key)):
            return seen
        snapshot = await log.load(task)
        if key and (seen := await log.seen(key)):  # the same message created the task in between
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
            _mail(call, request, task, snapshot.context_id),
            dedupe=key,
            node=node,
            webhook=_for_task(webhook, task) if webhook else None,
        )

    # -- reading -----------------------------------------------------------------------------------------------

    async def _visible(self, call: Call, task: str, wait_for_memory: WaitForMemory | None = None) -> Snapshot:
        snapshot = await self._store.scope(call.scope).load(task, wait_for_memory=wait_for_memory)
        if snapshot.hidden:
            raise TaskNotFound(task)
        return snapshot

    async def _head(self, call: Call, task: str) -> Head:
        """`_visible`, without reading the log."""
        head = await self._store.scope(call.scope).head(task)
        if head.hidden:
            raise TaskNotFound(task)
        return head

    async def _get(self, call: Call, request: GetTask) -> Task:
        snapshot = await self._store.scope(call.scope).load(request.id, wait_for_memory=self._large.hold)
        if snapshot.hidden:
            raise TaskNotFound(request.id)
        return trimmed(snapshot.task, request.history_length)

    async def _list(self, call: Call, request: ListTasks) -> TaskPage:
        size = PAGE_TASKS if request.page_size is None else request.page_size
        if not 1 <= size <= MAX_PAGE_TASKS:
            raise InvalidParams(
                f"pageSize must be between 1 and {MAX_PAGE_TASKS}", fields=(("pageSize", f"is {size}"),)
            )
        length = request.history_length
        found = await self._store.scope(call.scope).find(request, limit=size)
        tasks = [trimmed(snapshot.task, length) for snapshot in found.snapshots]
        if not request.include_artifacts:
            tasks = [replace(task, artifacts=()) for task in tasks]
        return TaskPage(
            tasks=tuple(tasks), next_page_token=found.next, page_size=size, total_size=found.total
        )

    async def _subscribe(self, call: Call, request: SubscribeToTask) -> AsyncIterator[Batch]:
        await self._find_streaming_program(call, request)
        head = await self._head(call, request.id)
        if call.after is not None and call.after <= head.seq:  # a reader that comes back: only what it missed
            after, ended = call.after, head.terminal and call.after == head.seq
            first: Batch = ()
        else:
            if head.terminal and not call.reads_finished:
                raise UnsupportedOperation(
                    f"task {request.id!r} is {head.state.word}: nothing more will come"
                )
            wait_for_memory = partial(
                self._large.hold, seconds=HOLD_SECONDS
            )  # the stream may go on for hours
            snapshot = await self._visible(call, request.id, wait_for_memory=wait_for_memory)
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
                batch, ended = _public(await reader.next(), question_ends=False)
                if batch:
                    yield batch

    async def replay(
        self, call: Call, request: SubscribeToTask
    ) -> AsyncIterator[tuple[Head, Sequence[Record]]]:
        """All records of a task, up to its end: for services that show more of a log than A2A's events.

        They come after `call.after`, or from the first one on. Without `call.after` there is nothing if the task has ended.
        Raises as `stream` does.
        """
        await self._find_streaming_program(call, request)
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

    def _push_for(self, program: Program) -> Push:
        """The sender of notifications for this agent. Raises `PushNotSupported`."""
        if self._push is None or not program.card.capabilities.push_notifications:
            raise PushNotSupported("push notifications are not supported by this agent")
        return self._push

    async def _perform_on_push_configs(
        self, program: Program, call: Call, request: PushRequest
    ) -> PushConfig | PushConfigPage | None:
        push, configs = self._push_for(program), self._store.push_configs
        await self._head(
            call, request.config.task_id if isinstance(request, CreatePushConfig) else request.task_id
        )
        match request:
            case CreatePushConfig():
                webhook = _for_task(await push.check_config(call, request.config), request.config.task_id)
                return push.show_config(await configs.put(call.scope, request.config.task_id, webhook))
            case GetPushConfig():
                return await self._get_push_config(push, call, request)
            case ListPushConfigs():
                return await self._list_push_configs(push, call, request)
            case DeletePushConfig():
                await configs.delete(call.scope, request.task_id, request.id)
                return None

    async def _get_push_config(self, push: Push, call: Call, request: GetPushConfig) -> PushConfig:
        webhooks = await self._store.push_configs.list(call.scope, request.task_id)
        configs = [push.show_config(webhook) for webhook in webhooks]
        # A version with one config for each task calls it `default`, and asks without a name.
        for config in sorted(configs, key=lambda config: config.id != "default"):
            if request.id in ("", config.id):
                return config
        named = f" {request.id[:80]!r}" if request.id else ""
        raise TaskNotFound(
            request.task_id, message=f"task {request.task_id[:80]!r} has no push config{named}"
        )

    async def _list_push_configs(self, push: Push, call: Call, request: ListPushConfigs) -> PushConfigPage:
        webhooks = await self._store.push_configs.list(call.scope, request.task_id)
        seen = _shown_before(request) if request.page_token else ()
        marks = [_mark(webhook.uid) for webhook in webhooks]
        start = max((n for n, mark in enumerate(marks, 1) if mark in seen), default=0)
        end = min(len(webhooks), start + request.page_size) if request.page_size else len(webhooks)
        token = _page_token(request.task_id, marks[:end]) if end < len(webhooks) else ""
        return PushConfigPage(
            configs=tuple(map(push.show_config, webhooks[start:end])), next_page_token=token
        )

    async def _extended_card(self, program: Program, call: Call) -> AgentCard:
        if not program.card.capabilities.extended_agent_card:
            raise UnsupportedOperation("this operation is not supported: the agent has no extended card")
        # Without authentication nobody has a name, and nobody may have what is meant for those who have one.
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
        """Cancel a task for an operator: `Program.authorize` is not asked."""
        return await self._cancel(call, request)

    async def _cancel(self, call: Call, request: CancelTask) -> Task:
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
            snapshot = await self._visible(call, request.id)
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
            with Reader(self.readers, snapshot, snapshot.seq, look=True) as reader:
                snapshot = await _until(reader, snapshot, lambda now: now.terminal)
        return snapshot.task

    # -- agents that call agents -------------------------------------------------------------------------------

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        """The agent called `name`: of this process, or a remote one."""
        sibling = Scope(scope.tenant, name, scope.owner)
        if (program := self._programs(sibling)) is not None and await program.exists():
            return self, sibling
        if self._remote is None:
            raise Unavailable(f"there is no agent {name[:80]!r} here")
        return await self._remote.find(name, scope)

    async def close(self) -> None:
        """Part of `Peers`; `stop` does the work."""

    # -- retention ---------------------------------------------------------------------------------------------

    async def _purge_old(
        self,
        retain: float | None,
        retain_unfinished: float | None = None,
        *,
        batch: int = 100,
        every: float = 60.0,
    ) -> None:
        """Purge tasks past their age, and tidy the store, a bounded piece at a time, at most half of the time.

        A clock that is set ahead makes nothing older.
        """
        while True:
            more, began = False, time.perf_counter()
            with keep_going(logger, "purging old tasks", Unavailable):
                old = False
                if retain is not None:
                    purged = await self._store.purge(timestamp(now() - retain), limit=batch)
                    old |= purged >= batch
                if retain_unfinished is not None:
                    before = timestamp(now() - retain_unfinished)
                    old |= await self._store.purge(before, limit=batch, unfinished=True) >= batch
                more = await self._store.tidy() or old
            await asyncio.sleep(time.perf_counter() - began if more else every)


async def _until(reader: Reader, snapshot: Snapshot, enough: Callable[[Snapshot], bool]) -> Snapshot:
    """Read until `enough` is true of the task, and return it as it is then."""
    while not enough(snapshot):
        snapshot = snapshot.after(await reader.next())
    return snapshot


def _public(records: Sequence[Record], *, question_ends: bool) -> tuple[list[StreamResponse], bool]:
    """What peers see of `records`, up to the one that ends the stream; and whether that was there.

    A stream ends with its task. That of a send also ends when the task waits for the caller's answer (`question_ends`).
    It goes on when the task waits for an authorisation, which may come another way.
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


def _over(snapshot: Snapshot, seq: int) -> bool:
    """True if the message at `seq` has been answered, and no later one waits for an answer."""
    return snapshot.terminal or (snapshot.over and snapshot.mail <= max(snapshot.read, seq))


def _mail(call: Call, request: SendMessage, task: str, context: str, *, reply: bool = False) -> Mail:
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
    )


def _page_token(task: str, marks: Sequence[str]) -> str:
    """A page token names all configs of the pages before. The next page begins after the last of them that still exists."""
    return ".".join((_mark(task), *marks))


def _shown_before(request: ListPushConfigs) -> Sequence[str]:
    """Raises `InvalidParams` for a token that did not come from the list of this task."""
    task, *seen = request.page_token.split(".")
    if task != _mark(request.task_id) or not seen:
        why = "is not from a page of this list"
        raise InvalidParams(f"pageToken {why}", fields=(("pageToken", why),))
    return seen


def _mark(id: str) -> str:
    return blake2s(id.encode(), digest_size=6).hexdigest()


def _for_task(webhook: StoredPushConfig, task: str) -> StoredPushConfig:
    return replace(webhook, config=replace(webhook.config, task_id=task))
