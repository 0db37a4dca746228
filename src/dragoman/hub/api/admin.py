"""`/v1/admin`: tenants and their tokens, for the holder of the admin token."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from dragoman.hub.api.routes import ADMIN, Answer, Natural, Route, Visit
from dragoman.hub.hub import Hub


class NewTenant(Struct):
    name: str


class TenantChange(Struct, forbid_unknown_fields=True):
    """What to change; limits that are null are those of everybody."""

    disabled: bool | UnsetType = UNSET
    max_concurrent: Natural | UnsetType | None = UNSET
    rate_per_min: Natural | UnsetType | None = UNSET


def routes(hub: Hub) -> list[Route]:
    tenants = hub.tenants

    async def list_all(visit: Visit) -> Answer:
        return Answer({"tenants": [tenant.shown for tenant in await tenants.list()]})

    async def create(visit: Visit) -> Answer:
        tenant, token = await tenants.add((await visit.json(NewTenant)).name)
        return Answer({"tenant": tenant.shown, "token": token}, 201)

    async def get(visit: Visit) -> Answer:
        return Answer({"tenant": tenants.find(visit.values["id"]).shown})

    async def change(visit: Visit) -> Answer:
        tenant = tenants.find(visit.values["id"])
        body = await visit.json(TenantChange)
        if body.max_concurrent is not UNSET or body.rate_per_min is not UNSET:
            most = tenant.max_running if body.max_concurrent is UNSET else body.max_concurrent
            rate = tenant.per_minute if body.rate_per_min is UNSET else body.rate_per_min
            tenant = await tenants.limit(tenant, most, rate)
        stopped = 0
        if body.disabled is not UNSET and body.disabled != tenant.disabled:
            tenant = await tenants.disable(tenant, body.disabled)
            if tenant.disabled:
                stopped, _ = await hub.silence(tenant)
        return Answer({"tenant": tenant.shown, "cancelled": stopped})

    async def rotate(visit: Visit) -> Answer:
        tenant, token = await tenants.rotate(tenants.find(visit.values["id"]))
        stopped, _ = await hub.silence(tenant)
        return Answer({"tenant": tenant.shown, "token": token, "cancelled": stopped})

    async def audit(visit: Visit) -> Answer:
        found = await tenants.audit(before=visit.count("before_id", 0), limit=visit.count("limit", 50, 200))
        return Answer({"count": len(found), "entries": found})

    all, one = "/v1/admin/tenants", "/v1/admin/tenants/{id}"
    return [
        Route("GET", all, list_all, "All tenants.", "admin", who=ADMIN),
        Route(
            "POST",
            all,
            create,
            "A new tenant, and its token: shown here, and never again.",
            "admin",
            who=ADMIN,
            body=NewTenant,
            status=201,
        ),
        Route("GET", one, get, "One tenant.", "admin", who=ADMIN),
        Route(
            "PATCH",
            one,
            change,
            "Disable a tenant, which stops what runs for it, or enable it; give it limits of its own.",
            "admin",
            who=ADMIN,
            body=TenantChange,
        ),
        Route(
            "POST",
            f"{one}/rotate-token",
            rotate,
            "Another token. The one before stops working, and what runs under it stops.",
            "admin",
            who=ADMIN,
        ),
        Route(
            "GET",
            "/v1/admin/audit",
            audit,
            "What administrators did, newest first.",
            "admin",
            who=ADMIN,
            query={"before_id": "Only entries before this one.", "limit": "50, and no more than 200."},
        ),
    ]
