"""Every check with the client of a2a-sdk 1.3.0, in 1.0 or 0.3. See README.md."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator

import grpc
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError, TaskNotFoundError
from checks import Absent, expect, run
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

URL = sys.argv[1]
BINDING = sys.argv[2] if len(sys.argv) > 2 else "JSONRPC"
VERSION = sys.argv[3] if len(sys.argv) > 3 else "1.0"

http = httpx.AsyncClient(timeout=30)


async def connect(*, streaming: bool = True, polling: bool = False) -> Client:
    card = await A2ACardResolver(http, URL).get_agent_card()
    for interface in list(card.supported_interfaces):
        if interface.protocol_version != VERSION:
            card.supported_interfaces.remove(interface)
    config = ClientConfig(
        streaming=streaming,
        polling=polling,
        httpx_client=http,
        grpc_channel_factory=grpc.aio.insecure_channel,
        supported_protocol_bindings=[BINDING],
    )
    return ClientFactory(config).create(card)


def request(*parts: str | Part, task: Task | None = None) -> SendMessageRequest:
    message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER)
    message.parts.extend(Part(text=part) if isinstance(part, str) else part for part in parts)
    if task is not None:
        message.task_id, message.context_id = task.id, task.context_id
    return SendMessageRequest(message=message)


async def send(*parts: str | Part, task: Task | None = None, polling: bool = False) -> Task | Message:
    client = await connect(streaming=False, polling=polling)
    answers = [answer async for answer in client.send_message(request(*parts, task=task))]
    expect(len(answers), 1)
    return answers[0].task if answers[0].HasField("task") else answers[0].message


def text_of(parts: list[Part]) -> str:
    return "".join(part.text for part in parts)


def state_of(task: Task) -> str:
    return TaskState.Name(task.status.state)


def read_event(event: StreamResponse) -> tuple[Task | None, str, str]:
    """The task in an event if it has one, the state it tells, the artifact text it adds."""
    match event.WhichOneof("payload"):
        case "task":
            text = "".join(text_of(a.parts) for a in event.task.artifacts)
            return event.task, state_of(event.task), text
        case "status_update":
            return None, TaskState.Name(event.status_update.status.state), ""
        case "artifact_update":
            return None, "", text_of(event.artifact_update.artifact.parts)
    raise AssertionError(f"unexpected event {event}")


async def first_task(stream: AsyncIterator[StreamResponse]) -> Task:
    task, _, _ = read_event(await anext(stream))
    assert task is not None, "the first event is no task"
    return task


async def card() -> str:
    found = await A2ACardResolver(http, URL).get_agent_card()
    assert found.name and found.skills
    return f"{found.name}: " + ", ".join(
        f"{i.protocol_binding} {i.protocol_version}" for i in found.supported_interfaces
    )


async def send_() -> str:
    task = await send("hello")
    expect(state_of(task), "TASK_STATE_COMPLETED")
    expect([text_of(a.parts) for a in task.artifacts], ["hello"])
    assert task.id and task.context_id
    return f"{len(task.history)} messages in the history"


async def message() -> None:
    answer = await send("message")
    assert isinstance(answer, Message), f"a {type(answer).__name__}"
    expect(text_of(answer.parts), "just a message")


async def fail() -> None:
    expect(state_of(await send("fail")), "TASK_STATE_FAILED")


async def parts() -> None:
    data = {"a": [1, 2.5, "x", None, True], "b": {"c": []}}
    raw = bytes(range(256))
    task = await send(
        "parts",
        Part(data=ParseDict(data, Value())),
        Part(raw=raw, filename="all.bin", media_type="application/octet-stream"),
        Part(url="https://example.com/a.png", media_type="image/png"),
    )
    (artifact,) = task.artifacts
    expect(MessageToDict(artifact.parts[0].data), data)
    expect(artifact.parts[1].raw, raw)
    expect(
        (artifact.parts[1].filename, artifact.parts[1].media_type), ("all.bin", "application/octet-stream")
    )
    expect(artifact.parts[2].url, "https://example.com/a.png")


async def stream() -> str:
    client = await connect()
    task, state, text, events = None, "", "", 0
    async for event in client.send_message(request("stream:20")):
        found, new, more = read_event(event)
        task, state, events = found or task, new or state, events + 1
        text = more if found else text + more
    assert task is not None
    expect(state, "TASK_STATE_COMPLETED")
    expect(text, "".join(f"chunk {i} " for i in range(20)))
    return f"{events} events"


async def get() -> None:
    sent = await send("hello")
    client = await connect()
    task = await client.get_task(GetTaskRequest(id=sent.id))
    expect(state_of(task), "TASK_STATE_COMPLETED")
    expect([text_of(a.parts) for a in task.artifacts], ["hello"])
    expect(text_of(task.history[0].parts), "hello")
    if VERSION == "1.0":  # before it, none and no limit are the same number
        expect(len((await client.get_task(GetTaskRequest(id=sent.id, history_length=0))).history), 0)


async def list_() -> str:
    sent = await send("hello")
    try:
        found = await (await connect()).list_tasks(ListTasksRequest(context_id=sent.context_id))
    except NotImplementedError as error:
        raise Absent(str(error)) from None
    expect([task.id for task in found.tasks], [sent.id])
    return f"{found.total_size} in all"


async def multi_turn() -> None:
    asked = await send("ask")
    expect(state_of(asked), "TASK_STATE_INPUT_REQUIRED")
    expect(text_of(asked.status.message.parts), "Which one?")
    task = await send("the red one", task=asked)
    expect(task.id, asked.id)
    expect(state_of(task), "TASK_STATE_COMPLETED")
    expect([text_of(a.parts) for a in task.artifacts], ["You said: the red one"])


async def cancel() -> None:
    client = await connect()
    running = await send("ticks:300", polling=True)
    task = await client.cancel_task(CancelTaskRequest(id=running.id))
    expect(state_of(task), "TASK_STATE_CANCELED")
    expect(state_of(await client.get_task(GetTaskRequest(id=running.id))), "TASK_STATE_CANCELED")


async def cancel_stream() -> None:
    client = await connect()
    events = client.send_message(request("ticks:300"))
    running = await first_task(events)
    await client.cancel_task(CancelTaskRequest(id=running.id))
    expect([state async for event in events if (state := read_event(event)[1])][-1], "TASK_STATE_CANCELED")


async def resubscribe() -> str:
    client = await connect()
    first = client.send_message(request("ticks:15"))
    running = await first_task(first)
    second = client.subscribe(SubscribeToTaskRequest(id=running.id))
    expect((await first_task(second)).id, running.id)
    seen = [
        [state async for event in events if (state := read_event(event)[1])] for events in (first, second)
    ]
    expect([states[-1] for states in seen], ["TASK_STATE_COMPLETED"] * 2)
    return f"{len(seen[0])} and {len(seen[1])} more events"


async def unknown_task() -> str:
    client = await connect()
    try:
        await client.get_task(GetTaskRequest(id=str(uuid.uuid4())))
    except TaskNotFoundError as error:
        return str(error)
    raise AssertionError("no error")


async def finished_task() -> str:
    done = await send("hello")
    try:
        await send("more", task=done)
    except A2AError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")


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
