"""Chat in the console: with agents of this server, and with agents elsewhere in every version and binding."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman import Agent, Part, Turn
from dragoman.auth import Bearer, hashed, new_token
from dragoman.console.talk import ByteQueue
from dragoman.server.application import application
from dragoman.server.runtime import running
from dragoman.stores.memory import MemoryAudit
from tests.client.fakes import card, page
from tests.console.calls import events, inspector, named, serve, text
from tests.console.conftest import Operator, console_app
from tests.console.test_hub import ADMIN, hub_app
from tests.ports import free_port
from tests.server.wire import Answer
from tests.waiting import elapse, until


def helper(**options: Any) -> Agent:
    agent = Agent(
        "Helper", description="Helps", id="helper", input_modes=["*/*"], output_modes=["*/*"], **options
    )
    agent.go = asyncio.Event()  # type: ignore[attr-defined]

    @agent.skill(default=True)
    async def help(turn: Turn) -> AsyncIterator[Any]:
        """Helps."""
        if "twice" in turn.text:
            yield f"{await turn.ask('From?')} to {await turn.ask('And to?')}"
        elif "ask" in turn.text:
            yield f"in {await turn.ask('Which city?')}"
        elif "wait" in turn.text:
            yield "so far "
            await agent.go.wait()  # type: ignore[attr-defined]
            yield "so good"
        elif "huge" in turn.text:
            yield "x" * (10 << 20)
        elif turn.files:
            yield Part(
                raw=bytes(turn.files[0].raw or b"")[::-1],
                filename="back.bin",
                media_type="application/octet-stream",
            )
        else:
            yield f"hi {turn.text} from {turn.principal or 'nobody'}"

    @agent.skill
    async def shout(words: str) -> str:
        """Shouts."""
        return words.upper()

    return agent


@pytest.fixture
async def local() -> AsyncIterator[Operator]:
    async with console_app(helper()) as (app, _):
        yield Operator(app)


async def talk(operator: Operator, **asked: Any) -> Answer:
    answer = await operator("POST", "/talk", asked)
    assert answer.status == 200, answer.body
    return answer


def reply(answer: Answer) -> str:
    """The text of the artifacts and of the question."""
    said = ""
    for event in named(answer, "event"):
        if update := event.get("artifactUpdate"):
            said += "".join(part.get("text", "") for part in update["artifact"]["parts"])
    return said


# -- agents of this server -----------------------------------------------------------------------------------------


async def test_an_agent_of_this_server_is_called_as_the_operator(local: Operator) -> None:
    answer = await talk(local, agent="helper", message=text("there"))
    assert reply(answer) == "hi there from dragoman:console"
    ((last, end),) = events(answer)[-1:]
    assert last == "end" and end["state"] == "TASK_STATE_COMPLETED"
    task = await local.get(f"/tasks/{end['key']}")
    assert task["id"] == end["task"] and task["contextId"] == end["context"]


async def test_the_audit_names_the_console(local: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[Any] = []
    monkeypatch.setattr(MemoryAudit, "record", lambda self, entry: entries.append(entry))
    async with console_app(helper()) as (app, _):
        await talk(Operator(app), agent="helper", message=text("there"))
    assert [entry.principal for entry in entries if "Message" in entry.operation] == ["dragoman:console"]


async def test_an_agent_that_wants_a_token_is_called_without_one() -> None:
    agent = helper(auth=[Bearer({"ada": hashed(new_token())})])
    async with console_app(agent) as (app, _):
        assert (
            reply(await talk(Operator(app), agent="helper", message=text("x")))
            == "hi x from dragoman:console"
        )


async def test_the_events_have_the_numbers_of_the_log_and_the_bytes_are_shown(local: Operator) -> None:
    answer = await talk(local, agent="helper", message=text("there"))
    numbers = [event["seq"] for event in named(answer, "event")]
    assert numbers == sorted(set(numbers)) and all(numbers)
    (chosen,) = named(answer, "chosen")
    assert (chosen["version"], chosen["binding"]) == ("1.0", "JSONRPC") and len(chosen["why"]) >= 3
    kinds = [(wire["direction"], wire["kind"]) for wire in named(answer, "wire")]
    assert kinds[:3] == [("out", "request"), ("in", "response"), ("in", "end")], "the card"
    assert ("in", "frame") in kinds
    sent = [wire for wire in named(answer, "wire") if wire.get("method") == "POST"]
    assert '"there"' in sent[0]["text"]


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.2", "0.1", "draft", "arbiter"])
async def test_any_version_can_be_asked_for(local: Operator, version: str) -> None:
    answer = await talk(local, agent="helper", message=text("there"), version=version)
    assert reply(answer).startswith("hi there"), events(answer)
    assert named(answer, "chosen")[0]["version"] == version


async def test_http_json_can_be_asked_for_and_grpc_not_in_process(local: Operator) -> None:
    answer = await talk(local, agent="helper", message=text("there"), binding="HTTP+JSON")
    assert named(answer, "chosen")[0]["binding"] == "HTTP+JSON"
    refused = await local("POST", "/talk", {"agent": "helper", "message": text("x"), "binding": "GRPC"})
    assert refused.status == 400 and "inside this process" in refused.json["error"]["message"]


async def test_a_question_is_answered_in_the_same_task(local: Operator) -> None:
    asked = named(await talk(local, agent="helper", message=text("ask")), "end")[0]
    assert asked["state"] == "TASK_STATE_INPUT_REQUIRED"
    answer = await talk(
        local, agent="helper", message=text("Rome"), task=asked["task"], context=asked["context"]
    )
    assert reply(answer) == "in Rome" and named(answer, "end")[0]["task"] == asked["task"]


async def test_an_operator_answers_the_question_of_another_caller(local: Operator) -> None:
    task = await local.send("ask")
    (row,) = (await local.get("/tasks"))["tasks"]
    assert row["id"] == task["id"]
    answer = await talk(local, agent="helper", message=text("Oslo"), key=row["key"])
    assert reply(answer) == "in Oslo" and named(answer, "end")[0]["key"] == row["key"]


async def test_files_go_both_ways(local: Operator) -> None:
    part = {
        "raw": base64.b64encode(b"abc").decode(),
        "filename": "a.bin",
        "mediaType": "application/octet-stream",
    }
    answer = await talk(local, agent="helper", message={"parts": [part]})
    (update,) = [event["artifactUpdate"] for event in named(answer, "event") if "artifactUpdate" in event]
    (back,) = update["artifact"]["parts"]
    assert base64.b64decode(back["raw"]) == b"cba" and back["filename"] == "back.bin"


async def test_a_skill_can_be_named(local: Operator) -> None:
    assert reply(await talk(local, agent="helper", message=text("hey"), skill="shout")) == "HEY"


async def test_an_answer_is_to_the_question_that_was_seen_and_never_to_the_next(local: Operator) -> None:
    first = await talk(local, agent="helper", message=text("ask twice"))
    end, seen = named(first, "end")[0], named(first, "event")[-1]["seq"]
    answer = {"agent": "helper", "task": end["task"], "message": text("Rome"), "last_seq": seen}
    again = named(await talk(local, **answer), "end")[0]
    assert again["state"] == "TASK_STATE_INPUT_REQUIRED", "it asks once more"
    (refused,) = named(await talk(local, **answer), "error")
    assert "does not wait for an answer to this question any more" in refused["message"]
    reply_to = await talk(local, agent="helper", task=end["task"], message=text("Oslo"))
    assert "Rome" in reply(reply_to) and "Oslo" in reply(reply_to)


async def test_a_task_can_be_canceled(local: Operator) -> None:
    answer = local.open("POST", "/talk", {"agent": "helper", "message": text("wait")})
    await answer.until(lambda: "so far" in reply(answer))
    task = named(answer, "event")[0]["task"]["id"]
    canceled = await local("POST", "/talk/cancel", {"agent": "helper", "task": task})
    assert canceled.json["task"]["status"]["state"] == "TASK_STATE_CANCELED"
    await answer.end()
    assert named(answer, "end")[0]["state"] == "TASK_STATE_CANCELED"


async def test_a_page_that_leaves_stops_following_and_the_task_goes_on() -> None:
    agent = helper()
    async with console_app(agent) as (app, _):
        operator = Operator(app)
        answer = operator.open("POST", "/talk", {"agent": "helper", "message": text("wait")})
        await answer.until(lambda: "so far" in reply(answer))
        answer.gone.set()
        await answer.task
        agent.go.set()  # type: ignore[attr-defined]
        (row,) = (await operator.get("/tasks"))["tasks"]

        async def state() -> str:
            task = await operator.get(f"/tasks/{row['key']}")
            return str(task["state"])

        await until(state, lambda now: now == "TASK_STATE_COMPLETED")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"agent": "nobody", "message": text("x")}, "no such agent"),
        ({"message": text("x")}, "either"),
        ({"agent": "helper", "url": "https://a.test", "message": text("x")}, "either"),
        ({"agent": "helper", "message": {"parts": []}}, "empty"),
        ({"agent": "helper", "message": {"parts": [{"text": 1}]}}, "cannot be read"),
        ({"agent": "helper", "message": text("x"), "key": "!"}, "no such task"),
        ({"url": "file:///etc/passwd", "message": text("x")}, "http"),
        ({"url": "https://me:secret@a.test", "message": text("x")}, "password"),
        ({"url": "https://a.test", "message": text("x"), "credentials": "nope"}, "log in again"),
    ],
)
async def test_invalid_requests_are_refused(local: Operator, asked: dict[str, Any], why: str) -> None:
    answer = await local("POST", "/talk", asked)
    assert 400 <= answer.status < 500 and why in answer.json["error"]["message"]


async def test_without_a_session_nobody_talks(local: Operator) -> None:
    local.token = ""
    for path in ("/talk", "/talk/cancel", "/inspect", "/inspect/resume", "/login"):
        assert (await local("POST", path, {})).status == 401


# -- agents elsewhere ----------------------------------------------------------------------------------------------


@pytest.fixture
async def elsewhere() -> AsyncIterator[str]:
    async with running(application(helper(), store="memory:", grpc_port=free_port())) as url:
        yield url


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_an_agent_elsewhere_is_called_over_any_binding(elsewhere: str, binding: str) -> None:
    async with inspector() as operator:
        answer = await talk(operator, url=elsewhere, message=text("there"), binding=binding)
    assert reply(answer) == "hi there from nobody"
    assert named(answer, "chosen")[0]["binding"] == binding
    kind = "message" if binding == "GRPC" else "frame"
    assert any(
        wire["kind"] == kind and "TASK_STATE_COMPLETED" in wire["text"] for wire in named(answer, "wire")
    )


async def test_a_private_address_is_refused_unless_it_is_allowed(elsewhere: str) -> None:
    async with inspector(allow_private=False) as operator:
        answer = await talk(operator, url=elsewhere, message=text("there"))
    ((_, error),) = events(answer)[-1:]
    assert "not on the internet" in error["message"]


async def test_an_agent_that_is_not_there_is_an_error(elsewhere: str) -> None:
    async with inspector() as operator:
        answer = await talk(operator, url=f"http://127.0.0.1:{free_port()}", message=text("there"))
    assert named(answer, "error")[0]["code"] == "UNREACHABLE"


async def test_an_answer_of_ten_megabytes_is_whole_in_the_event_and_cut_in_the_bytes(elsewhere: str) -> None:
    async with inspector() as operator:
        answer = await talk(operator, url=elsewhere, message=text("huge"))
    assert len(reply(answer)) == 10 << 20
    frames = [wire for wire in named(answer, "wire") if wire["kind"] == "frame"]
    assert max(len(wire["text"]) for wire in frames) <= 64 << 10
    assert any(wire["cut"] and wire["bytes"] > 10 << 20 for wire in frames)


async def test_a_page_that_does_not_read_holds_the_agent_back() -> None:
    queue = ByteQueue(100)
    await queue.put(b"x" * 60)
    late = asyncio.create_task(queue.put(b"y" * 60))
    await asyncio.sleep(0)
    assert not late.done()
    reading = queue.read()
    assert await anext(reading) == b"x" * 60
    await late
    queue.close()
    assert [part async for part in reading] == [b"y" * 60]


# -- agents of a hub -----------------------------------------------------------------------------------------------


async def test_a_tenant_talks_to_its_own_agents_as_itself_and_to_nobody_elsewhere() -> None:
    async with hub_app() as (hub, app, _):
        _, token = await hub.tenants.add("acme")
        other, _ = await hub.tenants.add("other")
        tenant = Operator(app, token)
        answer = await talk(tenant, agent="echo", message=text("hi"))
        assert reply(answer) == "hi"
        (row,) = (await tenant.get("/tasks"))["tasks"]
        assert row["key"] == named(answer, "end")[0]["key"]
        elsewhere = await tenant("POST", "/talk", {"url": "https://a.test", "message": text("hi")})
        assert elsewhere.status == 403
        stolen = await tenant("POST", "/talk", {"agent": "echo", "message": text("hi"), "tenant": other.name})
        assert stolen.status == 404
        assert "inspect" not in (await tenant.get("/me"))["features"]
        assert (await tenant("POST", "/inspect", {"url": "https://a.test"})).status == 403
        assert (
            await tenant("POST", "/login", {"url": "https://a.test", "kind": "bearer", "token": "x"})
        ).status == 403


async def test_an_operator_of_a_hub_talks_for_one_tenant_and_says_which_if_there_are_several() -> None:
    async with hub_app() as (hub, app, _):
        _, token = await hub.tenants.add("acme")
        operator, tenant = Operator(app, ADMIN), Operator(app, token)
        assert reply(await talk(operator, agent="echo", message=text("hi"))) == "hi"
        assert len((await tenant.get("/tasks"))["tasks"]) == 1, "it is the tenant's task"
        await hub.tenants.add("other")
        unsaid = await operator("POST", "/talk", {"agent": "echo", "message": text("hi")})
        assert unsaid.status == 400 and "name the tenant" in unsaid.json["error"]["message"]
        assert reply(await talk(operator, agent="echo", message=text("again"), tenant="acme")) == "again"


# -- agents that mean harm -----------------------------------------------------------------------------------------


class Endless:
    """An agent whose answer never ends: comments, or one frame without an end. `sent` counts its bytes."""

    def __init__(self, piece: bytes) -> None:
        self.piece, self.sent, self.gone = piece, 0, asyncio.Event()
        self.base = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            interface = {"url": f"{self.base}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            status, headers, body = page(
                card(supportedInterfaces=[interface], capabilities={"streaming": True})
            )
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": raw})
            await send({"type": "http.response.body", "body": body})
            return
        kind = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        watching = asyncio.create_task(self._watch(receive))
        while not self.gone.is_set():
            await send({"type": "http.response.body", "body": self.piece, "more_body": True})
            self.sent += len(self.piece)
            await asyncio.sleep(0)
        await watching

    async def _watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone.set()


async def test_an_answer_without_end_waits_for_a_page_that_does_not_read_and_ends_when_it_leaves() -> None:
    site = Endless(b": keep\n\n" * 1000)
    server, site.base = await serve(site)
    try:
        async with inspector() as operator:
            answer = operator.open("POST", "/talk", {"url": site.base, "message": text("go")})
            await answer.until(lambda: b"event: chosen" in answer.body)
            answer.blocked = asyncio.Event()  # the page does not read any more
            stalled = 0
            while stalled < 20 and site.sent < 64 << 20:
                before = site.sent
                await elapse(0.02)
                stalled = stalled + 1 if site.sent == before else 0
            assert site.sent < 64 << 20, "the agent waits, too"
            answer.blocked.set()
            answer.gone.set()
            await answer.task
            async with asyncio.timeout(20):
                await site.gone.wait()
    finally:
        await server.stop()


async def test_a_frame_without_end_is_an_error() -> None:
    site = Endless(b"data: " + b"x" * (1 << 20))
    server, site.base = await serve(site)
    try:
        async with inspector() as operator:
            answer = operator.open("POST", "/talk", {"url": site.base, "message": text("go")})
            answer.patience = 60.0
            await answer.end()
    finally:
        await server.stop()
    assert "larger than" in named(answer, "error")[0]["message"]
    assert len(answer.body) < 1 << 20
