"""The gate and the routing on their own, for those who run their agents elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.agent.agent import Agent
from dragoman.hub.model import ModelError
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
        assert (await hub.nobody("POST", "/v1/advise/gate", GATE)).status == 401
        assert (await acme("POST", "/v1/advise/gate", GATE)).json["signal"] == "CONTINUE"
        refused = await acme("POST", "/v1/advise/gate", GATE)
        assert refused.status == 429 and refused.json["reason"] == "rate_limit"
        assert (await acme("POST", "/v1/intent", {"message": "hi"})).status == 429
        assert hub.hub.quotas.counts() == {}


async def test_a_message_is_for_the_agent_whose_words_it_has() -> None:
    async with house(code=[Agent("Billing", "Writes invoices and reminders.")]) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)

        async def intent(message: str, **more: Any) -> Any:
            return (await acme("POST", "/v1/intent", {"message": message, **more})).json

        found = await intent("a research analyst, please")
        assert (found["target_agent"], found["source"], found["applied"]) == ("scout", "heuristic", True)
        assert (await intent("@billing write me invoices"))["target_agent"] == "billing"
        assert (await intent("hello"))["target_agent"] == ""
        assert (await intent("@scout", apply_routing=False))["applied"] is False
        assert (await intent("@scout", intent={"mode": "off"}))["source"] == "none"
        explicit = await intent("@scout", requested_agent="quill")
        assert (explicit["source"], explicit["target_agent"]) == ("explicit", "")
        roster = [{"id": "cook", "role": "chef", "goal": "cook dinner"}]
        assert (await intent("cook a chef's dinner", roster=roster))["target_agent"] == "cook"
        assert hub.model.prompts == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"message": "x" * 65_537}, id="long"),
        pytest.param({"message": "x", "roster": [{"id": "a"}] * 129}, id="crowd"),
        pytest.param({"message": "x", "mode": "guess"}, id="mode"),
    ],
)
async def test_what_cannot_be_judged_is_refused(body: Any) -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        answer = await acme("POST", "/v1/intent", body)
        assert answer.status == 400 and answer.json["error"]
