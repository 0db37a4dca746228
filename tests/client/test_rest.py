"""The client over HTTP+JSON: retries as over JSON-RPC, and differences between servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

from dragoman import connect
from dragoman import errors as e
from dragoman.client import Client
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.dialects.cards import write_card
from dragoman.model.card import AgentCard, Capabilities, Interface
from dragoman.model.task import TaskState
from tests.client.chaos import Chaos, Cut, Dropped, EndEarly, Fault, Lost, Stall, Status
from tests.client.counting import HASTY, Counter, rebuild, text
from tests.client.fakes import Answer, Asked, Site, page
from tests.requirements import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

STREAM, SUBSCRIBE, SEND = "SendStreamingMessage", "SubscribeToTask", "SendMessage"
versions = pytest.mark.parametrize("version", ["1.0", "0.3"])
anybodys = pytest.mark.parametrize("anonymous", [False, True], ids=["ours", "anybodys"])


# --- a connection that breaks


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Counter]:
    async with Counter().serving() as counter:
        yield counter


@pytest_asyncio.fixture(loop_scope="module")
async def counter(server: Counter) -> AsyncIterator[Counter]:
    server.forget()
    yield server
    server.gate.set()


def over(url: str, version: str) -> Client:
    return connect(url, binding="HTTP+JSON", version=version, policy=HASTY)


@versions
@anybodys
@pytest.mark.parametrize(
    "fault",
    [
        Cut(frames=1),
        Cut(frames=4),
        Cut(frames=9, half=True),
        EndEarly(frames=5),
        EndEarly(frames=5, then=b'event: error\ndata: {"error":{"code":503,"status":"UNAVAILABLE"}}\n\n'),
        EndEarly(frames=5, then=b"data: \xff[\n\n"),
        Stall(frames=6),
    ],
)
async def test_each_event_comes_once_when_a_stream_breaks(
    counter: Counter, version: str, anonymous: bool, fault: Fault
) -> None:
    chaos = Chaos(counter.url, anonymous=anonymous)
    chaos.on(STREAM, fault)
    chaos.on(SUBSCRIBE, Cut(frames=1), Status(500), Dropped())
    async with chaos as url, over(url, version) as agent, asyncio.TaskGroup() as group:
        group.create_task(counter.release(chaos.until(SUBSCRIBE, 2)))
        pieces = [piece async for piece in agent.stream("hold:30")]
    assert rebuild(pieces)[0] == text(30)
    assert pieces[-1].state is TaskState.COMPLETED
    assert counter.runs == ["hold:30"]


@versions
async def test_a_dragoman_server_continues_after_the_last_event(counter: Counter, version: str) -> None:
    chaos = Chaos(counter.url)
    chaos.on(STREAM, Cut(frames=4))
    async with chaos as url, over(url, version) as agent:
        assert rebuild([piece async for piece in agent.stream("count:30")])[0] == text(30)
    (again,) = [seen for seen in chaos.seen if seen.method == SUBSCRIBE]
    assert int(again.headers["last-event-id"]) >= 4


@versions
async def test_a_send_whose_answer_is_lost_is_done_once(counter: Counter, version: str) -> None:
    chaos = Chaos(counter.url)
    chaos.on(SEND, Lost(), Dropped(), Status(503))
    async with chaos as url, over(url, version) as agent:
        assert (await agent.send("count:3")).text == text(3)
    keys = {seen.headers["idempotency-key"] for seen in chaos.seen if seen.method == SEND}
    assert len(keys) == 1 and counter.runs == ["count:3"]


@versions
async def test_a_send_in_doubt_is_not_repeated_elsewhere(counter: Counter, version: str) -> None:
    chaos = Chaos(counter.url, anonymous=True)
    chaos.on(SEND, Lost())
    async with chaos as url, over(url, version) as agent:
        with pytest.raises(e.Unreachable):
            await agent.send("count:3")
    assert chaos.methods().count(SEND) == 1


# --- servers that differ

TASK = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}


SITES = count(1)


def site_of(pages: dict[str, Any], version: str = "1.0", tenant: str = "") -> tuple[Site, Client]:
    """A server that answers at these paths, and a client of it."""
    url = f"http://agent-{next(SITES)}.example"
    interface = Interface(
        url=f"{url}/base/", protocol_binding="HTTP+JSON", protocol_version=version, tenant=tenant
    )
    card = AgentCard(
        name="Site", supported_interfaces=(interface,), capabilities=Capabilities(streaming=True)
    )
    site = Site({f"/base{path}": answer for path, answer in pages.items()})
    site.pages["/.well-known/agent-card.json"] = page(write_card(card, "1.0"))
    return site, connect(site, url=url, policy=HASTY)


def events(*documents: Any) -> Answer:
    body = "".join(f"data: {json.dumps(document)}\n\n" for document in documents)
    return 200, {"content-type": "text/event-stream"}, body.encode()


@pytest.mark.parametrize(("version", "first", "then"), [("1.0", "POST", "GET"), ("0.3", "GET", "POST")])
@pytest.mark.parametrize("refusal", [404, 405, 501])
async def test_a_subscription_is_asked_for_with_the_other_verb(
    version: str, first: str, then: str, refusal: int
) -> None:
    def subscribe(asked: Asked) -> Answer:
        return (refusal, {}, b"no") if asked.method == first else events({"task": TASK})

    pages = {"/tasks/t1:subscribe": subscribe, "/v1/tasks/t1:subscribe": subscribe}
    site, client = site_of(pages, version)
    async with client as it:
        for _ in range(2):
            assert [piece.state async for piece in it.subscribe("t1")] == [TaskState.COMPLETED]
    assert [asked.method for asked in site.asked[1:]] == [first, then, then]


async def test_a_task_that_is_not_found_is_not_looked_for_with_another_verb() -> None:
    refusal = page({"error": {"code": 404, "details": [{"reason": "TASK_NOT_FOUND"}]}}, 404)
    site, client = site_of({"/tasks/t1:subscribe": refusal, "/tasks/t1": refusal})
    async with client as it:
        with pytest.raises(e.TaskNotFound):
            async for _ in it.subscribe("t1"):
                pass
    assert [asked.method for asked in site.asked if asked.path.endswith(":subscribe")] == ["POST"]


@pytest.mark.parametrize("status", [200, 201, 202])
async def test_every_2xx_status_is_a_success_over_http_json(status: int) -> None:
    _, client = site_of({"/v1/message:send": page({"task": TASK}, status)}, "0.3")
    async with client as it:
        assert (await it.send("hello")).id == "t1"


@pytest.mark.parametrize(("status", "body"), [(200, b"{}"), (200, b"null"), (204, b"")])
async def test_a_deletion_may_answer_with_anything(status: int, body: bytes) -> None:
    _, client = site_of({"/tasks/t1/pushNotificationConfigs/p1": (status, {}, body)})
    async with client as it:
        await it.delete_push("t1", "p1")


SAID: list[tuple[int, Any, type[e.A2AError]]] = [
    (400, {"error": {"code": 400, "status": "FAILED_PRECONDITION", "message": "m", "details": [{"@type": "x", "reason": "TASK_NOT_CANCELABLE"}]}}, e.TaskNotCancelable),
    (409, {"error": {"code": 409, "message": "m", "details": [{"reason": "TASK_NOT_CANCELABLE"}]}}, e.TaskNotCancelable),
    (404, {"error": {"code": 404, "status": "NOT_FOUND", "message": "m"}}, e.TaskNotFound),
    (400, {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "m"}}, e.InvalidParams),
    (404, {"type": "https://a2a-protocol.org/errors/task-not-found", "title": "Task Not Found", "detail": "m", "status": 404}, e.TaskNotFound),
    (400, {"type": "https://a2a-protocol.org/errors/version-not-supported", "title": "m", "status": 400}, e.VersionNotSupported),
    (404, {"code": -32001, "message": "m"}, e.TaskNotFound),
    (501, {"code": -32003, "message": "m", "data": None}, e.PushNotSupported),
    (500, {"code": -32603, "message": "m"}, e.A2AError),
    (404, {"message": "m"}, e.TaskNotFound),
    (409, {"message": "m"}, e.TaskNotCancelable),
    (422, {"detail": "m"}, e.InvalidParams),
    (501, {"error": "m"}, e.UnsupportedOperation),
    (401, {"detail": "m"}, e.Unauthenticated),
    (403, {"message": "m"}, e.Forbidden),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "kind"), SAID)
async def test_an_error_is_understood_however_it_is_written(
    status: int, body: Any, kind: type[e.A2AError]
) -> None:
    _, client = site_of({"/tasks/t1:cancel": page(body, status)})
    async with client as it:
        with pytest.raises(e.A2AError, match="m") as caught:
            await it.cancel("t1")
    assert type(caught.value) is kind


async def test_a_page_instead_of_an_answer_is_reported_by_its_status() -> None:
    _, client = site_of({"/tasks/t1:cancel": (418, {}, b"<html>teapot</html>")})
    async with client as it:
        with pytest.raises(e.Unreachable, match="HTTP 418"):
            await it.cancel("t1")


async def test_an_error_in_a_stream_is_raised_after_what_came_before_it() -> None:
    started = {"task": {**TASK, "status": {"state": "TASK_STATE_INPUT_REQUIRED"}}}
    status, headers, body = events(started)
    error = (
        b'event: error\ndata: {"error":{"message":"m","details":[{"reason":"INVALID_AGENT_RESPONSE"}]}}\n\n'
    )
    _, client = site_of({"/message:stream": (status, headers, body + error)})
    async with client as it:
        seen = []
        with pytest.raises(e.InvalidAgentResponse, match="m"):
            async for piece in it.stream("hello"):
                seen.append(piece.state)
        assert seen == [TaskState.INPUT_REQUIRED]


@requirement(77, 78, 81)
async def test_a_request_is_spread_over_path_query_and_body() -> None:
    tasks = {"tasks": [TASK], "nextPageToken": "", "pageSize": 5, "totalSize": 1}
    pages = {"/acme & co/tasks": page(tasks), "/acme & co/message:send": page({"task": TASK})}
    site, client = site_of(pages, tenant="acme & co")
    async with client as it:
        assert [task.id async for task in it.list(page_size=5, state="working", artifacts=True)] == ["t1"]
        await it.send("hello")
    listed, sent = site.asked[1:]
    assert listed.query == {"pageSize": "5", "status": "TASK_STATE_WORKING", "includeArtifacts": "true"}
    assert listed.method == "GET" and listed.body == b"" and "content-type" not in listed.headers
    assert sent.headers["content-type"] == "application/json" and sent.headers["a2a-version"] == "1.0"
    assert sent.json["message"]["parts"] == [{"text": "hello"}] and "tenant" not in sent.json


async def test_0_3_has_the_task_in_the_body_too_and_a_config_of_our_naming() -> None:
    """a2a-sdk 0.3 reads the task from the body, and keeps a config without an id under an empty one."""
    stored = {"name": "tasks/t1/pushNotificationConfigs/p1", "pushNotificationConfig": {"url": "u"}}
    site, client = site_of({"/v1/tasks/t1/pushNotificationConfigs": page(stored)}, "0.3")
    async with client as it:
        await it.create_push("t1", "u")
    body = site.asked[1].json
    assert body["parent"] == "tasks/t1"
    assert body["configId"] and body["config"]["pushNotificationConfig"]["id"] == body["configId"]


async def test_0_3_names_resources_and_wraps_a_push_config() -> None:
    stored = {"name": "tasks/t1/pushNotificationConfigs/p1", "pushNotificationConfig": {"url": "u"}}
    site, client = site_of({"/v1/tasks/t1/pushNotificationConfigs": page(stored)}, "0.3")
    async with client as it:
        made = await it.create_push("t1", "u", id="p1")
        assert (made.task_id, made.id, made.url) == ("t1", "p1", "u")
    assert site.asked[1].json["config"]["pushNotificationConfig"]["url"] == "u"


@requirement(9, 10, 11)
async def test_the_client_uses_the_first_supported_interface() -> None:
    card = {
        "name": "Two",
        "supportedInterfaces": [
            {"url": "http://a", "protocolBinding": "CARRIER-PIGEON", "protocolVersion": "1.0"},
            {"url": "http://b", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
            {"url": "http://c", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        ],
    }
    async with connect(card) as it:
        assert it.url == "http://b"
    async with connect(card, binding="JSONRPC") as it:
        assert it.url == "http://c"


async def test_a_server_without_the_paths_it_promises_is_tried_in_the_other_version() -> None:
    site, client = site_of({"/v1/message:send": page({"task": TASK})})
    async with client as it:
        assert (await it.send("hello")).id == "t1"
        assert it.link.peer.dialect.name == "0.3-proto"
    assert site.paths()[1:] == ["/base/message:send", "/base/v1/message:send"]


async def test_the_query_of_an_endpoint_goes_with_every_request() -> None:
    card = AgentCard(
        name="Far",
        supported_interfaces=(
            Interface(
                url="http://agent.test/a/?api-version=7",
                protocol_binding="HTTP+JSON",
                protocol_version="1.0",
                tenant="acme",
            ),
        ),
    )
    task = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}
    site = Site(
        {
            "/a/acme/message:send": page({"task": task}),
            "/a/acme/tasks/t": page(task),
            "/a/acme/tasks/t:cancel": page(task),
        }
    )
    async with connect(card, transport=AsgiTransport(site)) as agent:
        await agent.send("hello")
        await agent.get("t", history=1)
        await agent.cancel("t")
    assert [asked.query for asked in site.asked] == [
        {"api-version": "7"},
        {"api-version": "7", "historyLength": "1"},
        {"api-version": "7"},
    ]
