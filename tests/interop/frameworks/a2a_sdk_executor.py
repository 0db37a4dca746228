"""An executor of a2a-sdk 0.3 or 1.x, with the SDK's own types, as it would be written there."""

import asyncio

import a2a.types as types
from a2a.server.agent_execution import AgentExecutor
from a2a.server.tasks import TaskUpdater

from dragoman import wrap

from . import script

OLD = hasattr(types, "MessageSendParams")
if OLD:
    from a2a.utils import new_agent_text_message, new_task
    from a2a.utils.errors import ServerError
else:
    from a2a.helpers import new_task_from_user_message as new_task
    from a2a.helpers import new_text_message as new_agent_text_message
    from a2a.utils.errors import UnsupportedOperationError


def part(text):
    return types.Part(root=types.TextPart(text=text)) if OLD else types.Part(text=text)


class Executor(AgentExecutor):
    async def execute(self, context, event_queue):
        text = context.get_user_input()
        if text == "message":
            await event_queue.enqueue_event(new_agent_text_message("just a message"))
            return
        if context.current_task is None:
            await event_queue.enqueue_event(new_task(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work(updater.new_agent_message([part("Working")]))
        if text == "ask":
            await updater.requires_input(updater.new_agent_message([part("Which city?")]))
        elif text == "refuse":
            if OLD:
                raise ServerError(error=types.UnsupportedOperationError(message="not here"))
            raise UnsupportedOperationError("not here")
        elif text == "hang":
            (script.HOME / "started").touch()
            await asyncio.sleep(3600)
        else:
            first = context.current_task.history[0] if context.current_task else None
            said = f" after {len(context.current_task.history)} messages" if first else ""
            await updater.add_artifact([part("you said ")], artifact_id="answer", name="answer")
            await updater.add_artifact(
                [part(f"{text}{said}")], artifact_id="answer", append=True, last_chunk=True
            )
            await updater.complete()

    async def cancel(self, context, event_queue):
        (script.HOME / "stopped").touch()


agent = wrap(Executor(), name="Executor", description="Repeats you")
