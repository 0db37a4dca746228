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
insert into tokens (tenant_id, kind, name, hash, scope, generation, created_at, created_by, last_used_at)
select id, 'token', 'default', token_hash, 'admin', generation, created_at, '', last_used_at from tenants;

-- The table of tenants without tokens; SQLite cannot drop a column that is unique. A number is never used again. `generation`
-- counts: each token gets the next number, and so does each change that must be noticed.
create table new_tenants (
    id           integer primary key autoincrement,
    name         text not null unique,
    disabled     integer not null default 0,
    generation   integer not null default 0,
    max_running  integer,
    per_minute   integer,
    created_at   integer not null,
    last_used_at integer not null default 0
);
insert into new_tenants (id, name, disabled, generation, max_running, per_minute, created_at, last_used_at)
select id, name, disabled, generation, max_running, per_minute, created_at, last_used_at from tenants;
update sqlite_sequence set seq = (select max(seq) from sqlite_sequence where name in ('tenants', 'new_tenants'))
where name = 'new_tenants';
drop table tenants;
alter table new_tenants rename to tenants;

-- Tenants that are deleted. A hub that finds one without `done_at` goes on with the deletion.
create table deleted_tenants (
    id      integer primary key,
    name    text not null,
    at      integer not null,
    actor   text not null,
    done_at integer not null default 0
);

-- The hashes of admin tokens. One that was replaced stays here, so that it is never accepted again.
create table admin_tokens (
    hash       text primary key,
    created_at integer not null,
    expires_at integer,
    revoked_at integer not null default 0
);
insert into admin_tokens (hash, created_at) select value, 0 from secrets where name = 'admin';
drop table secrets;
