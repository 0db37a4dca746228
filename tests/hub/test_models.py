"""Models: retried before the first token, left alone when they keep failing, never leaking what a provider says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from types import SimpleNamespace as NS
from typing import Any

import pytest

from dragoman.hub.agents.constitution import Constitution
from dragoman.hub.assembly import choose_model
from dragoman.hub.models import (
    ChatMessage,
    Delta,
    ModelError,
    ModelEvent,
    ModelTraits,
    Prompt,
    Stop,
    ToolCall,
    ToolSpec,
    Usage,
)
from dragoman.hub.models import local as local_models
from dragoman.hub.models.calls import respond
from dragoman.hub.models.hosted import HostedModel, find_missing_key
from dragoman.hub.models.local import EchoModel, EmbeddedModel
from dragoman.hub.models.providers import ModelByProvider, RetryingModel
from dragoman.hub.settings import PROVIDER_KEYS, Settings, load_settings
from dragoman.model.task import ArtifactUpdate, TaskState
from dragoman.stores import open_store
from tests.hub.conftest import House, say
from tests.hub.house import SCOUT, house
from tests.hub.scripted import ScriptedModel

BUSY = ModelError("rate_limited", "busy", retryable=True)
DOWN = ModelError("provider_error", "down", retryable=True)


def prompt(text: str = "hi", model: str = "p/m", **more: Any) -> Prompt:
    messages = (ChatMessage(role="user", content=text),)
    return Prompt(model=model, system="Be brief.", messages=messages, **more)


async def test_a_stumble_before_the_first_token_is_tried_again() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    model = RetryingModel(ScriptedModel([BUSY, BUSY, "At last."]), sleep=sleep)
    assert (await respond(model, prompt())).text == "At last."
    assert waits == [1.0, 2.0]


async def test_a_model_call_that_has_sent_text_is_not_retried() -> None:
    inner = ScriptedModel([("Half", DOWN), "never"])
    reply = await respond(RetryingModel(inner), prompt())
    assert (reply.text, reply.error_code, len(inner.prompts)) == ("Half", "provider_error", 1)


async def test_a_mistake_of_ours_is_not_tried_again() -> None:
    inner = ScriptedModel([ModelError("auth_failed", "no key"), "never"])
    assert (await respond(RetryingModel(inner), prompt())).error_code == "auth_failed"
    assert len(inner.prompts) == 1


async def test_a_provider_that_keeps_failing_is_left_alone_and_then_tried_once() -> None:
    now = [0.0]
    inner = ScriptedModel([DOWN] * 5 + ["Back.", "Fine."])
    model = RetryingModel(inner, waits=(), clock=lambda: now[0])
    for _ in range(5):
        assert (await respond(model, prompt())).error_code == "provider_error"
    assert (await respond(model, prompt())).error_code == "circuit_open"
    assert len(inner.prompts) == 5
    assert (
        await respond(model, prompt(model="other/m"))
    ).text == "Back."  # another provider's circuit is its own
    now[0] = 31.0
    assert (await respond(model, prompt())).text == "Fine."


class Provider:
    """What any-llm's `acompletion` would be."""

    def __init__(self, chunks: list[Any]) -> None:
        self.chunks = chunks
        self.asked: dict[str, Any] = {}

    async def __call__(self, **asked: Any) -> AsyncIterator[Any]:
        self.asked = asked
        if isinstance(self.chunks[0], Exception):
            raise self.chunks[0]

        async def stream() -> AsyncIterator[Any]:
            for chunk in self.chunks:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk

        return stream()


def chunk(text: str = "", calls: Any = None, finish: str | None = None, usage: Any = None) -> Any:
    return NS(
        choices=[NS(delta=NS(content=text, tool_calls=calls), finish_reason=finish)] if usage is None else [],
        usage=usage,
    )


