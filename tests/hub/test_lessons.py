"""What agents learn from their mistakes, and when they are reminded of it."""

from __future__ import annotations

from dragoman.hub.agents.commands import parse
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
        assert "OK: recorded lesson [parsing dates] Two lines,\n| both of them. (#2)" in said
        assert said.count("[parsing dates]") == 3 and "ERR: there is no lesson '#9' of yours" in said
        await acme.ask("is that page behind cloudflare?")
        asked = hub.model.prompts[2].messages[-1].content
        assert "[KNOWN PITFALLS]\n| - [/fetch behind cloudflare] send the bearer token" in asked
        assert "parsing dates" not in asked.partition("QUERY:")[0]
        await acme.ask("hello")
        assert "KNOWN PITFALLS" not in hub.model.prompts[3].messages[-1].content


async def test_a_lesson_is_a_memory_of_its_agent_that_people_can_correct() -> None:
    async with house(
        ["/lesson reading: slowly", "Ok.", "Ok.", "/lesson list\n/lesson delete #1", "Ok."]
    ) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", {**SCOUT, "capabilities": ["lessons"]})
        await acme.ask("learn")
        (entry,) = (await acme("GET", "/v1/memory/entries?type=learning")).json["entries"]
        assert (entry["title"], entry["content"], entry["source"]) == ("reading", "slowly", "index")
        await acme("PATCH", f"/v1/memory/entries/{entry['id']}", {"content": "slowly, and twice"})
        await acme.ask("go on reading")
        assert "[reading] slowly, and twice" in hub.model.prompts[2].messages[-1].content
        await acme.ask("go on reading", "/v1/agents/scout/chat")
        assert "PITFALLS" not in hub.model.prompts[3].messages[-1].content
        said = hub.model.prompts[4].messages[-1].content
        assert "(no lessons yet)" in said and "ERR: there is no lesson '#1' of yours" in said


async def test_a_lesson_that_its_agent_deletes_is_not_shown_again() -> None:
    replies = [
        "/lesson reading: slowly\n/lesson: nothing\n/lesson empty: ",
        "Ok.",
        "/lesson delete #1",
        "Ok.",
        "Ok.",
    ]
    async with house(replies) as hub:
        acme = await hub.tenant("acme")
        for text in ("learn", "read", "go on reading"):
            await acme.ask(text)
        assert "OK: lesson #1 is deleted" in hub.model.prompts[3].messages[-1].content
        assert "PITFALLS" not in hub.model.prompts[4].messages[-1].content


def test_a_lesson_is_a_line_with_a_colon_or_a_block() -> None:
    names = ["/lesson"]
    assert [c.body for c in parse("/lesson a: b\n/lesson list\n/lesson search x\nhi", names).commands] == [
        None
    ] * 3
    (block,) = parse("/lesson see http://x\nbody\n/endlesson", names).commands
    assert (block.args, block.body) == ("see http://x", "body")
    assert parse("/lesson open", names).open
