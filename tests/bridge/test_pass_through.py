"""Mode `pass`: versions and bindings are translated, and nothing is kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.auth import Bearer, hashed
from dragoman.bridge.application import make_bridge
from dragoman.bridge.pass_through import PassThroughService
from dragoman.bridge.settings import InvalidBridge, make_one_route
from dragoman.client import connect
from dragoman.errors import InvalidParams, RateLimited, TaskNotFound, Unavailable, UnsupportedOperation
from dragoman.model.content import Message
from dragoman.model.ops import (
    Batch,
    Call,
    Configuration,
    GetTask,
    SendMessage,
    StreamResponse,
    SubscribeToTask,
)
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus
from dragoman.push import PushOptions
from dragoman.server.runtime import running
from tests import postgres, raw
from tests.bridge.bridging import Crew, bridged, crew_app, shape

VERSIONS = ("1.0", "0.3", "0.2", "0.1")


@pytest.mark.parametrize("stranger", [False, True], ids=["dragoman", "stranger"])
@pytest.mark.parametrize("upstream", VERSIONS)
async def test_a_caller_of_any_version_reaches_an_agent_of_any_version(upstream: str, stranger: bool) -> None:
    crew = Crew(versions=(upstream,))
    async with bridged(crew_app(crew), mode="pass", stranger=stranger) as (url, _):
        for version in VERSIONS:
            async with connect(url, version=version) as client:
                assert (await client(f"hi {version}")).text == f"HI {version}"
    assert len(crew.seen) == len(VERSIONS)


async def test_tasks_ids_and_events_are_the_agents() -> None:
    async with running(crew_app(Crew())) as direct, bridged(direct, mode="pass") as (url, _):
        async with connect(direct) as there, connect(url) as here:
            expected = [shape(piece.event) async for piece in there.stream("go", skill="stream")]
            assert [shape(piece.event) async for piece in here.stream("go", skill="stream")] == expected
            reply = await here("go", skill="stream")
            assert await there.get(reply.id) == await here.get(reply.id)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("upstream", ["1.0", "0.3"])
async def test_a_push_config_is_found_without_its_id_by_callers_of_older_versions(
    upstream: str, binding: str
) -> None:
    push = PushOptions(allow_private=True)
    async with (
        running(crew_app(Crew(versions=(upstream,)), push=push)) as direct,
        bridged(direct, mode="pass", binding=binding) as (url, _),
    ):
        for version in ("0.3", "0.2", "0.1"):
            async with connect(url, version=version, binding="JSONRPC") as client:
                task = await client.send("wait", skill="slow", wait=False)
                with pytest.raises(TaskNotFound, match="has no push config"):
                    await client.get_push(task.id)
                await client.create_push(task.id, f"http://127.0.0.1/{version}")
                assert (await client.get_push(task.id)).url == f"http://127.0.0.1/{version}"
                await client.cancel(task.id)


async def test_an_event_is_not_held_back() -> None:
    crew = Crew()
    async with bridged(crew_app(crew), mode="pass") as (url, _), connect(url) as client:
        async with client.stream("go", skill="slow") as stream:
            async for piece in stream:
                if isinstance(piece.event, ArtifactUpdate):
                    break
            crew.gate.set()
            async for _ in stream:
                pass
        assert stream.reply.text == "before after"


async def test_what_the_agent_does_not_offer_is_refused() -> None:
    crew = Crew(versions=("0.3",), push=False)
    async with bridged(crew_app(crew), mode="pass") as (url, _), connect(url) as client:
        assert not client.card.capabilities.push_notifications
        reply = await client("hi")
        with pytest.raises(UnsupportedOperation):
            _ = [task async for task in client.list()]
        with pytest.raises(TaskNotFound):
            await client.get("no-such-task")
        assert (await client.get(reply.id)).id == reply.id


@pytest.mark.parametrize("stranger", [False, True], ids=["dragoman", "stranger"])
async def test_only_an_agent_that_recognises_repeated_messages_is_said_to(stranger: bool) -> None:
    async with bridged(crew_app(Crew()), mode="pass", stranger=stranger) as (url, _), connect(url) as client:
        await client("hi")
        assert client.link.peer.is_dragoman is not stranger


async def test_a_call_that_came_through_too_many_agents_is_refused() -> None:
    crew = Crew()
    async with bridged(crew_app(crew), mode="pass") as (url, _), connect(url) as client:
        with pytest.raises(InvalidParams, match="too many agents"):
            await client.service.call(Call(depth=8), GetTask(id="x"))
        await client("hi")
    assert crew.depths == [1]


async def test_an_agent_that_is_away_is_an_error_without_its_address() -> None:
    async with running(crew_app(Crew())) as direct:
        away = bridged(direct, mode="pass", retries=0)
        url, _ = await away.__aenter__()
        client = await connect(url).open()
        await client("hi")
    try:
        with pytest.raises(Unavailable) as refused:
            await client.service.peer.call(Call(), GetTask(id="x"))  # type: ignore[attr-defined]
        assert direct.rpartition(":")[2] not in refused.value.message
    finally:
        await client.close()
        await away.__aexit__(None, None, None)


def test_callers_that_the_agent_cannot_tell_apart_do_not_share_tasks_by_accident() -> None:
    auth = {"tokens": {"alice": "a-secret"}}
    with pytest.raises(InvalidBridge, match="shared_tasks"):
        make_bridge(make_one_route("http://127.0.0.1:1", mode="pass", auth=auth))
    make_bridge(make_one_route("http://127.0.0.1:1", mode="pass", auth=auth, shared_tasks=True))
    make_bridge(make_one_route("http://127.0.0.1:1", auth=auth))


async def test_a_key_of_one_caller_is_not_that_of_another() -> None:
    crew = Crew()
    auth = {"tokens": {"alice": "a-secret", "bob": "b-secret"}}
    async with bridged(crew_app(crew), mode="pass", auth=auth, shared_tasks=True) as (url, _):
        async with connect(url, credentials="a-secret") as alice, connect(url, credentials="b-secret") as bob:
            one = await alice.send("hi", skill="echo", key="1")
            assert (await alice.send("hi", skill="echo", key="1")).id == one.id
            assert (await bob.send("hi", skill="echo", key="1")).id != one.id


async def test_the_credentials_of_a_route_are_shown_to_the_agent_and_refusals_of_them_are_ours() -> None:
    crew = Crew(auth=Bearer({"bridge": hashed("right")}))
    async with running(crew_app(crew)) as direct:
        async with bridged(direct, mode="pass", credentials="right") as (url, _), connect(url) as client:
            assert (await client("hi")).text == "HI"
        async with bridged(direct, mode="pass", credentials="wrong") as (url, _), connect(url) as client:
            with pytest.raises(Unavailable, match="refuses this server"):
                await client.service.peer.call(Call(), GetTask(id="x"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["durable", "pass"])
async def test_limits_of_a_route_are_its_own(mode: str) -> None:
    limits = {"rate": 0.001, "burst": 3}
    async with bridged(crew_app(Crew()), mode=mode, limits=limits) as (url, _), connect(url) as client:
        service = client.service.peer  # type: ignore[attr-defined]
        with pytest.raises(RateLimited):
            for _ in range(4):
                with suppress(TaskNotFound):
                    await service.call(Call(), GetTask(id="x"))


@pytest.mark.skipif(not postgres.available(), reason="needs PostgreSQL")
@pytest.mark.parametrize("mode", ["durable", "pass"])
async def test_limits_of_a_route_count_over_all_nodes_of_a_store(mode: str, tmp_path: Path) -> None:
    store = postgres.server().fresh(tmp_path)
    limits = {"rate": 0.001, "burst": 6}
    async with running(crew_app(Crew())) as agent, AsyncExitStack() as stack:
        services = []
        for _ in range(2):
            url, _ = await stack.enter_async_context(bridged(agent, store=store, mode=mode, limits=limits))
            client = await stack.enter_async_context(connect(url, agents={}))
            services.append(client.service.peer)  # type: ignore[attr-defined]
        refused = 0
        for n in range(10):
            try:
                await services[n % 2].call(Call(), GetTask(id="x"))
            except TaskNotFound:
                pass
            except RateLimited:
                refused += 1
        assert refused == 4


@pytest.mark.parametrize("upstream", ["0.3", "0.1"])
async def test_streams_begin_with_the_task_also_if_those_of_the_agent_do_not(upstream: str) -> None:
    crew = Crew(versions=[upstream])
    async with bridged(crew_app(crew), mode="pass") as (url, _), connect(url, version="1.0") as caller:
        request = SendMessage(message=Message("hi", metadata={"skillId": "slow"}))
        stream = caller.service.stream(Call(), request)
        (first, *_) = await anext(stream)
        assert isinstance(first.event, Task) and first.event.id and first.event.context_id
        await crew.begun.wait()
        again = caller.service.stream(Call(), SubscribeToTask(id=first.event.id))
        (second, *_) = await anext(again)
        assert isinstance(second.event, Task)
        assert (second.event.id, second.event.text) == (first.event.id, "before ")
        crew.gate.set()
        rest = [response.event async for batch in again for response in batch]
        texts = [event.artifact.text for event in rest if isinstance(event, ArtifactUpdate)]
        assert "".join(texts) == "after" and rest[-1].status.state is TaskState.COMPLETED  # type: ignore[union-attr]
        async for _ in stream:
            pass


class Hasty:
    """An upstream that answers every send at once, and finishes the task when it is asked for again."""

    shows_task_first = shows_callers = True
    name = "hasty"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def call(self, call: Call, request: Any) -> Task:
        self.asked.append(request)
        done = isinstance(request, GetTask)
        state = TaskState.COMPLETED if done else TaskState.SUBMITTED
        return Task(id="t", context_id="c", status=TaskStatus(state=state))

    async def stream(self, call: Call, request: Any) -> AsyncIterator[Batch]:
        self.asked.append(request)
        done = StatusUpdate(task_id="t", context_id="c", status=TaskStatus(state=TaskState.COMPLETED))
        yield [StreamResponse(done)]


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_send_that_waits_is_answered_when_the_task_stops(at_once: bool) -> None:
    hasty: Any = Hasty()
    agent = make_bridge(make_one_route("http://agent.example", mode="pass")).routes[0].agent
    service = PassThroughService(agent, hasty)
    settings = Configuration(return_immediately=at_once, history_length=3)
    task = await service.call(Call(), SendMessage(message=Message("hi"), configuration=settings))
    assert task.state is (TaskState.SUBMITTED if at_once else TaskState.COMPLETED)
    if at_once:
        assert len(hasty.asked) == 1
    else:
        _, follow, read = hasty.asked
        assert isinstance(follow, SubscribeToTask) and read == GetTask(id="t", history_length=3)


async def test_a_subscription_to_a_finished_task_is_an_error_in_1_0_and_the_task_before() -> None:
    hasty: Any = Hasty()
    hasty.shows_task_first = False
    agent = make_bridge(make_one_route("http://agent.example", mode="pass")).routes[0].agent
    service = PassThroughService(agent, hasty)
    with pytest.raises(UnsupportedOperation, match="nothing more will come"):
        await anext(service.stream(Call(), SubscribeToTask(id="t")))
    older = service.stream(Call(reads_finished=True), SubscribeToTask(id="t"))
    ((response,),) = [batch async for batch in older]
    assert isinstance(response.event, Task)


@pytest.mark.parametrize("stranger", [False, True], ids=["dragoman", "stranger"])
@pytest.mark.parametrize("upstream", ["1.0", "0.3"])
async def test_a_caller_of_1_0_is_refused_a_subscription_to_a_finished_task_of_any_agent(
    upstream: str, stranger: bool
) -> None:
    async with bridged(crew_app(Crew(versions=(upstream,))), mode="pass", stranger=stranger) as (url, _):
        async with connect(url) as client:
            done = await client("hi")
        asked = raw.rpc("SubscribeToTask", {"id": done.id})
        async with raw.post(url, asked, {"A2A-Version": "1.0"}) as response:
            body = json.loads(await raw.read(response))
        assert body["error"]["code"] == -32004 and "nothing more will come" in body["error"]["message"]
        async with connect(url, version="0.3") as older:
            first, *_ = [piece async for piece in older.subscribe(done.id)]
            assert isinstance(first.event, Task) and first.text == "HI"
