"""Long conversations: what was said long ago is summed up once, and kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.hub.agents.prompt import RECENT_MESSAGES
from dragoman.hub.models import ModelError, Prompt
from tests.hub.house import SCOUT, Caller, events, house
from tests.hub.scripted import ScriptedModel


def model(summary: Any = "They talked about tea.") -> ScriptedModel:
    """Answers, and sums up when that is asked of it."""
    return ScriptedModel(
        lambda prompt: summary if prompt.system.startswith("Sum up") else f"answer {'x' * 40}", window=400
    )


async def talk(caller: Caller, times: int, agent: str = "index") -> str:
    """A conversation in which so many things were asked, and answered."""
    id = (await caller("POST", "/v1/conversations", {"agent_id": agent})).json["id"]
    path = f"/v1/conversations/{id}/messages"
    for n in range(times):
        assert (await caller.ask(f"question {n} {'y' * 40}", path))[-1][1]["ok"]
    return path


def contents(prompt: Prompt) -> list[str]:
    return [message.content.partition(" y")[0] for message in prompt.messages]


async def test_old_messages_are_summarized_and_the_newest_stay() -> None:
    async with house(model=model()) as hub:
        path = await talk(acme := await hub.tenant("acme"), 20)
        asked = [prompt for prompt in hub.model.prompts if prompt.system.startswith("Sum up")]
        assert len(asked) >= 1 and "question 0" in contents(asked[0])[0]
        before = len(asked)
        events = await acme.ask("and now?", path)
        assert events[-1][1]["ok"]
        last = hub.model.prompts[-1]
        assert "[EARLIER IN THIS CONVERSATION]\n| They talked about tea." in last.messages[0].content
        assert "question 19" in last.messages[-3].content
        assert RECENT_MESSAGES < len(last.messages) < 2 * RECENT_MESSAGES + 4
        again = [prompt for prompt in hub.model.prompts if prompt.system.startswith("Sum up")]
        assert len(again) <= before + 1, "a summary is good for more than one request"
        assert any("(before that)\n| They talked" in contents(each)[0] for each in again) or len(again) == 1
        kept = (await acme("GET", f"{path}?limit=500")).json["messages"]
        assert len(kept) == 42, "nothing is lost"


async def test_the_tokens_of_a_summary_are_counted_and_reported() -> None:
    async with house(model=model()) as hub:
        acme = await hub.tenant("acme")
        path = await talk(acme, 12)
        for _ in range(6):
            events = await acme.ask("more " + "z" * 40, path)
            if len([kind for kind, _ in events if kind == "token_usage"]) == 2:
                return
        raise AssertionError("nobody was told")


async def test_a_summary_that_cannot_be_had_leaves_everything_as_it_is() -> None:
    async with house(model=model(ModelError("provider_error", "down"))) as hub:
        acme = await hub.tenant("acme")
        await talk(acme, 20)
        assert len(hub.model.prompts[-1].messages) == 39


async def test_a_model_without_a_known_window_gets_all_messages() -> None:
    async with house(lambda prompt: "answer " * 100) as hub:
        await talk(await hub.tenant("acme"), 12)
        assert len(hub.model.prompts) == 12 and len(hub.model.prompts[-1].messages) == 23


async def test_a_summary_is_made_and_paid_for_once_also_when_the_hub_is_restarted_after_it(
    tmp_path: Path,
) -> None:
    summed_up, never, talking = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def choose(prompt: Prompt) -> Any:
        if prompt.system.startswith("Sum up"):
            summed_up.set()
            return "They talked about tea."
        if not summed_up.is_set():
            return f"answer {'x' * 40}"
        talking.set()
        return ("half", never)

    async with house(model=ScriptedModel(choose, window=400), folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", {**SCOUT, "budget": 1000})
        talks = asyncio.create_task(talk(acme, 30, "scout"))
        await asyncio.wait_for(talking.wait(), 10)
    with pytest.raises(KeyError):
        await talks  # the stream of its last request has ended, and the request has not
    async with house(model=model(), folder=tmp_path) as hub:
        again = Caller(hub.app, acme.token, acme.tenant)
        request = (await again("GET", "/v1/requests")).json["requests"][0]["request_id"]
        received = events(await again("GET", f"/v1/requests/{request}/events"))
        assert received[-1][1]["ok"] and received[-1][1]["content"].startswith("answer")
        assert len(hub.model.prompts) == 1
        assert "They talked about tea." in hub.model.prompts[0].messages[0].content
        counted = [data for kind, data in received if kind == "token_usage" and not data.get("estimated")]
        paid = [data["input_tokens"] + data["output_tokens"] for data in counted]
        assert len(paid) == 2 and hub.model.prompts[0].max_tokens == 1000 - paid[0]


async def test_an_agent_that_another_one_asks_sees_nothing_of_the_conversation() -> None:
    def say(prompt: Prompt) -> str:
        if prompt.system.startswith("Sum up"):
            return "They talked about tea."
        return "/agent scout look" if prompt.messages[-1].content.endswith("hand on") else "x" * 40

    async with house(model=ScriptedModel(say, window=400)) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        path = await talk(acme, 14)
        before = len(hub.model.prompts)
        await acme.ask("hand on", path)
        _, asker, scout, *_ = hub.model.prompts[before:]
        assert "They talked about tea." in asker.messages[0].content
        assert [message.content[:20] for message in scout.messages] == ["[DELEGATION CONTEXT]"]
