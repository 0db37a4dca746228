-- What each node holds of a quota that all nodes share. A row can go after `until`, by the clock of the database.
create table dragoman.quotas (
    key   text primary key,
    body  bytea not null,
    until double precision not null
) with (fillfactor = 50);

create index quotas_until on dragoman.quotas (until);
