-- An index of what tenants asked for: which agent's task is it? How it went is in the task's own log.
create table requests (
    n               integer primary key autoincrement,
    tenant_id       integer not null references tenants on delete cascade,
    request_id      text not null,
    agent_id        text not null,
    conversation_id integer not null default 0,
    via             text not null,
    started_at      integer not null,
    unique (tenant_id, request_id)
);
create index requests_of on requests (tenant_id, n desc);
