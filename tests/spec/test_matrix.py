"""One matrix for all: every operation, over every binding, in every dialect it has, in process and over sockets.

What a binding or a dialect can do is written here once, and asked of all of them with our own client. A dialect that
lacks an operation says so before anything is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, Part, Turn, connect
from dragoman.buses.local import LocalBus
from dragoman.client import Client
from dragoman.engine.engine import Engine
from dragoman.errors import (
    A2AError,
    ContentTypeNotSupported,
    ExtensionRequired,
    InvalidParams,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model import ops
from dragoman.model.card import Extension
from dragoman.model.content import Message, Role
from dragoman.model.ids import new_id
from dragoman.model.ops import Call
from dragoman.model.task import StatusUpdate, TaskState
from dragoman.server.app import App
from dragoman.server.grpc.server import Grpc
from dragoman.server.jsonrpc import JsonRpc
from dragoman.server.mount import Mount
from dragoman.server.pipeline import Binding
from dragoman.server.rest import Rest
from dragoman.server.runtime import running
from dragoman.stores import open_store
from tests.requirements import older

SPOKEN = {
    "JSONRPC": ("1.0", "0.3", "0.2", "0.2-type", "0.1", "draft", "arbiter"),
    "HTTP+JSON": ("1.0", "0.3"),
    "GRPC": ("1.0", "0.3"),
}
"""Bindings, and the dialects each has."""

WAYS = [
    pytest.param((binding, version, carried), id=f"{binding}-{version}-{carried}")
    for binding, versions in SPOKEN.items()
    for version in versions
    for carried in ("in process", "over a socket")
    if (binding, carried) != ("GRPC", "in process")
]
LACKS: dict[str, set[str]] = {
    "0.3": {"list"},
    "0.2": {"list"},
    "0.2-type": {"list"},
    "0.1": {"list", "extended card", "push list", "messages", "extensions"},
    "draft": {"list", "extended card", "push list", "messages", "extensions"},
    "arbiter": {"list", "extended card", "push", "push list", "messages", "turns", "files"},
}
EXTENSION = "https://ext.example/strict"


def agent_of() -> Agent:
    agent = Agent("Matrix", description="Does all there is", input_modes=["*/*"], output_modes=["*/*"])

    @agent.skill(default=True)
    async def do(turn: Turn) -> AsyncIterator[Any]:
        """Does what the text says."""
        match turn.text.split(" "):
            case ["ask"]:
                yield f"It is {await turn.ask('Which city?')}"
            case ["wait"]:
                await turn.status("waiting")
                await asyncio.Event().wait()
            case ["fail"]:
                raise RuntimeError("secret")
            case words:
                for word in words:
                    yield word + " "

    @agent.skill
    async def parts(turn: Turn) -> list[Part]:
        """Gives back the parts it got."""
        return list(turn.message.parts)

    @agent.skill(reply=True)
    async def reply(turn: Turn) -> str:
        """Answers without a task."""
        return turn.text

    @agent.skill(output_modes=["image/png"])
    async def paint(turn: Turn) -> str:
        """Makes pictures only."""
        return ""

    return agent


class Everything:
    """The engine, and beside it the operations that need more around them: push configs, an extended card."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.engine = Engine(open_store("memory:"), LocalBus(), lambda scope: agent)
        self._configs: dict[str, dict[str, ops.PushConfig]] = {}

    async def call(self, call: Call, request: ops.Request) -> Any:
        match request:
            case ops.CreatePushConfig():
                config = replace(request.config, id=request.config.id or new_id(), tenant="")
                await self.engine.call(call, ops.GetTask(id=config.task_id))
                return self._configs.setdefault(config.task_id, {}).setdefault(config.id, config)
            case ops.GetPushConfig():
                configs = self._configs.get(request.task_id, {})
                found = configs.get(request.id) if request.id else next(iter(configs.values()), None)
                if found is None:
                    raise TaskNotFound(request.task_id)
                return found
            case ops.ListPushConfigs():
                return ops.PushConfigPage(configs=tuple(self._configs.get(request.task_id, {}).values()))
            case ops.DeletePushConfig():
                self._configs.get(request.task_id, {}).pop(request.id, None)
                return None
            case ops.GetExtendedCard():
                return replace(self.agent.card, description="for you")
        return await self.engine.call(call, request)

    def stream(self, call: Call, request: Any) -> Any:
        return self.engine.stream(call, request)


