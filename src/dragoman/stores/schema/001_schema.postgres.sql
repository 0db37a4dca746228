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
-- answer may be a bare message (`reply`) is nobody's task until it has a state to show. `webhooks`: whether it has any.
-- `size`: bytes of its log. Every append changes its row, so a page leaves room for the next version of it.
create table dragoman.tasks (
    key     bigint generated always as identity primary key,
    scope   integer not null,
    id      text collate "C" not null,
    context text not null,
    updated text collate "C" not null,
    state   text not null,
    done    boolean not null default false,
    reply   boolean not null,
    webhooks   boolean not null default false,
    seq     integer not null,
    mail    integer not null,
    ready   boolean not null default true,
    node    text,
    fence   integer not null,
    attempt integer not null,
    size    bigint not null,
    unique (scope, id)
) with (fillfactor = 70);

-- A page of all states is merged from one range of each state, so that a filter by state costs no index of its own.
create index tasks_by_state on dragoman.tasks (scope, state, updated desc, id)
    where not reply or state <> 'TASK_STATE_SUBMITTED';
-- By its hash, because a context may be longer than an entry of an index.
create index tasks_by_context on dragoman.tasks (scope, md5(context), state, updated desc, id)
    where not reply or state <> 'TASK_STATE_SUBMITTED';
create index tasks_by_age on dragoman.tasks (done, updated);
create index tasks_held on dragoman.tasks (node, key) where ready and node is not null;
create index tasks_waiting on dragoman.tasks (key) include (scope) where ready and node is null;

-- How many tasks of a scope that peers can see are in each state: the sum over `slot`. A process has a slot, so that nodes do
-- not wait for each other at one row. Moves in the transaction that moves the task.
create table dragoman.counts (
    scope integer not null,
    state text not null,
    slot  integer not null,
    n     bigint not null,
    primary key (scope, state, slot)
) with (fillfactor = 20);

-- One row per append, named by its last record: what an event costs does not grow with its task.
create table dragoman.log (
    key  bigint not null,
    seq  integer not null,
    body bytea not null,
    primary key (key, seq)
);

-- Tasks that are gone and whose logs are still to be deleted, piece by piece.
create table dragoman.purged (
    key bigint primary key
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

-- One row per push config: what to send where (`body`), what has been told (`cursor`) and what there is to tell (`last`).
create table dragoman.webhooks (
    webhook    bigint generated always as identity primary key,
    key     bigint not null,
    id      text not null,
    body    bytea not null,
    cursor  integer not null,
    last    integer not null,
    at      double precision not null default 0,
    attempt integer not null default 0,
    since   double precision not null default 0,
    error   text not null default '',
    dead    boolean not null default false,
    node    text,
    fence   integer not null default 0,
    unique (key, id)
);

create index webhooks_due on dragoman.webhooks (at) where cursor < last and not dead;
create index webhooks_dead on dragoman.webhooks (webhook) where dead;
create index webhooks_held on dragoman.webhooks (node) where node is not null;

-- Who did what to which task. Each entry carries a hash of itself and of the one before it. Rows are only ever added, and
-- removed by age.
create table dragoman.audit (
    id        bigint generated always as identity primary key,
    at        text collate "C" not null,
    tenant    text not null,
    agent     text not null,
    principal text not null,
    operation text not null,
    task      text not null,
    outcome   text not null,
    dialect   text not null,
    trace     text not null,
    hash      bytea not null
);

create index audit_task on dragoman.audit (task, id) where task <> '';
create index audit_principal on dragoman.audit (principal, id) where principal <> '';

-- What each node holds of a quota that all nodes share. A row can go after `until`, by the clock of the database.
create table dragoman.quotas (
    key   text primary key,
    body  bytea not null,
    until double precision not null
) with (fillfactor = 50);

create index quotas_until on dragoman.quotas (until);

-- Exchanges that were answered with a bare message: nobody's tasks, but part of the conversation of their context.
create index tasks_replied on dragoman.tasks (scope, md5(context), updated, id)
    where reply and state = 'TASK_STATE_SUBMITTED' and done;

-- Agents elsewhere that the operator registered, and when each is looked at again. `body` is what the catalogue knows of it (JSON).
create table dragoman.catalogue_agents (
    tenant text collate "C" not null,
    name   text collate "C" not null,
    url    text not null,
    due    double precision not null,
    body   bytea not null,
    primary key (tenant, name)
);

create index catalogue_due on dragoman.catalogue_agents (due);

-- The texts in which agents are searched, by a hash of their content, and when each was last in use.
create table dragoman.catalogue_texts (
    digest text collate "C" primary key,
    used   double precision not null,
    words  tsvector not null
);

create index catalogue_words on dragoman.catalogue_texts using gin (words);
create index catalogue_used on dragoman.catalogue_texts (used);
