"""A bridge between bindings, with webhooks, and with several workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.client import connect
from dragoman.model.task import TaskState
from dragoman.push.options import PushOptions
from dragoman.server.runtime import running
from tests.bridge.bridging import Crew, bridged, crew_app, shape
from tests.push.webhook import Receiver
from tests.serving import Server

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")


@pytest.mark.parametrize("mode", ["durable", "pass"])
@pytest.mark.parametrize("upstream", BINDINGS)
async def test_a_caller_over_any_binding_reaches_an_agent_over_any_other(upstream: str, mode: str) -> None:
    crew = Crew(versions=("1.0",))
    async with running(crew_app(crew, grpc_port=0)) as direct:
        async with connect(direct) as there:
            expected = [shape(piece.event) async for piece in there.stream("go", skill="stream")]
        server = {"grpc_port": 0}
        settings: dict[str, Any] = {
            "mode": mode,
            "binding": upstream,
            "allow_private": True,
        }  # gRPC is at another port
        async with bridged(direct, server=server, **settings) as (url, _):
            for binding in BINDINGS:
                async with connect(url, binding=binding) as client:
                    assert [shape(p.event) async for p in client.stream("go", skill="stream")] == expected
                    assert (await client("hi", skill="greet")).text.startswith("hello from")


async def test_webhooks_are_told_of_tasks_of_an_agent_that_has_none() -> None:
    crew = Crew(versions=("0.3",), push=False)
    push = {"push": PushOptions(allow_private=True)}
    async with Receiver() as webhook, bridged(crew_app(crew), server=push) as (url, _):
        async with connect(url) as client:
            assert client.card.capabilities.push_notifications
            reply = await client.send("go", skill="slow", wait=False)
            await crew.begun.wait()
            await client.create_push(reply.id, webhook.url)
            crew.gate.set()
            await webhook.until(
                lambda: any("COMPLETED" in str(each.document) for each in webhook.notifications)
            )


async def test_a_question_that_nobody_answers_can_be_canceled_and_so_is_the_agents_task() -> None:
    crew = Crew()
    async with running(crew_app(crew)) as direct, bridged(direct) as (url, _):
        async with connect(url) as client, connect(direct) as there:
            asked = await client("go", skill="ask")
            assert (await client.cancel(asked.id)).state is TaskState.CANCELED
            (task,) = [each async for each in there.list()]
            assert task.state is TaskState.CANCELED


async def test_several_workers_of_a_bridge_share_its_tasks(tmp_path: Path) -> None:
    crew = Crew()
    async with running(crew_app(crew)) as direct:
        bridge = Server(store=tmp_path / "bridge.db", options=("--workers", "2"))
        place = bridge.command.index("serve")
        bridge.command[place : place + 1] = ["bridge", direct]
        async with bridge:
            for n in range(6):
                async with connect(bridge.url) as client:
                    assert (await client(f"hi {n}")).text == f"HI {n}"
            async with connect(bridge.url) as client:
                assert len([task async for task in client.list()]) == 6
    assert len(crew.seen) == 6
