-- Whether a schedule is running, and which of its runs are old.
create index runs_of_schedule on runs (task_id, id);
