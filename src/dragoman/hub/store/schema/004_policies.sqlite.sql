-- What differs from the policy of the hub for a tenant: a JSON object.
create table policies (
    tenant_id  integer not null references tenants on delete cascade,
    document   text not null,
    updated_at integer not null,
    primary key (tenant_id)
) without rowid;

-- What counts against the budgets of a tenant, by day. It is written as each call of a model ends.
create table spending (
    tenant_id integer not null references tenants on delete cascade,
    day       text not null,
    tokens    integer not null default 0,
    cost      real not null default 0,
    primary key (tenant_id, day)
) without rowid;

-- The alerts that were raised when a tenant had used a share of a budget of a day, each once.
create table budget_alerts (
    tenant_id integer not null references tenants on delete cascade,
    day       text not null,
    budget    text not null,
    percent   integer not null,
    at        integer not null,
    primary key (tenant_id, day, budget, percent)
) without rowid;
