"""What agents learn from their mistakes, and when they are reminded of it."""

from __future__ import annotations

import pytest

from dragoman.hub import lessons
from dragoman.hub.commands import parse
from tests.hub.house import SCOUT, house


async def test_an_agent_is_reminded_of_what_it_learned() -> None:
    replies = [
        "/lesson /fetch behind cloudflare: send the bearer token along\n/lesson parsing dates\nTwo lines,\nboth of them.\n"
        "/endlesson\n/lesson list\n/lesson search DATES\n/lesson delete #9",
        "Noted.",
        "Thanks.",
        "Fine.",
    ]
    async with house(replies) as hub:
        acme = await hub.tenant("acme")
        await acme.ask("learn something")
        said = hub.model.prompts[1].messages[-1].content
        assert "OK: recorded lesson [/fetch behind cloudflare] send the bearer token along (#1)" in said
        assert "OK: recorded lesson [parsing dates] Two lines,\nboth of them. (#2)" in said
        assert said.count("[parsing dates]") == 3 and "ERR: there is no lesson '#9' of yours" in said
        await acme.ask("is that page behind cloudflare?")
        asked = hub.model.prompts[2].messages[-1].content
        assert "[KNOWN PITFALLS]\n- [/fetch behind cloudflare] send the bearer token" in asked
        assert "parsing dates" not in asked.partition("QUERY:")[0]
        await acme.ask("hello")
        assert "KNOWN PITFALLS" not in hub.model.prompts[3].messages[-1].content
        (seen, unseen) = (await acme("GET", "/v1/lessons?q=e&agent_id=index")).json["lessons"]
        assert (seen["id"], seen["hit_count"], unseen["hit_count"]) == (1, 1, 0)


async def test_lessons_are_the_agents_own_and_the_tenants_own() -> None:
    async with house(["/lesson list", "Nothing."]) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        await acme("POST", "/v1/agents", SCOUT)
        await acme("POST", "/v1/lessons", {"signature": "reading", "lesson_text": "slowly"})
        await acme.ask("go on reading", "/v1/agents/scout/chat")
        assert "PITFALLS" not in hub.model.prompts[0].messages[-1].content
        assert "(no lessons yet)" in hub.model.prompts[1].messages[-1].content
        assert (await other("GET", "/v1/lessons")).json["lessons"] == []
        for method in ("GET", "DELETE"):
            assert (await other(method, "/v1/lessons/1")).status == 404
        assert (await other("PATCH", "/v1/lessons/1", {"signature": "x"})).status == 404


async def test_people_correct_lessons() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        made = await acme("POST", "/v1/lessons", {"signature": "reading", "lesson_text": "slowly"})
        assert made.status == 201 and made.json["lesson"]["agent_id"] == "index"
        changed = await acme("PATCH", "/v1/lessons/1", {"lesson_text": "slowly, and twice"})
        assert changed.json["lesson"]["lesson_text"] == "slowly, and twice"
        assert (await acme("GET", "/v1/lessons/1")).json["lesson"]["signature"] == "reading"
        for body in ({}, {"signature": " "}, {"lesson_text": "x" * 4097}, {"signature": "x" * 201}):
            assert (await acme("PATCH", "/v1/lessons/1", body)).status == 400
        assert (await acme("POST", "/v1/lessons", {"signature": "x"})).status == 400
        long = {"signature": "x", "lesson_text": "y", "agent_id": "z" * 65}
        assert (await acme("POST", "/v1/lessons", long)).status == 400
        assert (await acme("DELETE", "/v1/lessons/1")).status == 204
        assert (await acme("GET", "/v1/lessons/1")).status == 404


def test_a_lesson_is_a_line_with_a_colon_or_a_block() -> None:
    names = ["/lesson"]
    assert [c.body for c in parse("/lesson a: b\n/lesson list\n/lesson search x\nhi", names).commands] == [
        None
    ] * 3
    (block,) = parse("/lesson see http://x\nbody\n/endlesson", names).commands
    assert (block.args, block.body) == ("see http://x", "body")
    assert parse("/lesson open", names).open


async def test_lessons_are_only_so_many_for_an_agent_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "MOST", 2)
    monkeypatch.setattr(lessons, "IN_ALL", 3)
    async with house() as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        for agent, status in (("a", 201), ("a", 201), ("a", 400), ("b", 201), ("c", 400)):
            body = {"signature": "where", "lesson_text": "what", "agent_id": agent}
            assert (await acme("POST", "/v1/lessons", body)).status == status
        assert (await other("POST", "/v1/lessons", body)).status == 201
