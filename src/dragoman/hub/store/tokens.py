"""The tokens of tenants: names, scopes, expiry, rotation. Users of an OpenID Connect issuer are in the same table.

A token is shown once, when it is created; the hub stores its SHA-256. Each token has a number, its `generation`. A task stores the
generation of the token that started it. When the token is revoked, its tasks stop (`TenantWatch` cancels them, and `programs.py`
checks before each model call), and its schedules are paused. When it expires, it starts nothing new, and its tasks may finish.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Sequence

from msgspec import Struct

from dragoman.errors import InvalidParams, Unauthenticated
from dragoman.hub.store.database import Repository, Row, Transaction, read_row, transaction
from dragoman.server.routes import Conflict, NotFound

TENANT_PREFIX, ADMIN_PREFIX = "atr_", "adm_"
"""The prefixes of tokens of tenants and of administrators."""
READ, RUN, MANAGE = "read", "run", "admin"
SCOPES = (READ, RUN, MANAGE)
"""What a token may do: read everything of its tenant; also use its agents; also change agents, tokens and the tenant itself."""
TOKEN, USER = "token", "user"
DEFAULT_TOKEN_NAME = "default"
"""The name of the first token of a tenant."""
MAX_TOKENS = 200
"""Valid tokens per tenant."""
MAX_STORED_TOKENS = 1000
"""Tokens that are revoked or have expired, per tenant. Older ones are deleted; the audit still names them."""
MAX_TIME = 253_402_300_799
"""The last second of the year 9999."""
MAX_OVERLAP_SECONDS = 90 * 86_400
"""How long a token that is replaced may stay valid."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@-]{0,99}")

_LIST = "select * from tokens where tenant_id = ? and revoked_at = 0 order by id"
_LIST_ALL = "select * from tokens where tenant_id = ? order by id"
_ONE = "select * from tokens where tenant_id = ? and id = ?"
_VALID = """
select count(*) from tokens where tenant_id = ?1 and kind = 'token' and revoked_at = 0
and (expires_at is null or expires_at > ?2)
"""
_NAMED = """
select id from tokens where tenant_id = ?1 and kind = 'token' and name = ?2 and revoked_at = 0 and replaced = 0
and (expires_at is null or expires_at > ?3)
"""
_OTHER_MANAGER = """
select id from tokens where tenant_id = ?1 and id <> ?2 and kind = 'token' and scope = 'admin' and revoked_at = 0
and (expires_at is null or expires_at > ?3) and replaced = 0
"""
_ENABLED = "select id from tenants where id = ? and disabled = 0"
_NOT_REVOKED = "select id from tokens where tenant_id = ? and generation = ? and revoked_at = 0"
_NEXT_GENERATION = "update tenants set generation = generation + 1 where id = ? returning generation"
_ADD = """
insert into tokens (tenant_id, kind, name, hash, scope, generation, expires_at, created_at, created_by)
values (?, ?, ?, ?, ?, ?, ?, ?, ?) returning *
"""
_DELETE_OLD = """
delete from tokens where tenant_id = ?1 and kind = 'token' and (revoked_at > 0 or expires_at <= ?2) and id <= (
    select id from tokens where tenant_id = ?1 and kind = 'token' and (revoked_at > 0 or expires_at <= ?2)
    order by id desc limit 1 offset ?3
)
"""
_REVOKE = "update tokens set revoked_at = ?, hash = null where tenant_id = ? and id = ? and revoked_at = 0"
_UNBLOCK = "update tokens set revoked_at = 0 where tenant_id = ? and id = ? and kind = 'user'"
_EXPIRE = """
update tokens set replaced = 1, expires_at = case when expires_at < ?1 then expires_at else ?1 end where tenant_id = ?2 and id = ?3
"""
_SET_GENERATION = "update tokens set generation = ? where tenant_id = ? and generation = ?"
_MOVE_SCHEDULES = "update schedules set generation = ? where tenant_id = ? and generation = ?"
_GENERATION = "select generation from tenants where id = ?"
_RENEWED = "select id, generation, ?2 + row_number() over (order by id) as number from tokens where tenant_id = ?1 and revoked_at = 0"
_RENEW_SCHEDULES = f"""
update schedules set generation = renewed.number from ({_RENEWED}) as renewed
where schedules.tenant_id = ?1 and schedules.generation = renewed.generation
"""
_RENEW_TOKENS = (
    f"update tokens set generation = renewed.number from ({_RENEWED}) as renewed where tokens.id = renewed.id"
)
_SKIP_GENERATIONS = "update tenants set generation = generation + ? where id = ?"
_PAUSE_SCHEDULES = """
update schedules set status = 'paused' where tenant_id = ? and generation = ? and status = 'active'
"""
_USER = "select * from tokens where tenant_id = ? and kind = 'user' and name = ?"
_USER_SCOPE = "update tokens set scope = ? where id = ?"
_TOUCH = "update tokens set last_used_at = ? where id = ?"
_AUDIT = "insert into audit (at, actor, action, tenant_id, detail) values (?, ?, ?, ?, ?)"


