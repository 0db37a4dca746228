-- What commands have written, and what came of it: one that runs again after a crash does not write again.
create table done (
    key     text primary key,
    outcome blob not null,
    at      integer not null
) without rowid;
