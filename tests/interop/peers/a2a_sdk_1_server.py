"""The peers' agent on a2a-sdk 1.3.0: JSON-RPC, HTTP+JSON and gRPC, in 1.0 and 0.3. See README.md."""

import asyncio
import sys

import grpc
import uvicorn
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, a2a_pb2_grpc
from starlette.applications import Starlette


class Peer(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        if text == "message":
            await event_queue.enqueue_event(new_text_message("just a message"))
            return
        answered = context.current_task is not None
        if not answered:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        await task.start_work()
        if answered:
            await task.add_artifact([Part(text=f"You said: {text}")], name="answer")
        elif text == "ask":
            await task.requires_input(task.new_agent_message([Part(text="Which one?")]))
            return
        elif text == "fail":
            await task.failed(task.new_agent_message([Part(text="it went wrong")]))
            return
        elif text.startswith("ticks:"):
            for i in range(int(text[6:])):
                await task.start_work(task.new_agent_message([Part(text=f"tick {i}")]))
                await asyncio.sleep(0.05)
        elif text.startswith("stream:"):
            n = int(text[7:])
            for i in range(n):
                chunk = [Part(text=f"chunk {i} ")]
                await task.add_artifact(chunk, artifact_id="chunks", append=i > 0, last_chunk=i == n - 1)
        elif text.startswith("parts"):
            await task.add_artifact(list(context.message.parts)[1:], name="parts")
        else:
            await task.add_artifact([Part(text=text)], name="echo")
        await task.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


async def main(port: int, grpc_port: int) -> None:
    base = f"http://127.0.0.1:{port}"
    addresses = [("JSONRPC", f"{base}/"), ("HTTP+JSON", f"{base}/rest")]
    if grpc_port:
        addresses.append(("GRPC", f"127.0.0.1:{grpc_port}"))
    card = AgentCard(
        name="a2a-sdk 1.3.0",
        description="An agent of another project",
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        supported_interfaces=[
            AgentInterface(protocol_binding=binding, protocol_version=version, url=url)
            for version in ("1.0", "0.3")
            for binding, url in addresses
        ],
        skills=[AgentSkill(id="echo", name="echo", description="Echoes", tags=["echo"])],
    )
    handler = DefaultRequestHandler(agent_executor=Peer(), task_store=InMemoryTaskStore(), agent_card=card)
    app = Starlette(
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
            *create_rest_routes(handler, path_prefix="/rest", enable_v0_3_compat=True),
        ]
    )
    if grpc_port:
        server = grpc.aio.server()
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
        a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(CompatGrpcHandler(handler), server)
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
