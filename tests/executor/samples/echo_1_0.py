"""Echoes with a task. Written for a2a-sdk 1.x: lists of routes in Starlette, helpers, enum names of 1.0."""

from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from starlette.applications import Starlette


class EchoExecutor(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.update_status(TaskState.TASK_STATE_WORKING, message=new_text_message("Listening"))
        await updater.add_artifact([new_text_part(f"you said {context.get_user_input()}")], name="echo")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


agent_card = AgentCard(
    name="Echo",
    description="Repeats you",
    version="1.0.0",
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    capabilities=AgentCapabilities(streaming=True),
    supported_interfaces=[
        AgentInterface(protocol_binding="JSONRPC", url="http://127.0.0.1:9999", protocol_version="1.0")
    ],
    skills=[AgentSkill(id="echo", name="Echo", description="Repeats you", tags=["echo"])],
)
request_handler = DefaultRequestHandler(
    agent_executor=EchoExecutor(), task_store=InMemoryTaskStore(), agent_card=agent_card
)
routes = [*create_agent_card_routes(agent_card), *create_jsonrpc_routes(request_handler, "/")]
app = Starlette(routes=routes)
