-- The search of memory finds the words that it finds in SQLite: also parts of addresses, paths, names and numbers (`node` and `js` in
-- `node.js`), which PostgreSQL would take for one word, and words such as `off`, which it would leave out.
create text search dictionary hub.english (template = pg_catalog.snowball, language = english);
create text search configuration hub.english (copy = pg_catalog.english);
alter text search configuration hub.english alter mapping replace pg_catalog.english_stem with hub.english;

create function hub.memory_words(text) returns tsvector language sql immutable strict parallel safe as $$
    select to_tsvector('hub.english', translate($1,
        '!"#$%&''()*+,-./:;<=>?@[\]^_`{|}~¡¿«»‐‑‒–—―‘’‚“”„•…、。「」', repeat(' ', 64)))
$$;

alter table hub.memories drop column words;
alter table hub.memories add column words tsvector generated always as (
    setweight(hub.memory_words(title), 'A') || setweight(hub.memory_words(tags), 'B')
    || setweight(hub.memory_words(content), 'C') || setweight(hub.memory_words(source), 'D')
) stored;
create index memories_words on hub.memories using gin (words);
