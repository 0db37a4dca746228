"""Every check with the client of a2a-sdk 0.3.26. See README.md."""

import asyncio
import base64
import sys
import uuid
from collections.abc import AsyncIterator

import grpc
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.client import ClientEvent
from a2a.types import (
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    Message,
    Part,
    Role,
    Task,
    TaskIdParams,
    TaskQueryParams,
    TextPart,
)
from checks import Absent, expect, run

URL = sys.argv[1]
BINDING = sys.argv[2] if len(sys.argv) > 2 else "JSONRPC"

http = httpx.AsyncClient(timeout=30)


async def connect(*, streaming: bool = True, polling: bool = False) -> Client:
    card = await A2ACardResolver(http, URL).get_agent_card()
    config = ClientConfig(
        streaming=streaming,
        polling=polling,
        httpx_client=http,
        grpc_channel_factory=grpc.aio.insecure_channel,
        supported_transports=[BINDING],
    )
    return ClientFactory(config).create(card)


def request(*parts: str | Part, task: Task | None = None) -> Message:
    return Message(
        message_id=str(uuid.uuid4()),
        role=Role.user,
        parts=[Part(root=TextPart(text=part)) if isinstance(part, str) else part for part in parts],
        task_id=task.id if task else None,
        context_id=task.context_id if task else None,
    )


async def send(*parts: str | Part, task: Task | None = None, polling: bool = False) -> Task | Message:
    client = await connect(streaming=False, polling=polling)
    answers = [answer async for answer in client.send_message(request(*parts, task=task))]
    expect(len(answers), 1)
    return answers[0] if isinstance(answers[0], Message) else answers[0][0]


def text_of(parts: list[Part]) -> str:
    return "".join(part.root.text for part in parts if isinstance(part.root, TextPart))


def artifacts(task: Task) -> list[str]:
    return [text_of(artifact.parts) for artifact in task.artifacts or []]


async def first_task(stream: AsyncIterator[ClientEvent | Message]) -> Task:
    event = await anext(stream)
    assert not isinstance(event, Message)
    return event[0]


async def card() -> str:
    found = await A2ACardResolver(http, URL).get_agent_card()
    assert found.name and found.url and found.skills
    return f"{found.name}: {found.preferred_transport} {found.protocol_version}, " + ", ".join(
        i.transport for i in found.additional_interfaces or []
    )


async def send_() -> str:
    task = await send("hello")
    assert isinstance(task, Task)
    expect(task.status.state.value, "completed")
    expect(artifacts(task), ["hello"])
    return f"{len(task.history or [])} messages in the history"


async def message() -> None:
    answer = await send("message")
    assert isinstance(answer, Message), f"a {type(answer).__name__}"
    expect(text_of(answer.parts), "just a message")


async def fail() -> None:
    expect((await send("fail")).status.state.value, "failed")


async def parts() -> None:
    data = {"a": [1, 2.5, "x", None, True], "b": {"c": []}}
    raw = base64.b64encode(bytes(range(256))).decode()
    whole = FileWithBytes(bytes=raw, name="all.bin", mime_type="application/octet-stream")
    link = FileWithUri(uri="https://example.com/a.png", mime_type="image/png")
    files = [Part(root=FilePart(file=whole)), Part(root=FilePart(file=link))]
    task = await send("parts", Part(root=DataPart(data=data)), *files)
    (artifact,) = task.artifacts
    expect(artifact.parts[0].root.data, data)
    expect(artifact.parts[1].root.file.bytes, raw)
    expect(artifact.parts[1].root.file.mime_type, "application/octet-stream")
    expect(artifact.parts[1].root.file.name, "all.bin")
    expect(artifact.parts[2].root.file.uri, "https://example.com/a.png")


async def stream() -> str:
    client = await connect()
    task, events = None, 0
    async for event in client.send_message(request("stream:20")):
        assert not isinstance(event, Message)
        task, events = event[0], events + 1
    assert task is not None
    expect(task.status.state.value, "completed")
    expect(artifacts(task), ["".join(f"chunk {i} " for i in range(20))])
    return f"{events} events"


async def get() -> None:
    sent = await send("hello")
    task = await (await connect()).get_task(TaskQueryParams(id=sent.id))
    expect(task.status.state.value, "completed")
    expect(artifacts(task), ["hello"])
    expect(text_of(task.history[0].parts), "hello")


async def list_() -> None:
    raise Absent("0.3 has it in no binding of this client")


async def multi_turn() -> None:
    asked = await send("ask")
    expect(asked.status.state.value, "input-required")
    expect(text_of(asked.status.message.parts), "Which one?")
    task = await send("the red one", task=asked)
    expect(task.id, asked.id)
    expect(task.status.state.value, "completed")
    expect(artifacts(task), ["You said: the red one"])


async def cancel() -> None:
    client = await connect()
    running = await send("ticks:300", polling=True)
    task = await client.cancel_task(TaskIdParams(id=running.id))
    expect(task.status.state.value, "canceled")
    expect((await client.get_task(TaskQueryParams(id=running.id))).status.state.value, "canceled")


async def cancel_stream() -> None:
    client = await connect()
    events = client.send_message(request("ticks:300"))
    running = await first_task(events)
    await client.cancel_task(TaskIdParams(id=running.id))
    expect([event[0].status.state.value async for event in events][-1], "canceled")


async def resubscribe() -> str:
    client = await connect()
    first = client.send_message(request("ticks:15"))
    running = await first_task(first)
    second = client.resubscribe(TaskIdParams(id=running.id))
    expect((await first_task(second)).id, running.id)
    seen = [[event[0].status.state.value async for event in events] for events in (first, second)]
    expect([states[-1] for states in seen], ["completed"] * 2)
    return f"{len(seen[0])} and {len(seen[1])} more events"


async def refused(what: object) -> str:
    try:
        await what
    except AssertionError:
        raise
    except Exception as error:  # each transport of this client has errors of its own
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")


async def unknown_task() -> str:
    client = await connect()
    return await refused(client.get_task(TaskQueryParams(id=str(uuid.uuid4()))))


async def finished_task() -> str:
    done = await send("hello")
    return await refused(send("more", task=done))


asyncio.run(
    run(
        [
            card,
            send_,
            message,
            fail,
            parts,
            stream,
            get,
            list_,
            multi_turn,
            cancel,
            cancel_stream,
            resubscribe,
            unknown_task,
            finished_task,
        ]
    )
)
