-- Who did what to which task. Each entry carries a hash of itself and of the one before it. Rows are only ever added, and
-- removed by age.
create table dragoman.audit (
    id        bigint generated always as identity primary key,
    at        text collate "C" not null,
    tenant    text not null,
    agent     text not null,
    principal text not null,
    operation text not null,
    task      text not null,
    outcome   text not null,
    dialect   text not null,
    trace     text not null,
    hash      bytea not null
);

create index audit_task on dragoman.audit (task, id) where task <> '';
create index audit_principal on dragoman.audit (principal, id) where principal <> '';
