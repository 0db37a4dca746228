"""Every check of `peers/README.md` with our own client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

from msgspec import UNSET

from dragoman import connect
from dragoman.client import Client, Reply
from dragoman.errors import A2AError, MethodNotFound, TaskNotFound, UnsupportedOperation
from dragoman.model.content import Part
from dragoman.model.task import TaskState
from tests.interop.running import Outcome

LIMIT = 10.0
"""Seconds for one check."""


class Absent(Exception):
    """The version of the protocol, or the peer, does not have this."""


async def outcomes(url: str, *, version: str = "", binding: str = "JSONRPC") -> list[Outcome]:
    """What our client finds at `url`."""
    found = []
    for name, check in CHECKS.items():
        ok: bool | None = True
        try:
            async with asyncio.timeout(LIMIT), connect(url, version=version, binding=binding) as agent:
                note = await check(agent) or ""
        except Absent as why:
            ok, note = None, str(why)
        except TimeoutError:
            ok, note = False, f"nothing after {LIMIT:g} s"
        except Exception as error:
            ok, note = False, f"{type(error).__name__}: {error}"
        found.append(Outcome(name, ok, note))
    return found


async def send_and_wait(agent: Client, *content: object) -> Reply:
    """Send, and wait as long as it takes: not every server does that by itself."""
    return await (await agent.send(*content)).wait()


async def card(agent: Client) -> str:
    assert agent.card.name and agent.card.skills
    return f"A2A {agent.version}, {agent.url}"


async def send(agent: Client) -> str:
    reply = await send_and_wait(agent, "hello")
    assert reply.state is TaskState.COMPLETED, reply.state
    assert [artifact.text for artifact in reply.artifacts] == ["hello"]
    assert reply.id and reply.context_id
    assert reply.task is not None
    return f"{len(reply.task.history)} messages in the history"


async def message(agent: Client) -> None:
    if agent.version in ("0.1", "draft", "arbiter"):
        raise Absent("there is no answer without a task in this version")
    reply = await send_and_wait(agent, "message")
    assert reply.message is not None, "a task"
    assert reply == "just a message"


async def fail(agent: Client) -> None:
    assert (await send_and_wait(agent, "fail")).state is TaskState.FAILED


async def parts(agent: Client) -> None:
    data = {"a": [1, 2.5, "x", None, True], "b": {"c": []}}
    raw = bytes(range(256))
    sent = (
        Part(data=data),
        Part(raw=raw, filename="all.bin", media_type="application/octet-stream"),
        Part(url="https://example.com/a.png", media_type="image/png"),
    )
    (artifact,) = (await send_and_wait(agent, "parts", *sent)).artifacts
    came = artifact.parts
    assert came[0].data == data
    assert (came[1].raw, came[1].filename, came[1].media_type) == (raw, "all.bin", "application/octet-stream")
    assert came[2].url == "https://example.com/a.png"
    assert [part.data is UNSET for part in came] == [False, True, True]


async def stream(agent: Client) -> str:
    if not agent.card.capabilities.streaming:
        raise Absent("the agent does not stream")
    text, events = "", 0
    pieces = agent.stream("stream:20")
    async for piece in pieces:
        text, events = text + piece.text, events + 1
    assert pieces.reply.state is TaskState.COMPLETED
    assert text == pieces.reply == "".join(f"chunk {i} " for i in range(20)), text
    return f"{events} events"


async def get(agent: Client) -> None:
    sent = await send_and_wait(agent, "hello")
    task = await agent.get(sent.id)
    assert task.state is TaskState.COMPLETED
    assert [artifact.text for artifact in task.artifacts] == ["hello"]


async def list_(agent: Client) -> str:
    sent = await send_and_wait(agent, "hello")
    try:
        found = [task.id async for task in agent.list(context=sent.context_id)]
    except (UnsupportedOperation, MethodNotFound) as error:
        raise Absent(str(error)) from None
    assert found == [sent.id]
    return "1 of 1"


async def multi_turn(agent: Client) -> None:
    asked = await agent("ask")
    assert asked.asks and asked == "Which one?", asked
    reply = await asked.answer("the red one")
    assert reply.id == asked.id
    assert reply == "You said: the red one", reply


async def cancel(agent: Client) -> str:
    running = await agent.send("ticks:300", wait=False)
    async with agent.subscribe(running.id) as pieces:
        async for piece in pieces:  # a cancel that comes before the work has begun is lost on some servers
            if piece.status.startswith("tick"):
                break
    canceled = await agent.cancel(running.id)
    assert (await agent.wait(running.id)).state is TaskState.CANCELED
    return f"answered {canceled.state.word}"


async def cancel_stream(agent: Client) -> None:
    if not agent.card.capabilities.streaming:
        raise Absent("the agent does not stream")
    pieces = agent.stream("ticks:300")
    await anext(pieces)
    assert pieces.task is not None
    await agent.cancel(pieces.task.id)
    async for _ in pieces:
        pass
    assert pieces.reply.state is TaskState.CANCELED, pieces.reply.state


async def resubscribe(agent: Client) -> str:
    first = agent.stream("ticks:15")
    await anext(first)
    assert first.task is not None
    await first.aclose()
    second = agent.subscribe(first.task.id)
    seen = [piece.state async for piece in second]
    assert seen[-1] is TaskState.COMPLETED, seen
    return f"{len(seen)} more events"


async def unknown_task(agent: Client) -> str:
    try:
        await agent.get(str(uuid4()))
    except TaskNotFound as error:
        return str(error)
    raise AssertionError("no error")


async def finished_task(agent: Client) -> str:
    done = await send_and_wait(agent, "hello")
    try:
        await agent.send("more", task=done.id, context=done.context_id)
    except A2AError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")


CHECKS: dict[str, Callable[[Client], Awaitable[str | None]]] = {
    check.__name__.rstrip("_"): check
    for check in (
        card,
        send,
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
    )
}
