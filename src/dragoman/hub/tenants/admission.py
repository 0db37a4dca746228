"""What a tenant may do: limits, budgets, admission of messages, and stopping what runs for a tenant that may not continue.

Limits count work that a tenant asked for, not what its agents ask of one another. Metadata under the hub's own prefixes
(`x-arbiter.`, `x-dragoman.`) is removed from messages that come from outside.

A tenant that has used up a budget of a day starts nothing new, and what runs for it calls no model: also delegated agents, advisors and
summaries, on every hub of the database. Calls that run at that moment end, and count. Money needs prices. A hub that limits money
calls no model whose price it does not know: it could not count what it spends.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.errors import A2AError, QuotaExceeded, RateLimited, TaskNotFound, Unauthenticated, keep_going
from dragoman.hub.agents.constitution_agent import check_text
from dragoman.hub.metadata import AGENT_VERSION, HUB_PREFIXES, NATIVE, VIA
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models import Usage
from dragoman.hub.models.offered import Prices
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.store.catalogue import Catalogue, CatalogueEntry
from dragoman.hub.store.database import Database
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.spending import COST, TOKENS, Spending, seconds_to_midnight
from dragoman.hub.store.tenants import Tenant, Tenants
from dragoman.model.content import NOTHING, Message
from dragoman.model.ops import Call, Principal, Scope, SendMessage
from dragoman.observe.shared_quota import SharedQuota

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, str]
"""An agent and a task. Callers of A2A 0.1 choose task ids, so two agents may have the same one."""
START_SECONDS = 10.0
"""How long a slot is kept for a task that is about to begin here."""
RETRY_SECONDS = 1.0
"""`Retry-After` of a caller that has too many requests running."""


class RunningTask(Struct):
    """A running task of a tenant. `asked`: the tenant itself asked for it."""

    asked: bool
    generation: int | None
    """The number of the token that the task started with; the task stops when that is revoked."""
    begun: bool = False
    conversation: int = 0
    via: str = ""
    at: int = field(default_factory=lambda: int(time.time()))
    slot: str = ""
    """What `leave` needs, if the task is counted over all hubs."""


class Bucket(Struct):
    """A token bucket."""

    left: float
    at: float


class Quotas:
    """Limits of requests per tenant; 0: no limit. `shared` counts over all hubs of a store."""

    def __init__(
        self, *, max_running: int = 0, per_minute: int = 0, burst: int = 0, shared: SharedQuota | None = None
    ) -> None:
        self.max_running, self.per_minute, self.burst = max_running, per_minute, burst
        self._shared = shared
        self._running: dict[str, dict[Key, RunningTask]] = {}
        self._buckets: dict[tuple[str, int], Bucket] = {}

    # -- rate --------------------------------------------------------------------------------------------------

    async def take_token(self, tenant: Tenant) -> None:
        """Count one request. Raises `RateLimited`."""
        rate = self.per_minute if tenant.per_minute is None else tenant.per_minute
        if (wait := await self._take("hub rate", tenant, rate, self.burst or rate)) > 0:
            raise _too_many(wait)

    async def take_read(self, tenant: Tenant, per_minute: int) -> None:
        """Count one request that starts nothing. Raises `RateLimited`."""
        if (wait := await self._take("hub reads", tenant, per_minute, per_minute)) > 0:
            raise _too_many(wait, "read_limit")

    async def _take(self, what: str, tenant: Tenant, rate: int, burst: int) -> float:
        """Take a token of a bucket. Returns 0, or the seconds until there is one."""
        if not rate:
            return 0.0
        if self._shared is not None:
            return await self._shared.take(self._shared.key(what, tenant.key), rate / 60, burst)
        now = time.monotonic()
        bucket = self._buckets.setdefault((what, tenant.id), Bucket(burst, now))
        bucket.left = min(burst, bucket.left + (now - bucket.at) * rate / 60)
        bucket.at = now
        if bucket.left < 1:
            return (1 - bucket.left) * 60 / rate
        bucket.left -= 1
        return 0.0

    # -- concurrency ----------------------------------------------------------------------------------------------

    async def reserve(
        self, tenant: Tenant, agent: str, task: str, *, conversation: int = 0, via: str = ""
    ) -> None:
        """Reserve a slot for a task. Raises `RateLimited`."""
        most, slot = self._max_running(tenant), ""
        if most and self._shared is not None:
            slot = self._shared.key("hub slots", tenant.key)
            for each in self.of(tenant.key).values():
                self._count(each, slot, most)  # those that began when the tenant had no limit
            free = await self._shared.enter(slot, most)
        else:
            free = not most or sum(each.asked for each in self.of(tenant.key).values()) < most
        if not free:
            raise RateLimited(
                f"{most} requests are running already; try again when one has ended",
                metadata={"reason": "concurrent_request_limit"},
                retry_after=RETRY_SECONDS,
            )
        self._drop(tenant.key, (agent, task))
        entry = RunningTask(True, tenant.generation, conversation=conversation, via=via, slot=slot)
        self._running.setdefault(tenant.key, {})[agent, task] = entry

    def release(self, tenant: str, agent: str, task: str, *, starts: bool = False) -> None:
        """Free the slot of a task that did not start. If it `starts` soon, its slot is kept for it: another task that got the
        slot meanwhile would be one too many."""
        entry = self._running.get(tenant, {}).get((agent, task))
        if entry is None or entry.begun:
            return
        if starts:
            asyncio.get_running_loop().call_later(START_SECONDS, self.release, tenant, agent, task)
        else:
            self._drop(tenant, (agent, task))

    @contextmanager
    def running(self, tenant: Tenant, agent: str, task: str, *, asked: bool) -> Iterator[None]:
        known = self._running.setdefault(tenant.key, {})
        if (entry := known.get((agent, task))) is None:
            entry = known[agent, task] = RunningTask(asked, tenant.generation)
            most = self._max_running(tenant)
            if most and self._shared is not None:  # a node died, and the task goes on here
                self._count(entry, self._shared.key("hub slots", tenant.key), most)
        entry.begun, entry.generation = True, tenant.generation
        try:
            yield
        finally:
            self._drop(tenant.key, (agent, task))

    def of(self, tenant: str) -> dict[Key, RunningTask]:
        """The running tasks of a tenant, by agent and task."""
        return dict(self._running.get(tenant, {}))

    def counts(self) -> dict[str, int]:
        return {tenant: sum(each.asked for each in tasks.values()) for tenant, tasks in self._running.items()}

    def _count(self, entry: RunningTask, slot: str, most: int) -> None:
        """Count a task over all hubs, if it is not counted yet."""
        if entry.asked and not entry.slot and self._shared is not None:
            entry.slot = slot
            self._shared.enter_anyway(slot, most)

    def _max_running(self, tenant: Tenant) -> int:
        return self.max_running if tenant.max_running is None else tenant.max_running

    def _drop(self, tenant: str, key: Key) -> None:
        tasks = self._running.get(tenant, {})
        entry = tasks.pop(key, None)
        if entry is not None and entry.slot and self._shared is not None:
            self._shared.leave(entry.slot)
        if not tasks:
            self._running.pop(tenant, None)


# -- budgets of tokens and money ---------------------------------------------------------------------------

EXHAUSTED, NO_PRICE = "budget_exhausted", "price_unknown"


class Budgets:
    def __init__(self, spending: Spending, policies: Policies, prices: Prices, metrics: HubMetrics) -> None:
        self._spending, self._policies, self.prices, self._metrics = spending, policies, prices, metrics

    async def refusal(self, tenant: int) -> tuple[str, str]:
        """Which budget is used up, and a sentence about it; empty if there is some left."""
        policy = await self._policies.of(tenant)
        if not policy.tokens_per_day and not policy.cost_per_day:
            return "", ""
        spent = await self._spending.today(tenant)
        if policy.tokens_per_day and spent.tokens >= policy.tokens_per_day:
            budget, used = TOKENS, f"{spent.tokens} of {policy.tokens_per_day} tokens"
        elif policy.cost_per_day and spent.cost >= policy.cost_per_day:
            budget, used = COST, f"{spent.cost:.2f} of {policy.cost_per_day:.2f} {self.prices.currency}"
        else:
            return "", ""
        why = f"the budget of this tenant for today is used up: {used}. The next day begins at 00:00 UTC"
        return budget, why

    async def check(self, tenant: int) -> None:
        """Raises `RateLimited` if a budget is used up."""
        budget, why = await self.refusal(tenant)
        if budget:
            raise RateLimited(why, metadata={"reason": f"{budget}_budget"}, retry_after=seconds_to_midnight())

    async def lacks_price(self, tenant: int, model: str) -> bool:
        """True if money is limited and the price of a model is not known."""
        return bool((await self._policies.of(tenant)).cost_per_day) and self.prices.of(model) is None

    async def spend(self, tenant: int, model: str, usage: Usage) -> None:
        await self.count(tenant, usage.total, self.prices.cost(model, usage))

    async def count(self, tenant: int, tokens: int, cost: float) -> None:
        """Count what was used. If the database is away, that is logged: the work goes on."""
        if not tokens and not cost:
            return
        with keep_going(log, f"counting {tokens} tokens of tenant {tenant}", A2AError):
            for alert in await self._spending.add(tenant, tokens, cost):
                log.warning("tenant %d: %s", tenant, alert.text)
                self._metrics.count(
                    "budget_alerts_total", tenant=str(tenant), budget=alert.budget, percent=str(alert.percent)
                )


# -- admission ---------------------------------------------------------------------------------------------


class RequestRoom:
    """Checks how much the logs of a tenant's requests have, which only the task store knows.

    It is asked again after some seconds, or when messages with many bytes came meanwhile. What came here since then is added.
    """

    def __init__(self, size: Callable[[str], Awaitable[int]]) -> None:
        self._size = size
        self._known: dict[str, tuple[float, int, int]] = {}
        """When a tenant was measured, its bytes then, and those of messages since."""

    async def take(self, tenant: str, more: int, limit: int) -> None:
        """Count a message of `more` bytes. Raises `QuotaExceeded` if the tenant would have more than `limit` bytes."""
        if not limit:
            return
        at, used, added = self._known.get(tenant, (0.0, 0, _MEASURE_BYTES))
        if added + more > _MEASURE_BYTES or time.monotonic() - at > _MEASURE_SECONDS:
            at, used, added = time.monotonic(), await self._size(tenant), 0
        fits = used + added + more <= limit
        self._known[tenant] = at, used, added + more if fits else added
        if not fits:
            raise QuotaExceeded(
                f"this tenant stores {(used + added) / _MB:.1f} MB of requests, and may store {limit // _MB}. Requests are deleted some "
                "days after they end; the operator can raise the limit (max_request_mb)",
                metadata={"reason": "storage_limit"},
            )


_MB = 1 << 20
_MEASURE_BYTES = 8 * _MB
_MEASURE_SECONDS = 5.0


class Admission:
    """`starts`: whether a task of a scope runs at this hub, or is about to."""

    def __init__(
        self,
        tenants: Tenants,
        catalogue: Catalogue,
        quotas: Quotas,
        metrics: HubMetrics,
        budgets: Budgets,
        policies: Policies,
        room: RequestRoom,
        *,
        starts: Callable[[Scope, str], bool],
    ) -> None:
        self._tenants, self._catalogue, self._quotas, self._metrics = tenants, catalogue, quotas, metrics
        self._budgets, self._policies, self._room, self._starts = budgets, policies, room, starts
        self._changed = asyncio.Event()
        """Set, and replaced, when a tenant changes."""

    async def check_room(self, tenant: Tenant, size: int) -> None:
        """Count bytes that come into the log of a request. Raises `QuotaExceeded`."""
        limit = (await self._policies.of(tenant.id)).max_request_mb * _MB
        await self._room.take(tenant.key, 2 * size + 1, limit)  # the prompt with it is recorded, too

    @contextmanager
    def _counting_refusals(self, tenant: Tenant) -> Iterator[None]:
        try:
            yield
        except RateLimited as error:
            self._metrics.limited(tenant, error.metadata["reason"])
            raise

    async def admit_read(self, tenant: Tenant) -> None:
        """Count a request that starts nothing. Raises `RateLimited`."""
        with self._counting_refusals(tenant):
            await self._quotas.take_read(tenant, (await self._policies.of(tenant.id)).reads_per_min)

    @asynccontextmanager
    async def admit_call(self, tenant: Tenant, route: str) -> AsyncIterator[None]:
        """Count a call that starts no task against the limits. Raises `RateLimited`."""
        id = secrets.token_hex(8)
        with self._counting_refusals(tenant):
            await self._quotas.take_token(tenant)
            await self._budgets.check(tenant.id)
            await self._quotas.reserve(tenant, "", id)
        with self._metrics.request(tenant, route):
            try:
                yield
            finally:
                self._quotas.release(tenant.key, "", id)

    @asynccontextmanager
    async def admit_message(
        self, call: Call, request: SendMessage, *, via: str, conversation: int = 0, inline: bool = False
    ) -> AsyncIterator[tuple[Call, SendMessage]]:
        """Check a message, reserve a slot for its task, and yield the call and request for the engine. Raises `A2AError`.

        `inline`: the agent comes with the request, and is not in the catalogue.
        """
        number = int(call.scope.tenant) if call.scope.tenant.isdigit() else 0
        tenant, agent = await self._tenants.find_active(number, call.principal.generation), call.scope.agent
        if tenant is None:
            raise Unauthenticated("missing or invalid bearer token")
        found = await self._catalogue.find(tenant.id, agent)
        message, native = request.message, via == NATIVE
        if not isinstance(found, Agent) and not native:
            check_text(message, answers=bool(message.task_id) and not call.names_tasks)
        if found is None and not inline:
            raise TaskNotFound("", message=f"there is no agent {agent[:80]!r}")
        metadata = {VIA: via, **(request.metadata if native else _without_hub_metadata(request.metadata))}
        if not inline and isinstance(found, CatalogueEntry):
            metadata[AGENT_VERSION] = found.version
        encoded = msgspec.json.encode(message)
        key = call.idempotency_key or ("" if native else _content_key(message, encoded))
        message = replace(message, metadata=_without_hub_metadata(message.metadata))
        with self._counting_refusals(tenant):
            await self._quotas.take_token(tenant)
            await self._budgets.check(tenant.id)
            await self.check_room(tenant, len(encoded) + len(msgspec.json.encode(metadata)))
            if not message.task_id or call.names_tasks:
                message = _with_ids(message)
                call = replace(call, names_tasks=True)
            if (agent, message.task_id) not in self._quotas.of(tenant.key):
                await self._quotas.reserve(tenant, agent, message.task_id, conversation=conversation, via=via)
        self._metrics.started(tenant.key, via)
        try:
            yield (replace(call, idempotency_key=key), replace(request, message=message, metadata=metadata))
        except A2AError:
            self._metrics.ended(tenant.key, via, False)  # the engine counts the end of an accepted one
            raise
        finally:
            starts = self._starts(call.scope, message.task_id)
            self._quotas.release(tenant.key, agent, message.task_id, starts=starts)

    async def while_valid(self, principal: Principal, batches: AsyncIterator[T]) -> AsyncIterator[T]:
        """The batches of a stream while the token of its reader is valid. Raises `Unauthenticated` after that, also if none come."""
        ready: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue(1)
        work = [
            asyncio.create_task(_pass_on(cast(AsyncGenerator[T], batches), ready)),
            asyncio.create_task(self._watch_reader(principal, ready)),
        ]
        looked = time.monotonic()
        try:
            while (item := await ready.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                if (now := time.monotonic()) - looked > WATCH_SECONDS:
                    looked = now
                    await self._check_reader(principal)
                yield item[0]
        finally:
            for each in work:
                each.cancel()
            await asyncio.wait(work)

    def recheck_readers(self) -> None:
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
            with suppress(TimeoutError):  # a token also expires when nothing changes
                async with asyncio.timeout(RECHECK_SECONDS):
                    await changed.wait()

    async def _check_reader(self, principal: Principal) -> None:
        if (
            await self._tenants.find_active(int(principal.tenant), principal.generation, expired=False)
        ) is None:
            raise Unauthenticated("the token is not valid any more")


async def _pass_on(batches: AsyncGenerator[T], ready: asyncio.Queue[tuple[T] | Exception | None]) -> None:
    """Put the batches into a queue, and at their end None or the error."""
    end: Exception | None = None
    try:
        async with aclosing(batches) as opened:
            async for batch in opened:
                await ready.put((batch,))
    except Exception as error:
        end = error
    await ready.put(end)


def _too_many(seconds: float, reason: str = "rate_limit") -> RateLimited:
    return RateLimited("too many requests; try again later", metadata={"reason": reason}, retry_after=seconds)


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
    words = hashlib.sha256(encoded).hexdigest()
    return f"message/{words}"


WATCH_SECONDS = 0.25
"""Seconds between two checks whether another process has written to the database."""
RECHECK_SECONDS = 30.0
"""Seconds after which the token of a reader is checked although no tenant has changed."""


class TenantWatch:
    """Cancels the tasks of tenants that another process has disabled, and those of tokens that it has revoked.

    `changed` is called when a tenant may have changed.
    """

    def __init__(
        self,
        database: Database,
        tenants: Tenants,
        quotas: Quotas,
        stop_tenant: Callable[[Tenant], Awaitable[tuple[int, bool]]],
        changed: Callable[[], None],
    ) -> None:
        self._database, self._tenants, self._quotas = database, tenants, quotas
        self._stop_tenant, self._changed = stop_tenant, changed
        self._seen: int | None = None
        """The version of the database at the last check."""
        self.periodic = PeriodicWork("checking tenants for changes", self._check, retry=1.0)

    async def _check(self) -> float:
        if (now := await self._database.version()) != self._seen:
            self._changed()
            if not all(await asyncio.gather(*map(self._check_tenant, self._quotas.counts()))):
                return 1.0
            self._seen = now
        return WATCH_SECONDS

    async def _check_tenant(self, key: str) -> bool:
        """Stop one tenant's tasks if necessary. False: try again."""
        with keep_going(log, f"stopping what runs for tenant {key}", A2AError):
            if (tenant := await self._tenants.current(int(key))) is not None:
                _, stopped = await self._stop_tenant(tenant)
                return stopped
            return True
        return False
