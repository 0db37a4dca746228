-- What differs from the policy of the hub for a tenant: a JSON object.
create table hub.policies (
    tenant_id  bigint not null references hub.tenants on delete cascade,
    document   text collate "C" not null,
    updated_at bigint not null,
    primary key (tenant_id)
);

-- What counts against the budgets of a tenant, by day. It is written as each call of a model ends.
create table hub.spending (
    tenant_id bigint not null references hub.tenants on delete cascade,
    day       text collate "C" not null,
    tokens    bigint not null default 0,
    cost      double precision not null default 0,
    primary key (tenant_id, day)
);

-- The alerts that were raised when a tenant had used a share of a budget of a day, each once.
create table hub.budget_alerts (
    tenant_id bigint not null references hub.tenants on delete cascade,
    day       text collate "C" not null,
    budget    text collate "C" not null,
    percent   bigint not null,
    at        bigint not null,
    primary key (tenant_id, day, budget, percent)
);
