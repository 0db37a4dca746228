-- Contents that no file uses say whose they are and how large, and whether they are on their way (arriving).
alter table unused_blobs add column tenant_id integer not null default 0;
alter table unused_blobs add column size integer not null default 0;
alter table unused_blobs add column arriving integer not null default 0;
update unused_blobs set tenant_id = cast(substr(key, 2, instr(key, '/') - 2) as integer);
create index unused_blobs_of on unused_blobs (tenant_id, at);

drop trigger blob_unused;
drop trigger blob_replaced;
create trigger blob_unused after delete on artifacts when old.blob <> '' begin
    insert or ignore into unused_blobs (key, tenant_id, size, at)
    values (old.blob, old.tenant_id, old.size, cast(strftime('%s', 'now') as integer));
end;
create trigger blob_replaced after update of blob on artifacts when old.blob <> '' and old.blob <> new.blob begin
    insert or ignore into unused_blobs (key, tenant_id, size, at)
    values (old.blob, old.tenant_id, old.size, cast(strftime('%s', 'now') as integer));
end;
