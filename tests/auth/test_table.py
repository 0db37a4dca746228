"""Every operation over every binding by every kind of caller: the expected answer."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from dragoman.client import Client, connect
from dragoman.errors import Forbidden, TaskNotFound, Unauthenticated
from dragoman.model import ops
from dragoman.model.card import AgentCard
from dragoman.model.content import Message, Part, Role
from dragoman.model.ids import new_id
from dragoman.model.ops import Call, Op, PushConfig
from dragoman.model.task import Task
from tests.auth.people import NO_ONE_LISTENS, People, served

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAYS = [
    ("JSONRPC", "1.0"),
    ("JSONRPC", "0.3"),
    ("JSONRPC", "0.2"),
    ("JSONRPC", "0.1"),
    ("HTTP+JSON", "1.0"),
    ("HTTP+JSON", "0.3"),
    ("GRPC", "1.0"),
    ("GRPC", "0.3"),
]
STRANGERS: dict[str, Callable[[People], str | None]] = {
    "nobody": lambda people: None,
    "somebody unknown": lambda people: "wrong-token",
    "somebody whose token has expired": lambda people: people.dave,
}


def message(text: str, task: str = "") -> Message:
    return Message(message_id=new_id(), role=Role.USER, parts=(Part(text=text),), task_id=task)


REQUESTS: dict[Op, Callable[[str, str], Any]] = {
    ops.GET: lambda task, config: ops.GetTask(id=task),
    ops.LIST: lambda task, config: ops.ListTasks(),
    ops.SUBSCRIBE: lambda task, config: ops.SubscribeToTask(id=task),
    ops.PUSH_CREATE: lambda task, config: ops.CreatePushConfig(
        config=PushConfig(url=NO_ONE_LISTENS, task_id=task, id="mine")
    ),
    ops.PUSH_GET: lambda task, config: ops.GetPushConfig(task_id=task, id=config),
    ops.PUSH_LIST: lambda task, config: ops.ListPushConfigs(task_id=task),
    ops.PUSH_DELETE: lambda task, config: ops.DeletePushConfig(task_id=task, id=config),
    ops.EXTENDED_CARD: lambda task, config: ops.GetExtendedCard(),
    ops.STREAM: lambda task, config: ops.SendMessage(message=message("more", task)),
    ops.CANCEL: lambda task, config: ops.CancelTask(id=task),
    ops.SEND: lambda task, config: ops.SendMessage(message=message("more", task)),
}
"""In an order in which each of them can succeed, as long as those that send have tasks of their own."""


async def attempt(client: Client, op: Op, task: str, config: str) -> Any:
    """What somebody gets: an answer, or the kind of refusal."""
    request, peer = REQUESTS[op](task, config), client.link.peer
    try:
        if not op.streams:
            return await peer.call(Call(), request)
        batches: Any = peer.stream(Call(), request)
        async with aclosing(batches):
            return [response.event for response in await anext(batches)]
    except (Unauthenticated, Forbidden, TaskNotFound) as refusal:
        return type(refusal)


class Stage:
    """Alice has tasks that wait, and a webhook; somebody else tries everything."""

    def __init__(self, url: str, people: People) -> None:
        self.url, self.people = url, people

    async def prepare(self) -> None:
        async with connect(
            self.url, version="1.0", binding="JSONRPC", credentials=self.people.alice
        ) as alice:
            self.first = (await alice.send("one")).id
            self.others = {op: (await alice.send("more")).id for op in (ops.SEND, ops.STREAM)}
            self.config = (await alice.create_push(self.first, NO_ONE_LISTENS)).id

    async def seen_by_alice(self) -> Any:
        async with connect(
            self.url, version="1.0", binding="JSONRPC", credentials=self.people.alice
        ) as alice:
            tasks = [task async for task in alice.list(artifacts=True)]
            assert len(tasks) == 3
            return tasks, list(await alice.list_push(self.first))

    async def everything(self, binding: str, version: str, token: str | None) -> dict[Op, Any]:
        """What somebody gets for every operation that the version has."""
        found = {}
        async with connect(
            self.url, binding=binding, version=version, credentials=token, timeout=10
        ) as client:
            dialect = client.link.peer.dialect
            for op in REQUESTS:
                if dialect.method(op):
                    found[op] = await attempt(client, op, self.others.get(op, self.first), self.config)
        assert len(found) >= 7
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[str]:
    async with served() as url:
        yield url


_generations = itertools.count()


@pytest_asyncio.fixture(loop_scope="module")
async def stage(server: str) -> Stage:
    stage = Stage(server, People(next(_generations)))
    await stage.prepare()
    return stage


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_without_credentials_every_operation_is_refused(
    stage: Stage, binding: str, version: str, who: str
) -> None:
    before = await stage.seen_by_alice()
    found = await stage.everything(binding, version, STRANGERS[who](stage.people))
    assert found == dict.fromkeys(found, Unauthenticated)
    assert await stage.seen_by_alice() == before


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_without_the_scope_of_the_agent_everything_is_forbidden(
    stage: Stage, binding: str, version: str
) -> None:
    before = await stage.seen_by_alice()
    found = await stage.everything(binding, version, stage.people.carol)
    assert found == dict.fromkeys(found, Forbidden)
    assert await stage.seen_by_alice() == before


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_without_the_scope_of_a_skill_tasks_can_be_managed_but_not_sent_to(
    stage: Stage, binding: str, version: str
) -> None:
    found = await stage.everything(binding, version, stage.people.alice_limited)
    refused = {op for op, outcome in found.items() if isinstance(outcome, type)}
    assert refused == {ops.SEND, ops.STREAM} and found[ops.SEND] is found[ops.STREAM] is Forbidden


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_tasks_of_another_principal_are_not_found(stage: Stage, binding: str, version: str) -> None:
    before = await stage.seen_by_alice()
    found = await stage.everything(binding, version, stage.people.bob)
    assert await stage.seen_by_alice() == before
    card = found.pop(ops.EXTENDED_CARD, None)
    assert card is None or card.skills[-1].name == f"For bob-{stage.people.n}"
    if ops.LIST in found:
        assert found.pop(ops.LIST).tasks == ()
    if version == "0.1":  # its clients choose the ids of tasks, so these are tasks of Bob's own
        assert isinstance(found.pop(ops.SEND), Task) and found.pop(ops.STREAM)
    assert found == dict.fromkeys(found, TaskNotFound)


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_tasks_of_the_principal_are_found(stage: Stage, binding: str, version: str) -> None:
    found = await stage.everything(binding, version, stage.people.alice)
    assert not [op.name for op, outcome in found.items() if isinstance(outcome, type)]
    assert isinstance(found[ops.GET], Task) and found[ops.GET].id == stage.first
    if (card := found.get(ops.EXTENDED_CARD)) is not None:
        assert isinstance(card, AgentCard) and card.skills[-1].name == f"For alice-{stage.people.n}"
