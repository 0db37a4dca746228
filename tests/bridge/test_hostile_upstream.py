"""An agent that lies harms neither the bridge nor other routes, and its callers get a clear error.

In every test a well-behaved agent behind another route of the same bridge answers while the attack goes on.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from dragoman import connect
from dragoman.bridge import upstream as upstream_module
from dragoman.bridge.application import make_bridge
from dragoman.bridge.settings import BridgeSettings, RouteSettings
from dragoman.bridge.upstream import MAX_MESSAGE_CHARS
from dragoman.client import Client, connection
from dragoman.client.retry import Policy
from dragoman.dialects.sse import MAX_EVENT_BYTES
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    InvalidParams,
    TaskNotFound,
    Unavailable,
    Unreachable,
)
from dragoman.model.content import Message
from dragoman.model.ops import Call, CancelTask, GetTask, SendMessage, SubscribeToTask
from dragoman.model.task import TaskState
from dragoman.push import guard as guard_module
from dragoman.server.runtime import running
from tests.bridge.bridging import Crew, crew_app
from tests.bridge.liar import STREAM_HEAD, Liar, chunk, frame, http, result, status, stream, task
from tests.raw import V1, post, read, rpc
from tests.waiting import elapse, forever, until

ONCE = Policy(attempts=1, patience=0.1)
"""A caller that does not try again."""
SECRET = "the-secret-of-the-route"


@asynccontextmanager
async def behind_a_bridge(**settings: Any) -> AsyncIterator[tuple[Liar, str]]:
    """A liar at /durable and at /pass, and a good agent at /good. The good one answers before and after."""
    settings = {"wait": 0.2, "retries": 0, "breaker": 0, "credentials": SECRET, **settings}
    async with Liar() as liar, running(crew_app(Crew())) as good:
        routes = {
            "durable": RouteSettings(url=liar.url, path="/durable", **settings),
            "pass": RouteSettings(url=liar.url, path="/pass", mode="pass", **settings),
            "good": RouteSettings(url=good, path="/good"),
        }
        async with running(make_bridge(BridgeSettings(routes=routes)).app(store="memory:")) as url:
            await check_good(url)
            yield liar, url
            await check_good(url)


async def check_good(url: str) -> None:
    """The other route answers."""
    async with connect(f"{url}/good") as good:
        assert (await good("hi")).text == "HI"


@asynccontextmanager
async def calling(url: str, **options: Any) -> AsyncIterator[Client]:
    async with connect(url, policy=ONCE, **options) as client:
        yield client


async def check_fails_clearly(url: str, liar: Liar) -> None:
    """In both modes and in two versions: an error that names neither the address of the agent nor its secret."""
    for version in ("1.0", "0.3"):
        async with calling(f"{url}/pass", version=version) as caller:
            with pytest.raises(A2AError) as caught:
                await caller.send("hi")
            assert isinstance(caught.value, InvalidAgentResponse | Unreachable | Unavailable), caught.value
            assert liar.url[7:] not in caught.value.message and SECRET not in caught.value.message
        async with calling(f"{url}/durable", version=version) as caller:
            reply = await caller.send("hi")
            assert reply.state is TaskState.FAILED, reply.state
            assert reply.text and liar.url[7:] not in reply.text and SECRET not in reply.text


NOT_JSON = b'{"jsonrpc": "2.0", "id": "1", "result": {"task"'
BAD_ANSWERS = {
    "a web page": http(b"<html>hello</html>", kind="text/html"),
    "half of a document": http(NOT_JSON),
    "nothing": http(b""),
    "not Unicode": http(b'{"jsonrpc": "2.0", "id": "1", "result": {"task": {"id": "\xff\xfe"}}}'),
    "a list": http(b"[1, 2]"),
    "null": http(b"null"),
    "neither result nor error": http(b'{"jsonrpc": "2.0", "id": "1"}'),
    "nested without end": http(b"[" * 100_000),
    "an empty result": result({}),
    "a task without an id": result(task("")),
    "a task without a status": result({"task": {"id": "t1", "contextId": "c1"}}),
    "a state that does not exist": result(task(state="ENLIGHTENED")),
    "a number for an id": result({"task": {"id": {"a": 1}, "status": {"state": "TASK_STATE_COMPLETED"}}}),
    "a body that is shorter than it says": http(b'{"jsonrpc"', "Content-Length: 5000"),
    "chunks that are none": http(b"zzz\r\nno\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
    "two lengths": http(b"{}", "Content-Length: 2", "Content-Length: 40"),
    "a status that is none": b"HTTP/1.1 999999 What\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.0\r\n",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 20_000,
    "no answer": b"",
    "gzip that is none": http(b"not gzip at all", "Content-Encoding: gzip"),
    "an encoding that does not exist": http(b"{}", "Content-Encoding: rot13"),
    "a stream without events": STREAM_HEAD,
    "a stream of garbage": STREAM_HEAD + b"data: {not json}\n\n",
    "a stream that is not Unicode": STREAM_HEAD + b"data: \xff\xfe\xfd\n\n",
    "an event without a task": stream([status("COMPLETED", id="")]),
    "an event of no kind": stream([{"surprise": {}}]),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
async def test_an_answer_that_makes_no_sense_is_a_clear_error(answer: bytes) -> None:
    async with behind_a_bridge() as (liar, url):
        liar.says(answer)
        await check_fails_clearly(url, liar)


# --- size and time


def bomb(megabytes: int) -> bytes:
    """Gzip that is a thousand times larger when it is unpacked."""
    return gzip.compress(b" " * (megabytes << 20), 1)


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_small_body_that_unpacks_to_a_huge_one_is_not_unpacked_whole(kind: str) -> None:
    packed = bomb(300)
    assert len(packed) < 4 << 20
    async with behind_a_bridge() as (liar, url):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        liar.says(http(packed, "Content-Encoding: gzip", kind=kind))
        async with calling(f"{url}/pass") as caller:
            with pytest.raises((Unreachable, InvalidAgentResponse, Unavailable)):
                await caller.send("hi")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 200 << 10, f"{grown >> 10} MB"  # the unit of ru_maxrss is a kilobyte


async def test_an_event_without_an_end_is_cut_off() -> None:
    piece = b"x" * (1 << 20)
    async with behind_a_bridge() as (liar, url):
        liar.says(STREAM_HEAD, b"data: ", *[piece] * ((MAX_EVENT_BYTES >> 20) + 4))
        async with calling(f"{url}/pass") as caller:
            with pytest.raises((Unreachable, InvalidAgentResponse)):
                async for _ in caller.stream("hi"):
                    pass


@pytest.mark.parametrize("where", ["head", "body", "event"])
async def test_an_agent_that_sends_a_byte_at_a_time_runs_into_the_timeout(where: str) -> None:
    whole = {
        "head": b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 1000,
        "body": http(b" " * 1000, "Content-Length: 100000"),
        "event": STREAM_HEAD + b"data: " + b" " * 1000,
    }[where]

    async def drip(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        for n in range(len(whole)):
            writer.write(whole[n : n + 1])
            await writer.drain()
            await elapse(0.02)

    async with behind_a_bridge(timeout=0.3) as (liar, url):
        liar.answer = drip
        async with calling(f"{url}/pass") as caller:
            sent = asyncio.ensure_future(caller.send("hi"))
            await until(lambda: liar.calls)
            await check_good(url)
            with pytest.raises(Unreachable):
                await sent


async def test_an_endless_stream_ends_when_its_caller_leaves() -> None:
    async with behind_a_bridge() as (liar, url):
        liar.answer = endless
        async with calling(f"{url}/pass") as caller:
            async with caller.stream("hi") as pieces:
                for _ in range(50):
                    await anext(pieces)
                await check_good(url)
        await liar.left.wait()


async def endless(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
    if request["method"] == "CancelTask":
        await forever()
    writer.write(STREAM_HEAD + frame(task()))
    while True:
        writer.write(frame(chunk("more ")))
        await writer.drain()


async def test_an_endless_stream_of_a_durable_task_ends_with_a_cancel_also_if_the_agent_ignores_it() -> None:
    async with behind_a_bridge() as (liar, url):
        liar.answer = endless
        async with calling(f"{url}/durable") as caller:
            running_task = await caller.send("hi", wait=False)
            await until(lambda: liar.calls)
            await check_good(url)
            canceled = await caller.cancel(running_task.id)
            assert canceled.state is TaskState.CANCELED
        await liar.left.wait()


async def test_an_endless_stream_of_a_durable_task_does_not_fill_the_store() -> None:
    async def answer(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        if request["method"] == "CancelTask":
            writer.write(result(task(state="CANCELED")["task"]))
        else:
            await endless(writer, request)

    async with behind_a_bridge(max_task_mb=1) as (liar, url):
        liar.answer = answer
        async with calling(f"{url}/durable") as caller:
            begun = await caller.send("hi", wait=False)
            reply = await caller.wait(begun.id)
            assert reply.state is TaskState.FAILED
        await liar.left.wait()
        await until(lambda: "CancelTask" in [call["method"] for call in liar.calls])


# --- tasks of others, and events after the end


async def test_a_task_that_was_not_asked_for_is_not_passed_on() -> None:
    async with behind_a_bridge() as (liar, url):
        private = [{"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "private"}]}]
        liar.says(result(task("t2", "COMPLETED", history=private)["task"]))
        async with calling(f"{url}/pass") as caller:
            for request in (GetTask(id="t1"), CancelTask(id="t1")):
                with pytest.raises(InvalidAgentResponse) as caught:
                    await caller.service.call(Call(), request)
                assert "private" not in str(caught.value)
            assert (await caller.get("t2")).id == "t2"


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_card_that_comes_a_byte_at_a_time_is_given_up_once_for_all_who_wait(
    binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_CARD_SECONDS", 0.5)
    async with Liar() as liar:
        liar.card_seconds = 0.02
        settings: dict[str, Any] = {
            "url": liar.url,
            "binding": binding,
            "mode": "pass",
            "retries": 9,
            "breaker": 0,
        }
        bridge = make_bridge(BridgeSettings(routes={"slow": RouteSettings(path="/slow", **settings)}))
        async with running(bridge.app(store="memory:")):
            upstream = bridge.routes[0].upstream
            await until(lambda: upstream.health().servers[0].failures)
            asked = len(liar.requests)
            calls = [upstream.call(Call(), GetTask(id="t1")) for _ in range(5)]
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert (
                    isinstance(error, Unreachable) and "did not show its card within 0.5 s" in error.message
                )
            assert len(liar.requests) <= asked + 2, "all of them wait for the same card"


@pytest.mark.parametrize("mode", ["durable", "pass"])
async def test_events_of_another_task_are_not_passed_on(mode: str) -> None:
    async with behind_a_bridge() as (liar, url):
        liar.says(stream([task("t1"), chunk("mine", "t1"), chunk("stolen", "t2"), status("COMPLETED", "t2")]))
        async with calling(f"{url}/{mode}") as caller:
            pieces = caller.stream("hi")
            text = ""
            with suppress(InvalidAgentResponse, Unreachable):
                async for piece in pieces:
                    text += piece.text
            assert text.startswith("mine") and "stolen" not in text
            if mode == "durable":
                assert pieces.reply.state is TaskState.FAILED


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_a_message_for_one_task_is_not_answered_with_another(method: str) -> None:
    async with behind_a_bridge() as (liar, url):
        stolen = task("t2", "COMPLETED", artifacts=[{"artifactId": "a", "parts": [{"text": "stolen"}]}])
        liar.says(result(stolen) if method == "SendMessage" else stream([stolen]))
        message = {"messageId": "m1", "role": "ROLE_USER", "taskId": "t1", "parts": [{"text": "hi"}]}
        async with post(f"{url}/pass", rpc(method, {"message": message}), V1) as response:
            body = (await read(response)).decode()
        assert "stolen" not in body and "INVALID_AGENT_RESPONSE" in body


async def test_a_durable_task_does_not_go_on_with_another_task_of_the_agent() -> None:
    async with behind_a_bridge() as (liar, url), calling(f"{url}/durable") as caller:
        liar.says(stream([task("t1"), status("INPUT_REQUIRED")]))
        asked = await caller.send("hi")
        assert asked.state is TaskState.INPUT_REQUIRED
        stolen = {"artifactId": "a", "parts": [{"text": "stolen"}]}
        liar.says(stream([task("t2", "COMPLETED", artifacts=[stolen])]))
        answered = await caller.send("the red one", task=asked.id)
        assert answered.state is TaskState.FAILED and "stolen" not in str(answered.task)


async def test_a_subscription_to_one_task_shows_no_other() -> None:
    async with behind_a_bridge() as (liar, url):
        liar.says(stream([task("t2"), chunk("stolen", "t2"), status("COMPLETED", "t2")]))
        async with post(f"{url}/pass", rpc("SubscribeToTask", {"id": "t1"}), V1) as response:
            body = (await read(response)).decode()
        assert "stolen" not in body and "INVALID_AGENT_RESPONSE" in body


@pytest.mark.parametrize("mode", ["durable", "pass"])
@pytest.mark.parametrize("after", [[chunk("late")], [status("WORKING"), chunk("late")], [task("t2")]])
async def test_what_comes_after_the_end_of_a_task_is_not_passed_on(
    mode: str, after: list[dict[str, Any]]
) -> None:
    async with behind_a_bridge() as (liar, url):
        liar.says(stream([task(), chunk("all"), status("COMPLETED"), *after]))
        async with calling(f"{url}/{mode}") as caller:
            pieces = caller.stream("hi")
            text = "".join([piece.text async for piece in pieces])
            assert text == "all" and pieces.reply.state is TaskState.COMPLETED


async def test_a_stream_left_open_after_a_cancel_ends_also_if_the_card_was_read_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a2a-sdk 0.2 and 0.3. The cancel goes over another connection than the stream."""

    async def answer(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        if request["method"] == "SendStreamingMessage":
            writer.write(STREAM_HEAD + frame(task()))
            await forever()
        writer.write(result(task(state="CANCELED")["task"]))

    async with Liar() as liar:
        liar.answer = answer
        route = upstream_module.Upstream(RouteSettings(url=liar.url, mode="pass"), name="liar")
        await route.open()
        batches = aiter(route.stream(Call(), SendMessage(message=Message("hi"))))
        await anext(batches)
        (server,) = route._servers
        before = server._connection
        monkeypatch.setattr(upstream_module, "_CARD_SECONDS", 0.0)
        await route.call(Call(), GetTask(id="t1"))
        await until(lambda: server._connection is not before)
        await route.call(Call(), CancelTask(id="t1"))
        async with asyncio.timeout(20):
            (last, *_) = await anext(batches)
            assert last.event.status.state is TaskState.CANCELED  # type: ignore[union-attr]
            assert await anext(batches, None) is None
        await route.close()


async def test_a_stream_that_never_stops_after_the_end_is_closed() -> None:
    async def chatter(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        writer.write(STREAM_HEAD + frame(task()) + frame(status("COMPLETED")))
        while True:
            writer.write(frame(chunk("late")))
            await writer.drain()

    async with behind_a_bridge() as (liar, url):
        liar.answer = chatter
        for mode in ("pass", "durable"):
            liar.left.clear()
            async with calling(f"{url}/{mode}") as caller:
                pieces = caller.stream("hi")
                assert "".join([piece.text async for piece in pieces]) == ""
                assert pieces.reply.state is TaskState.COMPLETED
            await liar.left.wait()


@pytest.mark.parametrize("ids", [["5", "3", "1"], ["9" * 18] * 3, ["-1", "x", "9" * 400]])
async def test_numbers_of_events_that_lie_do_not_lose_or_repeat_what_was_said(ids: list[str]) -> None:
    async with behind_a_bridge() as (liar, url):
        events = [task(), chunk("one "), chunk("two "), status("COMPLETED")]
        head = STREAM_HEAD.replace(b"Connection", b"Dragoman: 1\r\nConnection")
        liar.says(head + b"".join(map(frame, events, [*ids, ids[-1]])))
        for mode in ("pass", "durable"):
            async with calling(f"{url}/{mode}") as caller:
                pieces = caller.stream("hi")
                assert "".join([piece.text async for piece in pieces]) == "one two "


async def test_a_huge_id_of_a_task_is_no_more_than_a_huge_id() -> None:
    huge = "t" * 300_000
    async with behind_a_bridge() as (liar, url):
        liar.says(stream([task(huge), chunk("x", huge), status("COMPLETED", huge)]))
        async with calling(f"{url}/durable") as caller:
            reply = await caller.send("hi")
            assert reply.state in (TaskState.COMPLETED, TaskState.FAILED) and len(reply.id) < 100
            assert [each.id async for each in caller.list()] == [reply.id]


@pytest.mark.parametrize("text", ["x" * 5_000_000, "a\x1b[31m\r\nSet-Cookie: a=b"])
async def test_the_text_of_an_error_is_cut_and_harmless(text: str) -> None:
    async with behind_a_bridge() as (liar, url):
        error = {"code": -32602, "message": text}
        liar.says(http(json.dumps({"jsonrpc": "2.0", "id": "1", "error": error}).encode()))
        async with calling(f"{url}/pass") as caller:
            with pytest.raises(InvalidParams) as caught:
                await caller.send("hi")
            assert len(caught.value.message) <= MAX_MESSAGE_CHARS
        async with calling(f"{url}/durable") as caller:
            reply = await caller.send("hi")
            assert reply.state is TaskState.REJECTED and len(reply.text) <= MAX_MESSAGE_CHARS
        params = {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
        async with post(f"{url}/pass", rpc("SendMessage", params), V1) as response:
            assert "set-cookie" not in response.headers


async def test_an_error_that_says_another_caller_is_not_found_is_only_that() -> None:
    async with behind_a_bridge() as (liar, url):
        error = {"code": -32001, "message": "no such task"}
        liar.says(http(json.dumps({"jsonrpc": "2.0", "id": "1", "error": error}).encode()))
        async with calling(f"{url}/pass") as caller:
            with pytest.raises(TaskNotFound):
                await caller.get("t1")


# --- where the card leads


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """What names resolve to, one answer after the other. Nothing but loopback is dialled; what would be is noted."""
    names: dict[str, list[list[str]]] = {}
    original = guard_module._connect

    async def resolve(host: str, port: int) -> list[str]:
        if host == "127.0.0.1":
            return [host]
        answers = names[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def dial(address: str, port: int) -> Any:
        if address != "127.0.0.1":
            names.setdefault("dialled", []).append([address])
            raise OSError("no packet leaves this test")
        return await original(address, port)

    monkeypatch.setattr(guard_module._Resolver, "resolve", staticmethod(resolve))
    monkeypatch.setattr(guard_module, "_connect", dial)
    return names


PRIVATE = ["10.0.0.5", "169.254.169.254", "::1", "127.0.0.2", "0.0.0.0", "::ffff:127.0.0.1", "fd00::1"]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
@pytest.mark.parametrize("address", PRIVATE)
async def test_a_card_that_leads_to_a_private_address_is_not_followed(
    address: str, binding: str, resolver: dict[str, list[list[str]]]
) -> None:
    resolver["inside.example"] = [[address]]
    async with behind_a_bridge() as (liar, _):
        where = "inside.example:50051" if binding == "GRPC" else "http://inside.example:8080/rpc"
        interface = {"url": where, "protocolBinding": binding, "protocolVersion": "1.0"}
        liar.card = liar.make_card("", supportedInterfaces=[interface])
        async with behind_a_second_bridge(liar) as again:
            async with calling(again) as caller:
                with pytest.raises(Unavailable):
                    await caller.send("hi")
        assert "dialled" not in resolver and liar.calls == []


@asynccontextmanager
async def behind_a_second_bridge(liar: Liar) -> AsyncIterator[str]:
    """A bridge that reads the card of the liar only now."""
    route = RouteSettings(url=liar.url, path="/", mode="pass", retries=0, breaker=0, credentials=SECRET)
    async with running(make_bridge(BridgeSettings(routes={"liar": route})).app(store="memory:")) as url:
        yield url


async def test_a_name_that_resolves_to_another_address_the_second_time_is_checked_each_time(
    resolver: dict[str, list[list[str]]],
) -> None:
    resolver["moving.example"] = [["93.184.216.34"], ["10.0.0.5"]]
    async with behind_a_bridge() as (liar, _):
        liar.card = liar.make_card("http://moving.example:8080/rpc")
        async with behind_a_second_bridge(liar) as again, calling(again) as caller:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await caller.send("hi")
    assert resolver["dialled"] == [["93.184.216.34"]]


async def test_a_name_with_one_public_and_one_private_address_is_refused(
    resolver: dict[str, list[list[str]]],
) -> None:
    resolver["both.example"] = [["93.184.216.34", "10.0.0.5"]]
    async with behind_a_bridge() as (liar, _):
        liar.card = liar.make_card("http://both.example:8080/rpc")
        async with behind_a_second_bridge(liar) as again, calling(again) as caller:
            with pytest.raises(Unavailable):
                await caller.send("hi")
    assert "dialled" not in resolver


async def test_a_card_that_changes_under_way_does_not_take_the_secret_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new card names another server of this machine, which the operator allows: it is called, without the secret."""
    async with Liar() as other, behind_a_bridge(allow_private=True) as (liar, url):
        answer = result(task(state="COMPLETED"))
        liar.says(answer)
        other.says(answer)
        async with calling(f"{url}/pass") as caller:
            await caller.send("hi")
            assert [headers.get("authorization") for _, headers, body in liar.requests if body] != []
            liar.card = liar.make_card(f"{other.url}/rpc", name="Somebody else")
            monkeypatch.setattr(upstream_module, "_CARD_SECONDS", 0.0)
            for _ in range(20):
                await caller.send("hi")
                if other.calls:
                    break
            assert other.calls, "the new card was not used"
        assert SECRET not in str(other.requests)


async def test_a_card_that_becomes_nonsense_does_not_replace_the_good_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with behind_a_bridge() as (liar, url):
        liar.says(result(task(state="COMPLETED")))
        monkeypatch.setattr(upstream_module, "_CARD_SECONDS", 0.0)
        async with calling(f"{url}/pass") as caller:

            async def reads_card_again() -> bool:
                liar.requests.clear()
                assert (await caller.send("hi")).state is TaskState.COMPLETED
                return any("agent-card.json" in path for path, *_ in liar.requests)

            cards: list[Any] = ["no", [], {"name": 1}, {"name": "x", "supportedInterfaces": [{"url": 5}]}]
            for nonsense in cards:
                liar.card = nonsense
                await until(reads_card_again)
            assert (await caller.send("hi")).state is TaskState.COMPLETED
        async with connect(f"{url}/pass") as fresh:
            assert fresh.card.name == "Liar"


async def test_a_huge_card_is_not_read() -> None:
    async with behind_a_bridge() as (liar, _):
        liar.card = liar.make_card(f"{liar.url}/rpc", description="x" * (8 << 20))
        async with behind_a_second_bridge(liar) as again:
            with pytest.raises((Unavailable, Unreachable)):
                async with calling(again) as caller:
                    await caller.send("hi")
    assert liar.calls == []


async def test_many_callers_of_a_liar_that_hangs_do_not_stop_the_good_route() -> None:
    async def hang(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        await forever()

    async with behind_a_bridge() as (liar, url):
        liar.answer = hang
        async with calling(f"{url}/pass") as caller:
            stuck = [asyncio.ensure_future(caller.send("hi")) for _ in range(50)]
            await until(lambda: len(liar.calls) >= 50)
            for _ in range(5):
                await check_good(url)
            for each in stuck:
                each.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)


async def test_a_subscription_of_a_lying_agent_that_sends_no_task_is_an_error() -> None:
    async with behind_a_bridge(timeout=0.3) as (liar, url):
        liar.says(stream([]))
        async with calling(f"{url}/pass") as caller:
            with pytest.raises(A2AError):
                await anext(caller.service.stream(Call(), SubscribeToTask(id="t1")))
