"""What a tenant may do: limits, budgets, admission of messages, and stopping what runs for a tenant that may not continue.

Limits count work that a tenant asked for, not what its agents ask of one another. Metadata under the hub's own prefixes
(`x-arbiter.`, `x-dragoman.`) is removed from messages that come from outside.

A tenant that has used up its budget of a day starts nothing new, and its running tasks call no model any more, not for delegated agents,
advisors and summaries either, on every hub of the database. Calls that run at that moment end, and count. A budget of money needs
prices: a tenant that has one cannot use a model whose price the hub does not know.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.errors import (
    A2AError,
    QuotaExceeded,
    RateLimited,
    StoreUnavailable,
    TaskNotFound,
    Unauthenticated,
    Unavailable,
    keep_going,
)
from dragoman.hub.agents.constitution_agent import check_text
from dragoman.hub.metadata import AGENT_VERSION, HUB_PREFIXES, NATIVE, VIA
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models import Usage
from dragoman.hub.models.prices import Prices
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.store.catalogue import Catalogue, CatalogueEntry
from dragoman.hub.store.database import Database
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.spending import COST, TOKENS, Spending, seconds_to_midnight
from dragoman.hub.store.tenants import Tenant, Tenants
from dragoman.model.content import NOTHING, Message
from dragoman.model.ops import Call, Principal, PushConfig, SendMessage
from dragoman.observe.shared_quota import SharedQuota

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, str]
"""An agent and a task. Callers of A2A 0.1 choose task ids, so two agents may have the same one."""
STARTING_CHECK_SECONDS = 2.0
"""Seconds between two checks whether a task that has a slot and does not run is still about to start here."""
OPEN_REQUEST_LIMIT = "open_request_limit"
RETRY_SECONDS = 1.0
"""`Retry-After` of a caller that has too many requests running."""


class RunningTask(Struct):
    """A running task of a tenant. `asked`: the tenant itself started it, not one of its agents."""

    asked: bool
    generation: int | None
    """The number of the token that the task started with; the task stops when that is revoked."""
    started: bool = False
    conversation: int = 0
    via: str = ""
    at: int = field(default_factory=lambda: int(time.time()))
    slot: str = ""
    """The key of its shared slot, if the task is counted over all hubs."""
    starting: bool = False
    """It has a slot and does not run yet, but is about to."""


class TokenBucket(Struct):
    left: float
    at: float
    """When `left` was computed."""


class Quotas:
    """Limits of requests per tenant; 0: no limit. `shared` counts over all hubs of a store."""

    def __init__(
        self, *, max_running: int = 0, per_minute: int = 0, burst: int = 0, shared: SharedQuota | None = None
    ) -> None:
        self.max_running, self.per_minute, self.burst = max_running, per_minute, burst
        self._shared = shared
        self._running: dict[str, dict[Key, RunningTask]] = {}
        self._buckets: dict[tuple[str, int], TokenBucket] = {}
        self._open: Counter[int] = Counter()
        """By tenant: the requests that this hub is answering."""
        self.runs_here: Callable[[str, str, str], bool] = lambda tenant, agent, task: False
        """Whether the task of a tenant and an agent runs here, or is about to."""

    # -- rate --------------------------------------------------------------------------------------------------

    async def take_token(self, tenant: Tenant) -> None:
        """Count one request. Raises `RateLimited`."""
        rate = self.per_minute if tenant.per_minute is None else tenant.per_minute
        if (wait := await self._take_from_bucket("hub rate", tenant, rate, self.burst or rate)) > 0:
            raise _rate_limited(wait)

    async def take_read(self, tenant: Tenant, per_minute: int) -> None:
        """Count one request that starts nothing. Raises `RateLimited`."""
        if (wait := await self._take_from_bucket("hub reads", tenant, per_minute, per_minute)) > 0:
            raise _rate_limited(wait, "read_limit")

    async def _take_from_bucket(self, what: str, tenant: Tenant, rate: int, burst: int) -> float:
        """Take a token of a bucket. Returns 0, or the seconds until there is one."""
        if not rate:
            return 0.0
        if self._shared is not None:
            return await self._shared.take(self._shared.key(what, tenant.key), rate / 60, burst)
        now = time.monotonic()
        bucket = self._buckets.setdefault((what, tenant.id), TokenBucket(burst, now))
        bucket.left = min(burst, bucket.left + (now - bucket.at) * rate / 60)
        bucket.at = now
        if bucket.left < 1:
            return (1 - bucket.left) * 60 / rate
        bucket.left -= 1
        return 0.0

    def open(self, tenant: Tenant, most: int) -> Callable[[], None]:
        """Count a request until the returned function is called. Raises `RateLimited`."""
        if most and self._open[tenant.id] >= most:
            raise RateLimited(
                f"{most} requests of this tenant are open already; try again when one of them, such as a stream, has ended",
                metadata={"reason": OPEN_REQUEST_LIMIT},
                retry_after=RETRY_SECONDS,
            )
        self._open[tenant.id] += 1

        def close() -> None:
            self._open[tenant.id] -= 1
            if not self._open[tenant.id]:
                del self._open[tenant.id]

        return close

    # -- concurrency ----------------------------------------------------------------------------------------------

    async def reserve(
        self, tenant: Tenant, agent: str, task: str, *, conversation: int = 0, via: str = ""
    ) -> None:
        """Reserve a slot for a task. Raises `RateLimited`."""
        most, slot = self._max_running(tenant), ""
        if most and self._shared is not None:
            slot = self._shared.key("hub slots", tenant.key)
            for each in self.of(tenant.key).values():
                self._count(each, slot, most)  # tasks that started when the tenant had no limit
            free = await self._shared.enter(slot, most)
        else:
            free = not most or sum(each.asked for each in self.of(tenant.key).values()) < most
        if not free:
            raise RateLimited(
                f"{most} requests are running already; try again when one has ended",
                metadata={"reason": "concurrent_request_limit"},
                retry_after=RETRY_SECONDS,
            )
        self._remove(tenant.key, (agent, task))
        entry = RunningTask(True, tenant.generation, conversation=conversation, via=via, slot=slot)
        self._running.setdefault(tenant.key, {})[agent, task] = entry

    def release(self, tenant: str, agent: str, task: str) -> None:
        """Free the slot of a task that did not start. If it is about to start, it keeps the slot: otherwise another task could get the slot,
        and one too many would run."""
        entry = self._running.get(tenant, {}).get((agent, task))
        if entry is None or entry.started or entry.starting:
            return
        if self.runs_here(tenant, agent, task):
            self.keep_slot(tenant, agent, task)
        else:
            self._remove(tenant, (agent, task))

    def keep_slot(self, tenant: str, agent: str, task: str) -> None:
        """Keep the slot of a task that is about to start here, for example again after an outage of the database."""
        entry = self._running.get(tenant, {}).get((agent, task))
        if entry is not None:
            entry.started = False
            if not entry.starting:
                entry.starting = True
                self._check_later(tenant, agent, task, entry)

    def _check_later(self, tenant: str, agent: str, task: str, entry: RunningTask) -> None:
        """Check until the task starts. If it will not start here any more (it was canceled, or another hub has it), free its slot."""

        def check() -> None:
            if self._running.get(tenant, {}).get((agent, task)) is not entry:
                return
            if entry.started:
                entry.starting = False
            elif self.runs_here(tenant, agent, task):
                self._check_later(tenant, agent, task, entry)
            else:
                self._remove(tenant, (agent, task))

        asyncio.get_running_loop().call_later(STARTING_CHECK_SECONDS, check)

    @contextmanager
    def running(self, tenant: Tenant, agent: str, task: str, *, asked: bool) -> Iterator[None]:
        """Count a task while it runs, in the slot that was reserved for it."""
        known = self._running.setdefault(tenant.key, {})
        if (entry := known.get((agent, task))) is None:
            entry = known[agent, task] = RunningTask(asked, tenant.generation)
            most = self._max_running(tenant)
            if most and self._shared is not None:  # another hub died, and the task continues here
                self._count(entry, self._shared.key("hub slots", tenant.key), most)
        entry.started, entry.generation, away = True, tenant.generation, False
        try:
            yield
        except StoreUnavailable:
            away = True
            raise
        finally:
            if away:
                self.keep_slot(tenant.key, agent, task)
            else:
                self._remove(tenant.key, (agent, task))

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

    def _remove(self, tenant: str, key: Key) -> None:
        tasks = self._running.get(tenant, {})
        entry = tasks.pop(key, None)
        if entry is not None and entry.slot and self._shared is not None:
            self._shared.leave(entry.slot)
        if not tasks:
            self._running.pop(tenant, None)


# -- budgets of tokens and money ---------------------------------------------------------------------------

BUDGET_EXHAUSTED, PRICE_UNKNOWN = "budget_exhausted", "price_unknown"
COUNT_RETRY_SECONDS = 1.0
"""Seconds until usage that could not be stored is stored again."""


class Budgets:
    def __init__(self, spending: Spending, policies: Policies, prices: Prices, metrics: HubMetrics) -> None:
        self._spending, self._policies, self.prices, self._metrics = spending, policies, prices, metrics
        self._counting: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

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

    def count_soon(self, tenant: int, tokens: int, cost: float) -> None:
        """`count`, without waiting for it: `flush` does."""
        self._begin(self.count(tenant, tokens, cost))

    async def flush(self) -> None:
        """Wait until everything is stored. What waits for the database is tried once more."""
        self._stopping.set()
        while self._counting:
            await asyncio.wait(self._counting)

    async def count(self, tenant: int, tokens: int, cost: float) -> None:
        """Count what was used. If the database is down, this logs a warning and counts later; the caller does not wait for it."""
        if (tokens or cost) and not await self._count(tenant, tokens, cost):
            self._begin(self._retry_count(tenant, tokens, cost))

    async def _retry_count(self, tenant: int, tokens: int, cost: float) -> None:
        counted = False
        while not counted and not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(COUNT_RETRY_SECONDS):
                    await self._stopping.wait()
            counted = await self._count(tenant, tokens, cost)
        if not counted:
            log.error("%d tokens of tenant %d could not be counted: the database is down", tokens, tenant)

    async def _count(self, tenant: int, tokens: int, cost: float) -> bool:
        """False: the database is down."""
        with keep_going(log, f"counting {tokens} tokens of tenant {tenant}", A2AError):
            try:
                alerts = await self._spending.add(tenant, tokens, cost)
            except Unavailable as error:
                log.warning("counting %d tokens of tenant %d: %s", tokens, tenant, error)
                return False
            for alert in alerts:
                log.warning("tenant %d: %s", tenant, alert.text)
                self._metrics.count(
                    "budget_alerts_total", tenant=str(tenant), budget=alert.budget, percent=str(alert.percent)
                )
        return True

    def _begin(self, counting: Coroutine[Any, Any, None]) -> None:
        work = asyncio.create_task(counting)
        self._counting.add(work)
        work.add_done_callback(self._counting.discard)


# -- admission ---------------------------------------------------------------------------------------------


class RequestRoom:
    """Checks how many bytes the logs of a tenant's requests have. Only the task store knows that.

    It asks the store after some seconds, or when this hub has added 8 MB, or an eighth of the room that is left, because other hubs add, too.
    In between, it adds the messages of this hub to the last answer.
    """

    def __init__(self, size: Callable[[str], Awaitable[int]]) -> None:
        self._size = size
        self._measured: dict[str, tuple[float, int, int]] = {}
        """By tenant: when the store was asked, its answer, and the bytes that were added since."""

    async def take(self, tenant: str, more: int, limit: int) -> None:
        """Count a message of `more` bytes. Raises `QuotaExceeded` if the tenant would have more than `limit` bytes."""
        if not limit:
            return
        at, used, added = self._measured.get(tenant, (0.0, 0, _MEASURE_BYTES))
        fits = used + added + more <= limit
        outdated = added + more > min(_MEASURE_BYTES, (limit - used) // _MEASURE_PART) if fits else added > 0
        if outdated or time.monotonic() - at > _MEASURE_SECONDS:
            at, used, added = time.monotonic(), await self._size(tenant), 0
        fits = used + added + more <= limit
        self._measured[tenant] = at, used, added + more if fits else added
        if not fits:
            raise QuotaExceeded(
                f"this tenant stores {(used + added) / _MB:.1f} MB of requests, and may store {limit // _MB}: delete some first "
                "(DELETE /v1/requests/{id}), or the operator raises the limit (max_request_mb)",
                metadata={"reason": "storage_limit"},
            )

    def forget(self, tenant: str) -> None:
        """Ask the store again at the next message, because the tenant has deleted something."""
        self._measured.pop(tenant, None)


_MB = 1 << 20
_MEASURE_BYTES = 8 * _MB
_MEASURE_PART = 8
_MEASURE_SECONDS = 5.0


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
        limit = (await self._policies.of(tenant.id)).max_request_mb * _MB
        await self.room.take(tenant.key, times * size + 1, limit)

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
            if (agent, message.task_id) not in self._quotas.of(tenant.key):
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
                if (now := time.monotonic()) - checked_at > WATCH_SECONDS:
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


def _rate_limited(seconds: float, reason: str = "rate_limit") -> RateLimited:
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
    return f"message/{hashlib.sha256(encoded).hexdigest()}"


WATCH_SECONDS = 0.25
"""Seconds between two checks whether another process has written to the database."""
WATCH_RETRY_SECONDS = 1.0
"""Seconds until a tenant whose tasks could not be stopped is tried again."""
RECHECK_SECONDS = 30.0
"""Seconds after which the token of a reader is checked although no tenant has changed."""


class TenantWatch:
    """Cancels the tasks of tenants and tokens that another process has disabled or revoked.

    It does not wait for the end of a task: one that does not stop, or whose hub does not answer, must not delay the others. `changed` is
    called when a tenant may have changed.
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
        self._checked_version: int | None = None
        """The version of the database at the last check."""
        self._checking: dict[str, bool] = {}
        """The tenants that are being checked, and whether they may have changed since that began."""
        self.periodic = PeriodicWork("checking tenants for changes", self._watch, retry=WATCH_RETRY_SECONDS)

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as stopping:
            while True:
                with keep_going(log, "checking tenants for changes", A2AError):
                    await self._check(stopping)
                await asyncio.sleep(WATCH_SECONDS)

    async def _check(self, stopping: asyncio.TaskGroup) -> None:
        if (now := await self._database.version()) != self._checked_version:
            self._changed()
            for key in self._quotas.counts():
                if key in self._checking:
                    self._checking[key] = True
                else:
                    self._checking[key] = False
                    stopping.create_task(self._stop(key))
            self._checked_version = now

    async def _stop(self, key: str) -> None:
        """Cancel a tenant's tasks if it may not run them any more. Retry until every cancel is delivered."""
        try:
            stopped = False
            while not stopped or self._checking[key]:
                stopped, self._checking[key] = False, False
                with keep_going(log, f"stopping what runs for tenant {key}", A2AError):
                    tenant = await self._tenants.current(int(key))
                    stopped = tenant is None or (await self._stop_tenant(tenant))[1]
                if not stopped:
                    await asyncio.sleep(WATCH_RETRY_SECONDS)
        finally:
            del self._checking[key]
