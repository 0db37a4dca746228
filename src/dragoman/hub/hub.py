"""The hub: many tenants' agents on one engine.

To the bindings it is a `Service`. `admission.py` checks the limits of the tenant and chooses the version of the agent for a
new task; the engine does the rest. Requests over A2A and over the native API are the same kind of task.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.buses import open_bus
from dragoman.client.client import ConnectedPeers
from dragoman.client.fetch import Fetcher
from dragoman.dialects.arbiter import Resubscribe
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Push, Store, TaskInfo
from dragoman.engine.push_configs import Delivery
from dragoman.engine.records import Mail
from dragoman.engine.run import FAILED
from dragoman.engine.runner import TTL_SECONDS
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    TaskClosed,
    TaskNotCancelable,
    TaskNotFound,
    keep_going,
)
from dragoman.hub.agents.constitution import INDEX, Constitution
from dragoman.hub.agents.constitution_agent import AgentParts
from dragoman.hub.agents.programs import AGENT_FAILED, FAILED_CODE, AgentPrograms, StoppableModel
from dragoman.hub.agents.prompt import ConversationHistory
from dragoman.hub.conversations import events
from dragoman.hub.conversations.events import HubEvent, HubEventReader
from dragoman.hub.conversations.message_input import message_text
from dragoman.hub.conversations.repair import restore_requests
from dragoman.hub.conversations.replay import ReplayingEngine
from dragoman.hub.folder_lock import FolderLock
from dragoman.hub.metadata import AGENT_VERSION, ARBITER, NATIVE, VIA
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models import Model
from dragoman.hub.models.names import ModelNames
from dragoman.hub.models.prices import Prices
from dragoman.hub.observer import HubObserver
from dragoman.hub.settings import Settings
from dragoman.hub.store.artifacts import Artifacts
from dragoman.hub.store.blobs import BlobSweeper, open_blobs
from dragoman.hub.store.catalogue import Catalogue
from dragoman.hub.store.conversations import Conversations
from dragoman.hub.store.database import open_database
from dragoman.hub.store.memories import Memories, Scratchpads
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.requests import IdempotencyKeys, Requests, StoredRequest
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.store.spending import Spending, Usages
from dragoman.hub.store.tenants import Tenant, Tenants, missing_scope
from dragoman.hub.store.todos import Todos
from dragoman.hub.store.tokens import READ, RUN
from dragoman.hub.store.workspace_leases import WorkspaceLeases
from dragoman.hub.tenants.admission import Admission
from dragoman.hub.tenants.budgets import Budgets
from dragoman.hub.tenants.lifecycle import TenantDeletion, TenantExport, rename_tenant
from dragoman.hub.tenants.quotas import Quotas, RequestRoom
from dragoman.hub.tenants.users import Users
from dragoman.hub.tenants.watch import TenantWatch
from dragoman.hub.tools.fetcher import PageFetcher
from dragoman.hub.tools.files import Pictures
from dragoman.hub.tools.remote_agents import HubPeers
from dragoman.hub.tools.toolbox import build_tools, open_services
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import (
    Batch,
    Call,
    CancelTask,
    CreatePushConfig,
    GetExtendedCard,
    GetOrigin,
    GetTask,
    ListTasks,
    Principal,
    Request,
    Scope,
    SendMessage,
    SubscribeToTask,
)
from dragoman.model.task import StatusUpdate, Task, TaskState
from dragoman.observe.instrument import InstrumentedService
from dragoman.observe.shared_quota import SharedQuota
from dragoman.push.options import PushOptions
from dragoman.push.seal import read_keys
from dragoman.push.sender import open_push_sender
from dragoman.server.routes import Conflict, NotFound
from dragoman.stores import open_store

log = logging.getLogger(__name__)

A2A = "a2a"
TAKEOVER_SECONDS = 30.0
"""How long other hubs may take to continue all tasks of a lease that has expired."""
START_SECONDS = 600
"""How long after its message is stored a request may begin. After that, a message without a request is deleted."""
RELEASE_BATCH = 500
"""Requests that `_release_versions` checks at a time."""
READ_OPERATIONS = (GetTask, ListTasks, SubscribeToTask, GetExtendedCard, GetOrigin)
"""Operations for a token that may only read. Push configs are not among them: they have the secrets of webhooks."""
LAST_RECORDS = 8
"""Records at the end of a log among which the last status is. Messages may follow it."""
MAX_ATTEMPTS = 20
"""Restarts of a request without progress. A long reply of a model may take several restarts."""


class Hub:
    """`start` opens the parts, and resumes the tasks that an earlier hub process left unfinished."""

    def __init__(
        self,
        settings: Settings,
        model: Model,
        names: ModelNames,
        metrics: HubMetrics,
        *,
        code: Sequence[Agent] = (),
        store: str = "",
        **engine: Any,
    ) -> None:
        """`model` answers the prompts of all tenants, `names` are the models that they may name. `store`: the URL of the store, if not that
        of the settings. `engine`: options of the engine."""
        self.settings, self.model_names, self.metrics = settings, names, metrics
        store_url, in_memory = store or settings.tasks, store == "memory:"
        if not in_memory:
            settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

        # what is stored: tasks, tables, contents of files
        self.store = open_store(store_url, folder=settings.folder)
        self.bus = open_bus(settings.bus or store_url)
        self.database = database = open_database(store_url, settings.folder, policy=settings.policy)
        self.folder_lock = FolderLock(settings.folder) if store_url.startswith("sqlite:") else None
        """None: several hubs share the database, or it is in memory."""
        self._workspaces = None if in_memory else settings.folder / "workspaces"
        blobs = open_blobs(settings.blobs, None if in_memory else settings.folder / "blobs")
        self.tenants, self.policies = Tenants(database), Policies(database)
        index = replace(INDEX, model=settings.index_model)
        self.catalogue = Catalogue(database, code, index=index, names=names)
        self.catalogue.release_versions = self._release_versions
        self.requests, self.conversations = Requests(database), Conversations(database)
        self.idempotency_keys = IdempotencyKeys(database, seconds=settings.idempotency_hours * 3600)
        self.memories, self.scratchpads = Memories(database), Scratchpads(database)
        self.artifacts, self.todos = Artifacts(database, blobs), Todos(database)
        self.schedules = Schedules(database, timezone=settings.timezone)
        self.spending, self.usages = Spending(database), Usages(database)

        # what a tenant may do
        self._fetch = Fetcher()
        self.users = Users(self.tenants, settings, self._fetch) if settings.oidc_issuer else None
        self._shared = _open_shared_quota(self.store, engine.get("ttl", TTL_SECONDS))
        self.quotas = Quotas(
            max_running=settings.max_concurrent,
            per_minute=settings.rate_per_min,
            burst=settings.rate_burst,
            shared=self._shared,
        )
        prices = Prices(settings.prices, settings.currency)
        self.budgets = Budgets(self.spending, self.policies, prices, metrics)

        # what agents use
        self.model = StoppableModel(
            model, self.tenants, names=names, policies=self.policies, budgets=self.budgets
        )
        leases = WorkspaceLeases(database, seconds=settings.exec_seconds) if self._shared else None
        self._services = open_services(settings, metrics, self.policies, leases)
        self.fetcher: PageFetcher = self._services.fetcher
        self.tools = build_tools(
            database, self._services, model=self.model, artifacts=self.artifacts, schedules=self.schedules
        )
        parts = AgentParts(
            model=self.model,
            tools=self.tools,
            catalogue=self.catalogue,
            policies=self.policies,
            remotes=self._services.remotes,
            history=ConversationHistory(self.conversations, self.model),
            pictures=Pictures(database, self.model),
            prices=prices,
        )
        self.programs = AgentPrograms(
            parts, self.tenants, self.quotas, self.requests, self.conversations, push=settings.push
        )

        # what runs them
        self.observer = HubObserver(self.store.audit, metrics, self.usages, self.budgets, self.catalogue.code)
        engine = {"max_attempts": MAX_ATTEMPTS, "observer": self.observer, **engine}
        self.engine = Engine(
            self.store,
            self.bus,
            self.programs.find,
            peers=HubPeers(self._services.remotes, ConnectedPeers(), self.catalogue),
            push=_push_sender(self.store, settings, self.tenants) if settings.push else None,
            **engine,
        )
        self._service = InstrumentedService(ReplayingEngine(self.engine), self.observer)
        """The engine behind the audit log, for requests from outside."""
        self.admission = Admission(
            self.tenants,
            self.catalogue,
            self.quotas,
            metrics,
            self.budgets,
            self.policies,
            RequestRoom(self.store.index.size),
        )
        self.quotas.runs_here = self._runs_here
        contents = BlobSweeper(database, blobs)
        self.deletion = TenantDeletion(database, self.store, self._workspaces, contents)
        self._watch = TenantWatch(
            database, self.tenants, self.quotas, self.stop_tenant, self.admission.check_readers_again
        )
        self.periodic = [self.deletion.periodic, self._watch.periodic, contents.periodic]
        """What the hub does in the background, from its start to its stop."""

    async def start(self) -> None:
        if self.folder_lock is not None:
            self.folder_lock.acquire()
        try:
            await self.database.open()
            await self.store.open()
            if self.folder_lock is not None:  # two files; in PostgreSQL, tasks and tables are in one database
                # before tasks continue: a running task stores its request again, and the search would end there
                await restore_requests(self.store, self.tenants, self.requests, self.conversations)
            await self.engine.start()
        except BaseException:
            self._unlock_folder()
            raise
        if self.settings.admin_token:
            await self.tenants.ensure_admin_token(self.settings.admin_token)
        self._services.start()
        for work in self.periodic:
            work.start()

    async def stop(self) -> None:
        for work in reversed(self.periodic):
            await work.stop()
        self.observer.close()
        await self.engine.drain(self.settings.drain)
        if self._shared is not None:  # tasks that have ended have released their slots
            await self._shared.close()
        await self.engine.stop(self.settings.drain)
        await self.budgets.flush()
        await self.usages.flush()
        await self.database.close()
        self._unlock_folder()
        await self._services.close()
        await self._fetch.close()

    def _unlock_folder(self) -> None:
        if self.folder_lock is not None:
            self.folder_lock.release()

    def metrics_text(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return self.metrics.render(self.quotas.counts())

    # -- Service: requests over A2A ------------------------------------------------------------------------------

    async def call(self, call: Call, request: Request) -> Any:
        _check_scope(call, request)
        if isinstance(request, SendMessage):
            return await self._send(call, request)
        if isinstance(request, GetOrigin):  # a binding sends it beside the caller's request, which is counted
            return await self._service.call(call, request)
        await self._admit_read(call)
        if isinstance(request, CancelTask):
            return await self._add_times(call, await self._cancel(call, request))
        if isinstance(request, CreatePushConfig):
            await self.admission.check_config_room(call.scope.tenant, request.config)
        result = await self._service.call(call, request)
        return await self._add_times(call, result) if isinstance(request, GetTask) else result

    async def _send(self, call: Call, request: SendMessage) -> Any:
        async with self.admission.admit_message(call, request, via=A2A) as (call, request):
            result = await self._service.call(call, request)
        if call.dialect == ARBITER and _hub_failed(result):
            raise InvalidAgentResponse(AGENT_FAILED)
        if not isinstance(result, Task) or result.state is not TaskState.CANCELED:
            return result
        # it may have been canceled before its agent started, which stores the request
        await self.requests.store(int(call.scope.tenant), result.id, call.scope.agent, via=A2A)
        return await self._add_times(call, result)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        _check_scope(call, request)
        if not isinstance(request, SendMessage):
            await self._admit_read(call)
            if isinstance(request, Resubscribe) and call.after is None:
                call = replace(call, after=request.since)
            batches = self._service.stream(call, request)
            async for batch in self.admission.while_valid(call.principal, batches):
                yield batch
            return
        async with self.admission.admit_message(call, request, via=A2A) as (call, request):
            async for batch in self._service.stream(call, request):
                yield batch

    async def _admit_read(self, call: Call) -> None:
        tenant = await self.tenants.current(int(call.scope.tenant)) if call.scope.tenant.isdigit() else None
        if tenant is not None:
            await self.admission.admit_read(tenant)

    # -- native requests ---------------------------------------------------------------------------------------

    async def start_request(
        self,
        tenant: Tenant,
        agent: str,
        read_input: Callable[[], Awaitable[tuple[Part, ...]]],
        *,
        key: str = "",
        id: str = "",
        inline: Constitution | None = None,
        conversation: int = 0,
        about: dict[str, Any] | None = None,
    ) -> StoredRequest:
        """Start a request and return it. A `key` that was used before returns the request from then, and an `id` the request that has it.

        `read_input` is called once the request is admitted, because it may fetch images. `inline` is an agent for this request
        alone.
        """
        repeatable, counted = bool(key or id), False
        if id and (started := await self._find_started(tenant, agent, id)) is not None:
            return started
        id = id or secrets.token_hex(8)
        if key:
            # Count it before the key is stored: refused requests must not store keys.
            if not await self.idempotency_keys.knows(tenant.id, key):
                await self.admission.count_message(tenant)
                counted = True
            id, before = await self._claim_key(tenant, key, id)
            self.metrics.count("idempotency_miss_total" if before is None else "idempotency_replay_total")
            if before is not None:
                await self.admission.admit_read(tenant)  # it starts nothing
                return before
        call = Call(
            scope=Scope(tenant.key, agent, tenant.key),
            principal=tenant.principal,
            dialect=NATIVE,
            idempotency_key=f"native/{id}" if repeatable else "",
            names_tasks=True,
        )
        message = Message(
            message_id=secrets.token_hex(8),
            task_id=id,
            context_id=secrets.token_hex(8),
            role=Role.USER,
            parts=(),
        )
        metadata = {f"x-arbiter.{name}": value for name, value in (about or {}).items()}
        if conversation:
            metadata["x-arbiter.conversation_id"] = conversation
        async with self.admission.admit_message(
            call,
            SendMessage(message=message, metadata=metadata),
            via=NATIVE,
            conversation=conversation,
            inline=inline is not None,
            counted=counted,
        ) as (call, request):
            parts = await read_input()
            await self.admission.check_room(tenant, len(msgspec.json.encode(parts)))
            if inline is not None:
                inline_version = await self.catalogue.store_inline(tenant.id, inline)
                request = replace(request, metadata={**request.metadata, AGENT_VERSION: inline_version})
            request = replace(request, message=replace(request.message, parts=parts))
            await self._deliver(call, request, tenant, conversation)
        version = request.metadata.get(AGENT_VERSION)
        await self.requests.store(
            tenant.id, id, agent, via=NATIVE, conversation=conversation, version=version
        )
        return await self.requests.find(tenant.id, id) or StoredRequest(
            request_id=id, agent_id=agent, conversation_id=conversation, via=NATIVE
        )

    async def _deliver(self, call: Call, request: SendMessage, tenant: Tenant, conversation: int) -> None:
        """Deliver the first message of a request. It is in its conversation before the request starts."""
        if not conversation:
            await self.observer.deliver(self.engine, call, request)
            return
        id, text = request.message.task_id, message_text(request.message.parts)
        await self.conversations.add_question(tenant.id, conversation, id, text)
        try:
            await self.observer.deliver(self.engine, call, request)
        except A2AError:
            await self.conversations.remove_question(tenant.id, id)
            raise

    async def _find_started(self, tenant: Tenant, agent: str, id: str) -> StoredRequest | None:
        """A request whose first message is stored. If its hub was killed right after that, the request itself is stored here."""
        log = self.store.scope(Scope(tenant.key, agent, tenant.key))
        try:
            (first,) = await log.read(id, limit=1)
        except TaskNotFound:
            return None
        assert isinstance(first.body, Mail)
        await self.requests.store_from(tenant.id, id, agent, first.body.metadata)
        return await self.requests.find(tenant.id, id, agent)

    async def _claim_key(self, tenant: Tenant, key: str, id: str) -> tuple[str, StoredRequest | None]:
        """The id of the request that a key stands for, and the request, if it has started."""
        known = await self.idempotency_keys.claim(tenant.id, key, id)
        before = await self.requests.find(tenant.id, known) if known != id else None
        if before is None:
            return known, None  # new, or starting: the engine knows whether it is the first
        try:
            await self.info(tenant, before)
        except NotFound:
            return await self.idempotency_keys.renew(tenant.id, key, known, id), None
        return known, before

    async def find(self, tenant: Tenant, request: str) -> StoredRequest:
        """A request of a tenant. Raises `NotFound`."""
        stored = await self._find_request(tenant.key, request)
        if stored is None:
            raise NotFound(f"there is no request {request[:80]!r}")
        return stored

    async def snapshot(self, tenant: Tenant, stored: StoredRequest) -> Snapshot:
        """The state of a request. Raises `NotFound`."""
        try:
            return await self.store.scope(self._scope(tenant, stored)).load(stored.request_id)
        except TaskNotFound:
            raise NotFound(f"there is no request {stored.request_id!r}") from None

    async def info(self, tenant: Tenant, stored: StoredRequest) -> TaskInfo:
        """What is known of a request without reading its log, which may be long. Raises `NotFound`."""
        try:
            return await self.store.index.get(self._scope(tenant, stored), stored.request_id)
        except TaskNotFound:
            raise NotFound(f"there is no request {stored.request_id!r}") from None

    async def describe(self, tenant: Tenant, stored: StoredRequest) -> dict[str, Any]:
        """A request for a list. Of its log only the end is read: a tenant may have many that are long. Raises `NotFound`."""
        info = await self.info(tenant, stored)
        last: StatusUpdate | None = None
        if info.state.interrupted or info.state in (TaskState.FAILED, TaskState.REJECTED):
            last = await self._last_update(tenant, stored, info)
        return events.describe_request(stored, info, last)

    async def _last_update(self, tenant: Tenant, stored: StoredRequest, info: TaskInfo) -> StatusUpdate:
        try:
            end = await self.store.scope(info.scope).read(info.id, after=max(0, info.seq - LAST_RECORDS))
        except TaskNotFound:
            raise NotFound(f"there is no request {info.id!r}") from None
        updates = [record.body for record in end if isinstance(record.body, StatusUpdate)]
        if updates and updates[-1].status.state is info.state:
            return updates[-1]
        known = await self.snapshot(tenant, stored)
        return StatusUpdate(
            task_id=info.id, context_id=known.context_id, status=known.status, metadata=known.metadata
        )

    async def events(
        self, tenant: Tenant, stored: StoredRequest, since: int = 0
    ) -> AsyncIterator[list[HubEvent]]:
        """The events of a request after `since`, up to `done`. Raises `NotFound`.

        The log is read piece by piece as they are sent: readers that are slow do not hold logs in memory.
        """
        log, id = self.store.scope(self._scope(tenant, stored)), stored.request_id
        try:
            head = await log.head(id)
            (last,) = await log.read(id, after=head.mail - 1, limit=1)
        except TaskNotFound:
            raise NotFound(f"there is no request {id!r}") from None
        event_reader = HubEventReader(tenant, stored, code=stored.agent_id in self.catalogue.code)
        batches = events.events(self.engine.readers, head, event_reader, since)
        if not isinstance(last.body, Mail) or last.body.generation != tenant.generation:
            # a task of a revoked token is canceled, and the caller who started it may see that
            batches = self.admission.while_valid(tenant.principal, batches)
        async for batch in batches:
            if stored.conversation_id and batch[-1].kind == "done":
                await self.store_answers(tenant, stored.conversation_id)
            yield batch

    async def answer(
        self, tenant: Tenant, stored: StoredRequest, text: str, *, question: int | None = None
    ) -> Snapshot:
        """Answer the question that a request waits with. Returns its state before.

        `question`: the `last_seq` with which the caller saw the question; None: the one that the request waits with now. Raises `Conflict`
        if the request does not wait, or if somebody else has answered the question.
        """
        snapshot = await self.snapshot(tenant, stored)
        if not snapshot.state.interrupted:
            raise Conflict(f"request {stored.request_id!r} does not wait for an answer")
        message = Message(
            message_id=secrets.token_hex(8),
            task_id=stored.request_id,
            context_id=snapshot.context_id,
            role=Role.USER,
            parts=(Part(text=text),),
        )
        call = Call(
            scope=self._scope(tenant, stored),
            principal=tenant.principal,
            dialect=NATIVE,
            answers=snapshot.seq if question is None else question,
        )
        try:
            async with self.admission.admit_message(
                call,
                SendMessage(message=message),
                via=NATIVE,
                conversation=stored.conversation_id,
                inline=True,
            ) as (call, request):
                await self.observer.deliver(self.engine, call, request)
        except TaskClosed as error:  # it ended, or somebody else was faster
            raise Conflict(error.message) from None
        return snapshot

    async def cancel(self, tenant: Tenant, request: str) -> bool:
        """Cancel a running request; False if it does not run."""
        try:
            stored = await self.find(tenant, request)
            call = Call(scope=self._scope(tenant, stored), principal=tenant.principal, strict_cancel=True)
            await self._cancel(call, CancelTask(id=request))
        except (NotFound, TaskNotFound, TaskNotCancelable):
            return False
        return True

    async def _cancel(self, call: Call, request: CancelTask) -> Any:
        """Cancel a task. A request that is canceled before its agent starts is stored too."""
        stored = await self._find_request(call.scope.tenant, request.id, call.scope.agent)
        task = await self._service.call(call, request)
        if stored is not None and stored.via:
            await self.requests.store(
                int(call.scope.tenant),
                stored.request_id,
                stored.agent_id,
                via=stored.via,
                conversation=stored.conversation_id,
            )
        return task

    async def delete_request(self, tenant: Tenant, request: str) -> None:
        """Delete a request that has ended, with the tasks of the agents that worked for it. Raises `NotFound` and `Conflict`.

        The tasks are deleted first, in one transaction. If the hub is killed after that, the request is not found any more; its row is
        deleted by the next attempt, or by `Retention`.
        """
        stored = await self.find(tenant, request)
        with suppress(NotFound):
            snapshot = await self.snapshot(tenant, stored)
            if not snapshot.terminal:
                raise Conflict(f"request {stored.request_id!r} has not ended: cancel it first")
            if stored.conversation_id:
                await self.store_answers(tenant, stored.conversation_id)
            await self.store.purge_tasks(await self._with_child_tasks(snapshot))
            self.admission.room.forget(tenant.key)
        await self.requests.delete([(tenant.id, stored.request_id, stored.agent_id)])

    async def _with_child_tasks(self, snapshot: Snapshot) -> list[tuple[Scope, str]]:
        """A task, and those that agents of this hub do for it."""
        found = [(snapshot.scope, snapshot.task_id)]
        for child in snapshot.children.values():
            with suppress(TaskNotFound):  # of an agent elsewhere
                task = await self.store.scope(replace(snapshot.scope, agent=child.peer)).load(child.task)
                if VIA not in task.mails[0][1].metadata:  # else the tenant asked for it
                    found += await self._with_child_tasks(task)
        return found

    async def store_answers(self, tenant: Tenant, conversation: int) -> None:
        """Add the answers of finished requests to their conversation. Remove messages whose request never began."""
        for request in await self.conversations.unanswered(conversation):
            try:
                stored = await self.find(tenant, request)
                if not (await self.info(tenant, stored)).done:
                    continue
                snapshot = await self.snapshot(tenant, stored)
            except NotFound:  # its hub was killed, or its caller left, before the request was accepted
                before = int(time.time() - START_SECONDS)
                await self.conversations.remove_question(tenant.id, request, before=before)
                continue
            await events.store_answer(self.conversations, conversation, snapshot)

    async def _release_versions(self, tenant: int) -> int:
        """Release the versions of agents whose requests have ended, so that they can be deleted. Returns how many requests."""
        known, ended = await self.tenants.current(tenant), []
        if known is None:
            return 0
        for stored in await self.requests.list_with_version(tenant, RELEASE_BATCH):
            try:
                if (await self.info(known, stored)).done:
                    ended.append(stored)
            except NotFound:
                ended.append(stored)
        await self.requests.release_versions(tenant, ended)
        return len(ended)

    # -- administration ---------------------------------------------------------------------------------------

    async def rename_tenant(self, tenant: Tenant, name: str) -> Tenant:
        """Raises `InvalidParams` and `Conflict`."""
        return await rename_tenant(self.tenants, self.store.catalogue, tenant, name, actor="admin")

    def export_tenant(self, tenant: Tenant) -> AsyncGenerator[bytes, None]:
        """Everything of a tenant, as a ZIP archive, while the token of the request is valid."""
        export = TenantExport(self.database, self.store, self.artifacts, self._workspaces)
        archive = export.archive(tenant)
        return archive if tenant.token is None else self.admission.while_valid(tenant.principal, archive)

    async def delete_tenant(self, tenant: Tenant) -> None:
        """Disable a tenant, stop its work, and start to delete everything it has. Raises `NotFound`."""
        await self.deletion.begin(tenant, actor="admin")
        await self.stop_tenant(replace(tenant, disabled=True))

    async def stop_tenant(self, tenant: Tenant) -> tuple[int, bool]:
        """Cancel the tasks of a disabled tenant, or those of revoked tokens. Returns how many, and whether every cancel was
        delivered."""
        valid = await self.tenants.generations(tenant.id)
        running = [
            key
            for key, each in self.quotas.running_tasks(tenant.key).items()
            if tenant.disabled or (each.generation is not None and each.generation not in valid)
        ]

        async def cancel(agent: str, task: str) -> bool:
            call = Call(scope=Scope(tenant.key, agent, tenant.key), principal=Principal(id="admin"))
            with keep_going(log, f"stopping task {task} of tenant {tenant.id}", A2AError):
                with suppress(TaskNotFound, TaskNotCancelable):  # it has ended meanwhile
                    await self._cancel(call, CancelTask(id=task))
                return True
            return False

        stopped = await asyncio.gather(*(cancel(*key) for key in running))
        return len(running), all(stopped)

    # ----------------------------------------------------------------------------------------------------------

    async def _add_times(self, call: Call, task: Task) -> Task:
        """Add the times of the request and of its last change, in seconds, to a task's metadata."""
        stored = await self._find_request(call.scope.tenant, task.id, call.scope.agent)
        if stored is None:
            return task
        at = task.status.timestamp
        changed = int(datetime.fromisoformat(at).timestamp()) if at else 0
        about = {
            "x-arbiter.agent_id": stored.agent_id,
            **task.metadata,
            "x-arbiter.created_at": stored.started_at,
            "x-arbiter.updated_at": max(stored.started_at, changed),
        }
        return replace(task, metadata=about)

    def _runs_here(self, tenant: str, agent: str, task: str) -> bool:
        return self.engine.runner.runs(Scope(tenant, agent, tenant), task)

    async def _find_request(self, tenant: str, request: str, agent: str = "") -> StoredRequest | None:
        """A stored request, or a running one that is not stored yet; of `agent`, or of any agent."""
        stored = await self.requests.find(int(tenant), request, agent) if tenant.isdigit() else None
        if stored is not None:
            return stored
        for (running_agent, task), running in self.quotas.running_tasks(tenant).items():
            if task == request and running.asked and agent in ("", running_agent):
                return StoredRequest(
                    request_id=request,
                    agent_id=running_agent,
                    conversation_id=running.conversation,
                    via=running.via,
                    started_at=running.at,
                )
        return None

    def _scope(self, tenant: Tenant, stored: StoredRequest) -> Scope:
        return Scope(tenant.key, stored.agent_id, tenant.key)


