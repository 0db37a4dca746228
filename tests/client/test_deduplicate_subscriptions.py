"""A peer whose task is ahead of its stream: the stream does not repeat what the task has shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.client import Policy, resumable_stream
from dragoman.client.resumable_stream import RetryingService
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.select import DIALECTS
from dragoman.errors import Unreachable
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.fold import Fold
from dragoman.model.ops import Batch, Call, Request, SendMessage, StreamResponse, SubscribeToTask
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

SEND = SendMessage(message=Message(message_id="m", role=Role.USER, parts=(Part(text="go"),)))


def chunk(text: str, *, append: bool = True, of: str = "a") -> Event:
    artifact = Artifact(artifact_id=of, parts=(Part(text=text),))
    return ArtifactUpdate(task_id="t", context_id="c", artifact=artifact, append=append)


def report(n: int, marks: str, state: TaskState = TaskState.WORKING) -> Event:
    message = Message(
        message_id=f"r{n}" if marks == "id" else "", role=Role.AGENT, parts=(Part(text=str(n)),)
    )
    moment = f"2026-11-01T00:00:{n:02}.000Z" if marks == "moment" else ""
    status = TaskStatus(state=state, message=message, timestamp=moment)
    return StatusUpdate(task_id="t", context_id="c", status=status)


class Peer:
    """Its stream breaks after two events; a subscription goes on there, and asked for the task it shows all up to `ahead`."""

    dialect: Dialect = DIALECTS["0.3"]
    is_dragoman = False

    def __init__(self, story: list[Event], ahead: int) -> None:
        self._story, self._ahead = story, ahead

    async def call(self, call: Call, request: Request) -> Any:
        fold = Fold()
        for event in self._story[: self._ahead]:
            fold.apply(event)
        return fold.task

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        if isinstance(request, SendMessage):
            yield [StreamResponse(event) for event in self._story[:2]]
            raise Unreachable("the connection broke")
        for n, event in enumerate(self._story[2:], 3):
            self._ahead = max(self._ahead, n)
            yield [StreamResponse(event)]


async def follow(peer: Peer) -> tuple[str, list[str]]:
    service = RetryingService(peer, Policy(shortest=0.001, longest=0.002))
    text, reports = "", []
    async for batch in service.stream(Call(), SEND):
        for response in batch:
            if isinstance(response.event, ArtifactUpdate):
                text += response.event.artifact.text
            elif isinstance(response.event, StatusUpdate):
                assert response.event.status.message is not None
                reports.append(response.event.status.message.text)
    return text, reports


@pytest.mark.parametrize("marks", ["id", "moment", "none"])
@pytest.mark.parametrize("ahead", range(3, 8))
async def test_a_status_comes_once_and_nothing_comes_after_the_end(ahead: int, marks: str) -> None:
    story = [
        Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)),
        chunk("one ", append=False),
        chunk("two "),
        report(1, marks),
        chunk("three"),
        report(2, marks),
        report(3, marks, TaskState.COMPLETED),
    ]
    text, reports = await follow(Peer(story, ahead))
    assert text == "one two three"
    assert len(set(reports)) == len(reports), "something was told twice"
    assert reports[-1] == "3"
    assert reports == sorted(reports), "something came after what happened later"


@pytest.mark.parametrize("ahead", range(3, 9))
async def test_each_part_of_an_artifact_comes_once(ahead: int) -> None:
    story = [
        Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)),
        chunk("one ", append=False),
        chunk("1", append=False, of="b"),
        chunk("two "),
        chunk("2", of="b"),
        chunk("three"),
        chunk("3", of="b"),
        report(1, "id", TaskState.COMPLETED),
    ]
    text, _ = await follow(Peer(story, ahead))
    assert sorted(text) == sorted("one two three123")


class Showing(Peer):
    """Its subscriptions begin with the task as it is, and then tell some of that again."""

    def __init__(self, story: list[Event], ahead: int, overlap: int) -> None:
        super().__init__(story, ahead)
        self._overlap = overlap

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        if isinstance(request, SendMessage):
            yield [StreamResponse(event) for event in self._story[:2]]
            raise Unreachable("the connection broke")
        yield [StreamResponse(await self.call(call, request))]
        for n, event in enumerate(self._story):
            if n >= max(2, self._ahead - self._overlap):
                self._ahead = max(self._ahead, n + 1)
                yield [StreamResponse(event)]


@pytest.mark.parametrize("overlap", range(5))
@pytest.mark.parametrize("ahead", range(2, 10))
@pytest.mark.parametrize(
    "chunks",
    [
        ["one ", "two ", "three ", "four ", "five ", "six ", "seven "],
        ["x", "x", "x", "x", "x", "x", "x"],
        ["ab", "a", "ba", "b", "ab", "ab", "a"],
    ],
    ids=["words", "same", "alike"],
)
async def test_chunks_that_the_task_has_shown_do_not_come_again_in_the_subscription(
    chunks: list[str], ahead: int, overlap: int
) -> None:
    story = [
        Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)),
        chunk(chunks[0], append=False),
        *map(chunk, chunks[1:]),
        report(1, "id", TaskState.COMPLETED),
    ]
    text, reports = await follow(Showing(story, ahead, overlap))
    assert text == "".join(chunks)
    assert reports == ["1"]


@pytest.mark.parametrize("marks", ["id", "moment"])
@pytest.mark.parametrize("overlap", range(5))
@pytest.mark.parametrize("ahead", range(2, 8))
async def test_statuses_that_precede_the_one_of_the_task_do_not_come_after_it(
    ahead: int, overlap: int, marks: str
) -> None:
    story = [
        Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)),
        chunk("one", append=False),
        *(report(n, marks) for n in range(1, 6)),
        report(6, marks, TaskState.COMPLETED),
    ]
    _, reports = await follow(Showing(story, ahead, overlap))
    assert reports == sorted(set(reports))
    assert reports[-1] == "6"


async def test_a_new_status_with_the_same_text_is_not_dropped() -> None:
    """Without ids and moments the words must do: as often as they are in the history and were not heard."""
    story = [
        Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)),
        report(1, "none"),
        chunk("one ", append=False),
        report(2, "none"),
        chunk("two"),
        report(1, "none"),
        report(3, "none", TaskState.COMPLETED),
    ]
    _, reports = await follow(Peer(story, 4))
    assert reports == ["1", "2", "1", "3"]


class Doubling(Peer):
    """Writes each chunk down twice while somebody has subscribed, as servers on a2a-sdk 0.3 do; streams break twice."""

    def __init__(self, story: list[Event]) -> None:
        super().__init__(story, 2)
        self._written = story[:2]
        self._streams = 0

    async def call(self, call: Call, request: Request) -> Any:
        fold = Fold()
        for event in self._written:
            fold.apply(event)
        return fold.task

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        self._streams += 1
        if isinstance(request, SendMessage):
            yield [StreamResponse(event) for event in self._written]
            raise Unreachable("the connection broke")
        for n in range(6 if self._streams == 2 else len(self._story)):
            event = self._story.pop(2) if len(self._story) > 2 else None
            if event is None:
                return
            self._written += [event, event] if isinstance(event, ArtifactUpdate) else [event]
            if n:  # the first one of each is missed
                yield [StreamResponse(event)]
        raise Unreachable("the connection broke")


async def test_chunks_that_a_server_stored_twice_do_not_replace_the_text() -> None:
    words = [f"{n} " for n in range(20)]
    story = [
        Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)),
        chunk(words[0], append=False),
        *map(chunk, words[1:]),
        report(1, "id", TaskState.COMPLETED),
    ]
    text, reports = await follow(Doubling(story))
    heard = text.split()
    assert sorted(set(heard), key=int) == [str(n) for n in range(20)]  # nothing is missing
    assert heard == sorted(heard, key=int)  # nor told from the first again
    assert len(heard) <= 20 + 4
    assert reports == ["1"]


@pytest.mark.parametrize("limit", [1 << 20, 100], ids=["fits", "too long"])
async def test_a_stream_that_is_too_long_to_remember_is_not_resumed(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable_stream, "MAX_REMEMBERED_BYTES", limit)
    done = StatusUpdate(task_id="t", context_id="c", status=TaskStatus(state=TaskState.COMPLETED))
    peer = Peer([chunk("x" * 200, append=False), chunk("two"), chunk("three"), done], ahead=2)
    service = RetryingService(peer, Policy(shortest=0.001, longest=0.002))
    fold = Fold()

    async def read() -> None:
        async for batch in service.stream(Call(), SEND):
            for response in batch:
                fold.apply(response.event)

    if limit == 100:
        with pytest.raises(Unreachable):
            await read()
    else:
        await read()
        assert fold.task is not None and fold.task.text.endswith("xtwothree")
