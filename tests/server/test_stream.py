"""Streams: what is written when, and what ends them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from dragoman.dialects.sse import KEEP_ALIVE, SseReader
from dragoman.errors import TaskNotFound, UnsupportedOperation
from dragoman.model.ops import STREAM, SUBSCRIBE, StreamResponse, SubscribeToTask
from dragoman.model.task import TaskState
from dragoman.server import streams
from dragoman.server.limits import Limits
from dragoman.server.pipeline import Frames
from tests.server.wire import HELLO, Scripted, app_of, chunk, open_rpc, reply, request, rpc, status, task
from tests.waiting import until

V1 = {"A2A-Version": "1.0"}
S = TaskState


async def streamed(
    service: Any, method: str = "SendStreamingMessage", params: Any = HELLO, **more: Any
) -> Any:
    return await rpc(app_of(service, **more), method, params, headers=V1)


# --- frames


async def test_events_are_numbered_frames_with_the_request_id() -> None:
    service = Scripted([StreamResponse(task(S.SUBMITTED), 1)], [chunk("a", 2), status(S.COMPLETED, 3)])
    answer = await streamed(service)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    assert [frame.id for frame in answer.frames()] == ["1", "2", "3"]
    documents = [msgspec.json.decode(frame.data) for frame in answer.frames()]
    assert all(document["jsonrpc"] == "2.0" and document["id"] == 1 for document in documents)
    assert [list(result) for result in answer.results()] == [["task"], ["artifactUpdate"], ["statusUpdate"]]
    assert answer.finished


async def test_a_batch_leaves_in_one_write() -> None:
    service = Scripted([chunk(str(n), n) for n in range(1, 101)], [status(S.COMPLETED, 101)])
    answer = await streamed(service)
    assert [send.count(b"\n\n") for send in answer.sends] == [100, 1, 0]


async def test_an_event_without_a_place_in_the_log_has_no_id() -> None:
    answer = await streamed(Scripted([status(S.WORKING)], [status(S.COMPLETED, 2)]))
    assert [frame.id for frame in answer.frames()] == ["", "2"]


async def test_an_event_in_several_documents_is_numbered_at_its_last() -> None:
    class Splitting:
        ends_on_interrupt = False

        def writer(self, request: Any) -> Any:
            return self

        def write(self, response: StreamResponse, *, last: bool) -> list[bytes]:
            return [b"1", b"2", b"3"] if response.seq == 5 else []

    frames = Frames(Splitting(), STREAM, SubscribeToTask(id="t1"))  # type: ignore[arg-type]
    chunk_, last = frames.batch([chunk("a", 4), chunk("b", 5)])
    assert not last
    assert [(frame.data, frame.id) for frame in SseReader().feed(chunk_)] == [
        (b"1", ""),
        (b"2", ""),
        (b"3", "5"),
    ]


async def test_a_stream_without_events_is_an_empty_stream() -> None:
    answer = await streamed(Scripted())
    assert answer.status == 200 and answer.headers["content-type"] == "text/event-stream"
    assert answer.body == b"" and answer.finished


async def test_an_event_larger_than_the_limit_ends_the_stream_with_an_error() -> None:
    service = Scripted([chunk("small", 1)], [chunk("x" * 2000, 2)], [status(S.COMPLETED, 3)])
    answer = await streamed(service, limits=Limits(max_event=1000))
    last = msgspec.json.decode(answer.frames()[-1].data)
    assert len(answer.frames()) == 2 and last["error"]["code"] == -32006
    assert answer.finished and service.closed.is_set()


# --- the end


async def test_the_stream_ends_with_the_task_even_if_the_service_goes_on() -> None:
    service = Scripted([status(S.FAILED, 1), chunk("late", 2)], [chunk("later", 3)])
    answer = await streamed(service)
    assert len(answer.results()) == 1 and answer.finished
    assert service.closed.is_set()


async def test_a_bare_message_is_the_whole_stream() -> None:
    answer = await streamed(Scripted([StreamResponse(reply("hi"))], [chunk("late", 2)]))
    assert [list(result) for result in answer.results()] == [["message"]]


@pytest.mark.parametrize(
    ("op", "ends_on_interrupt", "event", "ends"),
    [
        (STREAM, False, status(S.INPUT_REQUIRED), True),
        (STREAM, False, status(S.AUTH_REQUIRED), False),
        (STREAM, True, status(S.AUTH_REQUIRED), True),
        (STREAM, True, StreamResponse(task(S.INPUT_REQUIRED)), False),  # just answered, not yet at work again
        (STREAM, False, StreamResponse(task(S.COMPLETED)), True),
        (SUBSCRIBE, False, status(S.INPUT_REQUIRED), False),
        (SUBSCRIBE, False, status(S.CANCELED), True),
        (SUBSCRIBE, True, status(S.INPUT_REQUIRED), True),
        (SUBSCRIBE, True, StreamResponse(task(S.AUTH_REQUIRED)), True),
        (SUBSCRIBE, True, status(S.WORKING), False),
    ],
)
def test_stream_ends_with_its_last_event(
    op: Any, ends_on_interrupt: bool, event: StreamResponse, ends: bool
) -> None:
    marked = []

    class Recording:
        def __init__(self) -> None:
            self.ends_on_interrupt = ends_on_interrupt

        def writer(self, request: Any) -> Any:
            return self

        def write(self, response: StreamResponse, *, last: bool) -> list[bytes]:
            marked.append(last)
            return [b"{}"]

    _, last = Frames(Recording(), op, SubscribeToTask(id="t1")).batch([event])  # type: ignore[arg-type]
    assert (last, marked) == (ends, [ends])


async def test_a_question_that_was_answered_meanwhile_does_not_end_a_replay() -> None:
    service = Scripted([status(S.INPUT_REQUIRED, 3), status(S.WORKING, 5), status(S.COMPLETED, 6)])
    assert len((await streamed(service)).results()) == 3


# --- errors


async def test_an_error_before_the_first_event_is_an_ordinary_answer() -> None:
    service = Scripted(UnsupportedOperation("finished"))
    answer = await streamed(service, "SubscribeToTask", {"id": "t1"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["error"]["code"] == -32004 and answer.json["id"] == 1


async def test_an_error_in_the_middle_is_the_last_event() -> None:
    answer = await streamed(Scripted([chunk("a", 1)], TaskNotFound("t1")))
    documents = [msgspec.json.decode(frame.data) for frame in answer.frames()]
    assert "result" in documents[0]
    assert documents[1]["error"]["code"] == -32001 and documents[1]["id"] == 1
    assert answer.finished


async def test_a_bug_in_the_middle_is_logged_once_and_stays_inside(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = await streamed(Scripted([chunk("a", 1)], RuntimeError("hunter2")))
    assert msgspec.json.decode(answer.frames()[-1].data)["error"]["code"] == -32603
    assert b"hunter2" not in answer.body and answer.finished
    assert len(caplog.records) == 1 and caplog.records[0].exc_info


# --- clients and servers that go away


async def test_a_client_that_leaves_ends_the_reading_at_once() -> None:
    service = Scripted([status(S.WORKING, 1)])
    service.hold = asyncio.Event()
    app = app_of(service)
    answer = open_rpc(app, "SendStreamingMessage", HELLO, headers=V1)
    await answer.until(lambda: bool(answer.sends))
    answer.gone.set()
    await answer.end()
    assert service.closed.is_set() and not answer.finished
    assert len(app.streams) == 0


async def test_a_client_that_leaves_before_the_first_event_is_not_answered() -> None:
    service = Scripted()
    service.hold = asyncio.Event()
    app = app_of(service)
    answer = open_rpc(app, "SendStreamingMessage", HELLO, headers=V1)
    while not service.calls:
        await asyncio.sleep(0)
    answer.gone.set()
    await answer.end()
    assert service.closed.is_set() and answer.status == 0


async def test_a_client_that_leaves_while_nothing_can_be_written_is_let_go() -> None:
    service = Scripted([chunk("a", 1)], [chunk("b", 2)])
    app = app_of(service)
    answer = open_rpc(app, "SendStreamingMessage", HELLO, headers=V1)
    answer.blocked = asyncio.Event()
    while not service.calls:
        await asyncio.sleep(0)
    answer.gone.set()
    await answer.end()
    assert service.closed.is_set()


async def test_a_drain_ends_streams_between_events_and_begins_no_more() -> None:
    service = Scripted([chunk("a", 1)])
    service.hold = asyncio.Event()
    app = app_of(service)
    answers = [open_rpc(app, "SendStreamingMessage", HELLO, headers=V1) for _ in range(5)]
    for answer in answers:
        await answer.until(lambda: all(each.sends for each in answers))
    await app.drain()
    for answer in answers:
        await answer.end()
        assert answer.finished and len(answer.results()) == 1
    late = await rpc(app, "SendStreamingMessage", HELLO, headers=V1)
    assert late.status == 503 and late.headers["retry-after"] == "1"
    assert (await request(app, "GET", "/readyz")).status == 503
    assert (await request(app, "GET", "/healthz")).status == 200


async def test_a_drain_refuses_a_stream_that_has_not_begun() -> None:
    service = Scripted()
    service.hold = asyncio.Event()
    app = app_of(service)
    answer = open_rpc(app, "SendStreamingMessage", HELLO, headers=V1)
    while not service.calls:
        await asyncio.sleep(0)
    await app.drain()
    await answer.end()
    assert answer.status == 503


async def test_cancelling_the_server_task_is_not_swallowed() -> None:
    service = Scripted([chunk("a", 1)])
    service.hold = asyncio.Event()
    answer = open_rpc(app_of(service), "SendStreamingMessage", HELLO, headers=V1)
    await answer.until(lambda: bool(answer.sends))
    answer.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer.end()
    assert service.closed.is_set()


# --- keeping quiet streams open


async def test_a_quiet_stream_is_kept_alive() -> None:
    service = Scripted([chunk("a", 1)])
    service.hold = asyncio.Event()
    answer = open_rpc(app_of(service, keepalive=0.02), "SendStreamingMessage", HELLO, headers=V1)
    await answer.until(lambda: answer.sends.count(KEEP_ALIVE) >= 3)
    service.hold.set()
    await answer.end()
    assert len(answer.results()) == 1


async def test_a_stream_in_which_nothing_happens_begins_all_the_same() -> None:
    service = Scripted()
    service.hold = asyncio.Event()
    app = app_of(service, keepalive=0.02)
    answer = open_rpc(app, "SubscribeToTask", {"id": "t1"}, headers={**V1, "Last-Event-ID": "7"})
    await answer.until(lambda: answer.sends.count(KEEP_ALIVE) >= 2)
    assert answer.status == 200 and answer.headers["content-type"] == "text/event-stream"
    service.hold.set()
    await answer.end()
    assert answer.finished and not answer.results()


async def test_error_after_the_first_event_is_the_last_event() -> None:
    service = Scripted()
    service.hold = asyncio.Event()
    service.then = TaskNotFound("t1")
    answer = open_rpc(app_of(service, keepalive=0.008), "SubscribeToTask", {"id": "t1"}, headers=V1)
    await answer.until(lambda: KEEP_ALIVE in answer.sends)
    service.hold.set()
    await answer.end()
    assert msgspec.json.decode(answer.frames()[-1].data)["error"]["code"] == -32001


async def test_a_connection_that_cannot_be_written_to_gets_no_keep_alive_on_top(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked_for, send = 0, streams._Stream.send_keep_alive

    def count(stream: streams._Stream) -> None:
        nonlocal asked_for
        asked_for += 1
        send(stream)

    monkeypatch.setattr(streams._Stream, "send_keep_alive", count)
    service = Scripted([chunk("a", 1)], [chunk("b", 2)])
    app = app_of(service, keepalive=0.008)
    answer = open_rpc(app, "SendStreamingMessage", HELLO, headers=V1)
    answer.blocked = asyncio.Event()
    await until(lambda: asked_for >= 3)
    answer.blocked.set()
    await answer.end()
    assert len(answer.frames()) == 2 and KEEP_ALIVE not in answer.sends


# --- resuming


async def test_last_event_id_says_where_to_go_on() -> None:
    service = Scripted([status(S.COMPLETED, 8)])
    await rpc(app_of(service), "SubscribeToTask", {"id": "t1"}, headers={**V1, "Last-Event-ID": "7"})
    assert service.calls[0][0].after == 7
