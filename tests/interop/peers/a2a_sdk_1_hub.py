"""Asks an agent of a hub, with a token, with the client of a2a-sdk 1.3.0: `URL TOKEN VERSION BINDING TEXT`."""

import asyncio
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest

URL, TOKEN, VERSION, BINDING, TEXT = sys.argv[1:6]


async def main() -> None:
    async with httpx.AsyncClient(timeout=30, headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        card = await A2ACardResolver(http, URL).get_agent_card()
        for interface in list(card.supported_interfaces):
            if interface.protocol_version != VERSION:
                card.supported_interfaces.remove(interface)
        for streaming in (True, False):
            config = ClientConfig(
                streaming=streaming, httpx_client=http, supported_protocol_bindings=[BINDING]
            )
            client = ClientFactory(config).create(card)
            message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text=TEXT)])
            said = ""
            async for event in client.send_message(SendMessageRequest(message=message)):
                status = event.task.status if event.HasField("task") else event.status_update.status
                said = "".join(part.text for part in status.message.parts) or said
            print(said, flush=True)


asyncio.run(main())
