"""The echo agent on fasta2a 2.1.1, in memory, JSON-RPC. Usage: fasta2a.py PORT

Its own method names are those of 0.3, and its send answers before the work is done. Tasks run side by side, which is
what a server has to do; its README's worker runs one at a time.
"""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, Part, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage

CHUNK = "x" * 20
released = asyncio.Event()
running: set[asyncio.Task[None]] = set()


class Echo(Worker):
    async def run_task(self, params: TaskSendParams) -> None:
        work = asyncio.create_task(self.work(params))
        running.add(work)
        work.add_done_callback(running.discard)

    async def work(self, params: TaskSendParams) -> None:
        task = await self.storage.load_task(params["id"])
        id, context = task["id"], task["context_id"]
        text = params["message"]["parts"][0]["text"]
        kind, _, count = text.partition(":")
        await self.storage.update_task(id, state="working")
        await self.publish_status(id, context, "working")
        history = []
        if kind in ("stream", "paced"):
            parts = [Part(text=CHUNK) for _ in range(int(count))]
            artifact = Artifact(artifact_id=str(uuid.uuid4()), parts=parts)
            for i, part in enumerate(parts):
                piece = Artifact(artifact_id=artifact["artifact_id"], parts=[part])
                await self.publish_artifact(id, context, piece, append=i > 0, last_chunk=i == len(parts) - 1)
                if kind == "paced":
                    await asyncio.sleep(0)
        else:
            if kind == "history":
                history = [
                    Message(
                        role="user" if i % 2 else "agent",
                        message_id=str(uuid.uuid4()),
                        parts=[Part(text=f"history message number {i} of the task")],
                    )
                    for i in range(int(count) - 1)
                ]
            elif kind == "wait":
                await released.wait()
            elif kind == "release":
                released.set()
            artifact = Artifact(artifact_id=str(uuid.uuid4()), name="echo", parts=[Part(text=text)])
            await self.publish_artifact(id, context, artifact)
        await self.storage.update_task(
            id, state="completed", new_messages=history or None, new_artifacts=[artifact]
        )
        await self._end_stream(id, context, "completed")

    async def cancel_task(self, params: TaskIdParams) -> None:
        raise NotImplementedError

    def build_message_history(self, history: list[Message]) -> list[Message]:
        return history

    def build_artifacts(self, result: object) -> list[Artifact]:
        return []


storage, broker = InMemoryStorage(), InMemoryBroker()


@asynccontextmanager
async def lifespan(app: FastA2A) -> AsyncIterator[None]:
    async with app.task_manager, Echo(storage=storage, broker=broker).run():
        yield


if __name__ == "__main__":
    port = int(sys.argv[1])
    app = FastA2A(storage=storage, broker=broker, lifespan=lifespan, url=f"http://127.0.0.1:{port}/")
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="error",
        access_log=False,
        backlog=4096,
    )
