"""Extensions as objects: on the card, as hooks, with methods of their own, and with a client's half."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import (
    Agent,
    AgentExtension,
    MethodCall,
    QuestionsExtension,
    TimestampExtension,
    TraceabilityExtension,
    Turn,
    UsageExtension,
    connect,
    errors,
)
from dragoman.agent.extensions import add_metadata
from dragoman.auth import Bearer
from dragoman.client import ClientExtension, TimestampClient
from dragoman.model.ops import Call, Request, SendMessage
from dragoman.model.task import Event, Task
from dragoman.model.usage import USAGE
from dragoman.server.application import application
from dragoman.server.runtime import running

URI = "https://example.com/extensions/shout/v1"


class Shout(AgentExtension):
    """Marks what is said, refuses whispers, and adds a method."""

    uri, description = URI, "Loud"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def params(self, agent: Agent) -> dict[str, Any]:
        return {"of": agent.name}

    async def on_request(self, call: Call, request: Request) -> Request:
        self.seen.append(type(request).__name__)
        if isinstance(request, SendMessage) and request.message.text == "whisper":
            raise errors.InvalidParams("speak up")
        return request

    def on_event(self, turn: Turn, event: Event) -> Event:
        return add_metadata(event, {URI: f"{turn.n}!"})

    async def on_response(self, call: Call, request: Request, response: Any) -> Any:
        if isinstance(response, Task):
            return replace(response, metadata={**response.metadata, "loud": True})
        return response

    @property
    def methods(self) -> Mapping[str, Any]:
        return {"shout/say": self.say}

    async def say(self, given: MethodCall) -> Any:
        if not given.params:
            raise errors.InvalidParams("say what?")
        return {"said": str(given.params["text"]).upper(), "by": given.call.principal.id, "n": 3}


def speaking(*extensions: AgentExtension, **options: Any) -> Agent:
    agent = Agent("Speaker", extensions=extensions, **options)

    @agent.skill
    async def speak(text: str, turn: Turn) -> str:
        await turn.status("speaking")
        await turn.step("think", len, text)
        turn.usage("small", input_tokens=5)
        return text

    return agent


async def test_an_extension_is_on_the_card_and_active_only_for_those_who_ask() -> None:
    shout = Shout()
    async with speaking(shout).test() as client:
        (shown,) = [each for each in client.card.capabilities.extensions if each.uri == URI]
        assert shown.params == {"of": "Speaker"} and shown.description == "Loud"
        plain = await client("hello")
        assert plain.task is not None and URI not in plain.artifacts[0].metadata
        assert "loud" not in plain.task.metadata and shout.seen == []
        loud = await client("hello", extensions=[URI])
        assert loud.task is not None and loud.task.metadata["loud"] is True
        assert loud.artifacts[0].metadata == {URI: "1!"}
        assert loud.task.history[-1].metadata == {URI: "1!"}  # the status line
        with pytest.raises(errors.InvalidParams, match="speak up"):
            await client("whisper", extensions=[URI])
        assert (await client("whisper")).text == "whisper"


async def test_a_required_extension_is_needed_and_one_that_is_always_active_is_not_asked_for() -> None:
    class Needed(Shout):
        required = True

    async with speaking(Needed()).test() as client:
        with pytest.raises(errors.ExtensionRequired):
            await client("hello")
        assert (await client("hello", extensions=URI)).text == "hello"

    class Always(Shout):
        always = True

    async with speaking(Always()).test() as client:
        assert (await client("hello")).artifacts[0].metadata == {URI: "1!"}


async def test_requested_extensions_are_stored_for_a_turn_that_runs_again(
    tmp_path: Any,
) -> None:
    store = f"sqlite:///{tmp_path}/t.db"

    def asking() -> Agent:
        agent = Agent("Asker", extensions=[Shout()])

        @agent.skill
        async def ask(turn: Turn) -> str:
            await turn.status("once")
            return await turn.ask("Well?")

        return agent

    async with asking().test(store=store) as client:
        asked = await client("go", extensions=[URI])
        assert asked.task is not None and asked.task.status.message is not None
        assert asked.task.status.message.metadata == {URI: "1!"}
    async with asking().test(store=store) as client:  # the answer does not ask for it; the turn began with it
        done = await client("yes", task=asked)
        assert done.task is not None and done.artifacts[0].metadata == {URI: "1!"}
        lines = [message.text for message in done.task.history if message.role.word == "agent"]
        assert lines == ["once", "Well?"]  # compared with the record, and not said twice


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_method_of_an_extension_is_called_over_each_binding(binding: str) -> None:
    agent = speaking(Shout(), UsageExtension(), auth=[Bearer({"ada": sha256(b"s3cret-token").hexdigest()})])
    if binding == "GRPC":
        pytest.importorskip("grpc")
    app = application(agent, store="memory:", grpc_port=0 if binding == "GRPC" else None)
    async with running(app) as url:
        async with connect(url, binding=binding, credentials="s3cret-token") as client:
            said = await client.call_method("shout/say", {"text": "hi"})
            assert said == {"said": "HI", "by": "ada", "n": 3}
            with pytest.raises(errors.InvalidParams, match="say what"):
                await client.call_method("shout/say")
            with pytest.raises(errors.A2AError):
                await client.call_method("shout/nothing")
            task = await client("hello")
            used = await client.call_method("usage/get", {"taskId": task.id})
            assert used["inputTokens"] == 5
            with pytest.raises(errors.TaskNotFound):
                await client.call_method("usage/get", {"taskId": "nope"})
        async with connect(url, binding=binding) as nobody:
            with pytest.raises(errors.Unauthenticated):
                await nobody.call_method("shout/say", {"text": "hi"})


async def test_the_openapi_document_has_the_methods() -> None:
    from tests import raw

    async with running(application(speaking(Shout()), store="memory:")) as url:
        document = await raw.get(f"{url}/openapi.json")  # which is built with the page at /docs
    assert document["paths"]["/extensions/shout/say"]["post"]["operationId"] == "shout_say"


async def test_authorize_decides_about_methods_too() -> None:
    agent = speaking(Shout(), authorize=lambda principal, request: not hasattr(request, "method"))
    async with agent.test() as client:
        assert (await client("hello")).text == "hello"
        with pytest.raises(errors.Forbidden):
            await client.call_method("shout/say", {"text": "hi"})


async def test_the_clients_half_asks_with_every_message_and_sees_what_comes_and_goes() -> None:
    class Counting(ClientExtension):
        uri = URI

        def __init__(self) -> None:
            self.sent, self.events = 0, 0

        def on_send(self, request: SendMessage) -> SendMessage:
            self.sent += 1
            return request

        def on_event(self, event: Event) -> Event:
            self.events += 1
            return event

    counting = Counting()
    async with connect(speaking(Shout()).app(store="memory:"), extensions=[counting]) as client:
        assert (await client("hello")).artifacts[0].metadata == {URI: "1!"}
        assert (counting.sent, counting.events) == (1, 1)
        stream = client.stream("hello")
        pieces = [piece async for piece in stream]
        assert counting.sent == 2 and counting.events == 1 + len(pieces) > 3
        assert stream.reply.artifacts[0].metadata == {URI: "1!"}


async def test_timestamps_go_both_ways() -> None:
    times = TimestampClient()
    async with connect(speaking(TimestampExtension()).app(store="memory:"), extensions=[times]) as client:
        reply = await client("hello")
        assert reply.task is not None
        sent, said = reply.task.history
        assert times.time_of(sent) <= times.time_of(said) <= times.time_of(reply.artifacts[0])
        assert times.time_of(sent).endswith("Z")


async def test_a_trace_has_the_steps_and_the_agents_that_were_called() -> None:
    agent = Agent("Caller", extensions=[TraceabilityExtension()])

    @agent.skill
    async def both(turn: Turn) -> str:
        await turn.step("think", len, "abc")
        return (await turn.call("speaker", "hi", key="speak")).text

    trace = TraceabilityExtension
    app = application(agent, speaking(), store="memory:")
    async with connect(app, url="http://localhost/caller", extensions=[trace.uri]) as client:
        reply = await client("go")
    assert reply.task is not None
    received = reply.task.metadata[trace.key]
    think, call = received["steps"]
    assert think["call_type"] == "TOOL" and think["step_action"]["tool_invocation"]["tool_name"] == "len"
    assert call["call_type"] == "AGENT"
    assert call["step_action"]["agent_invocation"]["agent_name"] == "speaker"
    assert {step["trace_id"] for step in received["steps"]} == {received["trace_id"]}


async def test_the_extensions_that_only_add_data_are_shown_on_the_card() -> None:
    async with speaking(UsageExtension(), QuestionsExtension()).test() as client:
        uris = [each.uri for each in client.card.capabilities.extensions]
        assert uris == [UsageExtension.uri, QuestionsExtension.uri]
        reply = await asyncio.wait_for(client("hello"), 10)
        assert reply.task is not None and USAGE in reply.task.metadata


async def test_an_agent_written_for_the_sdk_has_extensions_too() -> None:
    from dragoman.executor import AgentCard, AgentExecutor, ExecutorAgent, new_agent_text_message

    class Hello(AgentExecutor):
        async def execute(self, context: Any, event_queue: Any) -> None:
            await event_queue.enqueue_event(new_agent_text_message("hello"))

    card = AgentCard(name="Hello", description="Says hello", version="1.0.0", skills=[])
    async with ExecutorAgent(Hello(), card, extensions=[Shout()]).test() as client:
        assert [each.uri for each in client.card.capabilities.extensions] == [URI]
        reply = await client("go", extensions=[URI])
        assert reply.message is not None and reply.message.metadata == {URI: "1!"}
        assert (await client.call_method("shout/say", {"text": "hi"}))["said"] == "HI"


def test_an_extension_without_a_uri_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a uri"):
        Agent("a", extensions=[AgentExtension()])
