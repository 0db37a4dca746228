-- What happened to runs, for a while: whoever listens, at whichever hub, reads it here.
create table notifications (
    id        integer primary key autoincrement,
    tenant_id integer not null references tenants on delete cascade,
    payload   text not null,
    at        integer not null
);
create index notifications_of on notifications (tenant_id, id);
create index notifications_at on notifications (at);
