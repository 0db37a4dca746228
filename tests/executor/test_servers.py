"""Whole servers as people write them with the official SDK, version by version, after their imports were changed."""

# No `from __future__ import annotations`: as in the programs that are ported, annotations are evaluated.

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from dragoman import connect
from dragoman.auth import Bearer, hashed
from dragoman.client import TaskFailed
from dragoman.executor import (
    AGENT_CARD_WELL_KNOWN_PATH,
    A2AFastAPIApplication,
    A2AStarletteApplication,
    AgentAuthentication,
    AgentCapabilities,
    AgentCard,
    AgentExecutor,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    BasePushNotificationSender,
    DefaultRequestHandler,
    Event,
    EventQueue,
    InMemoryPushNotificationConfigStore,
    InMemoryPushNotifier,
    InMemoryTaskStore,
    Message,
    Part,
    RequestContext,
    Role,
    ServerError,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    TaskUpdater,
    TransportProtocol,
    add_a2a_routes_to_fastapi,
    are_modalities_compatible,
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
    find_extension_by_uri,
    get_requested_extensions,
    new_agent_text_message,
    new_task,
    new_text_artifact,
    new_text_message,
)
from tests.executor.executing import agent_of
from tests.server.wire import HELLO, request, rpc

V1 = {"A2A-Version": "1.0"}
SKILL = AgentSkill(id="hello_world", name="Hello", description="Says hello", tags=["hello"], examples=["hi"])