async def test_a_hosted_model_streams_text_tool_calls_and_usage() -> None:
    calls = [
        [NS(index=0, id="c1", function=NS(name="search", arguments='{"ar'))],
        [NS(index=0, id=None, function=NS(name=None, arguments='gs": "x"}'))],
    ]
    usage = NS(prompt_tokens=7, completion_tokens=3, prompt_tokens_details=NS(cached_tokens=2))
    provider = Provider(
        [
            chunk("Hel"),
            chunk("lo"),
            chunk(calls=calls[0]),
            chunk(calls=calls[1], finish="tool_calls"),
            chunk(usage=usage),
        ]
    )
    reply = await respond(HostedModel("openai/x", completion=provider), prompt(model=""))
    assert reply.text == "Hello" and reply.stop == "tool_use"
    assert reply.tool_calls == (ToolCall(id="c1", name="search", arguments={"args": "x"}),)
    assert reply.usage == Usage(input_tokens=7, output_tokens=3, cache_read_tokens=2)
    assert (provider.asked["provider"], provider.asked["model"]) == ("openai", "x")


async def test_split_surrogates_are_joined_and_single_ones_are_replaced() -> None:
    heard: list[str] = []

    async def hear(text: str) -> None:
        heard.append(text)

    cut = [NS(index=0, id="c1", function=NS(name="search", arguments='{"args": "\ud83d'))]
    rest = [NS(index=0, id=None, function=NS(name=None, arguments='\ude00 \ud83d"}'))]
    provider = Provider(
        [
            chunk("so \ud83d"),
            chunk("\ude00!"),
            chunk(" \ude00 \ud83d"),
            chunk("x \ud83d"),
            chunk(calls=cut),
            chunk(calls=rest),
        ]
    )
    reply = await respond(HostedModel("openai/x", completion=provider), prompt(model=""), hear)
    assert reply.text == "".join(heard) == "so \U0001f600! \ufffd \ufffdx \ufffd"
    assert reply.tool_calls[0].arguments == {"args": "\U0001f600 \ufffd"}


@pytest.mark.parametrize(
    ("status", "code"),
    [(429, "rate_limited"), (401, "auth_failed"), (503, "provider_error"), (413, "request_too_large")],
)
async def test_error_texts_of_providers_are_not_sent_to_callers(status: int, code: str) -> None:
    class ProviderFailure(Exception):
        status_code = status

    model = HostedModel("openai/x", completion=Provider([ProviderFailure("key sk-123 is bad")]))
    reply = await respond(model, prompt())
    assert reply.error_code == code and "sk-123" not in reply.error


async def test_a_model_is_chosen_by_its_provider() -> None:
    model = ModelByProvider(
        {"": ScriptedModel(["default"]), "local": ScriptedModel(["here"]), "*": ScriptedModel(["there"])}
    )
    said = [(await respond(model, prompt(model=name))).text for name in ("", "local/x", "openai/x")]
    assert said == ["default", "here", "there"]


async def test_each_model_says_whether_it_calls_tools() -> None:
    hosted = HostedModel("openai/x", completion=Provider([]))
    model = RetryingModel(ModelByProvider({"*": hosted, "": hosted, "local": ScriptedModel([])}))
    assert [model.traits(name).tools for name in ("", "openai/y", "local/z")] == [True, True, False]


async def test_how_a_model_is_prompted_is_chosen_by_the_model_and_not_by_the_hub() -> None:
    hosted = HostedModel(
        "openai/x", completion=Provider([]), text_commands=["ollama", "groq/llama*"], plain=["ollama/tiny"]
    )
    small = EchoModel()
    model = RetryingModel(ModelByProvider({"*": hosted, "": hosted, "embedded": small}))
    names = ("", "openai/y", "ollama/qwen", "groq/llama-9", "groq/other", "ollama/tiny", "embedded")
    traits = [model.traits(name) for name in names]
    assert [each.tools for each in traits] == [True, True, False, False, True, False, False]
    assert [each.plain for each in traits] == [False, False, False, False, False, True, True]


async def test_all_models_write_commands_as_text_if_the_hub_says_so() -> None:
    hosted = HostedModel("openai/x", completion=Provider([]), text_commands=["*"])
    assert not hosted.traits("").tools and not hosted.traits("mistral/y").tools


@pytest.mark.parametrize(
    ("given", "models"),
    [({}, ()), ({"text_commands": True}, ("*",)), ({"text_commands": ["ollama"]}, ("ollama",))],
)
def test_text_commands_are_for_some_models_or_for_all(given: dict[str, Any], models: tuple[str]) -> None:
    assert load_settings(given, environment={}).text_commands == models
    on = load_settings(environment={"DRAGOMAN_TEXT_COMMANDS": "true"})
    assert on.text_commands == ("*",)
    assert load_settings({"text_commands": ["a", "*"]}, environment={}).text_commands == ("a", "*")


