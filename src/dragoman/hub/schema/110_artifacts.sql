-- Files that agents made and that are kept with a conversation.
create table artifacts (
    id              integer primary key autoincrement,
    tenant_id       integer not null references tenants on delete cascade,
    conversation_id integer not null references conversations on delete cascade,
    path            text not null,
    mime            text not null,
    sha256          text not null,
    size            integer not null,
    content         blob not null,
    created_at      integer not null,
    updated_at      integer not null,
    unique (tenant_id, conversation_id, path)
);
create index artifacts_updated on artifacts (tenant_id, updated_at desc);
create trigger artifacts_removed after delete on artifacts begin
    update memories set artifact_id = null where artifact_id = old.id;
end;
