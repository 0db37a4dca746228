-- Where a tenant keeps its conversations, in the order it likes.
create table folders (
    id         integer primary key autoincrement,
    tenant_id  integer not null references tenants on delete cascade,
    name       text not null,
    position   integer not null default 0,
    created_at integer not null,
    updated_at integer not null
);
create index folders_of on folders (tenant_id, position, name);
alter table conversations add column folder_id integer references folders on delete set null;
create index conversations_in on conversations (folder_id, updated_at desc) where folder_id is not null;