class Token(Struct, frozen=True, kw_only=True):
    """A token, without its secret, or a user."""

    id: int
    kind: str
    name: str
    """Of a user: the issuer and the subject."""
    scope: str
    generation: int
    expires_at: int | None
    replaced: bool
    """Another token replaces it, and it is valid until it expires."""
    revoked_at: int
    created_at: int
    created_by: str
    last_used_at: int
    scopes: frozenset[str] = frozenset()
    """Of a user: further scopes that the issuer gave, for the skills of agents."""

    def allows(self, scope: str) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    @property
    def revoked(self) -> bool:
        return self.revoked_at > 0


class Tokens(Repository):
    async def list(self, tenant: int, *, revoked: bool = False) -> Sequence[Token]:
        """Oldest first; those that are revoked only if asked for."""
        return await self._db.select(Token, _LIST_ALL if revoked else _LIST, (tenant,))

    async def find(self, tenant: int, id: int) -> Token:
        """Raises `NotFound`."""
        return await self._db.read(lambda db: _must_find(db, tenant, id))

    @transaction
    async def create(
        self,
        db: Transaction,
        tenant: int,
        name: str,
        scope: str,
        *,
        expires_at: int | None = None,
        actor: str,
        generation: int | None = None,
    ) -> tuple[Token, str]:
        """A new token and its secret. `generation`: that of the token that asks for it; None: the operator asks.

        Raises `InvalidParams` and `Conflict`, and `Unauthenticated` if the token that asks is revoked by now.
        """
        if generation is not None:
            await check_token(db, tenant, generation)
        name, secret, now = validate_name(name), new_token(TENANT_PREFIX), _now()
        if scope not in SCOPES:
            why = f"is one of {', '.join(SCOPES)}"
            raise InvalidParams(f"the scope of a token {why}", fields=(("scope", why),))
        _check_expiry(expires_at, now)
        if (row := await db.one(_NAMED, (tenant, name, now))) is not None:
            raise Conflict(f"there is a token {name!r} already", existing={"id": row["id"], "name": name})
        await _check_room(db, tenant, now)
        made = await add_token(db, tenant, name, scope, secret, expires_at=expires_at, actor=actor)
        await write_audit(db, actor, "token.create", tenant, f"{name} ({scope})")
        return made, secret

    @transaction
    async def revoke(
        self, db: Transaction, tenant: int, id: int, *, actor: str, keep_one: bool = False
    ) -> Token:
        """Revoke a token, or block a user, at once. `keep_one`: refuse for the last token with the scope admin.

        Raises `NotFound` and `Conflict`.
        """
        token = await _must_find(db, tenant, id)
        last = token.kind == TOKEN and token.scope == MANAGE and keep_one and not token.revoked_at
        if last and await db.one(_OTHER_MANAGER, (tenant, id, _now())) is None:
            raise Conflict(
                "this is the last token with the scope admin: create another one first, or ask the operator"
            )
        await revoke_token(db, tenant, token)
        await write_audit(db, actor, "token.revoke", tenant, token.name)
        return await _must_find(db, tenant, id)

    @transaction
    async def unblock(
        self, db: Transaction, tenant: int, id: int, *, actor: str, generation: int | None = None
    ) -> Token:
        """Unblock a user. `generation` as for `create`. Raises `NotFound`, `Conflict` for a token, and `Unauthenticated`."""
        if generation is not None:
            await check_token(db, tenant, generation)
        token = await _must_find(db, tenant, id)
        if token.kind != USER:
            raise Conflict("a revoked token cannot become valid again: create another one")
        await _renew_generation(db, tenant, token)  # what it began before stays stopped
        await db.change(_UNBLOCK, (tenant, id))
        await write_audit(db, actor, "token.allow", tenant, token.name)
        return await _must_find(db, tenant, id)

    @transaction
    async def rotate(
        self,
        db: Transaction,
        tenant: int,
        id: int,
        *,
        overlap: int = 0,
        expires_at: int | None = None,
        actor: str,
        generation: int | None = None,
    ) -> tuple[Token, str]:
        """Replace a token by a new one of the same name and scope. Returns the new one and its secret.

        The new one has the lifetime that the old one had, unless `expires_at` is given. The old one stays valid for
        `overlap` seconds, and its tasks and schedules continue. Without an overlap it is revoked. `generation` as for `create`.
        Raises `NotFound`, `Conflict` and `Unauthenticated`.
        """
        if generation is not None:
            await check_token(db, tenant, generation)
        secret, now = new_token(TENANT_PREFIX), _now()
        _check_expiry(expires_at, now)
        old = await _must_find(db, tenant, id)
        if old.kind != TOKEN or old.revoked_at or old.replaced or old.expired(now):
            raise Conflict("only a valid token that was not replaced before can be replaced")
        if expires_at is None and old.expires_at is not None:
            expires_at = min(now + max(1, old.expires_at - old.created_at), MAX_TIME)
        if overlap > 0:
            await _check_room(db, tenant, now)
        made = await add_token(db, tenant, old.name, old.scope, secret, expires_at=expires_at, actor=actor)
        await replace_token(db, tenant, old, made, overlap)
        await write_audit(db, actor, "token.rotate", tenant, f"{old.name}, {overlap} s overlap")
        return made, secret

    async def user(self, tenant: int, name: str, scope: str) -> Token | None:
        """A user of the issuer; None if the user is blocked. A user that is not known yet is stored."""
        row = await self._db.look_up(_USER, (tenant, name))
        if row is None or row["scope"] != scope:
            row = await self._store_user(tenant, name, scope)
        token = read_row(Token, row)
        return None if token.revoked_at else token

    @transaction
    async def _store_user(self, db: Transaction, tenant: int, name: str, scope: str) -> Row:
        row = await db.one(_USER, (tenant, name))
        if row is None:
            number = await next_generation(db, tenant)
            await db.one(_ADD, (tenant, USER, name, None, scope, number, None, _now(), "oidc"))
            await write_audit(db, name, "user.first_seen", tenant, scope)
        elif row["scope"] != scope:
            await db.change(_USER_SCOPE, (scope, row["id"]))
        return await db.one(_USER, (tenant, name))

    async def touch(self, id: int, now: int) -> None:
        await self._db.change(_TOUCH, (now, id))


