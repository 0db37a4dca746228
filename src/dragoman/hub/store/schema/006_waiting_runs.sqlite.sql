-- Runs whose agent asks.
create index runs_waiting on runs (status) where status = 'input-required';
