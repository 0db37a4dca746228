"""`/v1/admin`: tenants and their tokens, for the holder of the admin token."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dragoman.hub.api.agents import describe_policy, wanted_days
from dragoman.hub.api.routes import ADMIN, ApiRequest, Natural, Route, RouteList, page
from dragoman.hub.api.tokens import Overlap
from dragoman.hub.errors import Conflict
from dragoman.hub.hub import Hub
from dragoman.hub.tenants.policy import Policy


class NewTenant(Struct):
    name: str


class AdminRotation(Struct, forbid_unknown_fields=True):
    """How many seconds the old token is valid beside the new one."""

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


def routes(hub: Hub) -> list[Route]:
    api, tenants = RouteList("admin", access=ADMIN), hub.tenants
    all, one = "/v1/admin/tenants", "/v1/admin/tenants/{id}"

    @api.add("GET", all, "List tenants.")
    async def list_all(request: ApiRequest) -> Any:
        return {"tenants": [tenant.public for tenant in await tenants.list()]}

    @api.add("POST", all, "Create a tenant. Its token is shown only here.", body=NewTenant, status=201)
    async def create(request: ApiRequest) -> Any:
        tenant, token = await tenants.add((await request.json(NewTenant)).name)
        return {"tenant": tenant.public, "token": token}

    @api.add("GET", one, "Get a tenant.")
    async def get(request: ApiRequest) -> Any:
        return {"tenant": (await tenants.find(request.path["id"])).public}

    change_summary = (
        "Rename a tenant; disable it, which stops what runs for it, or enable it; set its limits."
    )

    @api.add("PATCH", one, change_summary, body=TenantChange)
    async def change(request: ApiRequest) -> Any:
        tenant = await tenants.find(request.path["id"])
        body = await request.json(TenantChange)
        if body.name is not UNSET:
            tenant = await hub.rename_tenant(tenant, body.name)
        if body.max_concurrent is not UNSET or body.rate_per_min is not UNSET:
            most = tenant.max_running if body.max_concurrent is UNSET else body.max_concurrent
            rate = tenant.per_minute if body.rate_per_min is UNSET else body.rate_per_min
            tenant = await tenants.limit(tenant, most, rate)
        stopped = 0
        if body.disabled is not UNSET and body.disabled != tenant.disabled:
            tenant = await tenants.disable(tenant, body.disabled)
            if tenant.disabled:
                stopped, _ = await hub.stop_tenant(tenant)
        return {"tenant": tenant.public, "cancelled": stopped}

    @api.add("DELETE", one, "Delete a tenant with everything it has. It is shut out at once.", status=202)
    async def delete(request: ApiRequest) -> Any:
        tenant = await tenants.find(request.path["id"])
        await hub.delete_tenant(tenant)
        return {"tenant": tenant.id, "deleting": True}

    @api.add("GET", "/v1/admin/deletions", "Deleted tenants, newest first, and whether everything is gone.")
    async def deletions(request: ApiRequest) -> Any:
        found = await hub.deletion.deletions.latest()
        return page("deletions", [{"tenant": d.id, "at": d.at, "done_at": d.done_at or None} for d in found])

    rotate_summary = "Replace all tokens by one with the scope admin. What runs under the old ones stops, unless they overlap."

    @api.add("POST", f"{one}/rotate-token", rotate_summary, body=AdminRotation)
    async def rotate(request: ApiRequest) -> Any:
        tenant, body = await tenants.find(request.path["id"]), await request.json(AdminRotation)
        tenant, token = await tenants.rotate(tenant, overlap=body.overlap_seconds)
        stopped, _ = await hub.stop_tenant(tenant)
        return {"tenant": tenant.public, "token": token, "cancelled": stopped}

    own = f"{one}/policy"

    @api.add("GET", "/v1/admin/policy", "The policy of the hub: what a tenant may use and store.")
    async def hub_policy(request: ApiRequest) -> Any:
        return {"policy": hub.database.policy}

    @api.add("GET", own, "The policy of a tenant, what differs from that of the hub, and what it uses.")
    async def get_policy(request: ApiRequest) -> Any:
        tenant = await tenants.find(request.path["id"])
        return {**await describe_policy(hub, tenant.id), "own": await hub.policies.own(tenant.id)}

    policy_summary = "Change what a tenant may use and store. Null: as the hub says."

    @api.add("PATCH", own, policy_summary, body=PolicyChange)
    async def change_policy(request: ApiRequest) -> Any:
        tenant = await tenants.find(request.path["id"])
        await hub.policies.change(tenant.id, await request.json(dict[str, Any]))
        return {**await describe_policy(hub, tenant.id), "own": await hub.policies.own(tenant.id)}

    admin_summary = "Replace the admin token. The old one may stay valid for a while."

    @api.add("POST", "/v1/admin/rotate-token", admin_summary, body=AdminRotation)
    async def rotate_admin(request: ApiRequest) -> Any:
        if hub.admin_token_is_set:
            raise Conflict("the admin token is the setting admin_token: change it there, and restart the hub")
        overlap, made = (await request.json(AdminRotation)).overlap_seconds, list[str]()
        await tenants.rotate_admin(show=made.append, overlap=overlap, actor="admin")
        return {"token": made[-1]}

    days = {"days": "The last days, today included: 30, at most 366."}

    @api.add("GET", "/v1/admin/usage", "Tokens and money of models by tenant and day.", query=days)
    async def usage(request: ApiRequest) -> Any:
        return page("usage", await hub.usages.since(wanted_days(request)))

    filters = {"before_id": "Only entries before this one.", "limit": "50, at most 200."}

    @api.add("GET", "/v1/admin/audit", "What administrators did, newest first.", query=filters)
    async def audit(request: ApiRequest) -> Any:
        before, limit = request.query_int("before_id"), request.query_int("limit", 50, 200)
        return page("entries", await tenants.audit(before=before, limit=limit))

    return api
