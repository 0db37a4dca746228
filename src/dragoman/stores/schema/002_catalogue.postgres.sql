-- Agents elsewhere that the operator registered, and when each is looked at again. `body` is what the catalogue knows of it (JSON).
create table dragoman.catalogue_agents (
    tenant text collate "C" not null,
    name   text collate "C" not null,
    url    text not null,
    due    double precision not null,
    body   bytea not null,
    primary key (tenant, name)
);

create index catalogue_due on dragoman.catalogue_agents (due);

-- The texts in which agents are searched, by a hash of their content, and when each was last in use.
create table dragoman.catalogue_texts (
    digest text collate "C" primary key,
    used   double precision not null,
    words  tsvector not null
);

create index catalogue_words on dragoman.catalogue_texts using gin (words);
create index catalogue_used on dragoman.catalogue_texts (used);
