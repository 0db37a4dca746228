-- The generation of its tenant under which a schedule was made or last resumed: it is due under no other.
alter table schedules add column generation integer not null default 0;
update schedules set generation = (select generation from tenants where id = schedules.tenant_id);
