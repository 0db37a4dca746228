-- Every version of every agent: a task goes on with the one that it began with. `inline` ones came with a request.
create table agent_versions (
    tenant_id integer not null references tenants on delete cascade,
    agent_id  text not null,
    version   integer not null,
    inline    integer not null default 0,
    document  text not null,
    at        integer not null,
    primary key (tenant_id, agent_id, version)
) without rowid;

-- The agents there are, each with its newest version.
create table agents (
    tenant_id  integer not null references tenants on delete cascade,
    agent_id   text not null,
    version    integer not null,
    created_at integer not null,
    updated_at integer not null,
    primary key (tenant_id, agent_id)
) without rowid;
create index agents_updated on agents (tenant_id, updated_at desc);
