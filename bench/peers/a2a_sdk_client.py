"""The client of a2a-sdk 1.3.0, measured. Runs in its own environment: `python a2a_sdk_client.py URL SECONDS`."""

import asyncio
import sys
import uuid
from pathlib import Path

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest

sys.path.insert(0, str(Path(__file__).parent.parent))
from calls import measure, report


def request() -> SendMessageRequest:
    message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text="hello")])
    return SendMessageRequest(message=message)


async def main(url: str, seconds: float) -> None:
    async with httpx.AsyncClient() as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        plain = ClientFactory(ClientConfig(streaming=False, httpx_client=http)).create(card)
        streaming = ClientFactory(ClientConfig(streaming=True, httpx_client=http)).create(card)

        async def call() -> None:
            async for answer in plain.send_message(request()):
                assert answer.message.parts[0].text == "hello"

        async def stream() -> int:
            events = 0
            async for _ in streaming.send_message(request()):
                events += 1
            assert events > 1000
            return events

        report(await measure(call, stream, seconds=seconds))


asyncio.run(main(sys.argv[1], float(sys.argv[2])))
