"""The advisor gate over HTTP, and which agent a request is handed to."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.agent.agent import Agent
from dragoman.hub.models import ModelError
from tests.hub.house import SCOUT, house

GATE = {"advisor_model": "p/m", "original_task": "Sum it up.", "terminating_text": "It is about tea."}


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        pytest.param(
            "<signal>continue</signal>", {"signal": "CONTINUE", "text": "", "malformed": False}, id="fine"
        ),
        pytest.param(
            "<signal>REDIRECT</signal> Name the source.",
            {"signal": "REDIRECT", "text": "Name the source.", "malformed": False},
            id="again",
        ),
        pytest.param("Looks good!", {"signal": "HALT", "malformed": True}, id="unreadable"),
        pytest.param(
            ModelError("provider_error", "the model provider failed"),
            {"signal": "HALT", "text": "the model provider failed", "malformed": True},
            id="failed",
        ),
    ],
)
async def test_an_answer_is_judged_before_it_leaves(said: Any, verdict: dict[str, Any]) -> None:
    async with house([said]) as hub:
        acme = await hub.tenant("acme")
        answer = await acme("POST", "/v1/advise/gate", {**GATE, "tool_summary": "- read args=rfc result=OK"})
        assert answer.status == 200 and {name: answer.json[name] for name in verdict} == verdict
        (asked,) = hub.model.prompts
        assert asked.model == "p/m" and "It is about tea." in asked.messages[0].content
        assert "- read args=rfc result=OK" in asked.messages[0].content


async def test_judging_counts_as_a_request_and_wants_everything_it_needs() -> None:
    async with house(["<signal>CONTINUE</signal>"], rate_per_min=1) as hub:
        acme = await hub.tenant("acme")
        for missing in GATE:
            assert (await acme("POST", "/v1/advise/gate", {**GATE, missing: ""})).status == 400
        long = {**GATE, "advisor_model": "m" * 201}
        assert (await acme("POST", "/v1/advise/gate", long)).status == 400
        assert (await hub.nobody("POST", "/v1/advise/gate", GATE)).status == 401
        assert (await acme("POST", "/v1/advise/gate", GATE)).json["signal"] == "CONTINUE"
        refused = await acme("POST", "/v1/advise/gate", GATE)
        assert refused.status == 429 and refused.json["reason"] == "rate_limit"
        assert hub.hub.quotas.counts() == {}


def routing(said: Any) -> Any:
    """A model that answers, and says whom a request is for when that is asked of it."""
    return lambda prompt: said if prompt.system.startswith("You route") else "Answered."


HERE = [
    pytest.param('{"agent": "scout", "confidence": 0.9}', "scout", True, False, id="named"),
    pytest.param('```json\n{"agent": "", "confidence": 0.2}\n```', "", False, False, id="nobody"),
    pytest.param('{"agent": "scout", "confidence": 0.5}', "scout", False, False, id="unsure"),
    pytest.param('{"agent": "mallory", "confidence": 1}', "", False, True, id="unknown"),
    pytest.param("scout, I think", "", False, True, id="prose"),
    pytest.param(ModelError("provider_error", "down"), "", False, True, id="down"),
]


@pytest.mark.parametrize(("said", "target", "applied", "malformed"), HERE)
async def test_a_model_says_whom_a_request_is_for_when_words_leave_it_open(
    said: Any, target: str, applied: bool, malformed: bool
) -> None:
    async with house(routing(said)) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        await acme("POST", "/v1/agents", {"id": "desk", "intent": {"mode": "hybrid", "model": "p/small"}})
        received = dict(await acme.ask("hm", "/v1/agents/desk/chat"))
        found = received["intent"]
        assert (found["target_agent"], found["applied"], found["malformed"]) == (target, applied, malformed)
        assert found["llm_used"] is True
        assert received["done"]["ok"] and received["intent"]["applied_agent"] == (
            "scout" if applied else "desk"
        )
        assert hub.model.prompts[0].model == "p/small"
        assert "- scout: research-analyst. find things out" in hub.model.prompts[0].messages[0].content


@pytest.mark.parametrize(
    ("message", "target"),
    [
        pytest.param("a research analyst, please", "scout", id="role"),
        pytest.param("@billing write me invoices", "billing", id="named"),
        pytest.param("hello", "", id="nobody"),
    ],
)
async def test_a_request_is_handed_to_the_agent_whose_words_it_has(message: str, target: str) -> None:
    billing = Agent("Billing", "Writes invoices and reminders.")

    @billing.skill
    async def bill(turn: Any) -> str:
        return "Billed."

    async with house(lambda prompt: "Answered.", code=[billing]) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        await acme("POST", "/v1/agents", {"id": "desk", "intent": {"mode": "heuristic"}})
        found = dict(await acme.ask(message, "/v1/agents/desk/chat"))["intent"]
        assert (found["target_agent"], found["applied"], found["source"]) == (
            target,
            bool(target),
            "heuristic",
        )


async def test_no_model_routes_a_request_when_words_are_clear_enough() -> None:
    async with house(routing("never")) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        for mode in ("hybrid", "llm"):
            await acme("POST", "/v1/agents", {"id": mode, "intent": {"mode": mode}})
        found = dict(await acme.ask("@scout look", "/v1/agents/hybrid/chat"))["intent"]
        assert found["target_agent"] == "scout" and "llm_used" not in found
        assert not [prompt for prompt in hub.model.prompts if prompt.system.startswith("You route")]
        asked = dict(await acme.ask("@scout look", "/v1/agents/llm/chat"))["intent"]
        assert asked["malformed"] and asked["llm_used"]


async def test_a_request_with_a_picture_is_not_handed_on_in_words() -> None:
    async with house(["I see."]) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        await acme("POST", "/v1/agents", {"id": "desk", "intent": {"mode": "heuristic"}})
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
        received = await acme.ask([{"type": "text", "text": "@scout look"}, picture], "/v1/agents/desk/chat")
        assert "intent" not in dict(received) and received[-1][1]["content"] == "I see."
