"""`dragoman inspect` in a browser: a real OAuth login with PKCE in another tab, then a chat with the agent behind it."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.cli.test_inspect import inspecting
from tests.console.oauth_server import CLIENT, oauth_server

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_person_logs_in_with_pkce_in_another_tab_and_talks_to_the_agent(page: Page) -> None:
    async with oauth_server() as site, inspecting(site.base) as printed:
        await page.goto(f"{printed.base}/console/#token={printed.token}")
        await expect(page.get_by_role("heading", name="Fake")).to_be_visible()
        await page.get_by_role("button", name="Log in …").click()
        await page.get_by_label("How to log in").select_option("authorizationCode")
        await page.get_by_label("Client id").fill(CLIENT)
        await page.get_by_role("button", name="Log in", exact=True).click()
        await page.locator("dialog button.link").click()
        async with page.context.expect_page() as opening:
            await page.get_by_role("button", name="Open", exact=True).click()
        tab = await opening.value
        await expect(tab.get_by_role("heading", name="You are logged in")).to_be_visible()
        await expect(page.get_by_text("logged in", exact=True)).to_be_visible()
        await page.locator("[data-tab=chat]").click()
        await page.locator(".composer textarea").fill("hello")
        await page.get_by_role("button", name="Send", exact=True).click()
        await expect(page.locator(".answer")).to_contain_text("fine")
        (token,) = site.valid
        assert token not in await page.content()
