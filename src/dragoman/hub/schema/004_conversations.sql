create table conversations (
    id         integer primary key autoincrement,
    tenant_id  integer not null references tenants on delete cascade,
    title      text not null default '',
    agent_id   text not null,
    agent_def  text,
    archived   integer not null default 0,
    created_at integer not null,
    updated_at integer not null
);
create index conversations_updated on conversations (tenant_id, updated_at desc, id desc);

-- An answer is added once, when its request is found complete: `request_id` and `role` name it.
create table messages (
    id              integer primary key autoincrement,
    conversation_id integer not null references conversations on delete cascade,
    role            text not null,
    content         text not null,
    input_tokens    integer not null default 0,
    output_tokens   integer not null default 0,
    created_at      integer not null,
    request_id      text not null,
    settled         integer not null default 0,
    unique (request_id, role)
);
create index messages_of on messages (conversation_id, id);
