-- What was said long ago, in short: everything up to the message `summed_up_to`.
alter table conversations add column summary text not null default '';
alter table conversations add column summed_up_to integer not null default 0;
