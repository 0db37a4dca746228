"""Mail in: a message is checked, put on disk, and, if there is room, started on here."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from dragoman.engine.protocols import MAIL, Bus, Delivered, Log, Program, Store, TaskExists, topic
from dragoman.engine.push_configs import Hook
from dragoman.engine.pushes import PushConfigs, for_task
from dragoman.engine.records import Mail
from dragoman.engine.run import Run
from dragoman.engine.runner import Runner
from dragoman.errors import ExtensionRequired, InvalidParams, TaskNotFound, Unavailable
from dragoman.model.ids import new_id, timestamp
from dragoman.model.ops import Call, SendMessage


class Mailroom:
    def __init__(self, store: Store, bus: Bus, runner: Runner, configs: PushConfigs) -> None:
        self._store, self._bus, self._runner, self._configs = store, bus, runner, configs

    async def deliver(
        self, program: Program, call: Call, request: SendMessage, *, waits: bool = False
    ) -> tuple[Delivered, Run | None]:
        """What became of the message, and the run that answers it if that is here.

        If its sender `waits` for the end anyway, it may not be on disk yet (`Delivered.stored`).
        """
        if self._runner.stopping:
            raise Unavailable("shutting down", retry_after=1)
        _check(program, call, request)
        hook = None
        if (config := request.configuration.task_push_notification_config) is not None:
            hook = await self._configs.need(program).admit(call, config)
        node = self._runner.admit(inside=call.depth > 0)
        delivered: Delivered | None = None
        try:
            if request.message.task_id:
                delivered = await self._continue_or_create(program, call, request, node, hook)
            else:
                reply = program.admit(request, call.principal)
                delivered = await self._create(call, request, new_id(), node, hook, reply=reply, waits=waits)
        except asyncio.CancelledError:
            self.look()
            raise
        finally:
            run = self._runner.admitted(node, delivered)
        if run is None and not delivered.duplicate:
            self._bus.wake(MAIL)
        if delivered.snapshot.seq > 1 and not delivered.duplicate:
            self._bus.wake(topic(call.scope, delivered.snapshot.task_id))
        return delivered, run

    def look(self) -> None:
        """A caller left while its mail was delivered. The store takes back the lease it gave us, and somebody runs it."""
        asyncio.get_running_loop().call_later(0.1, self._bus.wake, MAIL)

    async def _continue_or_create(
        self, program: Program, call: Call, request: SendMessage, node: str, hook: Hook | None
    ) -> Delivered:
        """To a task that is there; or to a new one, if this caller names its tasks itself."""
        log = self._store.scope(call.scope)
        try:
            return await self._continue(program, log, call, request, node, hook)
        except TaskNotFound:
            if not call.names_tasks:
                raise
        task, fresh = request.message.task_id, replace(request, message=replace(request.message, task_id=""))
        program.admit(fresh, call.principal)  # who names a task wants to find it again: its answer is a task
        try:
            return await self._create(call, fresh, task, node, hook)
        except TaskExists:  # somebody was faster with the same id
            return await self._continue(program, log, call, request, node, hook)

    async def _create(
        self,
        call: Call,
        request: SendMessage,
        task: str,
        node: str,
        hook: Hook | None,
        *,
        reply: bool = False,
        waits: bool = False,
    ) -> Delivered:
        log = self._store.scope(call.scope)
        context = request.message.context_id or new_id()
        mail = _mail(call, request, task, context, reply=reply)
        hook = for_task(hook, task) if hook else None
        if waits and node and not call.idempotency_key:
            begun = log.begin(task, context, mail, node=node, hook=hook)
            if begun is not None:
                return begun
        return await log.create(task, context, mail, dedupe=call.idempotency_key, node=node, hook=hook)

    async def _continue(
        self, program: Program, log: Log, call: Call, request: SendMessage, node: str, hook: Hook | None
    ) -> Delivered:
        task, context = request.message.task_id, request.message.context_id
        if call.idempotency_key and (seen := await log.seen(call.idempotency_key)):
            return seen
        snapshot = await log.load(task)
        if snapshot.hidden:
            raise TaskNotFound(task)
        if context and context != snapshot.context_id:
            raise InvalidParams(
                f"task {task!r} does not belong to context {context!r}",
                fields=(("message.contextId", "differs from the context of the task"),),
            )
        program.admit(request, call.principal, snapshot.mails[0][1])
        return await log.deliver(
            task,
            _mail(call, request, task, snapshot.context_id),
            dedupe=call.idempotency_key,
            node=node,
            hook=for_task(hook, task) if hook else None,
        )


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


def _check(program: Program, call: Call, request: SendMessage) -> None:
    parts = request.message.parts
    if not parts:
        raise InvalidParams("a message needs at least one part", fields=(("message.parts", "is empty"),))
    for i, part in enumerate(parts):
        if part.contents != 1:
            raise InvalidParams(
                "a part holds exactly one of text, raw, url and data",
                fields=((f"message.parts[{i}]", f"holds {part.contents} of them"),),
            )
    for extension in program.card.capabilities.extensions:
        if extension.required and extension.uri not in call.extensions:
            raise ExtensionRequired(f"this agent needs the extension {extension.uri}")
