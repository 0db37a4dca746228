-- One row per push config: what to send where (`body`), what has been told (`cursor`) and what there is to tell (`last`).
create table dragoman.hooks (
    hook    bigint generated always as identity primary key,
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

create index hooks_due on dragoman.hooks (at) where cursor < last and not dead;
create index hooks_dead on dragoman.hooks (hook) where dead;
create index hooks_held on dragoman.hooks (node) where node is not null;
