"""Agents of a hub that are written in Python."""

from __future__ import annotations

from typing import Any

from dragoman.agent.agent import Agent
from dragoman.auth.schemes import ApiKey
from dragoman.engine.turn import Turn
from dragoman.model.card import Skill
from tests.hub.house import house, message

WORKER = Agent("Worker", description="Works")


@WORKER.skill
async def work(text: str, turn: Turn) -> str:
    """Repeat it, as a file too."""
    await turn.artifact("copy").write(text)
    return f"done: {text}"


async def test_an_agent_that_is_code_is_there_for_every_tenant() -> None:
    greeter = Agent("Greeter", description="Greets")

    @greeter.skill
    async def greet(name: str) -> str:
        """Say hello."""
        return f"Hello, {name}!"

    async with house(code=[greeter]) as hub:
        for name in ("acme", "umbrella"):
            tenant = await hub.tenant(name)
            task = (await tenant.rpc("greeter", "message/send", message("Ada"))).json["result"]
            assert task["status"]["message"]["parts"][0]["text"] == "Hello, Ada!"
            assert "greeter" in {agent["id"] for agent in (await tenant("GET", "/v1/agents")).json["agents"]}
            assert (await tenant("DELETE", "/v1/agents/greeter")).status == 400


async def test_an_agent_that_is_code_gets_the_task_and_nothing_around_it() -> None:
    async with house(["/agent worker sweep the floor", "So."], code=[WORKER]) as hub:
        acme = await hub.tenant("acme")
        received = await acme.ask("go")
        answers = [payload["content"] for kind, payload in received if kind == "sub_agent_response"]
        assert answers == ["sweep the floor\ndone: sweep the floor"]


async def test_artifacts_of_python_agents_are_separate_lines_of_the_answer() -> None:
    async with house(code=[WORKER]) as hub:
        acme = await hub.tenant("acme")
        received = await acme.ask("sweep", "/v1/agents/worker/chat")
        assert received[-1][1]["content"] == "sweep\ndone: sweep"


async def test_an_agent_that_raises_gives_an_error_and_one_that_rejects_a_rejected_task() -> None:
    agent = Agent("Odd", description="Fails in several ways")

    @agent.skill
    async def fail(text: str, turn: Turn) -> str:
        if text == "reject":
            turn.reject("not today")
        raise RuntimeError("a secret")

    async with house(code=[agent]) as hub:
        acme = await hub.tenant("acme")
        answer = (await acme.rpc("odd", "message/send", message("raise"))).json
        assert answer["error"]["code"] == -32006 and "secret" not in str(answer)
        answer = (await acme.rpc("odd", "message/send", message("reject", "m-2"))).json
        assert answer["result"]["status"]["state"] == "rejected"


async def test_without_push_the_card_of_an_agent_that_is_code_does_not_promise_it() -> None:
    async with house(code=[Agent("Greeter", description="Greets")]) as hub:
        acme = await hub.tenant("acme")
        card = (await acme("GET", "/v1/a2a/agents/greeter/agent-card.json")).json
        assert not card["capabilities"].get("pushNotifications")


async def test_the_card_of_an_agent_that_is_code_asks_for_a_token_like_every_other() -> None:
    async with house(code=[Agent("Greeter", description="Greets")]) as hub:
        acme = await hub.tenant("acme")
        cards = [
            (await acme("GET", f"/v1/a2a/agents/{id}/agent-card.json")).json for id in ("index", "greeter")
        ]
        assert cards[0]["securitySchemes"] == cards[1]["securitySchemes"] != {}
        assert cards[0]["security"] == cards[1]["security"] == [{"bearer": []}]


async def test_a_card_of_code_asks_for_no_scheme_that_the_hub_does_not_have() -> None:
    secret = Agent("Vault", auth=[ApiKey({"ann": "0" * 64})], extended_card=[Skill(id="more", name="more")])

    @secret.skill(scopes=["vault:open"])
    async def unlock(turn: Turn) -> str:
        return "open"

    async with house(code=[secret]) as hub:
        acme = await hub.tenant("acme")
        card = (await acme("GET", "/v1/a2a/agents/vault/agent-card.json", a2a_version="1.0")).json
        more = (await acme.rpc("vault", "GetExtendedAgentCard", a2a_version="1.0")).json["result"]
        for each in (card, more):
            assert list(each["securitySchemes"]) == ["bearer"]
            named = {name for skill in each["skills"] for need in needs(skill) for name in need}
            assert named == {"bearer"}
        assert "vault:open" in str(card["skills"])


def needs(skill: Any) -> list[Any]:
    """What a skill asks for, in the shape of either version."""
    return [
        need.get("schemes", need) for need in skill.get("securityRequirements", skill.get("security", []))
    ]