class Way:
    """How to reach an agent, and what cannot be said there."""

    def __init__(self, stack: AsyncExitStack, binding: str, version: str, carried: str) -> None:
        self.binding, self.version, self.carried = binding, version, carried
        self._stack = stack

    def lacks(self, what: str) -> bool:
        return what in LACKS.get(self.version, ())

    async def reach(self, agent: Agent) -> Client:
        service = Everything(agent)
        mount = Mount(service=service, card=lambda: agent.card, agent=agent.id)
        rest: list[Binding] = [JsonRpc(), Rest()]
        grpc = Grpc([mount], others=rest)
        app = App(
            [mount],
            bindings=[*rest, grpc],
            on_startup=[service.engine.start, grpc.start],
            on_shutdown=[grpc.drain, lambda: service.engine.stop(drain=0), grpc.stop],
        )
        url: Any = app
        if self.carried == "over a socket":
            url = await self._stack.enter_async_context(running(app))
        client = connect(url, binding=self.binding, version=self.version, timeout=10)
        return await self._stack.enter_async_context(client)


@pytest.fixture(params=WAYS)
async def way(request: Any) -> AsyncIterator[Way]:
    async with AsyncExitStack() as stack:
        yield Way(stack, *request.param)


@pytest.fixture
async def it(way: Way) -> Client:
    return await way.reach(agent_of())


async def unsupported(operation: Any) -> None:
    with pytest.raises(UnsupportedOperation):
        await operation


# --- sending


async def test_the_client_uses_the_requested_binding_and_version(way: Way, it: Client) -> None:
    route = it.link.peer.route
    assert route.binding == way.binding
    assert route.dialect.name.removesuffix("-proto") == way.version


@older("X31")
async def test_a_message_is_answered(it: Client) -> None:
    reply = await it.send("one two three")
    assert reply.state is TaskState.COMPLETED and reply.text == "one two three "
    assert reply.id and reply.context_id


async def test_a_caller_need_not_wait(way: Way, it: Client) -> None:
    begun = await it.send("one two", wait=False)
    assert begun.id
    assert (await it.wait(begun.id)).text == "one two "


async def test_an_answer_may_be_a_message_alone(way: Way, it: Client) -> None:
    reply = await it.send("hello", skill="reply")
    assert reply.text == "hello"
    assert (reply.task is None) is not way.lacks("messages")


async def test_a_stream_brings_the_answer_in_pieces(it: Client) -> None:
    stream = it.stream("one two three")
    pieces = [piece async for piece in stream]
    assert "".join(piece.text for piece in pieces) == "one two three "
    assert stream.reply.state is TaskState.COMPLETED
    assert len([piece for piece in pieces if piece.text]) == 3


async def test_a_failed_task_has_a_state_and_no_error_details(it: Client) -> None:
    reply = await it.send("fail")
    assert reply.state is TaskState.FAILED and "secret" not in reply.text


async def test_a_question_waits_for_its_answer(way: Way, it: Client) -> None:
    asked = await it.send("ask")
    if way.lacks("turns"):
        return
    assert asked.state is TaskState.INPUT_REQUIRED and asked.text == "Which city?"
    received = await it.send("Paris", task=asked.id, context=asked.context_id)
    assert received.id == asked.id and received.text == "It is Paris"


async def test_a_conversation_goes_on_in_its_context(it: Client) -> None:
    first = await it.send("one")
    second = await it.send("two", context=first.context_id)
    assert second.context_id == first.context_id and second.id != first.id


FILES: Sequence[Part] = [
    Part(raw=b"\x00\x01\xff", media_type="application/octet-stream", filename="a.bin"),
    Part(raw=b"aGVsbG8=", media_type="application/octet-stream"),
    Part(raw="Grüße\n".encode(), media_type="text/plain", filename="gruß.txt"),
    Part(url="https://files.example/a.png", media_type="image/png", filename="a.png"),
    Part(data={"n": 7, "deep": [1, {"x": None}], "big": 2**53}),
    Part(data=[1, "two", None]),
    Part(text="Ünïcödé 🦀\r\n\u2028", metadata={"task_id": "mine"}),
]


async def test_every_kind_of_part_survives_both_ways(way: Way, it: Client) -> None:
    parts = FILES[-1:] if way.lacks("files") else FILES
    message = Message(message_id=new_id(), role=Role.USER, parts=tuple(parts), metadata={"skillId": "parts"})
    reply = await it.send(message)
    assert reply.task is not None
    got = [part for artifact in reply.task.artifacts for part in artifact.parts] or list(
        reply.task.status.message.parts if reply.task.status.message else ()
    )
    assert got == list(parts)


async def test_modes_that_cannot_be_produced_are_refused(way: Way, it: Client) -> None:
    if way.version == "arbiter":  # it ignores what is accepted
        return
    with pytest.raises(ContentTypeNotSupported):
        await it.send("a house", skill="paint", accept=["text/plain"])


async def test_a_skill_that_is_not_there_is_refused(it: Client) -> None:
    with pytest.raises(InvalidParams):
        await it.send("hello", skill="fly")