class SmallAndLarge:
    """A hub's small model, and a provider's that a constitution names."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name=name or "small", plain=not name, tools=bool(name))

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        self.prompts.append(prompt)
        yield Delta("Done.")
        yield Stop()


async def test_a_constitution_with_a_larger_model_than_the_hub_has_gets_its_commands() -> None:
    model = SmallAndLarge()
    async with house(model=model) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", {**SCOUT, "model": "openai/x", "capabilities": ["/mem"]})
        await acme.ask("note it")
        await acme.ask("note it", agent="scout")
        small, large = model.prompts
        assert (
            small.tools == () and "COMMANDS" not in small.system and small.messages[-1].content == "note it"
        )
        assert {tool.name for tool in large.tools} >= {"mem"} and "tools" in large.system


def test_a_hub_with_the_embedded_model_reaches_the_models_that_constitutions_name() -> None:
    if not local_models.available():
        pytest.skip("no embedded model is installed")
    model = choose_model(Settings(model="embedded"))
    assert model.traits("").plain and model.traits("embedded").plain
    named = model.traits("openai/x")
    assert (named.name, named.tools, named.plain) == ("openai/x", True, False)


class Refusal(Exception):
    status_code = 400


async def test_a_model_that_refuses_the_temperature_is_asked_again_without_it() -> None:
    asked: list[dict[str, Any]] = []

    async def completion(**request: Any) -> Any:
        asked.append(request)
        if "temperature" in request:
            raise Refusal("Unsupported value: 'temperature' does not support 0.3 with this model.")

        async def chunks() -> AsyncIterator[Any]:
            yield chunk("Fine.")

        return chunks()

    model = HostedModel("openai/x", completion=completion)
    assert [(await respond(model, prompt(model=""))).text for _ in range(2)] == ["Fine.", "Fine."]
    assert ["temperature" in each for each in asked] == [True, False, False]  # it remembers


async def test_a_model_that_refuses_tools_while_it_reasons_is_asked_again_without_reasoning() -> None:
    asked: list[dict[str, Any]] = []

    async def completion(**request: Any) -> Any:
        asked.append(request)
        if "temperature" in request:
            raise Refusal("Unsupported value: 'temperature' does not support 0.3 with this model.")
        if "tools" in request and request.get("reasoning_effort") != "none":
            raise Refusal(
                "Function tools with reasoning_effort are not supported for x in /v1/chat/completions."
            )

        async def chunks() -> AsyncIterator[Any]:
            yield chunk("Fine.")

        return chunks()

    model = HostedModel("openai/x", completion=completion)
    tool = ToolSpec(name="look", description="Looks.", parameters={})
    with_tools = prompt(model="", tools=(tool,))
    assert [(await respond(model, with_tools)).text for _ in range(2)] == ["Fine.", "Fine."]
    assert [each.get("reasoning_effort") for each in asked] == [None, None, "none", "none"]  # it remembers
    await respond(model, prompt(model=""))
    assert "reasoning_effort" not in asked[-1], "without tools, it may reason"


async def test_a_request_that_is_refused_for_another_reason_is_not_repeated() -> None:
    asked = 0

    async def completion(**request: Any) -> Any:
        nonlocal asked
        asked += 1
        raise Refusal("no")

    reply = await respond(HostedModel("openai/x", completion=completion), prompt(model=""))
    assert (reply.error_code, asked) == ("invalid_request", 1)


@pytest.mark.filterwarnings("ignore:Provider-specific exceptions")
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_the_library_of_a_provider_repeats_no_call_by_itself(provider: str) -> None:
    pytest.importorskip(provider)
    asked = 0

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(fail, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        model = HostedModel(f"{provider}/x", api_base=url, api_key="k")
        reply = await respond(model, prompt(model=""))
    assert (reply.error_code, asked) == ("provider_error", 1)


@pytest.mark.filterwarnings("ignore:Provider-specific exceptions")
async def test_a_call_is_repeated_when_its_provider_says_unless_that_is_late() -> None:
    pytest.importorskip("openai")
    waits, said = [], ["7", "1", "9999"]

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))  # type: ignore[index]
        after = said.pop(0)
        writer.write(
            b"HTTP/1.1 429 Busy\r\nRetry-After: %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            % after.encode()
        )
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        model = RetryingModel(
            HostedModel("openai/x", api_base=url, api_key="k"), waits=(2.0,) * 9, sleep=sleep
        )
        reply = await respond(model, prompt(model=""))
    assert (reply.error_code, waits, said) == ("rate_limited", [7.0, 2.0], [])


@pytest.mark.parametrize("key", PROVIDER_KEYS)
def test_the_default_model_of_a_key_is_one_of_a_provider_that_takes_this_key(key: str) -> None:
    model = load_settings({}, environment={key: "x"}).model
    assert model == PROVIDER_KEYS[key] and HostedModel(model).traits("").known
    assert find_missing_key(model, {key: "x"}) == ""


async def test_a_hub_offers_tools_to_models_that_call_them_and_commands_to_the_others() -> None:
    call = ToolCall(id="c1", name="mem", arguments={"args": "shared write noted by a call"})
    async with house(model=ScriptedModel([("Noting.", call), "Done."], tools=True)) as hub:
        acme = await hub.tenant("acme")
        received = await acme.ask("note it")
        assert received[-1][1]["content"] == "Done."
        assert "noted by a call" in await hub.hub.scratchpads.read(acme.tenant.id, "")
        first, second = hub.model.prompts
        offered = {tool.name for tool in first.tools}
        assert {"mem", "agent", "fetch"} <= offered and "pane" not in offered
        assert "COMMANDS" not in first.system
        assert (second.messages[-1].role, second.messages[-1].tool_call_id) == ("tool", "c1")
    async with house(["Done."]) as hub:
        acme = await hub.tenant("acme")
        await acme.ask("note it")
        (prompt,) = hub.model.prompts
        assert prompt.tools == () and "COMMANDS" in prompt.system


local = pytest.mark.skipif(not local_models.available(), reason="no embedded model is installed")


@pytest.fixture(scope="module")
def small() -> EmbeddedModel:
    return EmbeddedModel(context=1024)


@local
async def test_the_embedded_model_answers_over_the_engine_with_streaming(small: EmbeddedModel) -> None:
    home = await House(open_store("memory:")).open(
        small, Constitution(id="tiny", name="Tiny", max_tokens=16, temperature=0)
    )
    chunks = []
    async for batch in home.engine.stream(home.call("tiny"), say("Say hello.")):
        chunks += [r.event.artifact.text for r in batch if isinstance(r.event, ArtifactUpdate)]
        last = batch[-1].event
    assert len([text for text in chunks if text]) > 3
    assert last.status.state is TaskState.COMPLETED  # type: ignore[union-attr]
    assert last.metadata["x-arbiter.output_tokens"] > 3
    await home.close()


@local
async def test_a_cancelled_generation_stops_and_the_next_can_start(small: EmbeddedModel) -> None:
    stream: Any = small.respond(prompt("Count to one thousand.", max_tokens=400))
    assert isinstance(await anext(stream), Delta)
    await stream.aclose()
    async with asyncio.timeout(15):
        assert (await respond(small, prompt("Hi.", max_tokens=4))).text


@local
async def test_a_prompt_too_large_for_the_embedded_model_is_an_error(small: EmbeddedModel) -> None:
    reply = await respond(small, prompt("word " * 4000, max_tokens=4))
    assert reply.error_code == "request_too_large"


async def test_error_texts_of_providers_are_logged_short_and_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = (
        "Incorrect API key provided: zz12345678.\nAuthorization: Bearer abcdefgh sk-abcdefgh12345678 "
        + "x" * 100_000
    )

    async def completion(**_: Any) -> Any:
        raise ValueError(said)

    model = HostedModel("openai/x", completion=completion)
    with pytest.raises(ModelError):
        [event async for event in model.respond(prompt("hi"))]
    (line,) = [
        record.getMessage() for record in caplog.records if "the provider p failed" in record.getMessage()
    ]
    assert len(line) < 400 and "\n" not in line and "ValueError: Incorrect API key provided: ***" in line
    assert not any(secret in line for secret in ("zz1234", "abcdefgh"))
