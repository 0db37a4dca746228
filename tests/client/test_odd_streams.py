"""Streams of servers that deviate from the specification: each event comes once, and the client does not hang."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.client import Client, Piece, Policy, connect
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import A2AError, InvalidAgentResponse, RateLimited, Unavailable, Unreachable
from dragoman.model.task import StatusUpdate, TaskState
from tests.client.fakes import Answer, Asked, Site, answer, card, error, page

HASTY = Policy(shortest=0.01, longest=0.02)
SSE = {"content-type": "text/event-stream"}


def report(state: str, text: str = "") -> dict[str, Any]:
    message = {"messageId": f"m-{text}", "role": "ROLE_AGENT", "parts": [{"text": text}]}
    status = {"state": f"TASK_STATE_{state}", **({"message": message} if text else {})}
    return {"statusUpdate": {"taskId": "t", "contextId": "c", "status": status}}


def chunk(text: str, append: bool) -> dict[str, Any]:
    artifact = {"artifactId": "a", "parts": [{"text": text}]}
    return {"artifactUpdate": {"taskId": "t", "contextId": "c", "artifact": artifact, "append": append}}


STORY = [
    {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_SUBMITTED"}}},
    report("WORKING", "looking"),
    chunk("one ", append=False),
    report("WORKING", "writing"),
    chunk("two", append=True),
    report("COMPLETED"),
]


def frame(event: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps({"jsonrpc": "2.0", "id": "1", "result": event}).encode()


def event_stream(*events: dict[str, Any], before: bytes = b"") -> Answer:
    return 200, SSE, before + b"".join(map(frame, events))


@asynccontextmanager
async def agent_of(
    rpc: Answer | Callable[[Asked], Answer], **options: Any
) -> AsyncIterator[tuple[Client, Site]]:
    site = Site({"/card.json": page(card(capabilities={"streaming": True})), "/rpc": rpc})
    async with connect(
        "http://agent.test/card.json", transport=AsgiTransport(site), policy=HASTY, **options
    ) as agent:
        yield agent, site


async def read_stream(agent: Client) -> tuple[str, list[str], list[Piece]]:
    pieces = [piece async for piece in agent.stream("go")]
    return "".join(piece.text for piece in pieces), [p.status for p in pieces if p.status], pieces


@pytest.mark.parametrize(
    "before",
    [b"data:\n\n", b"data\n\n", b"event: ping\ndata: {}\n\n", b'event: heartbeat\ndata: {"at": 1}\n\n'],
    ids=["empty", "bare", "ping", "heartbeat"],
)
async def test_frames_without_an_event_are_skipped(before: bytes) -> None:
    async with agent_of(event_stream(*STORY, before=before)) as (agent, _):
        assert (await read_stream(agent))[0] == "one two"


async def test_the_media_type_of_a_stream_may_be_spelled_in_capitals() -> None:
    status, _, body = event_stream(*STORY)
    async with agent_of((status, {"content-type": "Text/Event-Stream; Charset=UTF-8"}, body)) as (agent, _):
        assert (await read_stream(agent))[0] == "one two"


@pytest.mark.parametrize("cut", range(1, len(STORY)))
async def test_events_that_a_server_repeats_come_once(cut: int) -> None:
    def rpc(asked: Asked) -> Answer:
        return event_stream(*(STORY[:cut] if asked.json["method"] == "SendStreamingMessage" else STORY))

    async with agent_of(rpc) as (agent, site):
        text, reports, pieces = await read_stream(agent)
    assert (text, reports) == ("one two", ["looking", "writing"])
    assert sum(isinstance(piece.event, StatusUpdate) for piece in pieces) == 3
    assert [asked.json["method"] for asked in site.asked[1:]] == ["SendStreamingMessage", "SubscribeToTask"]


OTHER = json.loads(json.dumps(STORY).replace('"t"', '"other"').replace("one ", "secret "))
"""The same of another task."""


@pytest.mark.parametrize("at", range(1, len(STORY)))
async def test_events_of_another_task_are_an_error_and_not_passed_on(at: int) -> None:
    async with agent_of(event_stream(*STORY[:at], *OTHER[at:])) as (agent, _):
        stream, pieces = agent.stream("go"), list[Piece]()
        with pytest.raises(InvalidAgentResponse, match="another task"):
            async for piece in stream:
                pieces.append(piece)
        assert len(pieces) == at and stream.reply.id == "t"


async def test_a_stream_does_not_go_on_with_a_subscription_that_shows_another_task() -> None:
    def rpc(asked: Asked) -> Answer:
        return event_stream(*(STORY[:3] if asked.json["method"] == "SendStreamingMessage" else OTHER))

    async with agent_of(rpc) as (agent, site):
        stream = agent.stream("go")
        with pytest.raises(InvalidAgentResponse, match="another task"):
            async for _ in stream:
                pass
        assert (stream.reply, stream.reply.id) == ("one ", "t")
    assert [asked.json["method"] for asked in site.asked[1:]] == ["SendStreamingMessage", "SubscribeToTask"]


@pytest.mark.parametrize("operation", ["get", "cancel", "wait"])
async def test_another_task_than_the_one_that_was_asked_for_is_an_error(operation: str) -> None:
    status = {"state": "TASK_STATE_CANCELED"}
    result = {"id": "other", "contextId": "c", "status": status}
    async with agent_of(page({"jsonrpc": "2.0", "id": "1", "result": result})) as (agent, _):
        with pytest.raises(InvalidAgentResponse, match="another task"):
            await getattr(agent, operation)("t")


@pytest.mark.parametrize("together", [True, False])
async def test_nothing_that_comes_after_the_end_of_a_task_is_passed_on(together: bool) -> None:
    late = [report("WORKING", "again"), chunk("and more", append=True), {"task": STORY[0]["task"]}] * 20
    body = event_stream(*STORY, *late)[2]
    site = Site({"/card.json": page(card(capabilities={"streaming": True}))})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/rpc":
            return await site(scope, receive, send)
        head = [(name.encode(), value.encode()) for name, value in SSE.items()]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for piece in [body] if together else body.splitlines(keepends=True):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with connect("http://agent.test/card.json", transport=AsgiTransport(app)) as agent:
        stream = agent.stream("go")
        pieces = [piece async for piece in stream]
        assert len(pieces) == len(STORY)
        assert (stream.reply, stream.reply.state) == ("one two", TaskState.COMPLETED)


@pytest.mark.parametrize(
    ("story", "text"), [(STORY, "one two"), ([*STORY[:1], report("INPUT_REQUIRED", "What?")], "What?")]
)
async def test_a_stream_that_stays_open_after_the_end_is_left(
    story: list[dict[str, Any]], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.client.resumable_stream._CLOSE_SECONDS", 0.05)
    site = Site({"/card.json": page(card(capabilities={"streaming": True}))})
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/rpc":
            return await site(scope, receive, send)
        await receive()
        head = [(name.encode(), value.encode()) for name, value in SSE.items()]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": event_stream(*story)[2], "more_body": True})
        await receive()
        left.set()

    async with connect("http://agent.test/card.json", transport=AsgiTransport(app)) as agent:
        async with asyncio.timeout(10):
            assert (await read_stream(agent))[0] == text
            await left.wait()


async def test_an_agent_that_needs_a_permission_is_not_waited_for_though_its_stream_stays_open() -> None:
    site = Site({"/card.json": page(card(capabilities={"streaming": True}))})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/rpc":
            return await site(scope, receive, send)
        await receive()
        head = [(name.encode(), value.encode()) for name, value in SSE.items()]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        story = event_stream(STORY[0], report("AUTH_REQUIRED", "May I?"))[2]
        await send({"type": "http.response.body", "body": story, "more_body": True})
        await receive()

    async with connect("http://agent.test/card.json", transport=AsgiTransport(app)) as agent:
        async with asyncio.timeout(10):
            reply = await agent("go")
    assert (reply.asks, reply.state, reply) == (True, TaskState.AUTH_REQUIRED, "May I?")


async def test_a_retry_after_of_hours_is_an_error() -> None:
    rpc = page({}, 429, retry_after="3600")
    async with agent_of(rpc) as (agent, _), asyncio.timeout(10):
        with pytest.raises(RateLimited) as caught:
            await agent.send("go")
    assert caught.value.retry_after == 3600


@pytest.mark.parametrize(
    "refusal",
    [
        lambda asked: error(asked, -32603),
        lambda asked: error(asked, -32000),
        lambda asked: error(asked, -32004),
        lambda asked: error(asked, -32601),
        lambda asked: (404, {}, b""),
        lambda asked: (500, {}, b"oops"),
        lambda asked: event_stream(),
    ],
    ids=["internal", "any", "unsupported", "unknown", "nowhere", "failing", "silent"],
)
async def test_a_task_that_cannot_be_followed_is_asked_for(refusal: Callable[[Asked], Answer]) -> None:
    done = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}
    artifact = {"artifactId": "a", "parts": [{"text": "one two"}]}

    def rpc(asked: Asked) -> Answer:
        match asked.json["method"]:
            case "SendStreamingMessage":
                return event_stream(*STORY[:3])
            case "GetTask":
                return page({"jsonrpc": "2.0", "id": "1", "result": {**done, "artifacts": [artifact]}})
        return refusal(asked)

    async with asyncio.timeout(10), agent_of(rpc) as (agent, _):
        assert (await read_stream(agent))[:2] == ("one two", ["looking"])


async def test_a_stream_is_opened_again_after_a_short_silence() -> None:
    busy = [page({}, 429), page({}, 429)]
    site = Site(
        {"/card.json": page(card()), "/rpc": lambda asked: busy.pop() if busy else answer(asked)},
    )
    policy = Policy(shortest=0.01, patience=0)
    async with connect("http://agent.test/card.json", transport=AsgiTransport(site), policy=policy) as agent:
        assert await agent.send("go") == "fine"


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"error": "\xff"}', b"<html>"], ids=["deep", "latin", "page"]
)
async def test_any_refusal_over_http_json_is_an_a2a_error(body: bytes) -> None:
    interface = {"url": "http://agent.test/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
    site = Site(
        {
            "/card.json": page(card(supportedInterfaces=[interface])),
            "/rest/tasks/x": (404, {"content-type": "application/json"}, body),
        }
    )
    async with connect("http://agent.test/card.json", transport=AsgiTransport(site), policy=HASTY) as agent:
        with pytest.raises(A2AError):
            await agent.get("x")


async def test_every_2xx_status_is_a_success() -> None:
    def accepted(asked: Asked) -> Answer:
        _, headers, body = answer(asked)
        return 202, headers, body

    async with agent_of(accepted) as (agent, _):
        assert await agent.send("go") == "fine"


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("streams", [True, False])
async def test_an_agent_of_0_1_whose_answer_is_lost_is_asked_for_the_task(streams: bool, begun: bool) -> None:
    known: list[str] = []

    def rpc(asked: Asked) -> Answer:
        params, method = asked.json["params"], asked.json["method"]
        if method in ("tasks/send", "tasks/sendSubscribe"):
            known.extend([params["id"]] if begun else [])
            return (200, SSE, b"") if method.endswith("Subscribe") else (500, {}, b"")
        if method != "tasks/get" or params["id"] not in known:
            return error(asked, -32601 if method == "tasks/resubscribe" else -32001)
        artifact = {"index": 0, "parts": [{"type": "text", "text": "done"}]}
        task = {"id": params["id"], "status": {"state": "completed"}, "artifacts": [artifact]}
        return page({"jsonrpc": "2.0", "id": asked.json["id"], "result": task})

    async with agent_of(rpc, version="0.1") as (agent, site):
        if begun:
            said = await read_stream(agent) if streams else (await agent.send("go"), [], [])
            assert said[0] == "done"
        else:
            with pytest.raises(Unreachable if streams else Unavailable):
                await (read_stream(agent) if streams else agent.send("go"))
    sent = [asked.json["method"] for asked in site.asked[1:] if "send" in asked.json["method"]]
    assert len(sent) == 1
