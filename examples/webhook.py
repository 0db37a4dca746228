"""Receive push notifications of a long task, instead of waiting for it.

    dragoman serve examples/report.py --allow-private-push
    pip install uvicorn
    python examples/webhook.py http://127.0.0.1:8000 the history of tea

If the agent is killed and started again, or the webhook is away for a while, every notification still arrives, in order.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys

import uvicorn

from dragoman import ArtifactUpdate, AuthenticationInfo, PushConfig, StatusUpdate, connect
from dragoman.push import Received, Verifier, Webhook

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
TOPIC = " ".join(sys.argv[2:]) or "the history of tea"


async def main() -> None:
    token, secret, done = secrets.token_urlsafe(), secrets.token_urlsafe(), asyncio.Event()

    def print_event(received: Received) -> None:
        match received.event:
            case StatusUpdate(status=status):
                print(f"[{status.state.word}] {status.message.text if status.message else ''}")
                if status.state.terminal:
                    done.set()
            case ArtifactUpdate(artifact=artifact):
                print(artifact.text, end="")

    # Whoever does not know both is nobody we listen to, and nobody can change what the agent says on its way to us.
    app = Webhook(print_event, Verifier(token=token, secrets=(secret,)))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))

    async with connect(URL) as agent:
        config = PushConfig(
            url=f"http://127.0.0.1:{listener.getsockname()[1]}/",
            token=token,
            authentication=AuthenticationInfo(scheme="HMAC", credentials=secret),
        )
        reply = await agent.send(TOPIC, wait=False, push=config)
        print(f"task {reply.id}")
    await done.wait()
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
