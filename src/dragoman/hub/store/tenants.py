"""Tenants, and the admin token. `tokens.py` has the tokens of tenants."""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import Forbidden, InvalidParams, Unauthenticated
from dragoman.hub.store.database import Database, Row, Transaction, read_row
from dragoman.hub.store.tokens import (
    ADMIN_PREFIX,
    DEFAULT_TOKEN_NAME,
    MANAGE,
    MAX_OVERLAP_SECONDS,
    SCOPES,
    TENANT_PREFIX,
    USER,
    Token,
    Tokens,
    add_token,
    digest,
    new_token,
    next_generation,
    renew_generations,
    replace_token,
    validate_name,
    write_audit,
)
from dragoman.model.ops import Principal
from dragoman.server.routes import Conflict, NotFound

DELETED = "deleted/"
"""The prefix of the names of tenants that are being deleted. Other names cannot begin with it."""
_ADMIN_TOKENS = -1
"""In place of the number of a tenant: changes of admin tokens run one after another, too."""
_TOUCH_SECONDS = 60
"""Minimum seconds between two updates of `last_used_at`."""

_ALL = "select * from tenants order by id"
_BY_ID = "select * from tenants where id = ?"
_BY_NAME = "select * from tenants where name = ?"
_TOKEN_BY_HASH = "select * from tokens where hash = ? and revoked_at = 0"
_TOKEN_BY_GENERATION = "select * from tokens where tenant_id = ? and generation = ? and revoked_at = 0"
_GENERATIONS = "select generation from tokens where tenant_id = ? and revoked_at = 0"
_ADD = "insert into tenants (name, created_at) values (?, ?) returning id"
_RENAME = f"update tenants set name = ? where id = ? and name not like '{DELETED}%'"
_TOUCH = "update tenants set last_used_at = ? where id = ?"
_DISABLE = "update tenants set disabled = ? where id = ?"
_PAUSE_SCHEDULES = "update schedules set status = 'paused' where tenant_id = ? and status = 'active'"
_TOKENS = "select * from tokens where tenant_id = ? and kind = 'token' and revoked_at = 0 order by id"
_LIMIT = "update tenants set max_running = ?, per_minute = ? where id = ?"
_AUDIT = """
select id, at, actor, action, tenant_id, detail from audit where id < ? order by id desc limit ?
"""
_ADMINS = "select hash, revoked_at, expires_at from admin_tokens where hash = ?"
_VALID_ADMIN = """
select hash from admin_tokens where revoked_at = 0 and (expires_at is null or expires_at > ?)
order by expires_at is null desc, created_at desc, hash limit 1
"""
_ADD_ADMIN = "insert into admin_tokens (hash, created_at) values (?, ?) on conflict (hash) do nothing"
_REVOKE_ADMINS = "update admin_tokens set revoked_at = ? where hash <> ? and revoked_at = 0"
_EXPIRE_ADMINS = """
update admin_tokens set expires_at = ?1 where hash <> ?2 and revoked_at = 0 and (expires_at is null or expires_at > ?1)
"""


class Tenant(Struct, frozen=True, kw_only=True):
    """A tenant, and the token of the request, if there is one."""

    id: int
    name: str
    disabled: bool
    max_running: int | None
    """Requests that may run at once; None: the limit of the hub."""
    per_minute: int | None
    created_at: int
    last_used_at: int
    token: Token | None = None
    """None: the hub itself or its operator acts for the tenant, and may do everything."""

    @property
    def key(self) -> str:
        """The tenant in the scope of its tasks. A name may be reused, a number is not."""
        return str(self.id)

    @property
    def deleted(self) -> bool:
        """True while it is being deleted. In the end its row is deleted, too."""
        return self.name.startswith(DELETED)

    @property
    def generation(self) -> int | None:
        """The number of the token. Work that began with it stops when it is revoked."""
        return None if self.token is None else self.token.generation

    @property
    def actor(self) -> str:
        """The actor in the audit: the number of the tenant, and the name of the token or of the user."""
        return self.key if self.token is None else f"{self.key}/{self.token.name}"

    @property
    def principal(self) -> Principal:
        """The caller of a request. All tokens of a tenant share its tasks."""
        token = self.token
        return Principal(
            id=self.actor,
            tenant=self.key,
            owner=self.key,
            scopes=principal_scopes(MANAGE)
            if token is None
            else principal_scopes(token.scope) | token.scopes,
            generation=self.generation,
            claims={} if token is None or token.kind != USER else {"exp": token.expires_at},
        )

    @property
    def public(self) -> dict[str, Any]:
        out = {"id": self.id, "name": self.name, "disabled": self.disabled}
        out |= {"created_at": self.created_at, "last_used_at": self.last_used_at}
        return out | {"max_concurrent": self.max_running, "rate_per_min": self.per_minute}

    def require(self, scope: str) -> None:
        """Raises `Forbidden` if the token does not have the scope."""
        if self.token is not None and not self.token.allows(scope):
            raise missing_scope(scope, self.token.scope)


