"""Quotas that hold for all nodes of a store together.

A node takes a few operations of a quota out of the store at a time (a *share*), counts in memory while they last, and gives
back what it did not use. `lease_tokens` and `lease_slots` decide what a node gets. They are pure: a store runs them in a
transaction on the row of the quota.

A rate is a bucket of `burst` tokens that fills with `rate` tokens per second. Tokens in shares count as in the bucket until
they are used: the bucket fills up to `burst` minus all shares. So in any T seconds all nodes together accept at most
`burst + rate * T` operations, whatever the nodes and their clocks do. A share that its node neither used nor gave back, because
the node died, counts as used, and is over after `HOLD_SECONDS`.

A concurrency is a number of slots. A node has as many as it runs operations, and renews them. The slots of a node that died are free
after `slot_seconds`. If another node continues its operations before that, their slots move to that node as soon as it is clear
that the first one does not renew them. A node that is cut off from the store for longer finishes what it began, so others may run
as much beside it; it begins nothing new.

If the store is away, a node uses up its shares. Then it refuses with `Unavailable`: it does not guess.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from functools import partial
from hashlib import blake2b
from math import floor

import msgspec
from msgspec import Struct

from dragoman.engine.protocols import QuotaStore
from dragoman.errors import A2AError, Unavailable
from dragoman.model.ids import new_id

logger = logging.getLogger("dragoman.quota")

HOLD_SECONDS = 1.0
"""How long a node may use tokens that it took."""
SLOT_SECONDS = 15.0
"""How long slots stay with a node that does not renew them."""
_RENEW, _STALE = 1 / 6, 1 / 3
"""Slots are renewed after this part of their time. A node that has not done so for the second part does not live, or is cut off."""
_STORE_SECONDS = 2.0
"""How long an operation waits for the store."""
_UNUSED_SECONDS = 0.4
"""Tokens that were not used for so long go back, long before they lapse."""
_SWEEP_SECONDS = 0.2
_RETRY_SECONDS = 0.1
"""Another node may be giving back a slot at this moment: one look more, after this time."""
_REFUSE_SECONDS = 0.25
"""A caller that is over its limit is refused for so long without asking the store again."""
_CLOCK_SECONDS = 60.0
_MAX_BLOCK = 1024
_KEPT_SLOTS = 8
"""A node keeps a slot that it does not use for each so many of the limit."""


class Share(Struct, frozen=True, array_like=True):
    n: int
    until: float


class Row(Struct, frozen=True, array_like=True):
    """What the store knows of one quota."""

    level: float
    """Tokens in the bucket, without those in shares."""
    at: float
    """When that was so."""
    shares: dict[str, Share] = {}


class QuotaLease(Struct, frozen=True):
    granted: int
    wait: float = 0.0
    """Seconds until there may be more."""
    moved: int = 0
    """Slots that came from a node that does not renew them."""


_read = msgspec.json.Decoder(Row).decode
_write = msgspec.json.Encoder().encode


def _load(body: bytes, now: float, level: float) -> tuple[Row, float]:
    """The row, and the time, which never goes back."""
    if not body:
        return Row(level, now), now
    row = _read(body)
    if row.at > now + _CLOCK_SECONDS:  # the clock began again, with the machine
        return Row(row.level, now, {}), now
    return row, max(now, row.at)


def lease_tokens(
    body: bytes, now: float, *, node: str, rate: float, burst: int, need: int, spare: int, unused: int
) -> tuple[bytes, float, QuotaLease]:
    """Give back `unused` tokens of the node's last share, then take `need` to use now, and up to `spare` to hold.

    Returns the new row, when it may be forgotten, and what was granted.
    """
    row, now = _load(body, now, burst)
    shares = dict(row.shares)
    level, at = min(row.level, burst), row.at
    held = sum(share.n for share in shares.values())
    for name, share in sorted(shares.items(), key=lambda item: item[1].until):
        if share.until > now:
            break
        level, at = _fill(level, rate * (share.until - at), burst - held), max(at, share.until)
        held -= share.n
        del shares[name]
    level = _fill(level, rate * (now - at), burst - held)
    if (mine := shares.pop(node, None)) is not None:
        held -= mine.n
        level += min(unused, mine.n)
    granted = min(need, floor(level + 1e-9))
    level -= granted
    if granted == need and need:
        extra = min(spare, floor(level / 2))  # the other nodes have callers, too
        if extra > 0:
            level, held, granted = level - extra, held + extra, granted + extra
            shares[node] = Share(extra, now + HOLD_SECONDS)
    wait = 0.0
    if granted < need:
        wait = (1 - level) / rate
        if burst - held < 1 and shares:
            wait = max(wait, min(share.until for share in shares.values()) - now)
    full = now + (burst - level) / rate + HOLD_SECONDS
    return _write(Row(level, now, shares)), full, QuotaLease(granted, wait)


def _fill(level: float, more: float, room: float) -> float:
    """A bucket never loses tokens because its room shrinks: shares came out of it."""
    return max(level, min(room, level + max(0.0, more)))


def lease_slots(
    body: bytes,
    now: float,
    *,
    node: str,
    limit: int,
    active: int,
    want: int,
    continued: int = 0,
    seconds: float = SLOT_SECONDS,
) -> tuple[bytes, float, QuotaLease]:
    """Have `want` slots instead of those that the node has. What is `active` counts even if it is too much.

    `continued` of them were slots of other nodes, which lose as many if they have not renewed them for some time.
    """
    row, now = _load(body, now, 0.0)
    shares = {
        name: share
        for name, share in row.shares.items()
        if name != node and now < share.until <= now + seconds
    }
    moved = 0
    for name, share in sorted(shares.items(), key=lambda item: item[1].until):
        if moved < continued and share.until < now + seconds * (1 - _STALE):
            taken = min(share.n, continued - moved)
            moved += taken
            shares[name] = Share(share.n - taken, share.until)
    free = limit - sum(share.n for share in shares.values())
    granted = max(active, min(want, free))
    if granted > 0:
        shares[node] = Share(granted, now + seconds)
    until = max((share.until for share in shares.values()), default=now)
    return _write(Row(0.0, now, shares)), until, QuotaLease(granted, 1.0 if granted < want else 0.0, moved)


class _Tokens:
    """The share of this node in one rate."""

    __slots__ = ("block", "burst", "empty_until", "left", "lock", "need", "next_at", "rate", "until")

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self.left = 0
        self.until = self.empty_until = 0.0
        self.next_at = 0.0
        """When there is a token again, as far as the store knew when it last had none."""
        self.block = 0
        """How many to take ahead: twice as many each time that they were used up, half as many when they were not."""
        self.need = 0
        """Operations that wait for the next share."""
        self.lock = asyncio.Lock()

    @property
    def idle(self) -> bool:
        return not self.left and not self.need and not self.lock.locked()


class _Slots:
    """The share of this node in one concurrency."""

    __slots__ = ("active", "continued", "full_until", "limit", "lock", "slots", "until", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.slots = self.active = 0
        self.continued = 0
        """Operations of other nodes that go on here, and whose slots have not moved yet."""
        self.until = self.full_until = 0.0
        self.waiting = 0
        """Operations that wait for the lock, or have it. A lock that was released is free until the next one of them goes on."""
        self.lock = asyncio.Lock()

    @property
    def idle(self) -> bool:
        return not self.slots and not self.active and not self.waiting

    @property
    def wanted(self) -> int:
        """What is kept when somebody leaves: small limits keep nothing, so that other nodes have all of them."""
        return self.active + min(self.limit // _KEPT_SLOTS, self.slots - self.active) if self.active else 0


class SharedQuota:
    """This node's shares of quotas. `take` and `enter` cost nothing but memory while a share lasts."""

    def __init__(self, store: QuotaStore, node: str = "", *, slot_seconds: float = 0.0) -> None:
        """`slot_seconds` is how long slots stay with a node that does not renew them: longer than it takes until another node continues
        its operations. All nodes must have the same."""
        self._store, self._slot_seconds = store, slot_seconds or SLOT_SECONDS
        self._node = node or new_id()
        self._tokens: dict[str, _Tokens] = {}
        self._slots: dict[str, _Slots] = {}
        self._names: dict[Hashable, str] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()
        """Slots are to be given back now."""
        self._failing = self._closed = False

    def key(self, *parts: str) -> str:
        """A name of a quota in the store: as short for any caller, and not readable."""
        found = self._names.get(parts)
        if found is None:
            if len(self._names) > 1 << 14:
                self._names.clear()
            found = self._names[parts] = blake2b(_write(parts), digest_size=18).hexdigest()
        return found

    async def take(self, key: str, rate: float, burst: int) -> float:
        """Count one operation. Returns 0 if it is within `rate` per second and `burst`, else the seconds to wait.

        Raises `Unavailable` if that cannot be known.
        """
        share = self._tokens.get(key)
        if share is None:
            share = self._tokens[key] = _Tokens(rate, burst)
        share.rate, share.burst = rate, burst  # an operator may change them
        if self._take_held(share):
            return 0.0
        share.need += 1
        try:
            async with share.lock:
                if self._take_held(share):
                    return 0.0
                if (now := time.monotonic()) < share.empty_until:
                    return share.next_at - now
                return await self._lease_tokens(key, share)
        finally:
            share.need -= 1

    async def enter(self, key: str, limit: int) -> bool:
        """Begin one of at most `limit` operations; False if there are as many. `leave` ends it. Raises `Unavailable`."""
        share = self._slots.get(key)
        if share is None:
            share = self._slots[key] = _Slots(limit)
        share.limit = limit
        if self._enter_held(share):
            return True
        share.waiting += 1
        try:
            async with share.lock:
                return await self._enter_leased(key, share)
        finally:
            share.waiting -= 1

    async def _enter_leased(self, key: str, share: _Slots) -> bool:
        for last in (False, True):
            if self._enter_held(share):
                return True
            if time.monotonic() < share.full_until:
                return False
            spare = min(share.limit // _KEPT_SLOTS, share.active)
            await self._lease_slots(key, share, share.active + 1 + spare)
            if self._enter_held(share):
                return True
            if not last:
                await asyncio.sleep(_RETRY_SECONDS)
        share.full_until = time.monotonic() + _REFUSE_SECONDS
        return False

    def enter_anyway(self, key: str, limit: int) -> None:
        """Begin an operation that was accepted before, perhaps by a node that died. It counts even if it is one too many."""
        share = self._slots.get(key)
        if share is None:
            share = self._slots[key] = _Slots(limit)
        share.active += 1
        share.continued += 1
        self._sweep_soon(now=True)

    def leave(self, key: str) -> None:
        share = self._slots[key]
        share.active -= 1
        share.full_until = 0.0
        if share.slots > share.wanted:
            self._sweep_soon(now=True)

    async def close(self) -> None:
        """Give back all shares. If the store is away, they lapse."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
            self._sweeper = None
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                for key, share in list(self._tokens.items()):
                    if share.left:
                        await self._give_back(key, share)
                for key, slots in list(self._slots.items()):
                    if slots.slots:
                        await self._lease_slots(key, slots, 0)
        except (TimeoutError, A2AError):
            pass

    # -- in memory -----------------------------------------------------------------------------------------------------

    def _take_held(self, share: _Tokens) -> bool:
        if share.left > 0 and time.monotonic() < share.until:
            share.left -= 1
            return True
        return False

    def _enter_held(self, share: _Slots) -> bool:
        if share.active < min(share.slots, share.limit) and time.monotonic() < share.until:
            share.active += 1
            return True
        return False

    # -- in the store --------------------------------------------------------------------------------------------------

    async def _lease_tokens(self, key: str, share: _Tokens) -> float:
        used_up = not share.left
        share.block = min(_MAX_BLOCK, max(1, share.block * 2)) if used_up else share.block // 2
        unused, share.left = share.left, 0
        # The operations that wait behind us are served from what we hold, so they are counted as spare.
        spare = share.block + share.need - 1
        sent = time.monotonic()
        lease = await self._change(
            key,
            partial(
                lease_tokens,
                node=self._node,
                rate=share.rate,
                burst=share.burst,
                need=1,
                spare=spare,
                unused=unused,
            ),
        )
        if not lease.granted:
            now = time.monotonic()
            share.empty_until, share.next_at = now + min(lease.wait, _REFUSE_SECONDS), now + lease.wait
            return max(lease.wait, 1e-3)
        share.left, share.until = lease.granted - 1, sent + HOLD_SECONDS
        self._sweep_soon()
        return 0.0

    async def _give_back(self, key: str, share: _Tokens) -> None:
        unused, share.left = share.left, 0
        share.block //= 2
        change = partial(
            lease_tokens, node=self._node, rate=share.rate, burst=share.burst, need=0, spare=0, unused=unused
        )
        await self._change(key, change)

    async def _lease_slots(self, key: str, share: _Slots, want: int) -> None:
        sent = time.monotonic()
        share.slots = min(share.slots, want)  # nobody enters by a slot that we are giving back
        lease = await self._change(
            key,
            partial(
                lease_slots,
                node=self._node,
                limit=share.limit,
                active=share.active,
                want=want,
                continued=share.continued,
                seconds=self._slot_seconds,
            ),
        )
        share.slots, share.until = lease.granted, sent + self._slot_seconds
        share.continued -= lease.moved
        self._sweep_soon()

    async def _change(
        self, key: str, change: Callable[[bytes, float], tuple[bytes, float, QuotaLease]]
    ) -> QuotaLease:
        given_up = False

        def change_in_time(body: bytes, now: float) -> tuple[bytes, float, QuotaLease]:
            if given_up:  # a store may try for longer than we wait: what we hold is not what it was
                raise Unavailable("nobody waits for this change any more")
            return change(body, now)

        try:
            async with asyncio.timeout(_STORE_SECONDS):
                lease = await self._store.change(key, change_in_time)
        except (TimeoutError, A2AError) as error:
            if not self._failing:
                self._failing = True
                logger.warning("the store does not count quotas now: %s", str(error) or "it does not answer")
            raise Unavailable("the quota cannot be checked: the store is away", retry_after=1) from error
        finally:
            given_up = True
        self._failing = False
        return lease

    def _sweep_soon(self, *, now: bool = False) -> None:
        if now:
            self._soon.set()
        if self._closed:
            return
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep())

    async def _sweep(self) -> None:
        """Give back what is not used and renew what is, until nothing is held."""
        while self._tokens or self._slots:
            try:
                async with asyncio.timeout(_SWEEP_SECONDS):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._soon.clear()
            try:
                await self._sweep_once()
            except Unavailable:  # logged; shares lapse
                await asyncio.sleep(_SWEEP_SECONDS)

    async def _sweep_once(self) -> None:
        now = time.monotonic()
        for key, tokens in list(self._tokens.items()):
            if (
                tokens.left
                and now > tokens.until - HOLD_SECONDS + _UNUSED_SECONDS
                and not tokens.lock.locked()
            ):
                async with tokens.lock:
                    if tokens.left:
                        await self._give_back(key, tokens)
            elif tokens.idle and now > tokens.until:
                del self._tokens[key]
        for key, slots in list(self._slots.items()):
            if slots.idle:
                del self._slots[key]
            elif (slots.slots or slots.active) and not slots.lock.locked():
                due = now > slots.until - self._slot_seconds * (1 - _RENEW)
                if slots.slots > slots.wanted or slots.active > slots.slots or due:
                    async with slots.lock:
                        await self._lease_slots(key, slots, slots.wanted)
