"""The hub: many tenants' agents on one engine.

To the bindings it is a `Service`. `admission.py` checks the limits of the tenant and chooses the version of the agent for a
new task; the engine does the rest. Requests over A2A and over the native API are the same kind of task.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.dialects.arbiter import Resubscribe
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Bus, Peers, Push, Store
from dragoman.engine.records import Snapshot
from dragoman.engine.runner import FAILED
from dragoman.errors import A2AError, InvalidAgentResponse, TaskNotCancelable, TaskNotFound, keep_going
from dragoman.hub.agents.constitution import Constitution
from dragoman.hub.agents.programs import AGENT_FAILED, FAILED_CODE, AgentPrograms, Make
from dragoman.hub.conversations import events
from dragoman.hub.conversations.events import HubEvent, HubEventReader, ReplayingEngine
from dragoman.hub.conversations.message_input import message_text
from dragoman.hub.conversations.repair import restore_requests
from dragoman.hub.errors import Conflict, NotFound
from dragoman.hub.folder_lock import FolderLock
from dragoman.hub.metadata import AGENT_VERSION, ARBITER, NATIVE
from dragoman.hub.metrics import HubMetrics, HubObserver
from dragoman.hub.models.offered import ModelNames, Prices
from dragoman.hub.store.artifacts import Artifacts
from dragoman.hub.store.blobs import Blobs, BlobSweeper
from dragoman.hub.store.catalogue import Catalogue
from dragoman.hub.store.conversations import Conversations
from dragoman.hub.store.database import Database
from dragoman.hub.store.memories import Memories, Scratchpads
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.requests import IdempotencyKeys, Requests, StoredRequest
from dragoman.hub.store.spending import Spending, Usages
from dragoman.hub.store.tenants import Tenant, Tenants, missing_scope
from dragoman.hub.store.todos import Todos
from dragoman.hub.store.tokens import READ, RUN
from dragoman.hub.tenants.admission import Admission, Budgets, Quotas, RequestRoom, TenantWatch
from dragoman.hub.tenants.lifecycle import TenantDeletion, TenantExport, rename_tenant
from dragoman.hub.tools.fetcher import PageFetcher
from dragoman.hub.tools.remote_agents import HubPeers
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import (
    Batch,
    Call,
    CancelTask,
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
from dragoman.model.task import Task, TaskState
from dragoman.model.usage import TokenUsage
from dragoman.observe.instrument import InstrumentedService

log = logging.getLogger(__name__)

A2A = "a2a"
MAX_RELEASED = 500
"""Requests that are checked together."""
READ_OPERATIONS = (GetTask, ListTasks, SubscribeToTask, GetExtendedCard, GetOrigin)
"""Operations for a token that may only read. Push configs are not among them: they have the secrets of webhooks."""
MAX_ATTEMPTS = 20
"""Restarts of a request without progress. A long reply of a model may take several restarts."""


class Hub:
    """`start` opens the parts, and resumes the tasks that an earlier hub process left unfinished."""

    def __init__(
        self,
        database: Database,
        store: Store,
        bus: Bus,
        make: Make,
        *,
        code: Sequence[Agent],
        index: Constitution,
        quotas: Quotas,
        remotes: Peers,
        peers: Peers,
        metrics: HubMetrics,
        push: Push | None,
        fetcher: PageFetcher,
        keys: IdempotencyKeys,
        folder: Path | None,
        blobs: Blobs,
        model_names: ModelNames,
        prices: Prices,
        admin_token_is_set: bool,
        workspaces: Path | None,
        **engine: Any,
    ) -> None:
        self.database, self._store, self._bus = database, store, bus
        self.folder_lock = FolderLock(folder) if folder is not None else None
        """None: several hubs share the database."""
        self.tenants, self.requests = Tenants(database), Requests(database)
        self.identify_user: Callable[[str], Awaitable[Tenant]] | None = None
        """Finds the tenant of a user's token, if the settings name an issuer (`api/access.py`)."""
        contents = BlobSweeper(database, blobs)
        self.deletion = TenantDeletion(database, store, workspaces, contents)
        self._workspaces = workspaces
        self.admin_token_is_set = admin_token_is_set
        """The admin token is in the settings, so nobody can replace it here."""
        self.policies, self.model_names = Policies(database), model_names

        async def check_models(tenant: int, constitution: Constitution) -> None:
            self.model_names.check(await self.policies.of(tenant), constitution)

        self.catalogue = Catalogue(database, code, index=index, check=check_models)
        self.catalogue.release_versions = self._release_versions
        self.conversations = Conversations(database)
        self.memories, self.scratchpads = Memories(database), Scratchpads(database)
        self.artifacts, self.todos = Artifacts(database, blobs), Todos(database)
        self.keys, self.quotas, self.metrics, self.fetcher = keys, quotas, metrics, fetcher
        self.programs = AgentPrograms(
            self.catalogue, self.tenants, self.quotas, self.requests, make, push=push is not None
        )
        self.spending = Spending(database)
        self.budgets = Budgets(self.spending, self.policies, prices, self.metrics)
        self.admission = Admission(
            self.tenants,
            self.catalogue,
            self.quotas,
            self.metrics,
            self.budgets,
            self.policies,
            RequestRoom(store.index.size),
            starts=lambda scope, task: self.engine.runner.runs(scope, task),
        )
        self._watch = TenantWatch(
            database, self.tenants, self.quotas, self.stop_tenant, self.admission.recheck_readers
        )
        self._periodic = [self.deletion.periodic, self._watch.periodic, contents.periodic]
        outside = HubPeers(remotes, peers, self.catalogue)
        self.usages = Usages(database)
        self._counting: set[asyncio.Task[None]] = set()
        self.observer = HubObserver(store, self.metrics, self.usages, self._count_code_usage)
        engine = {"max_attempts": MAX_ATTEMPTS, "observer": self.observer, **engine}
        self.engine = Engine(store, bus, self.programs.find, peers=outside, push=push, **engine)
        self._service = InstrumentedService(ReplayingEngine(self.engine), self.observer)
        """The engine behind the audit log, for requests from outside."""

    async def start(self, **options: Any) -> None:
        if self.folder_lock is not None:
            self.folder_lock.take()
        try:
            await self.database.open()
            await self._store.open()
            if self.folder_lock is not None:  # two files; in PostgreSQL, tasks and tables are in one database
                # before a task goes on: what runs writes its request again, and then nothing seems to be missing
                await restore_requests(self._store, self.tenants, self.requests, self.conversations)
            await self.engine.start(**options)
        except BaseException:
            self._leave_folder()
            raise
        for work in self._periodic:
            work.start()

    async def stop(self, drain: float = 10.0) -> None:
        for work in self._periodic:
            await work.stop()
        self.observer.close()
        await self.engine.stop(drain)
        if self._counting:
            await asyncio.wait(self._counting)
        await self.usages.flush()
        await self.database.close()
        self._leave_folder()

    def _leave_folder(self) -> None:
        if self.folder_lock is not None:
            self.folder_lock.leave()

    def _count_code_usage(self, scope: Scope, used: TokenUsage) -> None:
        """Count what an agent that is code reports against the budgets. (Models of constitutions count as they are called.)"""
        if scope.agent in self.catalogue.code and scope.tenant.isdigit():
            tokens = used.input_tokens + used.output_tokens
            work = asyncio.create_task(self.budgets.count(int(scope.tenant), tokens, used.cost))
            self._counting.add(work)
            work.add_done_callback(self._counting.discard)

    async def request_bytes(self, tenant: int) -> int:
        """The bytes of the logs of a tenant's requests."""
        return await self._store.index.size(str(tenant))

    def metrics_text(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return self.metrics.text(self.quotas.counts())

    # -- Service: requests over A2A ------------------------------------------------------------------------------

    async def call(self, call: Call, request: Request) -> Any:
        _check_scope(call, request)
        if not isinstance(
            request, SendMessage | GetOrigin
        ):  # a binding asks for the origin beside another request
            await self._admit_read(call)
        if isinstance(request, CancelTask):
            return await self._with_times(call, await self._cancel(call, request))
        if not isinstance(request, SendMessage):
            result = await self._service.call(call, request)
            return await self._with_times(call, result) if isinstance(request, GetTask) else result
        async with self.admission.admit_message(call, request, via=A2A) as (call, request):
            result = await self._service.call(call, request)
        if call.dialect == ARBITER and _hub_failed(result):
            raise InvalidAgentResponse(AGENT_FAILED)
        if (
            isinstance(result, Task) and result.state is TaskState.CANCELED
        ):  # perhaps before its agent started
            await self.requests.store(int(call.scope.tenant), result.id, call.scope.agent, via=A2A)
            return await self._with_times(call, result)
        return result

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

    async def ask(
        self,
        tenant: Tenant,
        agent: str,
        read_input: Callable[[], Awaitable[tuple[Part, ...]]],
        *,
        key: str = "",
        inline: Constitution | None = None,
        conversation: int = 0,
        about: dict[str, Any] | None = None,
    ) -> StoredRequest:
        """Start a request and return it. A `key` that was used before returns the request from then.

        `read_input` is called once the request is admitted, because it may fetch images. `inline` is an agent for this request
        alone.
        """
        id = secrets.token_hex(8)
        if key:
            id, before = await self._claim_key(tenant, key, id)
            self.metrics.count("idempotency_miss_total" if before is None else "idempotency_replay_total")
            if before is not None:
                return before
        call = Call(
            scope=Scope(tenant.key, agent, tenant.key),
            principal=tenant.principal,
            dialect=NATIVE,
            idempotency_key=f"native/{id}" if key else "",
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
        request = SendMessage(message=message, metadata=metadata)
        async with self.admission.admit_message(
            call, request, via=NATIVE, conversation=conversation, inline=inline is not None
        ) as (call, request):
            parts = await read_input()
            await self.admission.check_room(tenant, len(msgspec.json.encode(parts)))
            metadata = request.metadata
            if inline is not None:
                metadata = {
                    **metadata,
                    AGENT_VERSION: (await self.catalogue.store_inline(tenant.id, inline)).version,
                }
            request = replace(request, message=replace(request.message, parts=parts), metadata=metadata)
            if conversation:
                await self.conversations.add_question(conversation, id, message_text(parts))
            try:
                await self.observer.deliver(self.engine, call, request)
            except A2AError:
                if conversation:
                    await self.conversations.remove_question(id)
                raise
        await self.requests.store(
            tenant.id, id, agent, via=NATIVE, conversation=conversation, version=metadata.get(AGENT_VERSION)
        )
        return await self.requests.find(tenant.id, id) or StoredRequest(
            request_id=id, agent_id=agent, conversation_id=conversation, via=NATIVE
        )

    async def _claim_key(self, tenant: Tenant, key: str, id: str) -> tuple[str, StoredRequest | None]:
        """The id of the request that a key stands for, and the request, if it has started."""
        known = await self.keys.claim(tenant.id, key, id)
        before = await self.requests.find(tenant.id, known) if known != id else None
        if before is None:
            return known, None  # new, or starting: the engine knows whether it is the first
        try:
            await self.snapshot(tenant, before)
        except NotFound:
            await self.keys.renew(tenant.id, key, id)
            return id, None
        return known, before

    async def find(self, tenant: Tenant, request: str) -> StoredRequest:
        """A request of a tenant. Raises `NotFound`."""
        asked = await self._find_request(tenant.key, request)
        if asked is None:
            raise NotFound(f"there is no request {request[:80]!r}")
        return asked

    async def snapshot(self, tenant: Tenant, asked: StoredRequest) -> Snapshot:
        """The state of a request. Raises `NotFound`."""
        try:
            return await self._store.scope(self._scope(tenant, asked)).load(asked.request_id)
        except TaskNotFound:
            raise NotFound(f"there is no request {asked.request_id!r}") from None

    async def events(
        self, tenant: Tenant, asked: StoredRequest, since: int = 0
    ) -> AsyncIterator[list[HubEvent]]:
        """The events of a request after `since`, up to `done`."""
        snapshot = await self.snapshot(tenant, asked)
        reading = HubEventReader(tenant, asked, code=asked.agent_id in self.catalogue.code)
        batches = events.events(self.engine.readers, snapshot, reading, since)
        if snapshot.mails[-1][1].generation != tenant.generation:
            # what began with a token that is revoked ends by itself, and its caller sees how
            batches = self.admission.while_valid(tenant.principal, batches)
        async for batch in batches:
            if asked.conversation_id and batch[-1].kind == "done":
                await self.store_answers(tenant, asked.conversation_id)
            yield batch

    async def answer(
        self, tenant: Tenant, asked: StoredRequest, text: str, *, question: int | None = None
    ) -> Snapshot:
        """Answer the question that a request waits with. Returns its state before.

        `question`: the `last_seq` with which the caller saw the question. Two answers with the same number are one. Raises `Conflict` if
        the request does not wait, or not with this question any more.
        """
        snapshot = await self.snapshot(tenant, asked)
        if not snapshot.state.interrupted:
            raise Conflict(f"request {asked.request_id!r} does not wait for an answer")
        if question is not None and question != snapshot.seq:
            raise Conflict(f"request {asked.request_id!r} does not wait with this question any more")
        message = Message(
            message_id=secrets.token_hex(8) if question is None else f"{asked.request_id}-answer-{question}",
            task_id=asked.request_id,
            context_id=snapshot.context_id,
            role=Role.USER,
            parts=(Part(text=text),),
        )
        call = Call(scope=self._scope(tenant, asked), principal=tenant.principal, dialect=NATIVE)
        async with self.admission.admit_message(
            call, SendMessage(message=message), via=NATIVE, conversation=asked.conversation_id, inline=True
        ) as (call, request):
            await self.observer.deliver(self.engine, call, request)
        return snapshot

    async def cancel(self, tenant: Tenant, request: str) -> bool:
        """Cancel a running request; False if it does not run."""
        try:
            asked = await self.find(tenant, request)
            call = Call(scope=self._scope(tenant, asked), principal=tenant.principal, strict_cancel=True)
            await self._cancel(call, CancelTask(id=request))
        except (NotFound, TaskNotFound, TaskNotCancelable):
            return False
        return True

    async def _cancel(self, call: Call, request: CancelTask) -> Any:
        """Cancel a task. A request that is canceled before its agent starts is stored too."""
        asked = await self._find_request(call.scope.tenant, request.id, call.scope.agent)
        task = await self._service.call(call, request)
        if asked is not None and asked.via:
            await self.requests.store(
                int(call.scope.tenant),
                asked.request_id,
                asked.agent_id,
                via=asked.via,
                conversation=asked.conversation_id,
            )
        return task

    async def store_answers(self, tenant: Tenant, conversation: int) -> None:
        """Add the answers of finished requests to their conversation."""
        for request in await self.conversations.unanswered(conversation):
            try:
                snapshot = await self.snapshot(tenant, await self.find(tenant, request))
            except NotFound:
                continue
            if not snapshot.terminal:
                continue
            await events.store_answer(self.conversations, conversation, snapshot)

    async def _release_versions(self, tenant: int) -> int:
        """Release the versions of agents whose requests have ended, so that they can be deleted. Returns how many requests."""
        known, ended = await self.tenants.current(tenant), []
        for asked in await self.requests.with_version(tenant, MAX_RELEASED) if known is not None else ():
            try:
                if known is not None and (await self.snapshot(known, asked)).terminal:
                    ended.append(asked)
            except NotFound:
                ended.append(asked)
        await self.requests.release_versions(tenant, ended)
        return len(ended)

    # -- administration ---------------------------------------------------------------------------------------

    async def rename_tenant(self, tenant: Tenant, name: str, *, actor: str = "admin") -> Tenant:
        """Raises `InvalidParams` and `Conflict`."""
        return await rename_tenant(self.tenants, self._store.catalogue, tenant, name, actor=actor)

    def export_tenant(self, tenant: Tenant) -> AsyncGenerator[bytes, None]:
        """Everything of a tenant, as a ZIP archive."""
        export = TenantExport(self.database, self._store, self.artifacts, self._workspaces)
        return export.archive(tenant)

    async def delete_tenant(self, tenant: Tenant, *, actor: str = "admin") -> None:
        """Disable a tenant, stop its work, and start to delete everything it has. Raises `NotFound`."""
        await self.deletion.begin(tenant, actor=actor)
        await self.stop_tenant(replace(tenant, disabled=True))

    async def stop_tenant(self, tenant: Tenant) -> tuple[int, bool]:
        """Cancel the tasks of a disabled tenant, or those of revoked tokens. Returns how many, and whether every cancel was
        delivered."""
        valid = await self.tenants.generations(tenant.id)
        running = [
            key
            for key, each in self.quotas.of(tenant.key).items()
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

    async def _with_times(self, call: Call, task: Task) -> Task:
        """Add the times of the request and of its last change, in seconds, to a task's metadata."""
        asked = await self._find_request(call.scope.tenant, task.id, call.scope.agent)
        if asked is None:
            return task
        at = task.status.timestamp
        changed = int(datetime.fromisoformat(at).timestamp()) if at else 0
        about = {
            "x-arbiter.agent_id": asked.agent_id,
            **task.metadata,
            "x-arbiter.created_at": asked.started_at,
            "x-arbiter.updated_at": max(asked.started_at, changed),
        }
        return replace(task, metadata=about)

    async def _find_request(self, tenant: str, request: str, agent: str = "") -> StoredRequest | None:
        """A stored request, or a running one that is not stored yet; of `agent`, or of any agent."""
        asked = await self.requests.find(int(tenant), request, agent) if tenant.isdigit() else None
        if asked is not None:
            return asked
        for (at, task), running in self.quotas.of(tenant).items():
            if task == request and running.asked and agent in ("", at):
                return StoredRequest(
                    request_id=request,
                    agent_id=at,
                    conversation_id=running.conversation,
                    via=running.via,
                    started_at=running.at,
                )
        return None

    def _scope(self, tenant: Tenant, asked: StoredRequest) -> Scope:
        return Scope(tenant.key, asked.agent_id, tenant.key)


def _check_scope(call: Call, request: Request) -> None:
    """A token that may only read can start, cancel and change nothing. Raises `Forbidden`."""
    needed = READ if isinstance(request, READ_OPERATIONS) else RUN
    if f"tenant:{needed}" not in call.principal.scopes:
        raise missing_scope(needed)


def _hub_failed(result: Any) -> bool:
    """True if the hub, not the agent, ended the task."""
    if not isinstance(result, Task) or result.state is not TaskState.FAILED:
        return False
    message = result.status.message
    raised = message is not None and message.text == FAILED
    return raised or result.metadata.get("x-arbiter.error_type") == FAILED_CODE
