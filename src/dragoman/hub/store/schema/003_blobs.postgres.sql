-- The content of a large file is not in `content`: `blob` is its key in the folder or bucket of contents.
alter table hub.artifacts add column blob text collate "C" not null default '';

-- Keys of contents that no file uses, not yet or not any more, and since when.
create table hub.unused_blobs (
    key text collate "C" primary key,
    at  bigint not null
);
create index unused_blobs_at on hub.unused_blobs (at);
create function hub.blob_unused() returns trigger language plpgsql as $$
begin
    if old.blob <> '' and (tg_op = 'DELETE' or old.blob <> new.blob) then
        insert into hub.unused_blobs (key, at) values (old.blob, extract(epoch from now())::bigint) on conflict do nothing;
    end if;
    return null;
end
$$;
create trigger blob_unused after delete or update of blob on hub.artifacts
    for each row execute function hub.blob_unused();
