-- Work to be done later, or again and again. `recur_json` is empty for what is done once.
create table schedules (
    id              integer primary key autoincrement,
    tenant_id       integer not null references tenants on delete cascade,
    agent_id        text not null,
    conversation_id integer not null default 0,
    message         text not null,
    schedule_phrase text not null,
    schedule_kind   text not null,
    fire_at         integer not null default 0,
    recur_json      text not null default '',
    next_fire_at    integer not null,
    status          text not null default 'active',
    created_at      integer not null,
    updated_at      integer not null,
    last_run_at     integer not null default 0,
    last_run_id     integer not null default 0,
    run_count       integer not null default 0
);
create index schedules_due on schedules (status, next_fire_at);
create index schedules_of on schedules (tenant_id, updated_at desc);

-- Each time that it was done. A run is noted before its request begins.
create table runs (
    id             integer primary key autoincrement,
    tenant_id      integer not null references tenants on delete cascade,
    task_id        integer not null references schedules on delete cascade,
    status         text not null default 'running',
    started_at     integer not null,
    completed_at   integer not null default 0,
    request_id     text not null default '',
    result_summary text not null default '',
    error_message  text not null default '',
    input_tokens   integer not null default 0,
    output_tokens  integer not null default 0
);
create index runs_of on runs (tenant_id, started_at desc);
create index runs_running on runs (status) where status = 'running';