class HelloExecutor(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(new_agent_text_message("Hello World"))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise Exception("cancel not supported")


async def says_hello(app: Any, **options: Any) -> Any:
    """The card that a client finds, after it was greeted."""
    async with connect(app, **options) as client:
        assert await client("hi") == "Hello World"
        return client.card


# -- 0.2 ---------------------------------------------------------------------------------------------------------------


async def test_a_server_written_for_sdk_0_2_runs() -> None:
    capabilities = AgentCapabilities(streaming=True, pushNotifications=True)
    card = AgentCard(
        name="Hello",
        description="Just a hello world agent",
        url="http://localhost:9999/",
        version="1.0.0",
        defaultInputModes=["text"],
        defaultOutputModes=["text", "text/plain"],
        capabilities=capabilities,
        skills=[SKILL],
        authentication=AgentAuthentication(schemes=["public"]),
    )
    assert card.url == "http://localhost:9999/" and card.defaultInputModes == ["text/plain"]
    handler = DefaultRequestHandler(
        agent_executor=HelloExecutor(),
        task_store=InMemoryTaskStore(),
        push_notifier=InMemoryPushNotifier(object()),
    )
    server = A2AStarletteApplication(agent_card=card, http_handler=handler)
    assert (await says_hello(server.build())).name == "Hello"


# -- 0.3 ---------------------------------------------------------------------------------------------------------------


def card_0_3(**more: Any) -> Any:
    return AgentCard(
        name="Hello",
        description="Says hello",
        url="http://localhost:9999/",
        version="1.0.0",
        default_input_modes=["text"],
        default_output_modes=["text"],
        capabilities=AgentCapabilities(streaming=True),
        skills=[SKILL],
        preferred_transport=TransportProtocol.http_json,
        additional_interfaces=[
            AgentInterface(transport=TransportProtocol.jsonrpc, url="http://localhost:9999/")
        ],
        supports_authenticated_extended_card=True,
        **more,
    )


def handler_0_3(**more: Any) -> DefaultRequestHandler:
    kept = InMemoryPushNotificationConfigStore()
    return DefaultRequestHandler(
        agent_executor=HelloExecutor(),
        task_store=InMemoryTaskStore(),
        push_config_store=kept,
        push_sender=BasePushNotificationSender(httpx_client=object(), config_store=kept),
        **more,
    )


async def test_an_extended_card_without_auth_is_never_sent(caplog: pytest.LogCaptureFixture) -> None:
    public = card_0_3()
    extended = public.model_copy(update={"name": "Hello, extended", "skills": [SKILL, SKILL]})
    assert (public.name, len(public.skills), extended.name, len(extended.skills)) == (
        "Hello", 1, "Hello, extended", 2)  # fmt: skip
    server = A2AStarletteApplication(
        agent_card=public, http_handler=handler_0_3(), extended_agent_card=extended
    )
    with caplog.at_level(logging.WARNING):
        card = await says_hello(server.build())
    assert card.capabilities.extended_agent_card is None and "give auth=" in caplog.text


async def test_a_server_of_0_3_whose_extended_card_is_for_those_who_say_who_they_are() -> None:
    public = card_0_3()

    def modified(card: AgentCard, context: Any) -> Any:
        card.description = f"for {context.user.user_name}"
        return card

    server = A2AStarletteApplication(
        agent_card=public,
        http_handler=handler_0_3(),
        extended_agent_card=public.model_copy(update={"name": "Hello, extended"}),
        extended_card_modifier=modified,
        auth=[Bearer({"ada": hashed("t")})],
    )
    async with connect(server.build(), credentials="t") as client:
        assert client.card.name == "Hello" and client.card.capabilities.extended_agent_card
        extended = await client.extended_card()
        assert (extended.name, extended.description) == ("Hello, extended", "for ada")


async def test_a_server_of_0_3_answers_where_it_is_built() -> None:
    for build in (
        lambda: A2AStarletteApplication(card_0_3(), handler_0_3()).build(rpc_url="/api/rpc"),
        lambda: A2AFastAPIApplication(card_0_3(), handler_0_3()).build(
            agent_card_url="/.well-known/agent-card.json", rpc_url="/api/rpc"
        ),
    ):
        app = build()
        answer = await rpc(app, "SendMessage", HELLO, path="/api/rpc", headers=V1)
        assert answer.json["result"]["message"]["parts"] == [{"text": "Hello World"}]
        card = await says_hello(app)
        urls = [each.url for each in card.supported_interfaces]
        assert urls and all("/api/rpc" in url for url in urls)


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
async def test_a_server_of_0_3_is_added_to_an_application(framework: Any) -> None:
    app = framework()
    A2AStarletteApplication(card_0_3(), handler_0_3()).add_routes_to_app(app, rpc_url="/agent")
    app.router.routes.append(Route("/health", lambda _: PlainTextResponse("well")))
    await says_hello(app)
    assert (await request(app, "GET", "/health")).body == b"well"
    assert (await request(app, "GET", "/elsewhere")).status == 404


@pytest.mark.parametrize("server", [A2AStarletteApplication, A2AFastAPIApplication])
async def test_middleware_and_routes_are_added_to_what_was_built(server: Any) -> None:
    began: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        began.append("began")
        yield
        began.append("ended")

    first = Route("/first", lambda _: PlainTextResponse("first"))
    app = server(card_0_3(), handler_0_3()).build(routes=[first], lifespan=lifespan, grace=1.0)
    app.add_middleware(CORSMiddleware, allow_origins=["https://page.example"])
    app.routes.append(Route("/keys", lambda _: PlainTextResponse("keys")))
    app.mount("/static", PlainTextResponse("static"))
    await says_hello(app)
    assert began == ["began", "ended"]
    app = server(card_0_3(), handler_0_3()).build(routes=[first])
    app.add_middleware(CORSMiddleware, allow_origins=["https://page.example"])
    app.mount("/static", PlainTextResponse("static"))
    for path, body in (("/first", b"first"), ("/static/", b"static"), ("/healthz", b'{"status":"ok"}')):
        assert (await request(app, "GET", path)).body == body
    card = await request(app, "GET", AGENT_CARD_WELL_KNOWN_PATH, headers={"Origin": "https://page.example"})
    assert card.status == 200 and card.headers["access-control-allow-origin"]
    assert (await request(app, "GET", "/nothing")).status == 404


# -- 1.x ---------------------------------------------------------------------------------------------------------------


def card_1(name: str = "Hello", url: str = "http://127.0.0.1:9999") -> Any:
    return AgentCard(
        name=name,
        description="Just a hello world agent",
        version="0.0.1",
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        capabilities=AgentCapabilities(streaming=True, extended_agent_card=True),
        supported_interfaces=[AgentInterface(protocol_binding="JSONRPC", url=url)],
        skills=[SKILL],
    )


async def test_the_hello_world_sample_of_sdk_1_x_runs() -> None:
    card = card_1()
    handler = DefaultRequestHandler(
        agent_executor=HelloExecutor(),
        task_store=InMemoryTaskStore(),
        agent_card=card,
        extended_agent_card=card_1("Hello, extended"),
    )
    routes = []
    routes.extend(create_agent_card_routes(card))
    routes.extend(create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True))
    app = Starlette(routes=[*routes, Route("/health", lambda _: PlainTextResponse("well"))])
    found = await says_hello(app)
    assert {each.url for each in found.supported_interfaces} == {"http://localhost/"}
    await says_hello(app, version="0.3")
    assert (await request(app, "GET", "/health")).body == b"well"
    assert (await request(app, "GET", "/nothing")).status == 404


