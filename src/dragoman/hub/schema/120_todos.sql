-- What is still to do, in a conversation or (0) for the whole tenant.
create table todos (
    id              integer primary key autoincrement,
    tenant_id       integer not null references tenants on delete cascade,
    conversation_id integer not null default 0,
    subject         text not null,
    description     text not null default '',
    state           text not null default 'pending',
    created_at      integer not null,
    updated_at      integer not null
);
create index todos_of on todos (tenant_id, conversation_id, state, id);