async def test_a_required_extension_must_be_asked_for(way: Way) -> None:
    agent = Agent(
        "Strict", description="Wants to be asked", extensions=[Extension(uri=EXTENSION, required=True)]
    )

    @agent.skill
    async def echo(text: str) -> str:
        """Echoes."""
        return text

    it = await way.reach(agent)
    # Versions that have no code for it say the reason; Arbiter does not.
    with pytest.raises(InvalidParams if way.version == "arbiter" else ExtensionRequired):
        await it.send("hello")
    assert (await it.send("hello", extensions=[EXTENSION])).text == "hello"


# --- tasks


@older("X31")
async def test_a_task_can_be_got(way: Way, it: Client) -> None:
    reply = await it.send("one two")
    task = await it.get(reply.id, history=1)
    assert task.id == reply.id and task.state is TaskState.COMPLETED
    if way.version != "arbiter":
        assert task.text == "one two " and len(task.history) == 1


async def test_tasks_can_be_listed(way: Way, it: Client) -> None:
    if way.lacks("list"):
        await unsupported(anext(aiter(it.list())))
        return
    replies = [await it.send("one") for _ in range(3)]
    context = replies[0].context_id
    assert {task.id async for task in it.list(page_size=2)} == {reply.id for reply in replies}
    assert [task.id async for task in it.list(context=context)] == [replies[0].id]
    assert [task.text async for task in it.list(context=context, artifacts=True, history=0)] == ["one "]
    assert [task async for task in it.list(state="working")] == []


async def test_a_task_can_be_canceled_once(it: Client) -> None:
    begun, stream = await waiting(it)
    canceled = await it.cancel(begun)
    assert canceled.state is TaskState.CANCELED
    assert [piece.state async for piece in stream][-1] is TaskState.CANCELED
    done = await it.send("one")
    with pytest.raises(TaskNotCancelable):
        await it.cancel(done.id)


async def test_a_task_can_be_followed_by_others(it: Client) -> None:
    id, _ = await waiting(it)
    other = it.subscribe(id)
    assert (await anext(aiter(other))).state is TaskState.WORKING
    await it.cancel(id)
    assert [piece.state async for piece in other][-1] is TaskState.CANCELED


async def waiting(it: Client) -> tuple[str, Any]:
    """A task that waits, and its stream."""
    stream = it.stream("wait")
    async for piece in stream:
        event = piece.event
        if (
            isinstance(event, StatusUpdate)
            and event.status.message
            and event.status.message.text == "waiting"
        ):
            break
    return stream.reply.id, stream


@pytest.mark.parametrize("id", ["nope", "a/b:cancel?c#d%2F é"])
async def test_a_task_that_is_not_there_is_not_found(it: Client, id: str) -> None:
    for operation in (it.get(id), it.cancel(id)):
        with pytest.raises((TaskNotFound, TaskNotCancelable)):
            await operation
    with pytest.raises(A2AError):
        async for _ in it.subscribe(id):
            pass


# --- push configs and cards


async def test_push_configs_are_stored(way: Way, it: Client) -> None:
    task = await it.send("one")
    if way.lacks("push"):
        await unsupported(it.create_push(task.id, "https://hook.example"))
        return
    made = await it.create_push(
        task.id, "https://hook.example", id="" if way.lacks("push list") else "mine", token="t", scheme="Bearer", credentials="c"
    )  # fmt: skip
    assert (made.url, made.token, made.task_id) == ("https://hook.example", "t", task.id)
    assert made.authentication is not None and made.authentication.scheme == "Bearer"
    assert await it.get_push(task.id, "" if way.lacks("push list") else made.id) == made
    if way.lacks("push list"):
        await unsupported(it.list_push(task.id))
        await unsupported(it.delete_push(task.id, made.id))
        return
    assert await it.list_push(task.id) == [made]
    await it.delete_push(task.id, "mine")
    assert await it.list_push(task.id) == []
    with pytest.raises(TaskNotFound):
        await it.create_push("nope", "https://hook.example")


async def test_the_extended_card_is_for_those_who_ask(way: Way, it: Client) -> None:
    if way.lacks("extended card"):
        await unsupported(it.extended_card())
        return
    card = await it.extended_card()
    assert card.name == "Matrix" and card.description == "for you"
    assert card.supported_interfaces


async def test_the_card_lists_every_interface_newest_version_first(it: Client) -> None:
    listed = [(each.protocol_version, each.protocol_binding) for each in it.card.supported_interfaces]
    assert set(listed) >= {(version, binding) for binding in SPOKEN for version in ("1.0", "0.3")}
    assert [version for version, _ in listed] == sorted((v for v, _ in listed), reverse=True)