async def test_a_server_of_1_x_with_all_bindings_in_fastapi() -> None:
    card, app = card_1(url="http://127.0.0.1:9999/a2a/jsonrpc"), FastAPI()
    handler = DefaultRequestHandler(HelloExecutor(), InMemoryTaskStore(), card)
    add_a2a_routes_to_fastapi(
        app,
        agent_card_routes=create_agent_card_routes(card),
        jsonrpc_routes=create_jsonrpc_routes(handler, rpc_url="/a2a/jsonrpc/"),
        rest_routes=create_rest_routes(handler, path_prefix="/a2a/rest/"),
    )
    found = await says_hello(app)
    assert found.supported_interfaces
    assert all("/a2a/jsonrpc" in each.url for each in found.supported_interfaces)
    answer = await request(
        app, "POST", "/a2a/rest/message:send", msgspec.json.encode(HELLO), headers={**V1, "Content-Type": "application/json"}
    )  # fmt: skip
    assert answer.json["message"]["parts"] == [{"text": "Hello World"}]
    assert (await request(app, "GET", "/docs")).status == 200  # FastAPI's own


async def test_several_servers_of_1_x_in_one_application() -> None:
    def mounted(name: str) -> Mount:
        card = card_1(name)
        handler = DefaultRequestHandler(HelloExecutor(), InMemoryTaskStore(), agent_card=card)
        routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, rpc_url="/")]
        return Mount(f"/{name}", routes=routes)

    app = Starlette(routes=[mounted("one"), mounted("two")])
    for name in ("one", "two"):
        card = (await request(app, "GET", f"/{name}{AGENT_CARD_WELL_KNOWN_PATH}", headers=V1)).json
        assert card["name"] == name
        assert {each["url"].rstrip("/") for each in card["supportedInterfaces"]} == {
            f"http://agents.example/{name}"
        }
        answer = await rpc(app, "SendMessage", HELLO, path=f"/{name}/", headers=V1)
        assert answer.json["result"]["message"]["parts"] == [{"text": "Hello World"}]


async def test_routes_of_a_card_without_an_agent_are_refused() -> None:
    app = Starlette(routes=create_agent_card_routes(card_1()))
    with pytest.raises(TypeError, match=r"DefaultRequestHandler\(\.\.\., agent_card=card\)"):
        await request(app, "GET", AGENT_CARD_WELL_KNOWN_PATH)
    with pytest.raises(TypeError, match="card_modifier"):
        create_agent_card_routes(card_1(), card_modifier=lambda card: card)
    with pytest.raises(TypeError, match="auth="):
        create_jsonrpc_routes(DefaultRequestHandler(HelloExecutor()), "/", context_builder=object())


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["given", "validated", "json"])
async def test_a_card_may_be_made_of_dicts(spelling: str) -> None:
    document: dict[str, Any] = {
        "name": "Hello",
        "description": "Says hello",
        "url": "http://localhost:9999/",
        "version": "1.0.0",
        "protocolVersion": "0.3.0",
        "defaultInputModes": ["text"],
        "defaultOutputModes": ["text"],
        "capabilities": {"streaming": True, "extensions": [{"uri": "https://e.example/1"}]},
        "provider": {"organization": "Us", "url": "https://us.example"},
        "skills": [{"id": "s", "name": "S", "description": "d", "tags": ["t"]}],
    }
    if spelling == "given":
        card = AgentCard(**document)
    elif spelling == "validated":
        card = AgentCard.model_validate({**document, "x-ours": 1})
    else:
        card = AgentCard.model_validate_json(msgspec.json.encode(document))
    assert find_extension_by_uri(card, "https://e.example/1").uri == "https://e.example/1"
    assert find_extension_by_uri(card, "https://e.example/2") is None
    found = await says_hello(A2AStarletteApplication(card, handler_0_3()).build())
    assert [skill.id for skill in found.skills] == ["s"] and found.provider.organization == "Us"
    with pytest.raises(TypeError, match="`auth=`"):
        AgentCard.model_validate(
            {**document, "security": [{"bearer": []}], "securitySchemes": {"bearer": {}}}
        )


