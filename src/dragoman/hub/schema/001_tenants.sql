-- Who may use the hub. `generation` rises when the token changes or the tenant is disabled: work that began before stops.
create table tenants (
    id           integer primary key autoincrement,
    name         text not null unique,
    token_hash   text not null unique,
    disabled     integer not null default 0,
    generation   integer not null default 0,
    max_running  integer,
    per_minute   integer,
    created_at   integer not null,
    last_used_at integer not null default 0
);

-- Who did what to whom.
create table audit (
    id        integer primary key autoincrement,
    at        integer not null,
    actor     text not null,
    action    text not null,
    tenant_id integer not null default 0,
    detail    text not null default ''
);

-- The hub's own secrets (the admin token's hash).
create table secrets (
    name  text primary key,
    value text not null
) without rowid;