def _open_shared_quota(store: Store, ttl: float) -> SharedQuota | None:
    """Counts rates and running requests over all hubs of a store; None for a store of one machine."""
    if not store.quotas.spans_machines:
        return None
    # other hubs continue the tasks of a dead hub after its lease: until then they keep their slots
    return SharedQuota(store.quotas, slot_seconds=ttl + TAKEOVER_SECONDS)


def _push_sender(store: Store, settings: Settings, tenants: Tenants) -> Push:
    """Sends push notifications: to public addresses, unless the operator allows private ones, and only for tokens that are not revoked."""

    async def may_send(delivery: Delivery) -> bool:
        token = delivery.webhook.generation
        return token is None or token in await tenants.generations(int(delivery.scope.tenant))

    options = PushOptions(
        allow_private=settings.allow_private, http=settings.allow_private, seal=read_keys(settings.push_seal)
    )
    return open_push_sender(store, options, issuer=settings.public_url, may_send=may_send)


def _check_scope(call: Call, request: Request) -> None:
    """A token that may only read can start, cancel and change nothing. Raises `Forbidden`."""
    needed = READ if isinstance(request, READ_OPERATIONS) else RUN
    if f"tenant:{needed}" not in call.principal.scopes:
        raise missing_scope(needed)


def _hub_failed(result: Any) -> bool:
    """True if the task failed because of an error of the hub, not of the agent."""
    if not isinstance(result, Task) or result.state is not TaskState.FAILED:
        return False
    message = result.status.message
    internal_error = message is not None and message.text == FAILED
    return internal_error or result.metadata.get("x-arbiter.error_type") == FAILED_CODE
