-- An id is never used again. `generation` counts: each token gets the next number, and so does each change that every hub must
-- notice.
create table tenants (
    id           integer primary key autoincrement,
    name         text not null unique,
    disabled     integer not null default 0,
    generation   integer not null default 0,
    max_running  integer,
    per_minute   integer,
    created_at   integer not null,
    last_used_at integer not null default 0
);

-- Who may act for a tenant: tokens (by the hash of each), and users that an issuer knows, who have no hash. Work remembers the
-- `generation` of its token: it goes on as long as there is a row with that number that is not revoked. Disabling the tenant
-- gives all rows new numbers. A schedule is due while the token with its `generation` is valid; 0: always.
create table tokens (
    id           integer primary key autoincrement,
    tenant_id    integer not null references tenants on delete cascade,
    kind         text not null,
    name         text not null,
    hash         text unique,
    scope        text not null,
    generation   integer not null,
    expires_at   integer,
    replaced     integer not null default 0,
    revoked_at   integer not null default 0,
    created_at   integer not null,
    created_by   text not null,
    last_used_at integer not null default 0,
    unique (tenant_id, generation)
);
create index tokens_of on tokens (tenant_id, kind, name);

-- Tenants that are deleted. A hub that finds one without `done_at` goes on with the deletion.
create table deleted_tenants (
    id      integer primary key,
    name    text not null,
    at      integer not null,
    actor   text not null,
    done_at integer not null default 0
);

-- What differs from the policy of the hub for a tenant: a JSON object.
create table policies (
    tenant_id  integer not null references tenants on delete cascade,
    document   text not null,
    updated_at integer not null,
    primary key (tenant_id)
) without rowid;

-- What counts against the budgets of a tenant, by day. It is written as each call of a model ends.
create table spending (
    tenant_id integer not null references tenants on delete cascade,
    day       text not null,
    tokens    integer not null default 0,
    cost      real not null default 0,
    primary key (tenant_id, day)
) without rowid;

-- The alerts that were raised when a tenant had used a share of a budget of a day, each once.
create table budget_alerts (
    tenant_id integer not null references tenants on delete cascade,
    day       text not null,
    budget    text not null,
    percent   integer not null,
    at        integer not null,
    primary key (tenant_id, day, budget, percent)
) without rowid;

-- What administrators did.
create table audit (
    id        integer primary key autoincrement,
    at        integer not null,
    actor     text not null,
    action    text not null,
    tenant_id integer not null default 0,
    detail    text not null default ''
);

-- The hashes of admin tokens. One that was replaced stays here, so that it is never accepted again.
create table admin_tokens (
    hash       text primary key,
    created_at integer not null,
    expires_at integer,
    revoked_at integer not null default 0
);

-- Every version of every agent: a task continues with the version it started with. `inline` versions came with a request.
create table agent_versions (
    tenant_id integer not null references tenants on delete cascade,
    agent_id  text not null,
    version   integer not null,
    inline    integer not null default 0,
    document  text not null,
    at        integer not null,
    primary key (tenant_id, agent_id, version)
) without rowid;
create index agent_versions_inline on agent_versions (at) where inline = 1;

-- The current agents, each with its newest version.
create table agents (
    tenant_id  integer not null references tenants on delete cascade,
    agent_id   text not null,
    version    integer not null,
    created_at integer not null,
    updated_at integer not null,
    primary key (tenant_id, agent_id)
) without rowid;
create index agents_updated on agents (tenant_id, updated_at desc);

