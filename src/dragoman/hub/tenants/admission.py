"""Admission of messages and readers: who a request is for, and whether its tenant has room, rate and budget for it.

Metadata under the hub's own prefixes (`x-arbiter.`, `x-dragoman.`) is removed from messages that come from outside.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.errors import A2AError, RateLimited, TaskNotFound, Unauthenticated
from dragoman.hub.agents.constitution_agent import check_text
from dragoman.hub.metadata import AGENT_VERSION, HUB_PREFIXES, NATIVE, VIA
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.store.catalogue import Catalogue, CatalogueEntry
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.tenants import Tenant, Tenants
from dragoman.hub.tenants.budgets import Budgets
from dragoman.hub.tenants.quotas import Quotas, RequestRoom
from dragoman.model.content import NOTHING, Message
from dragoman.model.ops import Call, Principal, PushConfig, SendMessage

log = logging.getLogger(__name__)

T = TypeVar("T")
READER_CHECK_SECONDS = 0.25
"""Seconds between two checks of the token of a reader that gets many batches."""
RECHECK_SECONDS = 30.0
"""Seconds after which the token of a reader is checked although no tenant has changed."""


class Admission:
    def __init__(
        self,
        tenants: Tenants,
        catalogue: Catalogue,
        quotas: Quotas,
        metrics: HubMetrics,
        budgets: Budgets,
        policies: Policies,
        room: RequestRoom,
    ) -> None:
        self._tenants, self._catalogue, self._quotas, self._metrics = tenants, catalogue, quotas, metrics
        self._budgets, self._policies, self.room = budgets, policies, room
        self._changed = asyncio.Event()
        """Set, and replaced, when a tenant changes."""

    async def check_room(self, tenant: Tenant, size: int, *, times: int = 2) -> None:
        """Count bytes that the log of a request will have. `times`: a message counts twice, because the log also has its prompt.

        Raises `QuotaExceeded`.
        """
        policy = await self._policies.of(tenant.id)
        await self.room.take(tenant.key, times * size + 1, policy.max_request_mb)

    async def check_config_room(self, tenant: str, config: PushConfig) -> None:
        """Count a push config, which is stored with its request. Raises `QuotaExceeded`."""
        if tenant.isdigit() and (known := await self._tenants.current(int(tenant))) is not None:
            await self.check_room(known, len(msgspec.json.encode(config)), times=1)

    @contextmanager
    def _count_refusals(self, tenant: Tenant) -> Iterator[None]:
        try:
            yield
        except RateLimited as error:
            self._metrics.count_refusal(tenant, error.metadata["reason"])
            raise

    async def admit_read(self, tenant: Tenant) -> None:
        """Count a request that starts nothing. Raises `RateLimited`."""
        with self._count_refusals(tenant):
            await self._quotas.take_read(tenant, (await self._policies.of(tenant.id)).reads_per_min)

    async def open_request(self, tenant: Tenant) -> Callable[[], None]:
        """Count a request until the returned function is called. Raises `RateLimited`."""
        with self._count_refusals(tenant):
            return self._quotas.open(tenant, (await self._policies.of(tenant.id)).max_open_requests)

    @asynccontextmanager
    async def admit_gate(self, tenant: Tenant) -> AsyncIterator[None]:
        """Count a call of the gate, which starts no task, against the limits. Raises `RateLimited`."""
        id = secrets.token_hex(8)
        with self._count_refusals(tenant):
            await self._quotas.take_token(tenant)
            await self._budgets.check(tenant.id)
            await self._quotas.reserve(tenant, "", id)
        with self._metrics.count_call(tenant, "gate"):
            try:
                yield
            finally:
                self._quotas.release(tenant.key, "", id)

    async def count_message(self, tenant: Tenant) -> None:
        """Count a message against the rate, and check the budgets. Raises `RateLimited`."""
        with self._count_refusals(tenant):
            await self._quotas.take_token(tenant)
            await self._budgets.check(tenant.id)

    @asynccontextmanager
    async def admit_message(
        self,
        call: Call,
        request: SendMessage,
        *,
        via: str,
        conversation: int = 0,
        inline: bool = False,
        counted: bool = False,
    ) -> AsyncIterator[tuple[Call, SendMessage]]:
        """Check a message, reserve a slot for its task, and yield the call and request for the engine. Raises `A2AError`.

        `inline`: the agent comes with the request, and is not in the catalogue. `counted`: `count_message` has counted it.
        """
        tenant_id = int(call.scope.tenant) if call.scope.tenant.isdigit() else 0
        tenant, agent = (
            await self._tenants.find_active(tenant_id, call.principal.generation),
            call.scope.agent,
        )
        if tenant is None:
            raise Unauthenticated("missing or invalid bearer token")
        found = await self._catalogue.find(tenant.id, agent)
        message, native = request.message, via == NATIVE
        try:
            if not isinstance(found, Agent) and not native:
                check_text(message, answers=bool(message.task_id) and not call.names_tasks)
            if found is None and not inline:
                raise TaskNotFound("", message=f"there is no agent {agent[:80]!r}")
        except A2AError:
            await self.admit_read(tenant)  # a refused message starts nothing
            raise
        metadata = {VIA: via, **(request.metadata if native else _without_hub_metadata(request.metadata))}
        if not inline and isinstance(found, CatalogueEntry):
            metadata[AGENT_VERSION] = found.version
        encoded = msgspec.json.encode(message)
        key = call.idempotency_key or ("" if native else _content_key(message, encoded))
        message = replace(message, metadata=_without_hub_metadata(message.metadata))
        if not counted:
            await self.count_message(tenant)
        with self._count_refusals(tenant):
            webhook = msgspec.json.encode(request.configuration.task_push_notification_config)
            more = len(msgspec.json.encode(metadata)) + len(webhook)
            await self.check_room(tenant, len(encoded) + more)
            if not message.task_id or call.names_tasks:
                message = _with_ids(message)
                call = replace(call, names_tasks=True)
            if (agent, message.task_id) not in self._quotas.running_tasks(tenant.key):
                await self._quotas.reserve(tenant, agent, message.task_id, conversation=conversation, via=via)
        self._metrics.count_start(tenant.key, via)
        try:
            yield (replace(call, idempotency_key=key), replace(request, message=message, metadata=metadata))
        except A2AError:
            self._metrics.count_end(tenant.key, via, False)  # the engine counts the end of an accepted one
            raise
        finally:
            self._quotas.release(tenant.key, agent, message.task_id)

    async def while_valid(self, principal: Principal, batches: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """The batches of a stream while the token of its reader is valid. After that it raises `Unauthenticated`, even while it waits."""
        ready: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue(1)
        work = [
            asyncio.create_task(_queue_batches(cast(AsyncGenerator[T], batches), ready)),
            asyncio.create_task(self._watch_reader(principal, ready)),
        ]
        checked_at = time.monotonic()
        try:
            while (item := await ready.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                if (now := time.monotonic()) - checked_at > READER_CHECK_SECONDS:
                    checked_at = now
                    await self._check_reader(principal)
                yield item[0]
        finally:
            for each in work:
                each.cancel()
            await asyncio.wait(work)

    def check_readers_again(self) -> None:
        """Check the tokens of all readers: a tenant has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch_reader(
        self, principal: Principal, ready: asyncio.Queue[tuple[T] | Exception | None]
    ) -> None:
        while True:
            changed = self._changed
            try:
                await self._check_reader(principal)
            except Unauthenticated as error:
                await ready.put(error)
                return
            except A2AError as error:
                log.warning("the token of a reader cannot be checked: %s", error.message)
            with suppress(TimeoutError):  # a token may also expire without a change
                async with asyncio.timeout(RECHECK_SECONDS):
                    await changed.wait()

    async def _check_reader(self, principal: Principal) -> None:
        """Raises `Unauthenticated` if the token of a reader is revoked or has expired, or the tenant is disabled."""
        tenant_id, expires = int(principal.tenant), principal.claims.get("exp")
        if await self._tenants.find_active(tenant_id, principal.generation, expired=False) is None or (
            expires is not None and expires <= time.time()
        ):
            raise Unauthenticated("the token is not valid any more")


async def _queue_batches(
    batches: AsyncGenerator[T], ready: asyncio.Queue[tuple[T] | Exception | None]
) -> None:
    """Put the batches into a queue, and at their end None or the error."""
    end: Exception | None = None
    try:
        async with aclosing(batches) as opened:
            async for batch in opened:
                await ready.put((batch,))
    except Exception as error:
        end = error
    await ready.put(end)


def _with_ids(message: Message) -> Message:
    """Add missing ids: 16 hexadecimal digits."""
    return replace(
        message,
        task_id=message.task_id or secrets.token_hex(8),
        context_id=message.context_id or ("" if message.task_id else secrets.token_hex(8)),
    )


def _without_hub_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata without the hub's own names."""
    return {name: value for name, value in metadata.items() if not name.startswith(HUB_PREFIXES)} or NOTHING


def _content_key(message: Message, encoded: bytes) -> str:
    """The idempotency key of a message: its whole content, because some clients reuse message ids."""
    if not message.message_id or message.task_id:
        return ""
    return f"message/{hashlib.sha256(encoded).hexdigest()}"
