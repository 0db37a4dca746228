"""The echo agent on a2a-sdk 1.3.0, in memory. Usage: a2a_sdk.py JSON-RPC|HTTP+JSON|gRPC PORT"""

import asyncio
import logging
import sys
import uuid

import grpc
import uvicorn
import uvloop
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    a2a_pb2_grpc,
)
from starlette.applications import Starlette

CHUNK = "x" * 20
released = asyncio.Event()


class Echo(AgentExecutor):
    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        task_id, context_id = context.task_id, context.context_id
        history = [context.message]
        if text.startswith("history:"):
            history += [
                Message(
                    message_id=str(uuid.uuid4()),
                    role=Role.ROLE_USER if i % 2 else Role.ROLE_AGENT,
                    task_id=task_id,
                    context_id=context_id,
                    parts=[Part(text=f"history message number {i} of the task")],
                )
                for i in range(int(text[8:]) - 1)
            ]
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        await event_queue.enqueue_event(
            Task(id=task_id, context_id=context_id, history=history, status=status)
        )
        task = TaskUpdater(event_queue, task_id, context_id)
        await task.start_work()
        if text.startswith(("stream:", "paced:")):
            kind, count = text.split(":")
            artifact, n = str(uuid.uuid4()), int(count)
            for i in range(n):
                await task.add_artifact(
                    [Part(text=CHUNK)], artifact_id=artifact, append=i > 0, last_chunk=i == n - 1
                )
                if kind == "paced":
                    await asyncio.sleep(0)
        else:
            if text == "wait":
                await released.wait()
            elif text == "release":
                released.set()
            await task.add_artifact([Part(text=text)], name="echo")
        await task.complete()


def agent_card(binding: str, url: str) -> AgentCard:
    return AgentCard(
        name="echo",
        description="echo",
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        supported_interfaces=[AgentInterface(protocol_binding=binding, protocol_version="1.0", url=url)],
        skills=[AgentSkill(id="echo", name="echo", description="echo", tags=["echo"])],
    )


def handler(card: AgentCard) -> DefaultRequestHandler:
    return DefaultRequestHandler(agent_executor=Echo(), task_store=InMemoryTaskStore(), agent_card=card)


def serve_http(binding: str, port: int) -> None:
    if binding == "JSON-RPC":
        card = agent_card("JSONRPC", f"http://127.0.0.1:{port}/")
        routes = create_jsonrpc_routes(handler(card), "/", enable_v0_3_compat=True)
    else:
        card = agent_card("HTTP+JSON", f"http://127.0.0.1:{port}")
        routes = create_rest_routes(handler(card))
    uvicorn.run(
        Starlette(routes=[*create_agent_card_routes(card), *routes]),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="error",
        access_log=False,
        backlog=4096,
    )


async def serve_grpc(port: int) -> None:
    server = grpc.aio.server()
    card = agent_card("GRPC", f"127.0.0.1:{port}")
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler(card)), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    binding, port = sys.argv[1], int(sys.argv[2])
    if binding == "gRPC":
        uvloop.run(serve_grpc(port))
    else:
        serve_http(binding, port)
