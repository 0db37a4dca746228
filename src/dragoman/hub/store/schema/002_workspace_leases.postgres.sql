-- Which hub may use the folder in which the commands of a tenant run, and until when.
create table hub.workspace_leases (
    tenant_id bigint primary key references hub.tenants on delete cascade,
    holder    text collate "C" not null,
    until     double precision not null
);
