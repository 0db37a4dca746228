"""A help desk that asks and hands out files. Written for a2a-sdk 1.x: modules instead of names, FastAPI."""

from typing import Any

from a2a import types
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.routes import (
    add_a2a_routes_to_fastapi,
    create_agent_card_routes,
    create_jsonrpc_routes,
)
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.utils.errors import InvalidParamsError
from fastapi import FastAPI


class DeskExecutor(AgentExecutor):
    async def execute(self, context: Any, event_queue: Any) -> None:
        if not context.get_user_input().strip():
            raise InvalidParamsError("say something")
        if context.current_task is None:
            task = types.Task(
                id=context.task_id,
                context_id=context.context_id,
                status=types.TaskStatus(state=types.TaskState.TASK_STATE_SUBMITTED),
                history=[context.message],
            )
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if "form" not in context.get_user_input():
            await updater.requires_input(updater.new_agent_message([types.Part(text="Which form?")]))
            return
        part = types.Part(raw=b"a form", filename="form.txt", media_type="text/plain")
        await updater.add_artifact([part, types.Part(text="Here it is")], name="form")
        await updater.complete()

    async def cancel(self, context: Any, event_queue: Any) -> None:
        pass


card = types.AgentCard(
    name="Desk",
    description="Hands out forms",
    version="1.0.0",
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    capabilities=types.AgentCapabilities(streaming=True),
    skills=[types.AgentSkill(id="forms", name="Forms", description="Hands out forms", tags=["forms"])],
    supported_interfaces=[
        types.AgentInterface(protocol_binding="JSONRPC", url="http://127.0.0.1:9998", protocol_version="1.0")
    ],
)
handler = DefaultRequestHandlerV2(
    agent_executor=DeskExecutor(), task_store=InMemoryTaskStore(), agent_card=card
)
app = FastAPI()
add_a2a_routes_to_fastapi(
    app,
    agent_card_routes=create_agent_card_routes(card),
    jsonrpc_routes=create_jsonrpc_routes(handler, rpc_url="/"),
)
