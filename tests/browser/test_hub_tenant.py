"""The pages that manage a tenant: its tokens, what it may use and store, export and delete."""

from __future__ import annotations

import asyncio
import zipfile
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser.test_hub_pages import ADMIN, enter, log_out, new_tenant
from tests.browser.test_hub_pages import hub as hub
from tests.serving import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def go(page: Page, place: str) -> None:
    await page.evaluate("place => { location.hash = place }", place)


async def secret(page: Page) -> str:
    """The secret that is shown once."""
    box = page.get_by_role("dialog")
    shown = await box.locator("pre").text_content() or ""
    await page.keyboard.press("Escape")
    await expect(box).to_be_visible()
    await box.get_by_role("button", name="I have stored it").click()
    await expect(page.locator("dialog")).to_have_count(0)
    assert shown not in await page.content() and shown not in page.url
    return shown


async def status_with(page: Page, token: str, path: str = "/v1/agents") -> int:
    """What the native API answers whoever has the token."""
    status: int = await page.evaluate(
        "([token, path]) => fetch(path, {headers: {authorization: 'Bearer ' + token}}).then(r => r.status)",
        [token, path],
    )
    return status


def row_of(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name="Tokens").locator("tbody tr", has_text=name)


async def new_token(page: Page, name: str, scope: str, ends: str = "90 days") -> str:
    await page.get_by_label("Name of the new token").fill(name)
    await page.get_by_label("It may").select_option(scope)
    await page.get_by_label("Valid for").select_option(label=ends)
    await page.get_by_role("button", name="Create a token").click()
    return await secret(page)


async def test_an_operator_creates_rotates_and_revokes_a_token(page: Page, hub: Server) -> None:
    await enter(page, hub, ADMIN)
    await new_tenant(page, "tina")
    await go(page, "hub/tina/tokens")
    old = await new_token(page, "ci", "read")
    assert old.startswith("atr_") and await status_with(page, old) == 200
    assert await status_with(page, old, "/v1/tokens") == 403
    row = row_of(page, "ci")
    await expect(row).to_contain_text("read")
    await expect(row).to_contain_text("in 90 days")
    await row.get_by_role("button", name="Rotate ci").click()
    await page.get_by_label("The old token stays valid for").select_option(label="1 hour")
    await page.get_by_label("The new token is valid for").select_option(label="as long as the old one")
    await page.get_by_role("button", name="Rotate it").click()
    new = await secret(page)
    assert await status_with(page, old) == 200 and await status_with(page, new) == 200
    await expect(row).to_have_count(2)
    await expect(row.filter(has_text="replaced")).to_contain_text("in 60 min")
    current = row.filter(has_text="in 90 days")
    await current.get_by_role("button", name="Revoke ci").click()
    await page.get_by_role("button", name="Revoke it").click()
    await expect(row).to_have_count(1)
    assert await status_with(page, new) == 401 and await status_with(page, old) == 200
    await page.get_by_label("Show revoked ones").check()
    await expect(row.filter(has_text="revoked")).to_have_count(1)
    assert hub.process is not None and old.encode() not in hub.said and new.encode() not in hub.said


async def test_a_token_that_cannot_be_created_says_why(page: Page, hub: Server) -> None:
    await enter(page, hub, ADMIN)
    await new_tenant(page, "ursula")
    await go(page, "hub/ursula/tokens")
    await page.get_by_label("Name of the new token").fill("<img src=x>")
    await page.get_by_role("button", name="Create a token").click()
    await expect(page.locator(".toast.bad", has_text="letters, digits")).to_be_visible()


async def test_a_tenant_sees_the_pages_that_its_scope_allows(page: Page, hub: Server) -> None:
    await enter(page, hub, ADMIN)
    await new_tenant(page, "vera")
    await go(page, "hub/vera/tokens")
    tokens = {scope: await new_token(page, f"for {scope}", scope) for scope in ("read", "run", "admin")}
    for scope, token in tokens.items():
        await log_out(page)
        await enter(page, hub, token)
        await expect(page.get_by_role("heading", name="vera")).to_be_visible()
        for name in ("Tokens", "Tenant"):
            await expect(page.get_by_role("tab", name=name)).to_have_count(1 if scope == "admin" else 0)
        await page.get_by_role("tab", name="Policy").click()
        await expect(page.get_by_role("heading", name="Used today")).to_be_visible()
        await expect(page.get_by_role("button", name="Save", exact=True)).to_have_count(0)
        codes = await page.evaluate(
            """() => Promise.all(['tenants/vera/tokens', 'tenants/vera/export', 'tenants/vera/policy', 'admin/tenants', 'admin/tenants/vera/tokens']
               .map(path => fetch('api/hub/' + path).then(r => r.status)))"""
        )
        own = 200 if scope == "admin" else 403
        assert codes == [own, own, 200, 403, 403]
    await page.get_by_role("tab", name="Tokens").click()
    await expect(row_of(page, "for admin")).to_contain_text("valid")
    await page.get_by_role("tab", name="Tenant").click()
    await expect(page.get_by_role("link", name="Save the archive")).to_be_visible()
    await expect(page.get_by_role("button", name="Delete this tenant")).to_have_count(0)


