-- What an agent learned from its mistakes: where they happen (`signature`), and what to do instead.
create table lessons (
    id           integer primary key autoincrement,
    tenant_id    integer not null references tenants on delete cascade,
    agent_id     text not null,
    signature    text not null,
    lesson_text  text not null,
    hit_count    integer not null default 0,
    created_at   integer not null,
    updated_at   integer not null,
    last_seen_at integer not null
);
create index lessons_of on lessons (tenant_id, agent_id, last_seen_at desc);
