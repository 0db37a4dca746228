"""Call an agent: text, a stream, a question of the agent, and the same without `await`.

    dragoman serve examples/currency.py
    python examples/client.py http://127.0.0.1:8000

Any A2A agent of any version works, but only this one converts money.
"""

from __future__ import annotations

import asyncio
import sys

from dragoman import connect, connect_sync

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"


async def main() -> None:
    async with connect(URL) as agent:
        print(f"{agent.card.name}, A2A {agent.version}")

        # Text in, text out.
        print(await agent("how much is 10 USD in INR?"))

        # As it comes. A dropped connection, or a restarted server, does not end it.
        async for piece in agent.stream("how much is 100 EUR in JPY?"):
            if piece.status:
                print(f"  ({piece.status})")
            print(piece.text, end="")
        print()

        # A question is a reply that asks.
        reply = await agent("how much is 100 USD?")
        while reply.asks:
            print(f"  agent: {reply}")
            reply = await reply.answer("in GBP")
        print(reply)

        # What the agent keeps.
        async for task in agent.list(page_size=10):
            print(f"  {task.id}  {task.state.word}")


def without_await() -> None:
    with connect_sync(URL) as agent:
        print(agent("how much is 1 CHF in EUR?"))


if __name__ == "__main__":
    asyncio.run(main())
    without_await()
