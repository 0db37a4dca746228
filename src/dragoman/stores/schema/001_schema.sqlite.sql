-- Whose tasks: a small number instead of three long words in every row and index.
create table scopes (
    scope  integer primary key,
    tenant text not null,
    agent  text not null,
    owner  text not null,
    unique (tenant, agent, owner)
);

-- One row per task. `state`, `updated` and `done` are what its log folds to, kept here to be searched. A task whose
-- answer may be a bare message (`reply`) is nobody's task until it has a state to show. `webhooks`: whether it has webhooks.
-- `size`: bytes of its log.
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
    webhooks   integer not null default 0,
    size    integer not null,
    unique (scope, id)
);

-- A page of all states is merged from one range of each state, so that a filter by state costs no index of its own.
create index tasks_by_state on tasks (scope, state, updated desc, id, reply)
    where reply = 0 or state <> 'TASK_STATE_SUBMITTED';
create index tasks_by_context on tasks (scope, context, state, updated desc, id, reply)
    where reply = 0 or state <> 'TASK_STATE_SUBMITTED';
create index tasks_by_age on tasks (done, updated);
create index tasks_ready on tasks (node) where ready = 1;

-- How many tasks of a scope that peers can see are in each state. Moves in the transaction that moves the task.
create table counts (
    scope integer not null,
    state text not null,
    n     integer not null,
    primary key (scope, state)
) without rowid;

-- One row per append, named by its last record: what an event costs does not grow with its task. A record's place is one
-- number, the task's key and the record's own: one tree to write to instead of two.
create table log (
    place integer primary key,
    body  blob not null
);

-- Tasks that are gone and whose logs are still to be deleted, piece by piece.
create table purged (
    key integer primary key
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

-- One row per push config: what to send where (`body`), what has been told (`cursor`) and what there is to tell (`last`).
create table webhooks (
    webhook    integer primary key autoincrement,
    key     integer not null,
    id      text not null,
    body    blob not null,
    cursor  integer not null,
    last    integer not null,
    at      real not null default 0,
    attempt integer not null default 0,
    since   real not null default 0,
    error   text not null default '',
    dead    integer not null default 0,
    node    text,
    fence   integer not null default 0,
    unique (key, id)
);

create index webhooks_due on webhooks (at) where cursor < last and dead = 0;
create index webhooks_dead on webhooks (webhook) where dead = 1;
create index webhooks_held on webhooks (node) where node is not null;

-- Who did what to which task. Each entry carries a hash of itself and of the one before it. Rows are only ever added, and
-- removed by age.
create table audit (
    id        integer primary key autoincrement,
    at        text not null,
    tenant    text not null,
    agent     text not null,
    principal text not null,
    operation text not null,
    task      text not null,
    outcome   text not null,
    dialect   text not null,
    trace     text not null,
    hash      blob
);

create index audit_task on audit (task, id) where task <> '';
create index audit_principal on audit (principal, id) where principal <> '';

-- What each node holds of a quota that all nodes share. A row can go after `until`, by the clock of leases.
create table quotas (
    key   text primary key,
    body  blob not null,
    until real not null
) without rowid;

create index quotas_until on quotas (until);

-- Exchanges that were answered with a bare message: nobody's tasks, but part of the conversation of their context.
create index tasks_replied on tasks (scope, context, updated, id)
    where reply = 1 and state = 'TASK_STATE_SUBMITTED' and done = 1;

-- Agents elsewhere that the operator registered, and when each is looked at again. `body` is what the catalogue knows of it (JSON).
create table catalogue_agents (
    tenant text not null,
    name   text not null,
    url    text not null,
    due    real not null,
    body   blob not null,
    primary key (tenant, name)
) without rowid;

create index catalogue_due on catalogue_agents (due);

-- The texts in which agents are searched, by a hash of their content, and when each was last in use.
create table catalogue_texts (
    id     integer primary key,
    digest text not null unique,
    used   real not null
);

create virtual table catalogue_words using fts5 (name, tags, skills, about, tokenize = 'porter unicode61');
