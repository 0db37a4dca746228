-- The content of a large file is not in `content`: `blob` is its key in the folder or bucket of contents.
alter table artifacts add column blob text not null default '';

-- Keys of contents that no file uses, not yet or not any more, and since when.
create table unused_blobs (
    key text primary key,
    at  integer not null
) without rowid;
create index unused_blobs_at on unused_blobs (at);
create trigger blob_unused after delete on artifacts when old.blob <> '' begin
    insert or ignore into unused_blobs (key, at) values (old.blob, cast(strftime('%s', 'now') as integer));
end;
create trigger blob_replaced after update of blob on artifacts when old.blob <> '' and old.blob <> new.blob begin
    insert or ignore into unused_blobs (key, at) values (old.blob, cast(strftime('%s', 'now') as integer));
end;
