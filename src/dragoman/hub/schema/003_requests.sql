-- An index of what tenants asked for: which agent's task is it? How it went is in the task's own log.
create table requests (
    tenant_id       integer not null references tenants on delete cascade,
    request_id      text not null,
    agent_id        text not null,
    conversation_id integer not null default 0,
    via             text not null,
    started_at      integer not null,
    primary key (tenant_id, request_id)
) without rowid;
create index requests_started on requests (tenant_id, started_at desc, request_id);
