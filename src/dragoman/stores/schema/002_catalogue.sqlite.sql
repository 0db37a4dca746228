-- Agents elsewhere that the operator registered, and when each is looked at again. `body` is what the catalogue knows of it (JSON).
create table catalogue_agents (
    tenant text not null,
    name   text not null,
    url    text not null,
    due    real not null,
    body   blob not null,
    primary key (tenant, name)
) without rowid;

create index catalogue_due on catalogue_agents (due);

-- The texts in which agents are searched, by a hash of their content, and when each was last in use.
create table catalogue_texts (
    id     integer primary key,
    digest text not null unique,
    used   real not null
);

create virtual table catalogue_words using fts5 (name, tags, skills, about, tokenize = 'porter unicode61');
