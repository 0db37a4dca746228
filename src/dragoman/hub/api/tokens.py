"""`/v1/tokens`: the tokens and users of a tenant, for whoever has its scope admin. `/v1/export`: everything it has.
`/v1/whoami`: what a token is.

The operator has the same routes for each tenant, below `/v1/admin/tenants/{id}/tokens`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dragoman.errors import InvalidParams
from dragoman.hub.api.routes import ADMIN, TENANT, ApiRequest, ApiResponse, Natural, Route, RouteList, page
from dragoman.hub.hub import Hub
from dragoman.hub.store.tenants import Tenant
from dragoman.hub.store.tokens import MAX_OVERLAP_SECONDS, Token
from dragoman.hub.tenants.export import file_name
from dragoman.server.routes import Pieces

Overlap = Annotated[int, Meta(ge=0, le=MAX_OVERLAP_SECONDS)]


class NewToken(Struct, forbid_unknown_fields=True):
    """A token: what it is for, what it may do, and until when: at a time (seconds since 1970), or so many seconds from now."""

    name: str
    scope: Literal["read", "run", "admin"]
    expires_at: Natural | None = None
    expires_in: Natural | None = None


class TokenRotation(Struct, forbid_unknown_fields=True):
    """How many seconds the old token is valid beside the new one, and until when the new one is."""

    overlap_seconds: Overlap = 0
    expires_at: Natural | None = None
    expires_in: Natural | None = None


class TokenChange(Struct, forbid_unknown_fields=True):
    """Lets a user in again who was shut out."""

    revoked: Literal[False]


FindTenant = Callable[[ApiRequest], Awaitable[tuple[Tenant, str]]]
"""The tenant of a request, and who acts, for the audit."""


def routes(hub: Hub) -> list[Route]:
    async def own(request: ApiRequest) -> tuple[Tenant, str]:
        return request.tenant, request.tenant.actor

    async def named(request: ApiRequest) -> tuple[Tenant, str]:
        return await hub.tenants.find(request.path["tenant"]), "admin"

    return [
        *_routes(hub, RouteList("tokens", access=TENANT), "/v1/tokens", own, keep_one=True),
        *_routes(
            hub,
            RouteList("admin", access=ADMIN),
            "/v1/admin/tenants/{tenant}/tokens",
            named,
            keep_one=False,
        ),
    ]


def _routes(hub: Hub, api: RouteList, all: str, find: FindTenant, *, keep_one: bool) -> RouteList:
    """`keep_one`: the last token with the scope admin cannot be revoked."""
    one, tokens = f"{all}/{{id}}", hub.tenants.tokens

    @api.add(
        "GET", all, "List tokens and users, without secrets.", query={"revoked": "`true`: also revoked ones."}
    )
    async def list_tokens(request: ApiRequest) -> Any:
        tenant, _ = await find(request)
        found = await tokens.list(tenant.id, revoked=request.query_flag("revoked", False))
        return page("tokens", [token.public for token in found])

    @api.add("POST", all, "Create a token. It is shown only here.", body=NewToken, status=201)
    async def create(request: ApiRequest) -> ApiResponse:
        (tenant, actor), body = await find(request), await request.json(NewToken)
        expires = _expiry(body)
        token, secret = await tokens.create(tenant.id, body.name, body.scope, expires_at=expires, actor=actor)
        return ApiResponse({"token": token.public, "secret": secret}, 201)

    @api.add("GET", one, "Get a token or a user, without the secret.")
    async def get(request: ApiRequest) -> Any:
        tenant, _ = await find(request)
        return {"token": (await tokens.find(tenant.id, request.path_id())).public}

    @api.add("PATCH", one, "Let a user in again who was shut out.", body=TokenChange)
    async def allow(request: ApiRequest) -> Any:
        tenant, actor = await find(request)
        await request.json(TokenChange)
        return {"token": (await tokens.allow(tenant.id, request.path_id(), actor=actor)).public}

    @api.add("DELETE", one, "Revoke a token, or shut a user out. What it began stops.")
    async def revoke(request: ApiRequest) -> Any:
        tenant, actor = await find(request)
        token = await tokens.revoke(tenant.id, request.path_id(), actor=actor, keep_one=keep_one)
        stopped, _ = await hub.stop_tenant(tenant)
        return {"token": token.public, "cancelled": stopped}

    summary = (
        "Replace a token by a new one of the same name and scope. The old one may stay valid for a while."
    )

    @api.add("POST", f"{one}/rotate", summary, body=TokenRotation)
    async def rotate(request: ApiRequest) -> Any:
        (tenant, actor), body = await find(request), await request.json(TokenRotation)
        token, secret = await tokens.rotate(
            tenant.id,
            request.path_id(),
            overlap=body.overlap_seconds,
            expires_at=_expiry(body),
            actor=actor,
        )
        stopped, _ = await hub.stop_tenant(tenant)
        return {"token": token.public, "secret": secret, "cancelled": stopped}

    async def export(request: ApiRequest) -> ApiResponse:
        tenant, _ = await find(request)
        headers = (
            (b"content-type", b"application/zip"),
            (b"content-disposition", f'attachment; filename="{file_name(tenant)}"'.encode()),
        )
        return ApiResponse(Pieces(hub.export_tenant(tenant), None), headers=headers)

    api.add("GET", all.removesuffix("/tokens") + "/export", "Everything of the tenant, as a ZIP archive.")(
        export
    )

    if keep_one:

        @api.add("GET", "/v1/whoami", "The tenant and the token of this request.")
        async def who_am_i(request: ApiRequest) -> Any:
            return describe_caller(request.tenant, request.tenant.token)

    return api


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
