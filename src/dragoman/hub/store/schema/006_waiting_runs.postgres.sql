-- Runs whose agent asks.
create index runs_waiting on hub.runs (status) where status = 'input-required';
