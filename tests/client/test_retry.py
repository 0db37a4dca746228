"""A server that is away for longer than a few attempts: calls about its tasks keep waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from dragoman.client import Policy
from dragoman.client.resumable_stream import RetryingService
from dragoman.client.transport.transport import NotSent
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.select import DIALECTS
from dragoman.errors import A2AError, TaskNotFound, Unreachable, UnsupportedOperation
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Batch, Call, GetTask, Request, SendMessage, StreamResponse, SubscribeToTask
from dragoman.model.task import StatusUpdate, Task, TaskState, TaskStatus
from tests.requirements import requirement

SEND = SendMessage(message=Message(message_id="m", role=Role.USER, parts=(Part(text="go"),)))
AWAY = [NotSent("cannot reach it") for _ in range(12)]


def task(state: TaskState) -> Task:
    return Task(id="t", context_id="c", status=TaskStatus(state=state))


class Peer:
    """Answers each kind of request with what was prepared for it, in order."""

    dialect: Dialect = DIALECTS["1.0"]

    def __init__(self, *, is_dragoman: bool, **prepared: Iterable[Task | A2AError]) -> None:
        self.is_dragoman = is_dragoman
        self.asked: list[str] = []
        self._prepared = {name: list(answers) for name, answers in prepared.items()}

    def _answer(self, request: Request) -> Any:
        name = type(request).__name__
        self.asked.append(name)
        answer = self._prepared[name].pop(0)
        if isinstance(answer, A2AError):
            raise answer
        return answer

    async def call(self, call: Call, request: Request) -> Any:
        return self._answer(request)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        yield [StreamResponse(self._answer(request))]


def lasting(peer: Peer, patience: float = 10.0, **more: Any) -> RetryingService:
    return RetryingService(peer, Policy(attempts=2, shortest=0.001, longest=0.002, patience=patience), **more)


async def test_a_message_that_a_dragoman_server_has_is_waited_for_while_it_is_away() -> None:
    done = task(TaskState.COMPLETED)
    peer = Peer(is_dragoman=True, SendMessage=[Unreachable("the connection broke"), *AWAY, done])
    assert await lasting(peer).call(Call(), SEND) == done


async def test_a_message_is_not_waited_for_longer_than_patience() -> None:
    peer = Peer(is_dragoman=True, SendMessage=[Unreachable("the connection broke"), *AWAY])
    with pytest.raises(NotSent):
        await lasting(peer, patience=0.0).call(Call(), SEND)
    assert len(peer.asked) == 2


async def test_a_message_that_never_arrived_is_tried_as_often_as_anything() -> None:
    peer = Peer(is_dragoman=True, SendMessage=AWAY)
    with pytest.raises(NotSent):
        await lasting(peer).call(Call(), SEND)
    assert len(peer.asked) == 2


@requirement(193)
async def test_a_task_that_is_asked_for_now_and_then_is_asked_for_while_its_server_is_away() -> None:
    peer = Peer(
        is_dragoman=False,
        SendMessage=[task(TaskState.WORKING)],
        GetTask=[*AWAY, task(TaskState.WORKING), *AWAY, task(TaskState.COMPLETED)],
    )
    states = [
        response.event.status.state
        async for batch in lasting(peer, streams=False).stream(Call(), SEND)
        for response in batch
        if isinstance(response.event, Task | StatusUpdate)
    ]
    assert states == [TaskState.WORKING, TaskState.COMPLETED]


async def test_a_task_that_its_server_has_lost_is_not_asked_for_again() -> None:
    peer = Peer(
        is_dragoman=False,
        SendMessage=[task(TaskState.WORKING)],
        SubscribeToTask=[UnsupportedOperation("no")],
        GetTask=[TaskNotFound("t")],
    )
    with pytest.raises(TaskNotFound):
        async for _ in lasting(peer).stream(Call(), SEND):
            pass
    assert peer.asked == ["SendMessage", "SubscribeToTask", "GetTask"]


async def test_a_question_is_answered_or_not_at_once() -> None:
    peer = Peer(is_dragoman=True, GetTask=AWAY)
    with pytest.raises(NotSent):
        await lasting(peer).call(Call(), GetTask(id="t"))
    assert len(peer.asked) == 2
