-- Exchanges that were answered with a bare message: nobody's tasks, but part of the conversation of their context.
create index tasks_replied on dragoman.tasks (scope, md5(context), updated, id)
    where reply and state = 'TASK_STATE_SUBMITTED' and done;