def principal_scopes(scope: str) -> frozenset[str]:
    """The scopes of a principal: `tenant:read` and so on. Each scope of a token includes those before it."""
    return frozenset(f"tenant:{each}" for each in SCOPES[: SCOPES.index(scope) + 1])


def missing_scope(needed: str, token_scope: str = "") -> Forbidden:
    have = f"; this one has {token_scope}" if token_scope else ""
    return Forbidden(f"this needs a token with the scope {needed}{have}", metadata={"reason": "scope"})


class Tenants:
    def __init__(self, database: Database) -> None:
        self._db = database
        self.tokens = Tokens(database)

    # -- authentication ----------------------------------------------------------------------------------------

    async def by_token(self, secret: str) -> Tenant | None:
        """The tenant of a token; None if it is unknown, revoked or expired, or if its tenant is disabled."""
        if not secret.startswith(TENANT_PREFIX):
            return None
        hashed = digest(secret)
        row = await self._db.look_up(_TOKEN_BY_HASH, (hashed,))
        if row is None or not hmac.compare_digest(row["hash"], hashed):
            return None
        token = read_row(Token, row)
        tenant = None if token.expired(time.time()) else await self.current(row["tenant_id"])
        return None if tenant is None or tenant.disabled else replace(tenant, token=token)

    async def by_user(
        self, name_or_id: str, user: str, scope: str, *, expires_at: int, scopes: frozenset[str] = frozenset()
    ) -> Tenant | None:
        """The tenant of a user; None if there is no such tenant, if it is disabled, or if the user is blocked."""
        try:
            tenant = await self.find(name_or_id)
        except NotFound:
            return None
        if tenant.disabled or (token := await self.tokens.user(tenant.id, user, scope)) is None:
            return None
        return replace(tenant, token=replace(token, scope=scope, expires_at=expires_at, scopes=scopes))

    async def touch(self, tenant: Tenant) -> None:
        """Update `last_used_at` of the token and of the tenant, at most once a minute."""
        now, token = int(time.time()), tenant.token
        if token is not None and now - token.last_used_at >= _TOUCH_SECONDS:
            await self._db.change(_TOUCH, (now, tenant.id))
            await self.tokens.touch(token.id, now)

    async def current(self, id: int) -> Tenant | None:
        """The tenant as it is now."""
        row = await self._db.look_up(_BY_ID, (id,))
        return None if row is None else _tenant(row)

    async def find_active(self, id: int, generation: int | None, *, expired: bool = True) -> Tenant | None:
        """The tenant with the token that started some work; None if the token is revoked, or if the tenant is disabled or gone.

        `generation` is that of the token; None: the hub or its operator started the work. `expired`: accept an expired token.
        """
        tenant = await self.current(id)
        if tenant is None or tenant.disabled or generation is None:
            return None if tenant is None or tenant.disabled else tenant
        token = await self._db.find(Token, _TOKEN_BY_GENERATION, (id, generation))
        if token is None or (not expired and token.expired(time.time())):
            return None
        return replace(tenant, token=token)

    async def generations(self, id: int) -> frozenset[int]:
        """The generations of all tokens that are not revoked."""
        return frozenset(row["generation"] for row in await self._db.all(_GENERATIONS, (id,)))

    # -- administration -------------------------------------------------------------------------------------

    async def add(self, name: str, *, actor: str = "admin") -> tuple[Tenant, str]:
        """A new tenant and its first token, which has the scope admin. Raises `InvalidParams` and `Conflict`."""
        name, secret = _validate_name(name), new_token(TENANT_PREFIX)

        async def add(db: Transaction) -> Tenant:
            await _check_name_is_free(db, name)
            row = await db.one(_ADD, (name, _now()))
            token = await add_token(db, row["id"], DEFAULT_TOKEN_NAME, MANAGE, secret, actor=actor)
            await write_audit(db, actor, "tenant.create", row["id"], name)
            return replace(_tenant(await db.one(_BY_ID, (row["id"],))), token=token)

        return await self._db.run(add), secret

    async def list(self) -> Sequence[Tenant]:
        """All but those that are being deleted."""
        tenants = [_tenant(row) for row in await self._db.all(_ALL)]
        return [tenant for tenant in tenants if not tenant.deleted]

    async def find(self, name_or_id: str) -> Tenant:
        """By id or by name. Raises `NotFound`."""
        by_id = (
            name_or_id.isascii()
            and name_or_id.isdigit()
            and len(name_or_id) < 16
            and not name_or_id.startswith("0")
        )
        row = await self._db.look_up(_BY_ID, (int(name_or_id),)) if by_id else None
        row = row or await self._db.look_up(_BY_NAME, (name_or_id,))
        if row is None or row["name"].startswith(DELETED):
            raise NotFound(f"there is no tenant {name_or_id[:100]!r}")
        return _tenant(row)

    async def check_new_name(self, tenant: Tenant, name: str) -> None:
        """Raises `InvalidParams` and `Conflict`."""
        name = _validate_name(name)
        if name != tenant.name:
            await self._db.read(lambda db: _check_name_is_free(db, name))

    async def rename(self, tenant: Tenant, name: str, *, actor: str = "admin") -> Tenant:
        """Raises `InvalidParams` and `Conflict`."""
        name = _validate_name(name)

        async def rename(db: Transaction) -> Tenant:
            if name != tenant.name:
                await _check_name_is_free(db, name)
                await db.change(_RENAME, (name, tenant.id))
                await write_audit(db, actor, "tenant.rename", tenant.id, f"{tenant.name} is now {name}")
            return await _reload(db, tenant)

        return await self._db.run(rename, tenant=tenant.id)

    async def disable(self, tenant: Tenant, disabled: bool, *, actor: str = "admin") -> Tenant:
        async def change(db: Transaction) -> Tenant:
            await db.change(_DISABLE, (int(disabled), tenant.id))
            if disabled:  # running tasks stop; schedules wait until the tenant is enabled
                await next_generation(db, tenant.id)
                await renew_generations(db, tenant.id)
            await write_audit(
                db, actor, "tenant.disable" if disabled else "tenant.enable", tenant.id, tenant.name
            )
            return await _reload(db, tenant)

        return await self._db.run(change, tenant=tenant.id)

    async def rotate(self, tenant: Tenant, *, overlap: int = 0, actor: str = "admin") -> tuple[Tenant, str]:
        """Replace all tokens of a tenant by one with the scope admin. The old ones are valid for `overlap` more seconds.

        The same applies to tokens that were replaced before, unless their own overlap ends sooner. Without an overlap, all schedules are
        paused: somebody who stole a token may have made them.
        """
        secret = new_token(TENANT_PREFIX)

        async def change(db: Transaction) -> Tenant:
            made = await add_token(db, tenant.id, DEFAULT_TOKEN_NAME, MANAGE, secret, actor=actor)
            for row in await db.all(_TOKENS, (tenant.id,)):
                if row["id"] != made.id:
                    await replace_token(db, tenant.id, read_row(Token, row), made, overlap)
            if overlap <= 0:
                await db.change(_PAUSE_SCHEDULES, (tenant.id,))
            await write_audit(db, actor, "tenant.rotate_token", tenant.id, tenant.name)
            return replace(await _reload(db, tenant), token=made)

        return await self._db.run(change, tenant=tenant.id), secret

    async def limit(self, tenant: Tenant, **limits: int | None) -> Tenant:
        """Set limits of a tenant (`max_running`, `per_minute`); None: that of the hub. Other limits stay as they are in the database."""

        async def change(db: Transaction) -> Tenant:
            new = replace(await _reload(db, tenant), **limits)
            await db.change(_LIMIT, (new.max_running, new.per_minute, tenant.id))
            what = f"{new.max_running} at once, {new.per_minute} a minute"
            await write_audit(db, "admin", "tenant.limit", tenant.id, what)
            return new

        return await self._db.run(change, tenant=tenant.id)

    async def audit(self, *, before: int = 0, limit: int = 50) -> Sequence[dict[str, Any]]:
        rows = await self._db.all(_AUDIT, (before or 2**62, limit))
        return [dict(row) for row in rows]

    # -- the admin token ---------------------------------------------------------------------------------------

    async def ensure_admin_token(self, token: str = "", *, show: Callable[[str], None] | None = None) -> str:
        """Ensure that there is an admin token: `token`, or the existing one, or a new one, which is returned.

        `show` gets a new token before it is stored, so a token that was never shown is never valid. If two hubs start at the same
        moment and both show one, both are valid. A given `token` replaces all others. Raises `InvalidParams` for one that was replaced
        itself: a hub that starts with an old setting must not make an old token valid again.
        """
        made = ""
        if not token:
            if await self.has_admin():
                return ""
            token = made = new_token(ADMIN_PREFIX)
            if show is not None:
                show(made)
        hashed = digest(token)
        known = await self._db.one(_ADMINS, (hashed,))
        if known is not None and (known["revoked_at"] or known["expires_at"] is not None):
            raise InvalidParams(
                "the admin token of the settings was replaced by another one: set the new one, or none"
            )
        if known is None:
            await self._db.run(lambda db: _put_admin(db, hashed, alone=not made), tenant=_ADMIN_TOKENS)
        return made

    async def rotate_admin_token(
        self, *, show: Callable[[str], None], overlap: int = 0, actor: str = "cli", using: str = ""
    ) -> None:
        """Replace the admin token. `show` gets the new one before it is stored; the old one is valid for `overlap` more seconds.

        `using` is the token of the caller, if there is one. Raises `Unauthenticated` if another rotation has revoked it meanwhile.
        """
        token = new_token(ADMIN_PREFIX)
        show(token)

        async def change(db: Transaction) -> None:
            if using and _admin_token_end(await db.one(_ADMINS, (digest(using),))) <= time.time():
                raise Unauthenticated("missing or invalid admin token")
            await _put_admin(db, digest(token), alone=True, overlap=overlap)
            await write_audit(db, actor, "admin.rotate_token", 0, f"{overlap} s overlap" if overlap else "")

        await self._db.run(change, tenant=_ADMIN_TOKENS)

    async def has_admin(self) -> bool:
        return bool(await self.admin_hash())

    async def admin_hash(self) -> str:
        """The hash of the newest admin token; empty if there is none."""
        row = await self._db.look_up(_VALID_ADMIN, (_now(),))
        return "" if row is None else str(row["hash"])

    async def is_admin(self, token: str) -> bool:
        return await self.admin_token_end(token) > time.time()

    async def admin_token_end(self, token: str) -> float:
        """When an admin token ceases to be valid: `inf` if never, 0 if it is unknown or was revoked."""
        row = await self._db.look_up(_ADMINS, (digest(token),))
        if row is None or not hmac.compare_digest(row["hash"], digest(token)):
            return 0.0
        return _admin_token_end(row)


