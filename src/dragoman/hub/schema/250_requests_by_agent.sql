-- Callers of A2A 0.1 choose the ids of tasks: two agents of a tenant may have the same one.
create table requests_by_agent (
    n               integer primary key autoincrement,
    tenant_id       integer not null references tenants on delete cascade,
    request_id      text not null,
    agent_id        text not null,
    conversation_id integer not null default 0,
    via             text not null,
    started_at      integer not null,
    version         integer,
    unique (tenant_id, request_id, agent_id)
);
insert into requests_by_agent (n, tenant_id, request_id, agent_id, conversation_id, via, started_at, version)
select n, tenant_id, request_id, agent_id, conversation_id, via, started_at, version from requests;
drop table requests;
alter table requests_by_agent rename to requests;
create index requests_of on requests (tenant_id, n desc);
create index requests_old on requests (started_at);
create index requests_for on requests (tenant_id, agent_id, version);
