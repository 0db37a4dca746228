"""Every view of the page, against a console whose answers are written here."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.browser.fake_console import FakeConsole, agent, listed, record, row
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def enter(page: Page, fake: FakeConsole, place: str = "agents") -> None:
    """Log in, and go to a place."""
    await page.goto(fake.url + "#token=good")
    await expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    await page.evaluate("place => { location.hash = place }", place)


def with_log(fake: FakeConsole, n: int, key: str = "k1", **more: Any) -> None:
    fake.rows = [row(key, records=n, **more)]
    fake.records[key] = record
    fake.last[key] = n


async def seqs(page: Page) -> list[int]:
    """The numbers of the records that are in the page, in the order in which they are seen."""
    found = await page.evaluate(
        "[...document.querySelectorAll('.record')].map(r => [r.getBoundingClientRect().top, Number(r.dataset.seq)]).sort((a, b) => a[0] - b[0]).map(r => r[1])"
    )
    return list(found)


async def test_the_token_of_the_address_logs_in_and_leaves_the_address_bar(
    page: Page, fake: FakeConsole
) -> None:
    await page.goto(fake.url + "#token=good")
    await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    assert "token" not in page.url
    assert fake.sessions == 1
    await expect(page.get_by_role("link", name="Echo", exact=True)).to_be_visible()


async def test_a_wrong_token_leads_to_a_form_that_takes_the_right_one(page: Page, fake: FakeConsole) -> None:
    await page.goto(fake.url + "#token=wrong")
    await expect(page.get_by_role("alert")).to_have_text("refused: UNAUTHENTICATED")
    assert "wrong" not in page.url
    await page.get_by_label("Token").fill("good")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("Token")).to_be_visible()


async def test_whoever_goes_to_a_page_while_logged_out_sees_it_after_the_log_in(
    page: Page, fake: FakeConsole
) -> None:
    with_log(fake, 3)
    await enter(page, fake, "task/k1")
    await expect(page.locator(".record").first).to_be_visible()
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("Token")).to_be_visible()
    await page.evaluate("location.hash = 'tasks'")
    await page.get_by_label("Token").fill("good")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Tasks", exact=True)).to_be_visible()


async def test_a_long_log_opens_with_few_requests_and_few_rows_and_scrolls_to_any_place(
    page: Page, fake: FakeConsole
) -> None:
    with_log(fake, 100_000)
    await enter(page, fake, "task/k1")
    await expect(page.locator(".record[data-seq='100000']")).to_be_visible()
    await expect(page.get_by_text("Record 100,000 of 100,000")).to_be_visible()
    assert sum(path.endswith("/records") for path in fake.requests) <= 3
    assert sum(path.endswith("/tasks/k1") for path in fake.requests) == 1, "the server folds the log for it"
    assert len(await seqs(page)) < 100
    await page.evaluate(
        "(() => { const list = document.querySelector('.vlist'); list.scrollTop = list.scrollHeight / 2; })()"
    )
    await expect(page.locator(".record[data-seq='50010']")).to_contain_text("summary 50010")
    shown = await seqs(page)
    assert len(shown) < 100 and shown == list(range(shown[0], shown[0] + len(shown)))


async def test_the_page_says_that_the_server_is_away_and_goes_on_behind_its_cursor(
    page: Page, fake: FakeConsole
) -> None:
    with_log(fake, 3)
    await enter(page, fake, "task/k1")
    await expect(page.locator(".record")).to_have_count(3)
    await fake.append("k1")
    await expect(page.locator(".record")).to_have_count(4)
    await fake.stop()
    await expect(page.get_by_text("The server does not answer.")).to_be_visible()
    fake.last["k1"] = 6
    await fake.start()
    await expect(page.locator(".record")).to_have_count(6)
    await expect(page.get_by_text("The server is back.")).to_be_visible()
    assert await seqs(page) == [1, 2, 3, 4, 5, 6]


async def test_keys_alone_reach_the_content_the_records_and_the_slider(page: Page, fake: FakeConsole) -> None:
    with_log(fake, 5)
    await enter(page, fake, "task/k1")
    await expect(page.locator(".record")).to_have_count(5)
    await page.reload()
    await expect(page.locator(".record")).to_have_count(5)
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    slider = page.get_by_label("Show the task as it was at this record")
    await slider.focus()
    await page.keyboard.press("ArrowLeft")
    await expect(page.get_by_text("Record 4 of 5")).to_be_visible()
    await page.get_by_role("list", name="Records of the task").focus()
    await page.keyboard.press("ArrowUp")
    await expect(page.locator(".record.selected")).to_have_attribute("data-seq", "3")
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    await page.get_by_role("tab", name="As it was").focus()
    await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("tab", name="Record", exact=True)).to_have_attribute(
        "aria-selected", "true"
    )


async def test_the_theme_follows_the_system_and_the_switch(page: Page, fake: FakeConsole) -> None:
    await page.emulate_media(color_scheme="dark")
    await enter(page, fake)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = await page.evaluate(ground)
    await page.get_by_role("button", name="Theme").click()
    assert await page.evaluate(ground) != dark
    await page.reload()
    await expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert await page.evaluate(ground) != dark
    await page.get_by_role("button", name="Theme").click()
    assert await page.evaluate(ground) == dark


@pytest.mark.parametrize(
    "place",
    [
        "agents",
        "agents/echo",
        "chat/echo",
        "tasks",
        "task/k1",
        "webhooks",
        "audit",
        "metrics",
        "inspect",
        "catalogue",
    ],
)
async def test_nothing_is_wider_than_a_phone(page: Page, fake: FakeConsole, place: str) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    long = "w" * 300
    with_log(fake, 40, text=long, agent=long, contextId=long)
    fake.agents = [agent(), agent(id="wide", name=long, description=long)]
    fake.webhooks = [{"key": "w", "task": long, "url": f"https://{long}", "cursor": 1, "last": 2, "pending": 1, "attempts": 3,
                      "lastError": long, "nextAttempt": None, "dead": False}]  # fmt: skip
    fake.features.append("catalogue")
    fake.catalogue = [
        listed(
            name=long, title=long, url=long, kind=long, health={"state": long, "error": long}, signature=long
        )
    ]
    fake.audit = [{"at": "2026-03-01T12:00:00Z", "principal": long, "operation": long}]
    fake.metrics = [{"name": long, "type": "gauge", "help": long, "samples": [{"labels": {"a": long}, "value": 1.5}]}]  # fmt: skip
    await enter(page, fake, place)
    await expect(page.locator("h1").first).to_be_attached()
    await until(lambda: page.evaluate("document.querySelectorAll('main *').length"), lambda n: n > 8)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_a_form_is_made_from_the_schema_of_a_skill_and_sends_its_values(
    page: Page, fake: FakeConsole
) -> None:
    schema = {
        "type": "object",
        "required": ["city", "nights"],
        "properties": {
            "city": {"type": "string", "description": "Where to"},
            "nights": {"type": "integer", "minimum": 1},
            "class": {"enum": ["first", "second"]},
            "breakfast": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": True},
            "guests": {"type": "array", "items": {"$ref": "#/$defs/Name"}},
        },
        "$defs": {"Name": {"type": "string"}},
    }
    fake.agents = [
        agent(skills=[{"id": "book", "name": "Book", "description": "Books", "inputSchema": schema}])
    ]
    fake.talk = [("event", {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "**booked**"}]}}),
                 ("end", {"task": None, "context": None, "state": None, "key": None})]  # fmt: skip
    await enter(page, fake, "agents/echo")
    await page.get_by_text("Fill in its input").click()
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("alert").filter(has_text="city is missing")).to_be_visible()
    await page.get_by_label("city").fill("Rome")
    await page.get_by_label("nights").fill("3")
    await page.get_by_label("class").select_option("second")
    await page.get_by_label("guests").fill("Ada\nBob")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".answer strong", has_text="booked")).to_be_visible()
    (said,) = fake.said
    assert said["agent"] == "echo" and said["skill"] == "book"
    assert said["message"]["parts"] == [
        {
            "data": {
                "city": "Rome",
                "nights": 3,
                "class": "second",
                "breakfast": True,
                "guests": ["Ada", "Bob"],
            }
        }
    ]


NAMELESS = """() => [...document.querySelectorAll('button, a[href], input, select, textarea, [role=tab], [role=list], nav, dialog')]
  .filter(n => n.checkVisibility() && !(n.getAttribute('aria-label') || n.labels?.length || n.textContent.trim() || n.title))
  .map(n => n.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("width", [1440, 390])
async def test_every_control_has_a_name_and_every_view_a_heading(
    page: Page, fake: FakeConsole, width: int
) -> None:
    fake.features.append("catalogue")
    fake.catalogue = [listed(kind="registered")]
    await page.set_viewport_size({"width": width, "height": 844})
    with_log(fake, 5)
    for place in (
        "agents",
        "agents/echo",
        "chat/echo",
        "tasks",
        "task/k1",
        "webhooks",
        "audit",
        "metrics",
        "inspect",
        "catalogue",
    ):
        await (
            enter(page, fake, place)
            if place == "agents"
            else page.evaluate("place => { location.hash = place }", place)
        )
        await expect(page.locator("h1:visible")).to_have_count(1)
        await expect(page.locator("main")).to_have_count(1)
        assert await page.evaluate(NAMELESS) == [], place
        ids = await page.evaluate("[...document.querySelectorAll('[id]')].map(n => n.id)")
        assert len(ids) == len(set(ids))


async def test_a_log_that_is_over_or_not_looked_at_holds_no_connection(page: Page, fake: FakeConsole) -> None:
    with_log(fake, 3)
    await enter(page, fake, "task/k1")
    await expect(page.locator(".live.live")).to_have_text("live")
    assert fake.streams() == 1
    await page.evaluate("location.hash = 'agents'")
    await until(fake.streams, lambda n: n == 0)
