-- Pictures that commands gave to a model, until it has long seen them: a turn that runs again shows them again.
create table pictures (
    key        text primary key,
    media_type text not null,
    content    blob not null,
    at         integer not null
);
create index pictures_at on pictures (at);
