-- Contents that no file uses say whose they are and how large, and whether they are on their way (arriving).
alter table hub.unused_blobs
    add column tenant_id bigint not null default 0,
    add column size bigint not null default 0,
    add column arriving integer not null default 0;
update hub.unused_blobs set tenant_id = cast(substr(key, 2, strpos(key, '/') - 2) as bigint);
create index unused_blobs_of on hub.unused_blobs (tenant_id, at);

create or replace function hub.blob_unused() returns trigger language plpgsql as $$
begin
    if old.blob <> '' and (tg_op = 'DELETE' or old.blob <> new.blob) then
        insert into hub.unused_blobs (key, tenant_id, size, at)
        values (old.blob, old.tenant_id, old.size, extract(epoch from now())::bigint) on conflict do nothing;
    end if;
    return null;
end
$$;
