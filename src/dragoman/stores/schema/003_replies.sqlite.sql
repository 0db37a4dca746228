-- Exchanges that were answered with a bare message: nobody's tasks, but part of the conversation of their context.
create index tasks_replied on tasks (scope, context, updated, id)
    where reply = 1 and state = 'TASK_STATE_SUBMITTED' and done = 1;