-- Maps a request to the task of an agent. The state of the request is in the task's log.
-- Callers of A2A 0.1 choose the ids of tasks, so two agents of a tenant may have the same id.
create table requests (
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
create index requests_of on requests (tenant_id, n desc);
create index requests_old on requests (started_at);
create index requests_for on requests (tenant_id, agent_id, version);

-- The request that a client's key stands for. It is stored before the request starts.
create table idempotency_keys (
    tenant_id  integer not null references tenants on delete cascade,
    key        text not null,
    request_id text not null,
    at         integer not null,
    primary key (tenant_id, key)
) without rowid;
create index idempotency_keys_at on idempotency_keys (at);

-- `summary` covers every message up to `summed_up_to`.
create table conversations (
    id           integer primary key autoincrement,
    tenant_id    integer not null references tenants on delete cascade,
    title        text not null default '',
    agent_id     text not null,
    agent_def    text,
    archived     integer not null default 0,
    summary      text not null default '',
    summed_up_to integer not null default 0,
    created_at   integer not null,
    updated_at   integer not null
);
create index conversations_updated on conversations (tenant_id, updated_at desc, id desc);

-- An answer is added once, when its request has completed: `request_id` and `role` identify it.
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
create index messages_open on messages (created_at) where settled = 0 and role = 'user';
create index messages_unanswered on messages (conversation_id, id) where settled = 0 and role = 'user';

-- Notes of an agent. The empty scope belongs to the whole tenant.
create table scratchpads (
    tenant_id  integer not null references tenants on delete cascade,
    scope      text not null,
    content    text not null,
    size       integer not null,
    updated_at integer not null,
    primary key (tenant_id, scope)
) without rowid;

-- Memory entries. An entry that is no longer true has `valid_to` and stays readable as of an earlier time.
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
create index memories_in on memories (conversation_id) where conversation_id <> 0;

create table relations (
    id         integer primary key autoincrement,
    tenant_id  integer not null references tenants on delete cascade,
    source_id  integer not null references memories on delete cascade,
    target_id  integer not null references memories on delete cascade,
    relation   text not null,
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

-- Files that belong to a conversation. The content of a large one is not in `content`: `blob` is its key in the folder or bucket of
-- contents.
create table artifacts (
    id              integer primary key autoincrement,
    tenant_id       integer not null references tenants on delete cascade,
    conversation_id integer not null references conversations on delete cascade,
    path            text not null,
    mime            text not null,
    sha256          text not null,
    size            integer not null,
    content         blob not null,
    blob            text not null default '',
    created_at      integer not null,
    updated_at      integer not null,
    unique (tenant_id, conversation_id, path)
);
create index artifacts_updated on artifacts (tenant_id, updated_at desc);
create trigger artifacts_removed after delete on artifacts begin
    update memories set artifact_id = null where artifact_id = old.id;
end;

-- Keys of contents that no file uses, not yet or not any more, and since when.
create table unused_blobs (
    key text primary key,
    at  integer not null
) without rowid;
create index unused_blobs_at on unused_blobs (at);
create trigger blob_unused after delete on artifacts when old.blob <> '' begin
    insert or ignore into unused_blobs (key, at) values (old.blob, cast(strftime('%s', 'now') as integer));
end;
create trigger blob_replaced after update of blob on artifacts when old.blob <> '' and old.blob <> new.blob begin
    insert or ignore into unused_blobs (key, at) values (old.blob, cast(strftime('%s', 'now') as integer));
end;

-- Conversation 0 means the whole tenant.
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
create index todos_in on todos (conversation_id) where conversation_id <> 0;

-- Todos are deleted with their conversation. Memories stay, and belong to the tenant.
create trigger conversations_removed after delete on conversations begin
    delete from todos where conversation_id = old.id;
    update memories set conversation_id = 0 where conversation_id = old.id;
end;

-- Results of writes by commands. A command that runs again after a crash finds its result here and does not write again.
create table done (
    key     text primary key,
    outcome blob not null,
    at      integer not null
) without rowid;
create index done_at on done (at);

-- Images that commands gave to a model. A turn that runs again after a crash reads them from here.
create table pictures (
    n          integer primary key autoincrement,
    key        text not null unique,
    media_type text not null,
    content    blob not null,
    at         integer not null
);
create index pictures_at on pictures (at);

-- `recur_json` is empty for a schedule that runs once. `generation`: of the token that it runs with, or 0.
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
    run_count       integer not null default 0,
    generation      integer not null default 0
);
create index schedules_due on schedules (status, next_fire_at);
create index schedules_of on schedules (tenant_id, updated_at desc);

-- A run is stored before its request starts.
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
create index runs_waiting on runs (status) where status = 'input-required';
create index runs_of_schedule on runs (task_id, id);

-- Notifications about runs, kept for an hour. Every hub process reads them here.
create table notifications (
    id        integer primary key autoincrement,
    tenant_id integer not null references tenants on delete cascade,
    payload   text not null,
    at        integer not null
);
create index notifications_of on notifications (tenant_id, id);
create index notifications_at on notifications (at);

-- Tokens and money of models, added up by day. `day` is a date in UTC.
create table usage (
    tenant_id     integer not null references tenants on delete cascade,
    day           text not null,
    agent_id      text not null,
    model         text not null,
    currency      text not null,
    calls         integer not null,
    input_tokens  integer not null,
    output_tokens integer not null,
    cached_tokens integer not null,
    cost          real not null,
    primary key (tenant_id, day, agent_id, model, currency)
) without rowid;
create index usage_by_day on usage (day);
