-- Whose tasks: a small number instead of three long words in every row and index.
create table scopes (
    scope  integer primary key,
    tenant text not null,
    agent  text not null,
    owner  text not null,
    unique (tenant, agent, owner)
);

-- One row per task. `state`, `updated` and `done` are what its log folds to, kept here to be searched. A task whose
-- answer may be a bare message (`reply`) is nobody's task until it has a state to show.
-- autoincrement: a key that named a purged task must never name another one, or an old lease would fit it.
create table tasks (
    key     integer primary key autoincrement,
    scope   integer not null,
    id      text not null,
    context text not null,
    updated text not null,
    state   text not null,
    done    integer not null default 0,
    reply   integer not null,
    seq     integer not null,
    mail    integer not null,
    ready   integer not null default 1,
    node    text,
    fence   integer not null,
    attempt integer not null,
    unique (scope, id)
);

create index tasks_found on tasks (scope, updated, id, state, context, reply)
    where reply = 0 or state <> 'TASK_STATE_SUBMITTED';
create index tasks_ready on tasks (node) where ready = 1;

-- One row per append, named by its last record: what an event costs does not grow with its task.
create table log (
    key  integer not null,
    seq  integer not null,
    body blob not null,
    primary key (key, seq)
);

create table seen (
    scope  integer not null,
    dedupe text not null,
    key    integer not null,
    seq    integer not null,
    at     real not null,
    primary key (scope, dedupe)
) without rowid;

create index seen_at on seen (at);

create table nodes (
    node  text primary key,
    until real not null
) without rowid;
