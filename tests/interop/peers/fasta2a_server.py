"""The peers' agent on fasta2a 2.1.1: JSON-RPC. See README.md.

Each message is a task of its own there, so `ask` never hears the answer; a send does not block; a task has no bare Message.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, Part, Skill, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage


class Peer(Worker):
    async def run_task(self, params: TaskSendParams) -> None:
        # one task at a time is the library's way; side by side is what a server has to do
        work = asyncio.create_task(self.work(params))
        running[params["id"]] = work
        work.add_done_callback(lambda _: running.pop(params["id"], None))

    async def work(self, params: TaskSendParams) -> None:
        task = await self.storage.load_task(params["id"])
        id, context = task["id"], task["context_id"]
        text = params["message"]["parts"][0].get("text", "")
        await self.storage.update_task(id, state="working")
        await self.publish_status(id, context, "working")
        artifact, state = Artifact(artifact_id="echo", parts=[Part(text=text)]), "completed"
        if text == "ask":
            question = Message(role="agent", message_id=f"{id}-ask", parts=[Part(text="Which one?")])
            await self.storage.update_task(id, state="input-required", new_messages=[question])
            await self._end_stream(id, context, "input-required")
            return
        if text == "fail":
            await self.storage.update_task(id, state="failed")
            await self._end_stream(id, context, "failed")
            return
        if text.startswith("ticks:"):
            for i in range(int(text[6:])):
                tick = Message(role="agent", message_id=f"{id}-{i}", parts=[Part(text=f"tick {i}")])
                await self.publish_status(id, context, "working", tick)
                await asyncio.sleep(0.05)
        if text.startswith("stream:"):
            n = int(text[7:])
            chunks = [Part(text=f"chunk {i} ") for i in range(n)]
            for i, chunk in enumerate(chunks):
                piece = Artifact(artifact_id="chunks", parts=[chunk])
                await self.publish_artifact(id, context, piece, append=i > 0, last_chunk=i == n - 1)
            artifact = Artifact(artifact_id="chunks", parts=chunks)
        else:
            if text.startswith("parts"):
                artifact = Artifact(artifact_id="parts", parts=params["message"]["parts"][1:])
            await self.publish_artifact(id, context, artifact)
        await self.storage.update_task(id, state=state, new_artifacts=[artifact])
        await self._end_stream(id, context, state)

    async def cancel_task(self, params: TaskIdParams) -> None:
        if work := running.get(params["id"]):
            work.cancel()
            await asyncio.wait([work])
            task = await self.storage.update_task(params["id"], state="canceled")
            await self._end_stream(task["id"], task["context_id"], "canceled")

    def build_message_history(self, history: list[Message]) -> list[Message]:
        return history

    def build_artifacts(self, result: object) -> list[Artifact]:
        return []


running: dict[str, asyncio.Task[None]] = {}
storage, broker = InMemoryStorage(), InMemoryBroker()


@asynccontextmanager
async def lifespan(app: FastA2A) -> AsyncIterator[None]:
    async with app.task_manager, Peer(storage=storage, broker=broker).run():
        yield


async def main(port: int) -> None:
    skill = Skill(
        id="echo",
        name="echo",
        description="Echoes",
        tags=["echo"],
        input_modes=["text/plain"],
        output_modes=["text/plain"],
    )
    app = FastA2A(
        storage=storage,
        broker=broker,
        lifespan=lifespan,
        name="fasta2a 2.1.1",
        url=f"http://127.0.0.1:{port}/",
        skills=[skill],
    )
    http = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    serving = asyncio.create_task(http.serve())
    while not http.started and not serving.done():
        await asyncio.sleep(0.01)
    print("READY", flush=True)
    await serving


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
