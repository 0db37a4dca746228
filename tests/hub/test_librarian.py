"""Memory with the help of a model: to find, to put in order, to tag, to retire."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.hub.model import ModelError, Prompt
from tests.hub.house import Caller, House, house

ENTRIES = "/v1/memory/entries"
BROKEN = ModelError("provider_error", "the model provider failed")


async def remember(caller: Caller, title: str, content: str = "", type: str = "project", **more: Any) -> Any:
    answer = await caller("POST", ENTRIES, {"type": type, "title": title, "content": content, **more})
    assert answer.status == 201, answer.json
    return answer.json


async def titles(caller: Caller, query: str) -> list[str]:
    return [entry["title"] for entry in (await caller("GET", f"{ENTRIES}?{query}")).json["entries"]]


def asked(hub: House) -> list[Prompt]:
    prompts: list[Prompt] = hub.model.prompts
    return prompts


async def test_a_model_says_a_question_in_other_words() -> None:
    async with house(["1. automobile costs\n- vehicle price\nmore\n"]) as hub:
        acme = await hub.tenant("acme")
        await remember(acme, "What the automobile costs", "a lot")
        await remember(acme, "Tea", "is cheap")
        assert await titles(acme, "q=car") == []
        answer = (await acme("GET", f"{ENTRIES}?q=car&expand=p/small")).json
        assert [entry["title"] for entry in answer["entries"]] == ["What the automobile costs"]
        assert answer["expansion"] == {
            "model": "p/small",
            "applied": True,
            "queries": ["automobile costs", "vehicle price"],
            "note": "",
        }
        assert "rerank" not in answer
        (prompt,) = asked(hub)
        assert prompt.model == "p/small" and "car" in prompt.messages[0].content


async def test_a_model_puts_what_was_found_in_order_and_another_looks_closer() -> None:
    async with house(lambda prompt: "#1, #2" if prompt.model == "p/small" else "2") as hub:
        acme = await hub.tenant("acme")
        for title in ("budget one", "budget two", "budget three"):
            await remember(acme, title, "money " * 100)
        plain = await titles(acme, "q=budget")
        ranked = await titles(acme, "q=budget&rerank=p/small")
        assert ranked[:2] == ["budget one", "budget two"] and sorted(ranked) == sorted(plain)
        answer = (await acme("GET", f"{ENTRIES}?q=budget&rerank=p/small&rerank_fine=p/big&limit=2")).json
        assert [entry["title"] for entry in answer["entries"]] == ["budget two", "budget one"]
        assert answer["rerank"] == {
            "applied": True,
            "model": "p/small",
            "fine_applied": True,
            "fine_model": "p/big",
            "stages": 2,
            "note": "",
        }
        first, second = asked(hub)[-2:]
        assert len(second.messages[0].content) > len(first.messages[0].content), "it reads more of each"
        assert "(project, 20" in first.messages[0].content


@pytest.mark.parametrize("said", [BROKEN, "I would not know.", ""], ids=["broken", "talk", "nothing"])
async def test_a_model_that_is_of_no_help_changes_nothing(said: Any) -> None:
    async with house(lambda prompt: said if prompt.model == "p/small" else "none") as hub:
        acme = await hub.tenant("acme")
        await remember(acme, "budget one")
        await remember(acme, "budget two")
        plain = await titles(acme, "q=budget")
        answer = (await acme("GET", f"{ENTRIES}?q=budget&rerank=p/small")).json
        assert [entry["title"] for entry in answer["entries"]] == plain
        assert answer["rerank"]["applied"] is False and answer["rerank"]["stages"] == 0
        assert answer["rerank"]["note"]
        if said is BROKEN:
            answer = (await acme("GET", f"{ENTRIES}?q=budget&expand=p/small")).json
            assert [entry["title"] for entry in answer["entries"]] == plain
            assert not answer["expansion"]["applied"] and "failed" in answer["expansion"]["note"]


async def test_a_model_tags_what_is_new() -> None:
    async with house(["Honeycomb, Pricing tiers, report, honeycomb"]) as hub:
        acme = await hub.tenant("acme")
        made = await remember(acme, "Findings", "what it costs", tags=["report"], auto_tag="p/small")
        assert made["tags"] == ["report", "honeycomb", "pricing-tiers"]
        assert made["auto_tag"] == {
            "model": "p/small",
            "applied": True,
            "added": ["honeycomb", "pricing-tiers"],
            "note": "",
        }
        assert await titles(acme, "tag=pricing-tiers") == ["Findings"]


async def test_a_model_ends_what_a_new_entry_contradicts_and_nothing_else() -> None:
    async with house(lambda prompt: "#1, #3, #99") as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        old = await remember(acme, "Favorite food is sushi", type="user")
        await remember(acme, "Food budget", type="user")
        theirs = await remember(other, "Favorite food is bread", type="user")
        assert theirs["id"] == 3
        new = await remember(acme, "Favorite food is pasta", type="user", supersede="p/small")
        judged = new["supersede"]
        assert judged["invalidated"] == [old["id"]] and judged["applied"] is True
        assert set(judged["candidates"]) == {1, 2} and judged["model"] == "p/small"
        assert sorted(await titles(acme, "type=user")) == ["Favorite food is pasta", "Food budget"]
        assert await titles(other, "type=user") == ["Favorite food is bread"]
        relations = (await acme("GET", "/v1/memory/relations")).json["relations"]
        assert [(r["source_id"], r["relation"], r["target_id"]) for r in relations] == [
            (new["id"], "supersedes", old["id"])
        ]


async def test_what_is_wrong_is_refused_before_a_model_is_asked_and_help_counts_as_a_request() -> None:
    async with house(lambda prompt: "a-tag", rate_per_min=1) as hub:
        acme = await hub.tenant("acme")
        for body in (
            {"type": "nonsense", "title": "x", "auto_tag": "p/m"},
            {"type": "user", "title": "", "auto_tag": "p/m"},
            {"type": "user", "title": "x", "auto_tag": "m" * 201},
            {"type": "user", "title": "x", "auto_tag": 1},
        ):
            assert (await acme("POST", ENTRIES, body)).status == 400
        assert (await acme("GET", f"{ENTRIES}?type=nonsense")).status == 400
        assert asked(hub) == []
        both = {"type": "user", "title": "x", "auto_tag": "p/m", "supersede": "p/m"}
        assert (await acme("POST", ENTRIES, both)).status == 201
        assert (await acme("POST", ENTRIES, both)).status == 429
        assert (await acme("GET", f"{ENTRIES}?q=x&rerank=p/m")).status == 429
        assert len((await acme("GET", f"{ENTRIES}?q=x")).json["entries"]) == 1, "words cost nothing"
        assert hub.hub.quotas.counts() == {}


async def test_types_and_tags_go_first_in_a_search_and_the_way_a_question_is_put_counts() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        await remember(acme, "tea in the garden", type="project")
        await remember(acme, "tea in the kitchen", type="user", tags=["home"])
        assert await titles(acme, "q=tea&type=project") == ["tea in the garden", "tea in the kitchen"]
        assert await titles(acme, "q=tea&type=user") == ["tea in the kitchen", "tea in the garden"]
        assert (await titles(acme, "q=tea&tag=home"))[0] == "tea in the kitchen"
        assert (await titles(acme, "q=which+tea+is+preferred"))[0] == "tea in the kitchen"
        assert (await titles(acme, "q=tea+deadline"))[0] == "tea in the garden"


async def test_a_search_in_a_conversation_stays_there_unless_it_is_graduated() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        here, there = [(await acme("POST", "/v1/conversations", {})).json["id"] for _ in range(2)]
        await remember(acme, "budget here", conversation_id=here)
        await remember(acme, "budget there", conversation_id=there)
        assert await titles(acme, f"q=budget&conversation_id={here}") == ["budget here"]
        wide = await titles(acme, f"q=budget&conversation_id={here}&graduated=true")
        assert wide == ["budget here", "budget there"]


async def test_an_agent_searches_and_files_with_the_help_of_its_advisor() -> None:
    def say(prompt: Prompt) -> str:
        if prompt.model == "wise":
            if "in two other ways" in prompt.system:
                return "automobile price"
            return "1" if "older ones" in prompt.system or "best" in prompt.system else "cars, money"
        if prompt.messages[-1].content.endswith("[END TOOL RESULTS]"):
            return "Done."
        return "/mem add entry project Price of the automobile\ndear\n/endmem\n/mem search car cost --rerank"

    memory = {"search_expand": True, "auto_tag": True, "auto_supersede": True}
    scout = {"id": "scout", "advisor": "wise", "memory": memory}
    async with house(say) as hub:
        acme = await hub.tenant("acme")
        old = await remember(acme, "Price of an automobile is low")
        await acme("POST", "/v1/agents", scout)
        told = await acme.ask("go", "/v1/agents/scout/chat")
        assert told[-1][1]["ok"], told[-1]
        fed = asked(hub)[-1].messages[-1].content
        assert f"OK: added entry #2 [project] Price of the automobile; it supersedes #{old['id']}" in fed
        assert "- #2  [project]  Price of the automobile  (cars, money)" in fed
        wise = [payload for kind, payload in told if kind == "token_usage" and payload["model"] == "wise"]
        assert len(wise) == 3, "tags, what is out of date, other words: one entry needs no order"


async def test_relations_are_found_by_their_ends_and_their_kind() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        one, two, three = [(await remember(acme, title))["id"] for title in ("a", "b", "c")]
        for source, kind, target in (
            (one, "supports", two),
            (two, "refines", three),
            (three, "supports", one),
        ):
            body = {"source_id": source, "relation": kind, "target_id": target}
            assert (await acme("POST", "/v1/memory/relations", body)).status == 201

        async def found(query: str) -> list[int]:
            answer = await acme("GET", f"/v1/memory/relations?{query}")
            return [each["id"] for each in answer.json["relations"]]

        assert await found("") == [1, 2, 3] and await found("limit=2") == [1, 2]
        assert await found(f"source_id={one}") == [1] and await found(f"target_id={one}") == [3]
        assert await found(f"entry_id={one}") == [1, 3] and await found("relation=supports") == [1, 3]
        assert await found(f"relation=supports&target_id={two}") == [1]
        assert (await acme("GET", "/v1/memory/relations?relation=hates")).status == 400
