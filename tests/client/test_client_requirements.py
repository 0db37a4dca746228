"""Requirements of A2A 1.0 for clients: what ours sends to a server, and what it never sends."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest

from dragoman import Agent, Client, PushOptions, Skill, Task, TaskState, Turn, connect
from dragoman.auth import Bearer
from dragoman.client import Policy
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import A2AError
from dragoman.model.card import AgentCard, Interface
from dragoman.model.content import Message, Part, Role
from dragoman.server.application import application
from tests.client.fakes import Answer, Asked, Site, error, old_card, page
from tests.dialects.test_errors import CODES
from tests.requirements import older, requirement

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


async def request_of(site: Site, *args: Any, **options: Any) -> Any:
    """The request that a message makes."""
    async with connect(BASE, transport=AsgiTransport(site)) as client:
        await client.send(*args, **options)
    return site.asked[-1]


@requirement(63, 64, 76, 98, 99)
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_service_parameters_are_headers_and_several_values_share_one(binding: str) -> None:
    asked = await request_of(site_of(binding), "hello", extensions=EXTENSIONS)
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
    asked = await request_of(site_of("JSONRPC"), message)
    assert asked.json["params"]["message"]["referenceTaskIds"] == ["t0", "t1"]


# --- the extended card


def member_agent() -> Agent:
    more = Skill(id="report", name="report", description="For members", tags=("members",))
    agent = Agent(
        "Members", auth=[Bearer({"ann": hashlib.sha256(b"s3cret").hexdigest()})], extended_card=[more]
    )

    @agent.skill
    async def hello(text: str) -> str:
        """Greets."""
        return "hello"

    return agent


@requirement(42)
@pytest.mark.parametrize("version", ["1.0", "0.3", "0.2"])
async def test_the_extended_card_replaces_the_card_of_the_client_until_it_is_closed(version: str) -> None:
    client = connect(member_agent().app(store="memory:"), credentials="s3cret", version=version)
    async with client:
        assert [skill.id for skill in client.card.skills] == ["hello"]
        extended = await client.extended_card()
        assert [skill.id for skill in extended.skills] == ["hello", "report"]
        assert client.card == extended
        assert await client("hi") == "hello"
        assert client.card == extended
    async with client:
        assert [skill.id for skill in client.card.skills] == ["hello"]


# --- older peers


@requirement(104)
async def test_a_client_writes_the_new_names_and_reads_objects_in_either_form() -> None:
    status = {"state": "TASK_STATE_CANCELLED"}
    legacy = {"task": {"kind": "task", "id": "t1", "context_id": "c1", "status": status}}
    site = site_of("JSONRPC")
    site.pages["/rpc"] = page({"jsonrpc": "2.0", "id": 1, "result": legacy})
    async with connect(BASE, transport=AsgiTransport(site)) as client:
        reply = await client.send("hello")
    assert (reply.id, reply.context_id, reply.state) == ("t1", "c1", TaskState.CANCELED)
    written = site.asked[-1].json["params"]["message"]
    assert {"messageId", "role", "parts"} <= set(written) and written["role"] == "ROLE_USER"
    assert "kind" not in written and not any("_" in name for name in written)


@requirement(104)
async def test_an_agent_of_an_older_version_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dragoman.client")
    site = Site({"/.well-known/agent-card.json": page(old_card(protocolVersion="0.3.0"))})
    result = {"kind": "task", "id": "t1", "contextId": "c1", "status": {"state": "completed"}}
    site.pages["/rpc"] = page({"jsonrpc": "2.0", "id": 1, "result": result})
    for _ in range(2):
        async with connect(BASE, transport=AsgiTransport(site)) as client:
            await client.send("hello")
    about = [record.getMessage() for record in caplog.records if "older version" in record.getMessage()]
    assert about == ["http://agent.test/rpc speaks A2A 0.3, an older version"]


@older("X31")
@pytest.mark.parametrize(
    ("code", "kind"), {codes["0.3"]: kind for kind, codes in reversed(CODES) if "0.3" in codes}.items()
)
async def test_a_client_raises_the_error_of_every_code_of_0_3(code: int, kind: type[A2AError]) -> None:
    site = Site({"/.well-known/agent-card.json": page(old_card(protocolVersion="0.3.0"))})
    site.pages["/rpc"] = lambda asked: error(asked, code, "a sentence")
    policy = Policy(attempts=1)
    async with connect(BASE, transport=AsgiTransport(site), version="0.3", policy=policy) as client:
        with pytest.raises(A2AError) as caught:
            await client.get("t1")
    assert issubclass(kind, type(caught.value)) and "a sentence" in str(caught.value)


@older("X31")
async def test_a_client_authenticates_as_a_card_of_0_3_asks() -> None:
    schemes = {"it": {"type": "http", "scheme": "bearer"}}
    document = old_card(protocolVersion="0.3.0", securitySchemes=schemes, security=[{"it": []}])
    result = {"kind": "task", "id": "t1", "contextId": "c1", "status": {"state": "completed"}}
    site = Site({"/.well-known/agent-card.json": page(document)})
    site.pages["/rpc"] = page({"jsonrpc": "2.0", "id": 1, "result": result})
    async with connect(BASE, transport=AsgiTransport(site), credentials="s3cret") as client:
        await client.send("hello")
    assert site.asked[-1].headers["authorization"] == "Bearer s3cret"


@older("X31")
@pytest.mark.parametrize(
    ("preferred", "paths"), [("JSONRPC", "/rpc"), ("HTTP+JSON", "/rpc/v1/message:send"), ("", "/rpc")]
)
async def test_a_client_uses_the_transport_that_a_card_of_0_3_prefers(preferred: str, paths: str) -> None:
    other = [{"url": f"{BASE}/rpc", "transport": name} for name in ("JSONRPC", "HTTP+JSON")]
    document = old_card(protocolVersion="0.3.0", additionalInterfaces=other)
    document |= {"preferredTransport": preferred} if preferred else {}
    result = {"kind": "task", "id": "t1", "contextId": "c1", "status": {"state": "completed"}}
    task = {"task": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}}
    site = Site({"/.well-known/agent-card.json": page(document), "/rpc/v1/message:send": page(task)})
    site.pages["/rpc"] = page({"jsonrpc": "2.0", "id": 1, "result": result})
    async with connect(BASE, transport=AsgiTransport(site)) as client:
        assert (await client.send("hello")).id == "t1"
    assert site.paths()[-1] == paths


# --- credentials


@requirement(211)
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_every_request_has_the_credentials(binding: str) -> None:
    site = site_of(binding)
    operations: list[Callable[[Client], Awaitable[Any]]] = [
        lambda it: it.send("hello"),
        lambda it: anext(aiter(it.stream("hello"))),
        lambda it: it.get("t1"),
        lambda it: anext(it.list()),
        lambda it: it.cancel("t1"),
        lambda it: anext(aiter(it.subscribe("t1"))),
        lambda it: it.create_push("t1", "https://hooks.example"),
        lambda it: it.get_push("t1", "p"),
        lambda it: it.list_push("t1"),
        lambda it: it.delete_push("t1", "p"),
        lambda it: it.extended_card(),
    ]
    options: dict[str, Any] = {"headers": {"x-key": "s3cret"}, "policy": Policy(attempts=1)}
    for operation in operations:
        async with connect(BASE, transport=AsgiTransport(site), **options) as client:
            before = len(site.asked)
            with suppress(A2AError, StopAsyncIteration):
                await operation(client)
            requests = site.asked[before:]
            assert requests and all(asked.headers.get("x-key") == "s3cret" for asked in requests)


@requirement(211)
async def test_every_call_over_grpc_has_the_credentials_in_its_metadata() -> None:
    server, metadata = grpc.aio.server(), Metadata()
    server.add_generic_rpc_handlers((metadata,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    interface = Interface(url=f"grpc://127.0.0.1:{port}", protocol_binding="GRPC", protocol_version="1.0")
    card = AgentCard(name="X", supported_interfaces=(interface,))
    options: dict[str, Any] = {"credentials": "s3cret", "policy": Policy(attempts=1), "version": "1.0"}
    try:
        async with connect(card, **options) as client:
            for operation in (client.send("hello"), client.get("t1"), client.cancel("t1")):
                metadata.last = []
                with suppress(A2AError):
                    await operation
                assert ("authorization", "Bearer s3cret") in metadata.last
    finally:
        await server.stop(None)


# --- a task that needs an authorization


def bank() -> Agent:
    agent = Agent("Bank")

    @agent.skill
    async def pay(turn: Turn) -> str:
        """Pays after an authorization."""
        await turn.need_auth("sign in at bank.example")
        return "paid"

    return agent


@requirement(192)
async def test_an_agent_passes_on_the_authorization_that_an_agent_it_called_needs() -> None:
    shop = Agent("Shop")

    @shop.skill
    async def buy(turn: Turn) -> str:
        """Buys, and lets the bank ask."""
        task: Task | Message = await turn.call("bank", turn.text)
        while isinstance(task, Task) and task.state is TaskState.AUTH_REQUIRED:
            assert task.status.message is not None
            answer = await turn.need_auth(task.status.message.text)
            task = await turn.call("bank", answer.text, task=task.id)
        return task.text

    app = application(shop, bank(), store="memory:")
    async with connect(app, url="http://localhost/shop") as client:
        waits = await client.send("a book")
        assert waits.state is TaskState.AUTH_REQUIRED and waits.text == "sign in at bank.example"
        assert await waits.answer("signed in") == "paid"


def auth_site(*, subscribes: bool) -> Site:
    """A server whose task waits for an authorization, and ends after it was asked for twice."""
    states = ["AUTH_REQUIRED", "AUTH_REQUIRED", "COMPLETED"]

    def rpc(asked: Asked) -> Answer:
        method = asked.json["method"]
        if method == "SubscribeToTask":
            if not subscribes:
                return error(asked, -32004)
            update = {"taskId": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}
            events = (
                {"task": {**TASK, "status": {"state": "TASK_STATE_AUTH_REQUIRED"}}},
                {"statusUpdate": update},
            )
            lines = [
                json.dumps({"jsonrpc": "2.0", "id": asked.json["id"], "result": event}) for event in events
            ]
            return (
                200,
                {"content-type": "text/event-stream"},
                "".join(f"data: {x}\n\n" for x in lines).encode(),
            )
        state = states.pop(0) if len(states) > 1 else states[0]
        task = {**TASK, "status": {"state": f"TASK_STATE_{state}"}}
        result = task if method == "GetTask" else {"task": task}
        return page({"jsonrpc": "2.0", "id": asked.json["id"], "result": result})

    site = site_of("JSONRPC", streaming=subscribes)
    site.pages["/rpc"] = rpc
    return site


@requirement(193)
@pytest.mark.parametrize("subscribes", [True, False], ids=["subscribes", "polls"])
async def test_a_client_without_a_stream_learns_that_an_authorization_was_given(subscribes: bool) -> None:
    site = auth_site(subscribes=subscribes)
    policy = Policy(shortest=0.001, longest=0.002)
    async with connect(BASE, transport=AsgiTransport(site), policy=policy) as client:
        waits = await client.send("pay")
        assert waits.state is TaskState.AUTH_REQUIRED
        states = [piece.state async for piece in client.subscribe(waits.id)]
    assert states[0] is TaskState.AUTH_REQUIRED and states[-1] is TaskState.COMPLETED
    assert ("GetTask" in {asked.json["method"] for asked in site.asked[1:]}) is not subscribes


@requirement(193)
async def test_a_client_without_a_stream_can_register_a_webhook_for_a_task_that_waits() -> None:
    app = application(bank(), store="memory:", push=PushOptions(allow_private=True))
    async with connect(app) as client:
        waits = await client.send("pay")
        config = await client.create_push(waits.id, "http://127.0.0.1:9/hook", token="once")
        assert [each.id for each in await client.list_push(waits.id)] == [config.id]