def _admin_token_end(row: Row) -> float:
    if row is None or row["revoked_at"]:
        return 0.0
    return math.inf if row["expires_at"] is None else float(row["expires_at"])


async def _put_admin(db: Transaction, hashed: str, *, alone: bool, overlap: int = 0) -> None:
    now = _now()
    await db.change(_ADD_ADMIN, (hashed, now))
    if alone and overlap > 0:
        await db.change(_EXPIRE_ADMINS, (now + min(overlap, MAX_OVERLAP_SECONDS), hashed))
    elif alone:
        await db.change(_REVOKE_ADMINS, (now, hashed))


async def _check_name_is_free(db: Transaction, name: str) -> None:
    if (row := await db.one(_BY_NAME, (name,))) is not None:
        raise Conflict(f"there is a tenant {name!r} already", existing=_tenant(row).public)


async def _reload(db: Transaction, tenant: Tenant) -> Tenant:
    row = await db.one(_BY_ID, (tenant.id,))
    if row is None:
        raise NotFound(f"there is no tenant {tenant.name!r}")
    return _tenant(row)


def _validate_name(name: str) -> str:
    name = validate_name(name, "tenant")
    if name.isdigit():
        why = "must not be a number: tenants are also found by their numbers"
        raise InvalidParams(f"the name of a tenant {why}", fields=(("name", why),))
    return name


def _tenant(row: Row) -> Tenant:
    """A tenant. One that is being deleted is disabled, also if it was enabled at the last moment."""
    tenant = read_row(Tenant, row)
    return replace(tenant, disabled=True) if tenant.deleted else tenant


def _now() -> int:
    return int(time.time())
