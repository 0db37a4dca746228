"""Tenants, their tokens, and the admin token.

A token is shown once, when it is created; the hub stores its SHA-256. Disabling a tenant or rotating its token raises its
`generation`: tasks of an older generation stop (`TenantWatch` cancels them, and `programs.py` checks before each model call).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.errors import Conflict, NotFound
from dragoman.hub.store.database import Database, Row, Transaction
from dragoman.model.ops import Principal

TENANT, ADMIN = "atr_", "adm_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@-]{0,99}")
_TOUCH_SECONDS = 60
"""Minimum seconds between two updates of `last_used_at`."""

_FIELDS = "id, name, disabled, generation, max_running, per_minute, created_at, last_used_at"
_ALL = f"select {_FIELDS} from tenants order by id"
_BY_ID = f"select {_FIELDS} from tenants where id = ?"
_BY_NAME = f"select {_FIELDS} from tenants where name = ?"
_BY_HASH = f"select token_hash, {_FIELDS} from tenants where token_hash = ?"
_ADD = "insert into tenants (name, token_hash, created_at) values (?, ?, ?) returning id"
_TOUCHED = "update tenants set last_used_at = ? where id = ?"
_DISABLE = "update tenants set disabled = ?, generation = generation + ? where id = ?"
_ROTATE = "update tenants set token_hash = ?, generation = generation + 1 where id = ?"
_KEEP_SCHEDULES = """
update schedules set generation = generation + 1 where tenant_id = ?1
and generation + 1 = (select generation from tenants where id = ?1)
"""
_PAUSE_SCHEDULES = "update schedules set status = 'paused' where tenant_id = ? and status = 'active'"
_LIMIT = "update tenants set max_running = ?, per_minute = ? where id = ?"
_AUDIT = "insert into audit (at, actor, action, tenant_id, detail) values (?, ?, ?, ?, ?)"
_AUDITED = """
select id, at, actor, action, tenant_id, detail from audit where id < ? order by id desc limit ?
"""
_GET_ADMIN = "select value from secrets where name = 'admin'"
_PUT_ADMIN = """
insert into secrets (name, value) values ('admin', ?) on conflict (name) do update set value = excluded.value
"""


class Tenant(Struct, frozen=True, kw_only=True):
    id: int
    name: str
    disabled: bool
    generation: int
    max_running: int | None
    """Requests that may run at once; None: the limit of the hub."""
    per_minute: int | None
    created_at: int
    last_used_at: int

    @property
    def key(self) -> str:
        """The tenant in the scope of its tasks. A name may be reused, a number is not."""
        return str(self.id)

    @property
    def principal(self) -> Principal:
        """The tenant as the caller of a request."""
        return Principal(id=self.key, tenant=self.key, generation=self.generation)

    @property
    def public(self) -> dict[str, Any]:
        out = {"id": self.id, "name": self.name, "disabled": self.disabled}
        out |= {"created_at": self.created_at, "last_used_at": self.last_used_at}
        return out | {"max_concurrent": self.max_running, "rate_per_min": self.per_minute}


class Tenants:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._touched: dict[int, float] = {}

    # -- authentication ----------------------------------------------------------------------------------------

    async def by_token(self, token: str) -> Tenant | None:
        """The tenant of a token; None if it is unknown or its tenant is disabled."""
        if not token.startswith(TENANT):
            return None
        hashed = digest(token)
        row = await self._db.look_up(_BY_HASH, (hashed,))
        if row is None or not hmac.compare_digest(row["token_hash"], hashed) or row["disabled"]:
            return None
        return _tenant(row)

    async def touch(self, tenant: Tenant) -> None:
        """Update `last_used_at`, at most once a minute."""
        now = time.time()
        if now - self._touched.get(tenant.id, 0.0) >= _TOUCH_SECONDS:
            self._touched[tenant.id] = now
            await self._db.change(_TOUCHED, (int(now), tenant.id))

    async def current(self, id: int) -> Tenant | None:
        """The tenant as it is now."""
        row = await self._db.look_up(_BY_ID, (id,))
        return None if row is None else _tenant(row)

    # -- administration -------------------------------------------------------------------------------------

    async def add(self, name: str, *, actor: str = "admin") -> tuple[Tenant, str]:
        """A new tenant and its token. Raises `InvalidParams` and `Conflict`."""
        name = name.strip()
        why = ""
        if not _NAME.fullmatch(name):
            why = "is 1 to 100 letters, digits, spaces and ._@- , and begins with a letter or a digit"
        elif name.isdigit():
            why = "is no number: it would be taken for that of another tenant"
        if why:
            raise InvalidParams(f"the name of a tenant {why}", fields=(("name", why),))
        token = new_token(TENANT)

        async def add(db: Transaction) -> Tenant:
            if (row := await db.one(_BY_NAME, (name,))) is not None:
                raise Conflict(f"there is a tenant {name!r} already", existing=_tenant(row).public)
            row = await db.one(_ADD, (name, digest(token), _now()))
            await _note(db, actor, "tenant.create", row["id"], name)
            return _tenant(await db.one(_BY_ID, (row["id"],)))

        return await self._db.run(add), token

    async def list(self) -> Sequence[Tenant]:
        rows = await self._db.all(_ALL)
        return [_tenant(row) for row in rows]

    async def find(self, named: str) -> Tenant:
        """By id or by name. Raises `NotFound`."""
        by_id = named.isascii() and named.isdigit() and len(named) < 16
        row = await self._db.look_up(_BY_ID, (int(named),)) if by_id else None
        row = row or await self._db.look_up(_BY_NAME, (named,))
        if row is None:
            raise NotFound(f"there is no tenant {named[:100]!r}")
        return _tenant(row)

    async def disable(self, tenant: Tenant, disabled: bool, *, actor: str = "admin") -> Tenant:
        async def change(db: Transaction) -> Tenant:
            await db.change(_DISABLE, (disabled, int(disabled), tenant.id))
            if disabled:  # running tasks stop; schedules wait until the tenant is enabled
                await db.change(_KEEP_SCHEDULES, (tenant.id,))
            await _note(db, actor, "tenant.disable" if disabled else "tenant.enable", tenant.id, tenant.name)
            return _tenant(await db.one(_BY_ID, (tenant.id,)))

        return await self._db.run(change, tenant=tenant.id)

    async def rotate(self, tenant: Tenant, *, actor: str = "admin") -> tuple[Tenant, str]:
        """Replace the token at once. Schedules are paused: somebody who stole the token may have made them."""
        token = new_token(TENANT)

        async def change(db: Transaction) -> Tenant:
            await db.change(_ROTATE, (digest(token), tenant.id))
            await db.change(_PAUSE_SCHEDULES, (tenant.id,))
            await _note(db, actor, "tenant.rotate_token", tenant.id, tenant.name)
            return _tenant(await db.one(_BY_ID, (tenant.id,)))

        return await self._db.run(change, tenant=tenant.id), token

    async def limit(
        self, tenant: Tenant, max_running: int | None, per_minute: int | None, *, actor: str = "admin"
    ) -> Tenant:
        """Set the limits of a tenant; None: those of the hub."""

        async def change(db: Transaction) -> Tenant:
            await db.change(_LIMIT, (max_running, per_minute, tenant.id))
            await _note(db, actor, "tenant.limit", tenant.id, f"{max_running} at once, {per_minute} a minute")
            return _tenant(await db.one(_BY_ID, (tenant.id,)))

        return await self._db.run(change, tenant=tenant.id)

    async def audit(self, *, before: int = 0, limit: int = 50) -> Sequence[dict[str, Any]]:
        rows = await self._db.all(_AUDITED, (before or 2**62, limit))
        return [dict(row) for row in rows]

    # -- the admin token ---------------------------------------------------------------------------------------

    async def admin(self, token: str = "", *, show: Callable[[str], None] | None = None) -> str:
        """Ensure that there is an admin token: `token`, or the existing one, or a new one, which is returned.

        `show` gets a new token before it is stored, so a token that was never shown is never valid.
        """
        made = ""
        if not token:
            if await self.has_admin():
                return ""
            token = made = new_token(ADMIN)
            if show is not None:
                show(made)
        await self._db.change(_PUT_ADMIN, (digest(token),))
        return made

    async def rotate_admin(self, *, show: Callable[[str], None], actor: str = "cli") -> None:
        """Replace the admin token at once. `show` gets the new one before it is stored."""
        token = new_token(ADMIN)
        show(token)

        async def change(db: Transaction) -> None:
            await db.change(_PUT_ADMIN, (digest(token),))
            await _note(db, actor, "admin.rotate_token", 0, "")

        await self._db.run(change)

    async def has_admin(self) -> bool:
        return await self._db.look_up(_GET_ADMIN) is not None

    async def admin_hash(self) -> str:
        """The stored hash of the admin token; empty if there is none."""
        row = await self._db.look_up(_GET_ADMIN)
        return "" if row is None else str(row["value"])

    async def is_admin(self, token: str) -> bool:
        row = await self._db.look_up(_GET_ADMIN)
        return row is not None and hmac.compare_digest(row["value"], digest(token))


def new_token(kind: str) -> str:
    return kind + secrets.token_hex(32)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _tenant(row: Row) -> Tenant:
    values = {key: row[key] for key in row.keys() if key != "token_hash"}  # noqa: SIM118
    return Tenant(**{**values, "disabled": bool(row["disabled"])})


async def _note(db: Transaction, actor: str, action: str, tenant: int, detail: str) -> None:
    await db.change(_AUDIT, (_now(), actor, action, tenant, detail))


def _now() -> int:
    return int(time.time())
