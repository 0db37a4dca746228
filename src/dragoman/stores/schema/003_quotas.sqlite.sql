-- What each node holds of a quota that all nodes share. A row can go after `until`, by the clock of leases.
create table quotas (
    key   text primary key,
    body  blob not null,
    until real not null
) without rowid;

create index quotas_until on quotas (until);
