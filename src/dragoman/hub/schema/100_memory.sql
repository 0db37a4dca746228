-- Notes an agent keeps for itself; the empty scope is the whole tenant's.
create table scratchpads (
    tenant_id  integer not null references tenants on delete cascade,
    scope      text not null,
    content    text not null,
    updated_at integer not null,
    primary key (tenant_id, scope)
) without rowid;

-- What is worth knowing. An entry that is not true any more has an end, and stays readable as of then.
create table memories (
    id              integer primary key autoincrement,
    tenant_id       integer not null references tenants on delete cascade,
    conversation_id integer not null default 0,
    type            text not null,
    title           text not null,
    content         text not null default '',
    source          text not null default '',
    tags            text not null default '',
    artifact_id     integer,
    valid_from      integer not null,
    valid_to        integer,
    created_at      integer not null,
    updated_at      integer not null
);
create index memories_of on memories (tenant_id, valid_to, updated_at desc);
create index memories_artifact on memories (artifact_id) where artifact_id is not null;

create table relations (
    id        integer primary key autoincrement,
    tenant_id integer not null references tenants on delete cascade,
    source_id integer not null references memories on delete cascade,
    target_id integer not null references memories on delete cascade,
    relation  text not null,
    created_at integer not null,
    unique (source_id, target_id, relation)
);
create index relations_target on relations (target_id);

create virtual table memory_words using fts5 (
    title, content, tags, source, content = 'memories', content_rowid = 'id', tokenize = 'porter unicode61'
);
create trigger memories_added after insert on memories begin
    insert into memory_words (rowid, title, content, tags, source)
    values (new.id, new.title, new.content, new.tags, new.source);
end;
create trigger memories_removed after delete on memories begin
    insert into memory_words (memory_words, rowid, title, content, tags, source)
    values ('delete', old.id, old.title, old.content, old.tags, old.source);
end;
create trigger memories_changed after update of title, content, tags, source on memories begin
    insert into memory_words (memory_words, rowid, title, content, tags, source)
    values ('delete', old.id, old.title, old.content, old.tags, old.source);
    insert into memory_words (rowid, title, content, tags, source)
    values (new.id, new.title, new.content, new.tags, new.source);
end;