async def test_objects_can_be_changed_until_they_are_enqueued() -> None:
    seen: list[Any] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        context.message.metadata["seen"] = True
        seen.append(context.message.metadata)
        context.current_task = context.current_task or new_task(context.message)
        task = context.current_task
        task.metadata = {"by": "us"}
        await queue.enqueue_event(task)
        artifact = new_text_artifact("a", "one")
        artifact.metadata = {"kind": "note"}
        artifact.parts.append(Part(text=" two"))
        artifact.parts[0].metadata["n"] = 1
        await queue.enqueue_event(
            TaskArtifactUpdateEvent(artifact=artifact, task_id=task.id, context_id=task.context_id)
        )
        said = new_text_message("done")
        said.metadata.update({"final": True})
        status = TaskStatus(
            state="completed", message={"role": "agent", "parts": [{"kind": "text", "text": "done"}]}
        )
        status.message.metadata = said.metadata
        event: Event = TaskStatusUpdateEvent(
            status=status, task_id=task.id, context_id=task.context_id, final=True
        )
        assert isinstance(event, Event) and not isinstance(artifact, Event)
        await queue.enqueue_event(event)

    async with agent_of(execute).test() as client:
        reply = await client("hi")
    assert seen == [{"seen": True}] and reply.task is not None
    assert reply.task.metadata == {"by": "us"} and reply.artifacts[0].metadata == {"kind": "note"}
    assert reply.artifacts[0].text == "one two" and reply.artifacts[0].parts[0].metadata == {"n": 1}
    ended = reply.task.status.message
    assert ended is not None and ended.text == "done" and ended.metadata == {"final": True}


async def test_an_error_that_is_wrapped_keeps_its_text() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        raise ServerError(error=ValueError("the bank is closed"))

    async with agent_of(execute).test() as client:
        with pytest.raises(TaskFailed, match="the bank is closed"):
            await client("hi")


def test_small_helpers_of_the_sdk_behave_as_there() -> None:
    assert are_modalities_compatible(["text"], ["text", "image"]) and are_modalities_compatible(["text"], [])
    assert not are_modalities_compatible(["text"], ["image"])
    assert TaskState("input-required") is TaskState.input_required and Role("agent") is Role.agent
    assert TaskState.Name(TaskState.TASK_STATE_WORKING) == "TASK_STATE_WORKING"
    assert isinstance(TaskState.working, TaskState) and TransportProtocol.JSONRPC == "JSONRPC"
    assert get_requested_extensions(["a, b", "c"]) == {"a", "b", "c"}
    data = Message.model_validate(
        {"role": "user", "messageId": "m", "parts": [{"root": {"kind": "data", "data": {"a": 1}}},
                                                      {"kind": "file", "file": {"uri": "https://x.example/a"}}]}
    )  # fmt: skip
    assert data.parts[0].root.data == {"a": 1} and data.parts[1].file.uri == "https://x.example/a"
    assert AgentExtension(uri="https://e.example").model_copy().uri == "https://e.example"
    assert isinstance(TaskUpdater, type)
