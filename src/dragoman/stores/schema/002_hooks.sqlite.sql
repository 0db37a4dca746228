-- Whether a task has hooks, in the row that every append reads anyway: those that have none pay nothing for it.
alter table tasks add column hooks integer not null default 0;

-- One row per push config: what to send where (`body`), what has been told (`cursor`) and what there is to tell (`last`).
create table hooks (
    hook    integer primary key autoincrement,
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

create index hooks_due on hooks (at) where cursor < last and dead = 0;
create index hooks_dead on hooks (hook) where dead = 1;
create index hooks_held on hooks (node) where node is not null;
