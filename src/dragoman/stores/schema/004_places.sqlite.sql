-- A record's place is one number, the task's key and the record's own (`stores/sqlite_reads.py`): one tree to write to
-- instead of two. A row is still named by the last record in it.
create table places (
    place integer primary key,
    body  blob not null
);
insert into places (place, body) select key << 28 | seq, body from log order by key, seq;
drop table log;
alter table places rename to log;
