-- What was done long ago is forgotten whenever something is done.
create index done_at on done (at);
