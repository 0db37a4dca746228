"""Asks an agent of a hub, with a token, with the client of a2a-sdk 0.3.26: `URL TOKEN VERSION BINDING TEXT`."""

import asyncio
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, TextPart, TransportProtocol

URL, TOKEN, VERSION, BINDING, TEXT = sys.argv[1:6]


async def main() -> None:
    async with httpx.AsyncClient(timeout=30, headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        card = await A2ACardResolver(http, URL).get_agent_card()
        transport = TransportProtocol.http_json if BINDING == "HTTP+JSON" else TransportProtocol.jsonrpc
        for streaming in (True, False):
            config = ClientConfig(streaming=streaming, httpx_client=http, supported_transports=[transport])
            client = ClientFactory(config).create(card)
            message = Message(
                message_id=str(uuid.uuid4()), role=Role.user, parts=[Part(root=TextPart(text=TEXT))]
            )
            said = ""
            async for event in client.send_message(message):
                task = event[0] if isinstance(event, tuple) else None
                if task is not None and task.status.message is not None:
                    said = "".join(part.root.text for part in task.status.message.parts) or said
            print(said, flush=True)


asyncio.run(main())