def _check_expiry(expires_at: int | None, now: int) -> None:
    if expires_at is not None and expires_at <= now:
        raise InvalidParams(
            "the token would be expired from the start", fields=(("expires_at", "is in the past"),)
        )
    if expires_at is not None and expires_at > MAX_TIME:
        raise InvalidParams(
            "a token expires before the year 10000, or never", fields=(("expires_at", "is too late"),)
        )


async def _check_room(db: Transaction, tenant: int, now: int) -> None:
    """Raises `Conflict` if a tenant has as many valid tokens as it may. Deletes the oldest that are not valid any more."""
    if (await db.one(_VALID, (tenant, now)))[0] >= MAX_TOKENS:
        raise Conflict(f"a tenant has at most {MAX_TOKENS} tokens: revoke one first")
    await db.change(_DELETE_OLD, (tenant, now, MAX_STORED_TOKENS))


async def check_token(db: Transaction, tenant: int, generation: int | None) -> None:
    """Raises `Unauthenticated` if the token of a request was revoked after the request was accepted, or if its tenant is disabled.

    `generation`: that of the token; None: the hub itself, or its operator, acts for the tenant.
    """
    valid = await db.one(_ENABLED, (tenant,)) is not None
    if valid and generation is not None:
        valid = await db.one(_NOT_REVOKED, (tenant, generation)) is not None
    if not valid:
        raise Unauthenticated("missing or invalid bearer token")


