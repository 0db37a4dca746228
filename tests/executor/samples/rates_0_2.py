"""Converts currencies and asks for what it needs. Written for a2a-sdk 0.2: a task, an updater, a push notifier."""

import httpx
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events.event_queue import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryPushNotifier, InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentSkill,
    InternalError,
    InvalidParamsError,
    Part,
    TaskState,
    TextPart,
    UnsupportedOperationError,
)
from a2a.utils import new_agent_text_message, new_task
from a2a.utils.errors import ServerError

RATES = {"EUR": 0.5, "INR": 83.5}


class RatesExecutor(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if not context.get_user_input():
            raise ServerError(error=InvalidParamsError())
        task = context.current_task
        if not task:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.contextId)
        try:
            await updater.update_status(
                TaskState.working, new_agent_text_message("Looking up ...", task.contextId, task.id)
            )
            wanted = [name for name in RATES if name in context.get_user_input()]
            if not wanted:
                question = new_agent_text_message("To which currency?", task.contextId, task.id)
                await updater.update_status(TaskState.input_required, question, final=True)
                return
            await updater.add_artifact(
                [Part(root=TextPart(text=f"10 USD are {10 * RATES[wanted[0]]:.0f} {wanted[0]}"))],
                name="conversion_result",
            )
            await updater.complete()
        except KeyError as error:
            raise ServerError(error=InternalError()) from error

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise ServerError(error=UnsupportedOperationError())


httpx_client = httpx.AsyncClient()
request_handler = DefaultRequestHandler(
    agent_executor=RatesExecutor(),
    task_store=InMemoryTaskStore(),
    push_notifier=InMemoryPushNotifier(httpx_client),
)
server = A2AStarletteApplication(
    agent_card=AgentCard(
        name="Rates",
        description="Helps with exchange rates",
        url="http://localhost:10000/",
        version="1.0.0",
        defaultInputModes=["text", "text/plain"],
        defaultOutputModes=["text", "text/plain"],
        capabilities=AgentCapabilities(streaming=True, pushNotifications=True),
        skills=[AgentSkill(id="convert", name="Convert", description="Converts", tags=["currency"])],
    ),
    http_handler=request_handler,
)
app = server.build()
