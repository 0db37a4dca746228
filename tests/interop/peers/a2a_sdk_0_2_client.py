"""Every check with the client of a2a-sdk 0.2.16, over JSON-RPC. It cannot subscribe again. See README.md."""

import asyncio
import base64
import sys
import uuid
from collections.abc import AsyncIterator

import httpx
from a2a.client import A2ACardResolver, A2AClient
from a2a.types import (
    Artifact,
    CancelTaskRequest,
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    GetTaskRequest,
    JSONRPCErrorResponse,
    Message,
    MessageSendConfiguration,
    MessageSendParams,
    Part,
    Role,
    SendMessageRequest,
    SendStreamingMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskQueryParams,
    TaskStatusUpdateEvent,
    TextPart,
)
from checks import Absent, expect, run

URL = sys.argv[1]

http = httpx.AsyncClient(timeout=30)


class Refused(Exception):
    """The agent answered with an error."""


async def connect() -> A2AClient:
    return A2AClient(http, await A2ACardResolver(http, URL).get_agent_card())


def params(*parts: str | Part, task: Task | None = None, blocking: bool | None = None) -> MessageSendParams:
    message = Message(
        message_id=str(uuid.uuid4()),
        role=Role.user,
        parts=[Part(root=TextPart(text=part)) if isinstance(part, str) else part for part in parts],
        task_id=task.id if task else None,
        context_id=task.context_id if task else None,
    )
    settings = MessageSendConfiguration(accepted_output_modes=[], blocking=blocking)
    return MessageSendParams(message=message, configuration=settings if blocking is not None else None)


def result_of(response: object) -> object:
    if isinstance(response.root, JSONRPCErrorResponse):
        raise Refused(f"{response.root.error.code}: {response.root.error.message}")
    return response.root.result


async def send(*parts: str | Part, **more: object) -> Task | Message:
    asked = SendMessageRequest(id=str(uuid.uuid4()), params=params(*parts, **more))
    return result_of(await (await connect()).send_message(asked))


async def streamed(text: str) -> AsyncIterator[object]:
    asked = SendStreamingMessageRequest(id=str(uuid.uuid4()), params=params(text))
    async for response in (await connect()).send_message_streaming(asked):
        yield result_of(response)


async def get_task(task_id: str) -> Task:
    asked = GetTaskRequest(id=str(uuid.uuid4()), params=TaskQueryParams(id=task_id))
    return result_of(await (await connect()).get_task(asked))


async def cancel_task(task_id: str) -> Task:
    asked = CancelTaskRequest(id=str(uuid.uuid4()), params=TaskIdParams(id=task_id))
    return result_of(await (await connect()).cancel_task(asked))


def text_of(parts: list[Part]) -> str:
    return "".join(part.root.text for part in parts if isinstance(part.root, TextPart))


def artifacts(task: Task) -> list[str]:
    found: list[Artifact] = task.artifacts or []
    return [text_of(artifact.parts) for artifact in found]


def task_id_of(event: object) -> str:
    return event.id if isinstance(event, Task) else event.task_id


async def card() -> str:
    found = await A2ACardResolver(http, URL).get_agent_card()
    assert found.name and found.url and found.skills
    return f"{found.name}: {found.protocol_version}"


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
    text, states, events = "", [], 0
    async for event in streamed("stream:20"):
        events += 1
        if isinstance(event, TaskArtifactUpdateEvent):
            text += text_of(event.artifact.parts)
        elif isinstance(event, TaskStatusUpdateEvent):
            states.append((event.status.state.value, event.final))
    expect(states[-1], ("completed", True))
    expect(text, "".join(f"chunk {i} " for i in range(20)))
    return f"{events} events"


async def get() -> None:
    sent = await send("hello")
    task = await get_task(sent.id)
    expect(task.status.state.value, "completed")
    expect(artifacts(task), ["hello"])
    expect(text_of(task.history[0].parts), "hello")


async def list_() -> None:
    raise Absent("0.2 does not have it")


async def multi_turn() -> None:
    asked = await send("ask")
    expect(asked.status.state.value, "input-required")
    expect(text_of(asked.status.message.parts), "Which one?")
    task = await send("the red one", task=asked)
    expect(task.id, asked.id)
    expect(task.status.state.value, "completed")
    expect(artifacts(task), ["You said: the red one"])


async def cancel() -> None:
    running = await send("ticks:300", blocking=False)
    expect((await cancel_task(running.id)).status.state.value, "canceled")
    expect((await get_task(running.id)).status.state.value, "canceled")


async def cancel_stream() -> None:
    events = streamed("ticks:300")
    running = task_id_of(await anext(events))
    await cancel_task(running)
    states = [event.status.state.value async for event in events]
    expect(states[-1], "canceled")


async def resubscribe() -> None:
    raise Absent("this client does not have it")


async def refused(what: object) -> str:
    try:
        await what
    except Refused as error:
        return str(error)
    raise AssertionError("no error")


async def unknown_task() -> str:
    return await refused(get_task(str(uuid.uuid4())))


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
