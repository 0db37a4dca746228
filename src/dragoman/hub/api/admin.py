"""The routes of administration: tenants, their policies and their tokens.

`/v1/admin` is for the holder of the admin token. `/v1/tokens` and `/v1/export` are for whoever has the scope admin of a tenant; the
operator has the same routes for each tenant, below `/v1/admin/tenants/{id}`. `/v1/whoami` says what a token is.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from dragoman.errors import InvalidParams
from dragoman.hub.api import ADMIN, TENANT, ApiRequest, RouteList, page, page_type
from dragoman.hub.api.access import bearer
from dragoman.hub.api.agents import DailyUsageList, HubPolicy, TenantPolicy, describe_policy, read_days
from dragoman.hub.hub import Hub
from dragoman.hub.store.tenants import Tenant
from dragoman.hub.store.tokens import MANAGE, MAX_OVERLAP_SECONDS, READ, Token
from dragoman.hub.tenants.lifecycle import file_name
from dragoman.hub.tenants.policy import Policy
from dragoman.server.routes import ApiResponse, Conflict, Natural, Pieces, Route

Overlap = Annotated[int, Meta(ge=0, le=MAX_OVERLAP_SECONDS)]


class NewTenant(Struct):
    name: str


class Rotation(Struct, forbid_unknown_fields=True):
    """How many seconds the old tokens stay valid."""

    overlap_seconds: Overlap = 0


class TenantChange(Struct, forbid_unknown_fields=True):
    """What to change. A limit that is null is the limit of the hub."""

    name: str | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET
    max_concurrent: Natural | UnsetType | None = UNSET
    rate_per_min: Natural | UnsetType | None = UNSET


PolicyChange = msgspec.defstruct(
    "PolicyChange",
    [(field.name, field.type | None, None) for field in msgspec.structs.fields(Policy)],
    module=__name__,
)
"""The members of a policy, each of which may be absent or null."""


class TenantInfo(Struct):
    id: int
    name: str
    disabled: bool
    created_at: int
    last_used_at: int
    max_concurrent: int | None
    rate_per_min: int | None


class TenantResponse(Struct):
    tenant: TenantInfo


class TenantList(Struct):
    tenants: list[TenantInfo]


class ChangedTenant(TenantResponse):
    cancelled: int
    """Tasks that were stopped."""


class TenantWithToken(TenantResponse, kw_only=True):
    token: str
    """It is shown only here."""
    cancelled: int = 0


class TokenInfo(Struct):
    id: int
    kind: str
    name: str
    scope: str
    """`read`, `run` or `admin`."""
    expires_at: int | None
    replaced: bool
    revoked: bool
    created_at: int
    created_by: str
    last_used_at: int


class TokenResponse(Struct):
    token: TokenInfo


class RevokedToken(TokenResponse):
    cancelled: int
    """Tasks that were stopped."""


class TokenWithSecret(TokenResponse, kw_only=True):
    secret: str
    """It is shown only here."""
    cancelled: int = 0


class AdminToken(Struct):
    token: str
    """It is shown only here."""


class TenantName(Struct):
    id: int
    name: str


class CallerInfo(Struct):
    tenant: TenantName
    kind: str
    name: str
    scope: str
    expires_at: int | None


class StartedDeletion(Struct):
    tenant: int
    deleting: bool


class Deletion(Struct):
    """A tenant that is deleted; `done_at` is null until everything is gone."""

    tenant: int
    at: int
    done_at: int | None


class TenantPolicyDetails(TenantPolicy):
    own: dict[str, Any]
    """What differs from the policy of the hub."""


class AuditEntryInfo(Struct):
    id: int
    at: int
    actor: str
    action: str
    tenant_id: int | None
    detail: str


TokenList = page_type("TokenList", "tokens", TokenInfo)
DeletionList = page_type("DeletionList", "deletions", Deletion)
AuditEntryList = page_type("AuditEntryList", "entries", AuditEntryInfo)


def routes(hub: Hub) -> list[Route]:
    api, tenants = RouteList("admin", access=ADMIN), hub.tenants
    all, one = "/v1/admin/tenants", "/v1/admin/tenants/{id}"

    @api.add("GET", all, "List tenants.", TenantList)
    async def list_all(request: ApiRequest) -> Any:
        return {"tenants": [tenant.public for tenant in await tenants.list()]}

    @api.add("POST", all, "Create a tenant. Its token is shown only here.", TenantWithToken, status=201)
    async def create(request: ApiRequest, body: NewTenant) -> Any:
        tenant, token = await tenants.add(body.name)
        return {"tenant": tenant.public, "token": token}

    @api.add("GET", one, "Get a tenant.", TenantResponse)
    async def get(request: ApiRequest) -> Any:
        return {"tenant": (await tenants.find(request.path["id"])).public}

    change_summary = (
        "Rename a tenant; disable it, which stops what runs for it, or enable it; set its limits."
    )

    @api.add("PATCH", one, change_summary, ChangedTenant)
    async def change(request: ApiRequest, body: TenantChange) -> Any:
        tenant = await tenants.find(request.path["id"])
        if body.name is not UNSET:
            tenant = await hub.rename_tenant(tenant, body.name)
        limits = {"max_running": body.max_concurrent, "per_minute": body.rate_per_min}
        if given := {name: limit for name, limit in limits.items() if limit is not UNSET}:
            tenant = await tenants.limit(tenant, **given)
        stopped = 0
        if body.disabled is not UNSET and body.disabled != tenant.disabled:
            tenant = await tenants.disable(tenant, body.disabled)
            if tenant.disabled:
                stopped, _ = await hub.stop_tenant(tenant)
        return {"tenant": tenant.public, "cancelled": stopped}

    @api.add(
        "DELETE",
        one,
        "Delete a tenant with everything it has. It is disabled at once.",
        StartedDeletion,
        status=202,
    )
    async def delete(request: ApiRequest) -> Any:
        tenant = await tenants.find(request.path["id"])
        await hub.delete_tenant(tenant)
        return {"tenant": tenant.id, "deleting": True}

    @api.add(
        "GET",
        "/v1/admin/deletions",
        "Deleted tenants, newest first, and whether everything is gone.",
        DeletionList,
    )
    async def deletions(request: ApiRequest) -> Any:
        found = await hub.deletion.deletions.latest()
        return page("deletions", [{"tenant": d.id, "at": d.at, "done_at": d.done_at or None} for d in found])

    rotate_summary = "Replace all tokens by one with the scope admin. Requests of the old ones are canceled, unless they overlap."

    @api.add("POST", f"{one}/rotate-token", rotate_summary, TenantWithToken)
    async def rotate(request: ApiRequest, body: Rotation) -> Any:
        tenant = await tenants.find(request.path["id"])
        tenant, token = await tenants.rotate(tenant, overlap=body.overlap_seconds)
        stopped, _ = await hub.stop_tenant(tenant)
        return {"tenant": tenant.public, "token": token, "cancelled": stopped}

    own = f"{one}/policy"

    @api.add("GET", "/v1/admin/policy", "The policy of the hub: what a tenant may use and store.", HubPolicy)
    async def hub_policy(request: ApiRequest) -> Any:
        return {"policy": hub.database.policy}

    @api.add("GET", own, "The policy of a tenant, what it overrides, and what it uses.", TenantPolicyDetails)
    async def get_policy(request: ApiRequest) -> Any:
        tenant = await tenants.find(request.path["id"])
        return {**await describe_policy(hub, tenant.id), "own": await hub.policies.own(tenant.id)}

    policy_summary = "Change what a tenant may use and store. Null: the value of the hub."

    @api.add("PATCH", own, policy_summary, TenantPolicyDetails, body=PolicyChange)
    async def change_policy(request: ApiRequest) -> Any:
        tenant = await tenants.find(request.path["id"])
        changes = await request.json(dict[str, Any], required=False)
        await hub.policies.change(tenant.id, changes)
        return {**await describe_policy(hub, tenant.id), "own": await hub.policies.own(tenant.id)}

    admin_summary = "Replace the admin token. The old one may stay valid for a while."

    @api.add("POST", "/v1/admin/rotate-token", admin_summary, AdminToken)
    async def rotate_admin_token(request: ApiRequest, body: Rotation) -> Any:
        if hub.settings.admin_token:
            raise Conflict("the admin token is the setting admin_token: change it there, and restart the hub")
        overlap, made = body.overlap_seconds, list[str]()
        using = bearer(request.exchange.header(b"authorization"))
        await tenants.rotate_admin_token(show=made.append, overlap=overlap, actor="admin", using=using)
        return {"token": made[-1]}

    days = {"days": "The last days, today included: 30, at most 366."}

    @api.add(
        "GET", "/v1/admin/usage", "Tokens and money of models by tenant and day.", DailyUsageList, query=days
    )
    async def usage(request: ApiRequest) -> Any:
        return page("usage", await hub.usages.since(read_days(request)))

    filters = {"before_id": "Only entries before this one.", "limit": "50, at most 200."}

    @api.add(
        "GET", "/v1/admin/audit", "What administrators did, newest first.", AuditEntryList, query=filters
    )
    async def audit(request: ApiRequest) -> Any:
        before, limit = request.query_int("before_id"), request.query_limit(50, 200)
        return page("entries", await tenants.audit(before=before, limit=limit))

    return api + token_routes(hub)


# -- tokens, and the export of a tenant --------------------------------------------------------------------


class NewToken(Struct, forbid_unknown_fields=True):
    """A token. It expires at a time (seconds since 1970), or in a number of seconds, or never."""

    name: str
    scope: Literal["read", "run", "admin"]
    expires_at: Natural | None = None
    expires_in: Natural | None = None


class TokenRotation(Struct, forbid_unknown_fields=True):
    """How many seconds the old token stays valid, and when the new one expires."""

    overlap_seconds: Overlap = 0
    expires_at: Natural | None = None
    expires_in: Natural | None = None


class TokenChange(Struct, forbid_unknown_fields=True):
    """Unblocks a user."""

    revoked: Literal[False]


FindTenant = Callable[[ApiRequest], Awaitable[tuple[Tenant, str]]]
"""Returns the tenant of a request, and the actor for the audit."""


def token_routes(hub: Hub) -> list[Route]:
    async def own(request: ApiRequest) -> tuple[Tenant, str]:
        return request.tenant, request.tenant.actor

    async def find_tenant(request: ApiRequest) -> tuple[Tenant, str]:
        return await hub.tenants.find(request.path["tenant"]), "admin"

    return [
        *_token_routes(hub, RouteList("tokens", read=MANAGE, write=MANAGE), "/v1/tokens", own, keep_one=True),
        *_token_routes(
            hub,
            RouteList("admin", access=ADMIN),
            "/v1/admin/tenants/{tenant}/tokens",
            find_tenant,
            keep_one=False,
        ),
    ]


def _token_routes(hub: Hub, api: RouteList, all: str, find: FindTenant, *, keep_one: bool) -> RouteList:
    """`keep_one`: the last token with the scope admin cannot be revoked."""
    one, tokens = f"{all}/{{id}}", hub.tenants.tokens

    @api.add(
        "GET",
        all,
        "List tokens and users, without secrets.",
        TokenList,
        query={"revoked": "`true`: also revoked ones."},
    )
    async def list_tokens(request: ApiRequest) -> Any:
        tenant, _ = await find(request)
        found = await tokens.list(tenant.id, revoked=request.query_flag("revoked", False))
        return page("tokens", [show_token(token) for token in found])

    @api.add("POST", all, "Create a token. It is shown only here.", TokenWithSecret, status=201)
    async def create(request: ApiRequest, body: NewToken) -> ApiResponse:
        tenant, actor = await find(request)
        token, secret = await tokens.create(
            tenant.id,
            body.name,
            body.scope,
            expires_at=_expiry(body),
            actor=actor,
            generation=tenant.generation,
        )
        return ApiResponse({"token": show_token(token), "secret": secret}, 201)

    @api.add("GET", one, "Get a token or a user, without the secret.", TokenResponse)
    async def get(request: ApiRequest) -> Any:
        tenant, _ = await find(request)
        return {"token": show_token(await tokens.find(tenant.id, request.path_id()))}

    @api.add("PATCH", one, "Unblock a user.", TokenResponse)
    async def allow(request: ApiRequest, body: TokenChange) -> Any:
        tenant, actor = await find(request)
        token = await tokens.unblock(tenant.id, request.path_id(), actor=actor, generation=tenant.generation)
        return {"token": show_token(token)}

    @api.add("DELETE", one, "Revoke a token, or block a user. Its requests are canceled.", RevokedToken)
    async def revoke(request: ApiRequest) -> Any:
        tenant, actor = await find(request)
        token = await tokens.revoke(tenant.id, request.path_id(), actor=actor, keep_one=keep_one)
        stopped, _ = await hub.stop_tenant(tenant)
        return {"token": show_token(token), "cancelled": stopped}

    summary = (
        "Replace a token by a new one of the same name and scope. The old one may stay valid for a while."
    )

    @api.add("POST", f"{one}/rotate", summary, TokenWithSecret)
    async def rotate(request: ApiRequest, body: TokenRotation) -> Any:
        tenant, actor = await find(request)
        token, secret = await tokens.rotate(
            tenant.id,
            request.path_id(),
            overlap=body.overlap_seconds,
            expires_at=_expiry(body),
            actor=actor,
            generation=tenant.generation,
        )
        stopped, _ = await hub.stop_tenant(tenant)
        return {"token": show_token(token), "secret": secret, "cancelled": stopped}

    async def export(request: ApiRequest) -> ApiResponse:
        tenant, _ = await find(request)
        headers = (
            (b"content-type", b"application/zip"),
            (b"content-disposition", f'attachment; filename="{file_name(tenant)}"'.encode()),
        )
        return ApiResponse(Pieces(hub.export_tenant(tenant), None), headers=headers)

    api.add(
        "GET", all.removesuffix("/tokens") + "/export", "Everything of the tenant, as a ZIP archive.", bytes
    )(export)

    if keep_one:

        @api.add(
            "GET", "/v1/whoami", "The tenant and the token of this request.", CallerInfo, access=TENANT + READ
        )
        async def who_am_i(request: ApiRequest) -> Any:
            return describe_caller(request.tenant, request.tenant.token)

    return api


def show_token(token: Token) -> TokenInfo:
    return msgspec.convert(token, TokenInfo, from_attributes=True)


def describe_caller(tenant: Tenant, token: Token | None) -> dict[str, Any]:
    about: dict[str, Any] = {"tenant": {"id": tenant.id, "name": tenant.name}}
    if token is None:
        return about | {"kind": "operator", "name": "operator", "scope": "admin", "expires_at": None}
    shown = {"kind": token.kind, "name": token.name, "scope": token.scope, "expires_at": token.expires_at}
    return about | shown


def _expiry(body: NewToken | TokenRotation) -> int | None:
    if body.expires_at is not None and body.expires_in is not None:
        raise InvalidParams(
            "say expires_at or expires_in, not both", fields=(("expires_in", "is there beside expires_at"),)
        )
    return body.expires_at if body.expires_in is None else int(time.time()) + body.expires_in
