"""The peers' agent on a2a-sdk 0.2.16: JSON-RPC and gRPC. See README.md."""

import asyncio
import sys

import grpc
import uvicorn
from a2a.grpc import a2a_pb2_grpc
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Part,
    TaskState,
    TextPart,
)
from a2a.utils import new_agent_text_message, new_task


def text_part(text: str) -> Part:
    return Part(root=TextPart(text=text))


class Peer(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        if text == "message":
            await event_queue.enqueue_event(new_agent_text_message("just a message"))
            return
        answered = context.current_task is not None
        if not answered:
            await event_queue.enqueue_event(new_task(context.message))
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        await task.start_work()
        if answered:
            await task.add_artifact([text_part(f"You said: {text}")], name="answer")
        elif text == "ask":
            await task.requires_input(task.new_agent_message([text_part("Which one?")]), final=True)
            return
        elif text == "fail":
            await task.failed(task.new_agent_message([text_part("it went wrong")]))
            return
        elif text.startswith("ticks:"):
            for i in range(int(text[6:])):
                await task.update_status(TaskState.working, task.new_agent_message([text_part(f"tick {i}")]))
                await asyncio.sleep(0.05)
        elif text.startswith("stream:"):
            n = int(text[7:])
            for i in range(n):
                chunk = [text_part(f"chunk {i} ")]
                await task.add_artifact(chunk, artifact_id="chunks", append=i > 0, last_chunk=i == n - 1)
        elif text.startswith("parts"):
            await task.add_artifact(context.message.parts[1:], name="parts")
        else:
            await task.add_artifact([text_part(text)], name="echo")
        await task.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


async def main(port: int, grpc_port: int) -> None:
    base = f"http://127.0.0.1:{port}"
    addresses = [("JSONRPC", f"{base}/")]
    if grpc_port:
        addresses.append(("GRPC", f"127.0.0.1:{grpc_port}"))
    card = AgentCard(
        name="a2a-sdk 0.2.16",
        description="An agent of another project",
        version="1.0.0",
        url=f"{base}/",
        preferred_transport="JSONRPC",
        additional_interfaces=[AgentInterface(transport=binding, url=url) for binding, url in addresses],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="echo", description="Echoes", tags=["echo"])],
    )
    handler = DefaultRequestHandler(
        agent_executor=Peer(),
        task_store=InMemoryTaskStore(),
        push_config_store=InMemoryPushNotificationConfigStore(),
    )
    app = A2AStarletteApplication(agent_card=card, http_handler=handler).build()
    if grpc_port:
        server = grpc.aio.server()
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(card, handler), server)
        server.add_insecure_port(f"127.0.0.1:{grpc_port}")
        await server.start()
    http = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    serving = asyncio.create_task(http.serve())
    while not http.started and not serving.done():
        await asyncio.sleep(0.01)
    print("READY", flush=True)
    await serving


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
