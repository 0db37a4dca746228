-- The clock that leases and keys go by: the database's own, so that no two machines have to agree on the time.
create function dragoman.clock() returns double precision language sql volatile
as $$ select extract(epoch from clock_timestamp())::double precision $$;

-- Whose tasks: a small number instead of three long words in every row and index.
create table dragoman.scopes (
    scope  integer generated always as identity primary key,
    tenant text not null,
    agent  text not null,
    owner  text not null,
    unique (tenant, agent, owner)
);

-- One row per task. `state`, `updated` and `done` are what its log folds to, kept here to be searched. A task whose
-- answer may be a bare message (`reply`) is nobody's task until it has a state to show. `hooks`: whether it has any.
-- Every append changes its row, so a page leaves room for the next version of it.
create table dragoman.tasks (
    key     bigint generated always as identity primary key,
    scope   integer not null,
    id      text collate "C" not null,
    context text not null,
    updated text collate "C" not null,
    state   text not null,
    done    boolean not null default false,
    reply   boolean not null,
    hooks   boolean not null default false,
    seq     integer not null,
    mail    integer not null,
    ready   boolean not null default true,
    node    text,
    fence   integer not null,
    attempt integer not null,
    unique (scope, id)
) with (fillfactor = 70);

create index tasks_found on dragoman.tasks (scope, updated desc, id) where not reply or state <> 'TASK_STATE_SUBMITTED';
create index tasks_held on dragoman.tasks (node, key) where ready and node is not null;
create index tasks_waiting on dragoman.tasks (key) include (scope) where ready and node is null;
create index tasks_done on dragoman.tasks (updated) where done;

-- One row per append, named by its last record: what an event costs does not grow with its task.
create table dragoman.log (
    key  bigint not null,
    seq  integer not null,
    body bytea not null,
    primary key (key, seq)
);

create table dragoman.seen (
    scope  integer not null,
    dedupe text not null,
    key    bigint not null,
    seq    integer not null,
    at     double precision not null,
    primary key (scope, dedupe)
);

create index seen_at on dragoman.seen (at);

-- What each connection has written last: whether a commit whose answer was lost came about.
create table dragoman.writers (
    writer text primary key,
    stamp  text not null,
    at     double precision not null
) with (fillfactor = 20);

-- A node that holds something has a row, if only to say that it is gone.
create table dragoman.nodes (
    node  text primary key,
    until double precision not null
);
