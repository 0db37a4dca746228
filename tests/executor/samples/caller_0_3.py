"""Calls another agent and speaks gRPC: a client, and what else needs a person."""

from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import GrpcHandler
from a2a.types import Message, Part, Role, TextPart
from a2a.utils import new_agent_text_message


class CallerExecutor(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        async with httpx.AsyncClient() as http:
            card = await A2ACardResolver(http, "http://127.0.0.1:9999").get_agent_card()
            client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
            message = Message(role=Role.user, message_id=uuid4().hex, parts=[Part(root=TextPart(text="hi"))])
            async for event in client.send_message(message):
                await event_queue.enqueue_event(new_agent_text_message(event.model_dump_json()))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        pass


def serve_grpc(card, handler):
    return GrpcHandler(card, handler)
