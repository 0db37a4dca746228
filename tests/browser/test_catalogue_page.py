"""The page of the catalogue: search, health and signature, registering and removing an agent, and hostile texts."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.browser.fake_console import TIME, FakeConsole, listed
from tests.browser.payloads import PAYLOADS
from tests.browser.test_pages import enter
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def opened(page: Page, fake: FakeConsole) -> None:
    fake.features.append("catalogue")
    await enter(page, fake, "catalogue")
    await expect(page.get_by_role("heading", name="Catalogue")).to_be_visible()


async def test_the_table_shows_health_version_and_signature(page: Page, fake: FakeConsole) -> None:
    down = {"state": "down", "checked": TIME, "error": "it did not answer within 10 s"}
    fake.catalogue = [
        listed(),
        listed(name="money", title="Money", kind="registered", signature="invalid", health=down),
    ]
    await opened(page, fake)
    await expect(page.get_by_text("2 agents")).to_be_visible()
    first, second = page.locator("tr[data-agent='refunds']"), page.locator("tr[data-agent='money']")
    await expect(first).to_contain_text("1.4")
    await expect(first.get_by_text("up", exact=True)).to_be_visible()
    await expect(first.get_by_text("valid", exact=True)).to_be_visible()
    await expect(second.get_by_text("down", exact=True)).to_be_visible()
    await expect(second).to_contain_text("it did not answer within 10 s")
    await expect(second.get_by_text("invalid", exact=True)).to_be_visible()
    await expect(first.get_by_role("button", name="Remove refunds")).to_have_count(0)


async def test_the_search_box_narrows_the_table(page: Page, fake: FakeConsole) -> None:
    fake.catalogue = [listed(), listed(name="weather", title="Weather")]
    await opened(page, fake)
    await page.get_by_label("Search the catalogue").fill("weather")
    await expect(page.locator("tr[data-agent]")).to_have_count(1)
    await expect(page.get_by_text("1 agent", exact=True)).to_be_visible()
    await page.get_by_label("Search the catalogue").fill("zeppelin")
    await expect(page.get_by_role("heading", name="Nothing matches")).to_be_visible()


async def test_an_agent_is_registered_and_removed(page: Page, fake: FakeConsole) -> None:
    await opened(page, fake)
    await page.get_by_role("button", name="Register an agent").click()
    await page.get_by_label("URL").fill("https://refused.example")
    await page.get_by_role("button", name="Register", exact=True).click()
    await expect(page.get_by_role("alert")).to_have_text("refused: CONFLICT")
    await page.get_by_label("URL").fill("https://money.example")
    await page.get_by_label("Name").fill("money")
    await page.get_by_label("Private").check()
    await page.get_by_role("button", name="Register", exact=True).click()
    await expect(page.locator("tr[data-agent='money']")).to_be_visible()
    assert fake.registered[-1] == {
        "url": "https://money.example",
        "name": "money",
        "tenant": "",
        "private": True,
    }
    await page.get_by_role("button", name="Remove money").click()
    await page.get_by_role("button", name="Remove it").click()
    await until(lambda: len(fake.catalogue), lambda n: n == 0)
    await expect(page.locator("tr[data-agent]")).to_have_count(0)


async def test_nothing_that_a_card_says_runs(page: Page, fake: FakeConsole) -> None:
    fake.catalogue = [
        listed(
            name=f"a{n}",
            title=text,
            kind=text,
            tenant=text,
            url=text,
            signature=text,
            health={"state": text, "checked": text, "error": text},
            description={
                "name": text,
                "description": text,
                "version": text,
                "skills": [{"id": text, "name": text}, None, 7],
            },
        )
        for n, text in enumerate(PAYLOADS)
    ]
    await opened(page, fake)
    await expect(page.locator("tr[data-agent]")).to_have_count(len(PAYLOADS))
    assert await page.locator("main script, main iframe, main img").count() == 0


async def test_a_server_without_a_catalogue_has_no_such_page(page: Page, fake: FakeConsole) -> None:
    await enter(page, fake)
    await expect(page.get_by_role("link", name="Catalogue")).to_have_count(0)
