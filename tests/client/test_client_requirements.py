"""Requirements of A2A 1.0 for clients: what ours sends to a server, and what it never sends."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import grpc
import pytest

from dragoman import connect
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import A2AError
from dragoman.model.card import AgentCard, Interface
from dragoman.model.content import Message, Part, Role
from tests.client.fakes import Site, page
from tests.requirements import requirement

BASE = "http://agent.test"
TASK = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}
EXTENSIONS = ("https://e.example/1", "https://e.example/2")


def site_of(binding: str, *, streaming: bool = True, **interface: Any) -> Site:
    entry = {"url": f"{BASE}/rpc", "protocolBinding": binding, "protocolVersion": "1.0", **interface}
    card = {
        "name": "X",
        "capabilities": {"streaming": streaming},
        "supportedInterfaces": [entry],
        "skills": [],
    }
    answer = {"jsonrpc": "2.0", "id": 1, "result": {"task": TASK}} if binding == "JSONRPC" else {"task": TASK}
    return Site(
        {
            "/.well-known/agent-card.json": page(card),
            "/rpc": page(answer),
            "/rpc/message:send": page(answer),
            "/rpc/acme/message:send": page(answer),
        }
    )


async def sent(site: Site, *args: Any, **options: Any) -> Any:
    """The request that a message makes."""
    async with connect(BASE, transport=AsgiTransport(site)) as client:
        await client.send(*args, **options)
    return site.asked[-1]


@requirement(63, 64, 76, 98, 99)
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_service_parameters_are_headers_and_several_values_share_one(binding: str) -> None:
    asked = await sent(site_of(binding), "hello", extensions=EXTENSIONS)
    assert asked.headers["a2a-version"] == "1.0"
    assert [value.strip() for value in asked.headers["a2a-extensions"].split(",")] == list(EXTENSIONS)


class Metadata(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server of no method. It keeps the metadata of the last call."""

    def __init__(self) -> None:
        self.last: list[tuple[str, Any]] = []

    def service(self, handler_call_details: Any) -> None:
        self.last = list(handler_call_details.invocation_metadata)


@requirement(70, 71, 98, 99)
async def test_service_parameters_are_metadata_over_grpc_and_several_values_share_one() -> None:
    server, metadata = grpc.aio.server(), Metadata()
    server.add_generic_rpc_handlers((metadata,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    url = f"grpc://127.0.0.1:{port}"
    interface = Interface(url=url, protocol_binding="GRPC", protocol_version="1.0")
    try:
        async with connect(AgentCard(name="X", supported_interfaces=(interface,)), version="1.0") as client:
            with suppress(A2AError):
                await client.send("hello", extensions=EXTENSIONS)
    finally:
        await server.stop(None)
    assert [value for name, value in metadata.last if name == "a2a-version"] == ["1.0"]
    (extensions,) = [value for name, value in metadata.last if name == "a2a-extensions"]
    assert [value.strip() for value in extensions.split(",")] == list(EXTENSIONS)


@requirement(12, 238)
@pytest.mark.parametrize("tenant", ["acme", ""])
async def test_the_tenant_of_the_interface_is_in_every_request_and_is_left_out_where_there_is_none(
    tenant: str,
) -> None:
    interface: dict[str, Any] = {"tenant": tenant} if tenant else {}
    site = site_of("JSONRPC", **interface)
    async with connect(BASE, transport=AsgiTransport(site)) as client:
        await client.send("hello")
        with suppress(A2AError):
            await client.get("t1")
    assert len(site.asked) == 3
    for asked in site.asked[1:]:
        assert asked.json["params"].get("tenant") == (tenant or None)
        assert ("tenant" in asked.json["params"]) is bool(tenant)


@requirement(124, 125)
async def test_a_first_message_names_no_context_and_the_next_repeats_that_of_the_server() -> None:
    site = site_of("JSONRPC")
    async with connect(BASE, transport=AsgiTransport(site)) as client:
        reply = await client.send("hello")
        await client.send("more", context=reply)
    first, second = (asked.json["params"]["message"] for asked in site.asked[1:])
    assert "contextId" not in first and "taskId" not in first
    assert second["contextId"] == "c1" and "taskId" not in second


@requirement(14)
async def test_an_agent_that_does_not_stream_is_sent_a_message_and_not_asked_for_a_stream() -> None:
    site = site_of("JSONRPC", streaming=False)
    async with connect(BASE, transport=AsgiTransport(site)) as client:
        assert [piece.state async for piece in client.stream("hello")]
    assert [asked.json["method"] for asked in site.asked[1:]] == ["SendMessage"]


@requirement(132)
async def test_a_message_names_the_tasks_that_it_refers_to() -> None:
    message = Message(role=Role.USER, parts=(Part(text="compare"),), reference_task_ids=("t0", "t1"))
    asked = await sent(site_of("JSONRPC"), message)
    assert asked.json["params"]["message"]["referenceTaskIds"] == ["t0", "t1"]
