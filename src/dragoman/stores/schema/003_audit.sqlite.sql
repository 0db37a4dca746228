-- Who did what to which task. Rows are only ever added, and removed by age.
create table audit (
    id        integer primary key autoincrement,
    at        text not null,
    tenant    text not null,
    agent     text not null,
    principal text not null,
    operation text not null,
    task      text not null,
    outcome   text not null,
    dialect   text not null,
    trace     text not null
);

create index audit_task on audit (task, id) where task <> '';
create index audit_principal on audit (tenant, principal, id);