async def test_an_operator_changes_what_a_tenant_may_use(page: Page, hub: Server) -> None:
    await enter(page, hub, ADMIN)
    token = await new_tenant(page, "wanda")
    await page.evaluate(
        """token => fetch('/v1/orchestrate', {method: 'POST', headers: {authorization: 'Bearer ' + token},
           body: JSON.stringify({message: 'hello'})}).then(r => r.text())""",
        token,
    )
    await go(page, "hub/wanda/policy")
    form = page.get_by_role("form", name="Policy of this tenant")
    await expect(page.locator("dl.strip")).to_contain_text("of 10,000,000")
    await expect(page.locator(".facts")).to_contain_text("/exec")
    await form.get_by_label("Tokens of models a day").fill("1")
    await form.get_by_label("Commands that ask first").fill("/write /exec")
    await form.get_by_role("button", name="Save").click()
    await expect(page.locator(".facts")).to_contain_text("/write")
    await expect(page.locator(".usedbar i.bad")).to_be_visible()
    refused = await page.evaluate(
        """token => fetch('/v1/orchestrate', {method: 'POST', headers: {authorization: 'Bearer ' + token},
           body: JSON.stringify({message: 'hello'})}).then(r => r.status)""",
        token,
    )
    assert refused == 429
    await form.get_by_label("Commands that ask first").fill("/nothing")
    await form.get_by_role("button", name="Save").click()
    await expect(page.locator(".toast.bad", has_text="/nothing")).to_be_visible()
    await form.get_by_label("Commands that ask first").fill("")
    await form.get_by_label("Tokens of models a day").fill("")
    await form.get_by_role("button", name="Save").click()
    await expect(page.locator("dl.strip")).to_contain_text("of 10,000,000")
    await expect(page.locator(".facts")).not_to_contain_text("/write")


async def test_an_operator_exports_renames_and_deletes_a_tenant(
    page: Page, hub: Server, tmp_path: Path
) -> None:
    await enter(page, hub, ADMIN)
    token = await new_tenant(page, "xenia")
    await go(page, "hub/xenia/tenant")
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Save the archive").click()
    saved = await download.value
    assert saved.suggested_filename.endswith(".zip")
    await saved.save_as(tmp_path / "xenia.zip")
    with zipfile.ZipFile(tmp_path / "xenia.zip") as archive:
        assert archive.testzip() is None and len(archive.namelist()) > 1
    assert token.encode() not in await asyncio.to_thread((tmp_path / "xenia.zip").read_bytes)
    await page.get_by_label("New name").fill("xena")
    await page.get_by_role("button", name="Rename").click()
    await expect(page.locator(".crumbs")).to_contain_text("xena")
    await page.get_by_role("button", name="Delete this tenant").click()
    box = page.get_by_role("dialog")
    last = box.get_by_role("button", name="Delete it with everything it has")
    await expect(last).to_be_disabled()
    await box.get_by_label("Name of the tenant").fill("xenia")
    await expect(last).to_be_disabled()
    assert await status_with(page, token) == 200
    await box.get_by_label("Name of the tenant").fill("xena")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Hub")).to_be_visible()
    await expect(page.get_by_role("link", name="xena", exact=True)).to_have_count(0)
    assert await status_with(page, token) == 401


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("tab", ["tokens", "policy", "tenant", "requests", "schedules"])
async def test_nothing_is_wider_than_a_phone(page: Page, hub: Server, tab: str, theme: str) -> None:
    await enter(page, hub, ADMIN)
    await new_tenant(page, f"{tab}-{theme}-with-a-rather-long-name")
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    await go(page, f"hub/{tab}-{theme}-with-a-rather-long-name/{tab}")
    await expect(page.locator(".hubbody .empty, .hubbody table, .hubbody h2").first).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    unnamed = await page.evaluate(
        """() => [...document.querySelectorAll('main input, main select, main button')].filter(n => !n.labels?.length && !n.textContent.trim()
           && !n.getAttribute('aria-label')).map(n => n.outerHTML)"""
    )
    assert unnamed == []
