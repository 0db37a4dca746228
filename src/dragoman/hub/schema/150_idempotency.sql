-- Which request a key of a client stands for, for a while. It is noted before the request begins.
create table idempotency_keys (
    tenant_id  integer not null references tenants on delete cascade,
    key        text not null,
    request_id text not null,
    at         integer not null,
    primary key (tenant_id, key)
) without rowid;
create index idempotency_keys_at on idempotency_keys (at);