async def add_token(
    db: Transaction,
    tenant: int,
    name: str,
    scope: str,
    secret: str,
    *,
    actor: str,
    expires_at: int | None = None,
) -> Token:
    number = await next_generation(db, tenant)
    values = (tenant, TOKEN, name, digest(secret), scope, number, expires_at, _now(), actor)
    return read_row(Token, await db.one(_ADD, values))


async def revoke_token(db: Transaction, tenant: int, token: Token) -> None:
    """Revoke a token and pause its schedules: somebody who stole the token may have made them."""
    await db.change(_REVOKE, (_now(), tenant, token.id))
    await db.change(_PAUSE_SCHEDULES, (tenant, token.generation))
    await next_generation(db, tenant)  # changes the version that every hub watches


async def replace_token(db: Transaction, tenant: int, old: Token, new: Token, overlap: int) -> None:
    """Let `old` expire in `overlap` seconds, and give its schedules to `new`; without an overlap, revoke `old`."""
    if overlap <= 0:
        await revoke_token(db, tenant, old)
        return
    await db.change(_EXPIRE, (_now() + min(overlap, MAX_OVERLAP_SECONDS), tenant, old.id))
    await db.change(_MOVE_SCHEDULES, (new.generation, tenant, old.generation))


async def renew_generations(db: Transaction, tenant: int) -> None:
    """Give all tokens new generations: their tasks stop, and they keep their schedules. A tenant may have many thousand users."""
    last = (await db.one(_GENERATION, (tenant,)))["generation"]
    await db.change(_RENEW_SCHEDULES, (tenant, last))
    count = await db.change(_RENEW_TOKENS, (tenant, last))
    await db.change(_SKIP_GENERATIONS, (count, tenant))


async def _renew_generation(db: Transaction, tenant: int, token: Token) -> None:
    number = await next_generation(db, tenant)
    await db.change(_SET_GENERATION, (number, tenant, token.generation))
    await db.change(_MOVE_SCHEDULES, (number, tenant, token.generation))


async def next_generation(db: Transaction, tenant: int) -> int:
    """Take the next number of a tenant's tokens. That also tells every hub that something about the tenant has changed.

    Raises `NotFound`.
    """
    row = await db.one(_NEXT_GENERATION, (tenant,))
    if row is None:
        raise NotFound("there is no such tenant")
    return int(row["generation"])


async def write_audit(db: Transaction, actor: str, action: str, tenant: int, detail: str) -> None:
    """Add an entry to the audit."""
    await db.change(_AUDIT, (_now(), actor, action, tenant, detail))


async def _must_find(db: Transaction, tenant: int, id: int) -> Token:
    row = await db.one(_ONE, (tenant, id))
    if row is None:
        raise NotFound(f"there is no token {id}")
    return read_row(Token, row)


def validate_name(name: str, what: str = "token") -> str:
    """Raises `InvalidParams`."""
    name = name.strip()
    if not NAME.fullmatch(name):
        why = "is 1 to 100 letters, digits, spaces and ._@- , and begins with a letter or a digit"
        raise InvalidParams(f"the name of a {what} {why}", fields=(("name", why),))
    return name


def new_token(kind: str) -> str:
    return kind + secrets.token_hex(32)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _now() -> int:
    return int(time.time())
