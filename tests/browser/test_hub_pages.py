"""The hub's pages with a real hub: an administrator makes a tenant and an agent, and sees what the tenant has and costs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.serving import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = "adm_" + "5" * 64
AGENT = Path(__file__).parent / "agent.py"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    server = Server(env={"DRAGOMAN_ADMIN_TOKEN": ADMIN})
    server.command = [
        sys.executable, "-m", "dragoman.cli", "hub", "--data", str(tmp_path_factory.mktemp("hub")), "--model", "echo",
        "--port", str(server.port), "--console", "--agents", str(AGENT),
    ]  # fmt: skip
    async with server:
        yield server


async def enter(page: Page, hub: Server, token: str, place: str = "hub") -> None:
    await page.goto(f"{hub.url}/console/#token={token}")
    await expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    await page.evaluate("place => { location.hash = place }", place)


async def log_out(page: Page) -> None:
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_text("You are logged out.")).to_be_visible()


async def new_tenant(page: Page, name: str) -> str:
    await page.get_by_label("Name of the new tenant").fill(name)
    await page.get_by_role("button", name="Create a tenant").click()
    token = await page.locator("dialog pre").text_content()
    await page.get_by_role("button", name="I have stored it").click()
    await expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
    return token or ""


async def test_an_administrator_makes_a_tenant_and_an_agent_and_sees_what_changed(
    page: Page, hub: Server
) -> None:
    await enter(page, hub, ADMIN)
    token = await new_tenant(page, "ada")
    assert token.startswith("atr_")
    await page.get_by_role("link", name="ada", exact=True).click()
    await page.get_by_role("link", name="New agent").click()
    editor = page.get_by_label("Constitution as JSON")
    await expect(page.locator(".verdict.good")).to_have_text("This can be stored.")
    await editor.fill('{"id": "scout", "name": 7}')
    await expect(page.locator(".verdict.bad code", has_text="name")).to_be_visible()
    await expect(page.get_by_role("button", name="Create", exact=True)).to_be_disabled()
    document = {
        "id": "scout",
        "name": "Scout",
        "role": "finder",
        "goal": "<img src=x onerror=window.__pwned=1>",
    }
    await editor.fill(json.dumps(document))
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_role("heading", name="Scout")).to_be_visible()
    await editor.fill(json.dumps({**document, "goal": "finds more"}, indent=2))
    await expect(page.locator(".verdict.good", has_text="can be stored")).to_be_visible()
    await page.get_by_role("button", name="Save", exact=True).click()
    await page.get_by_role("button", name="Version 1", exact=True).click()
    await expect(page.locator(".diff .added", has_text="finds more")).to_be_visible()
    await page.get_by_role("link", name="Chat", exact=True).last.click()
    await page.locator(".composer textarea").fill("hello")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator(".answerfoot .badge", has_text="completed")).to_be_visible()
    answer = await page.locator(".answerbody").inner_text()
    assert answer.count("hello") == 1, "what the artifact and the last status say is shown once"
    await page.go_back()
    await page.get_by_role("link", name="All agents").click()
    await expect(page.locator("td", has_text="finds more").first).to_be_visible()


async def test_an_operator_sees_tasks_and_agents_with_the_names_of_tenants(page: Page, hub: Server) -> None:
    await enter(page, hub, ADMIN)
    for name in ("carl", "dora"):
        await new_tenant(page, name)
    await page.evaluate(
        """() => fetch('api/hub/tenants/dora/agents', {method: 'POST', headers: {'content-type': 'application/json'},
           body: JSON.stringify({id: 'digger', name: 'Digger', role: 'finder', goal: 'digs'})}).then(r => r.text())"""
    )
    await page.get_by_role("link", name="Agents", exact=True).first.click()
    await expect(page.get_by_role("heading", name="Agents", exact=True)).to_be_visible()
    await page.get_by_label("Tenant", exact=True).select_option("dora")
    await page.get_by_role("link", name="Digger").click()
    await page.locator(".detail .viewhead .button", has_text="Chat").click()
    await page.locator(".composer textarea").fill("deep")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator(".answerfoot .badge", has_text="completed")).to_be_visible()
    await page.get_by_role("button", name="Copy as").click()
    await expect(page.get_by_role("dialog").locator("pre")).to_contain_text("--auth env:AGENT_TOKEN")
    await page.get_by_role("tab", name="curl").click()
    await expect(page.get_by_role("dialog").locator("pre")).to_contain_text(
        "authorization: Bearer $AGENT_TOKEN"
    )
    await page.get_by_role("button", name="Close").click()
    await page.get_by_role("link", name="Tasks", exact=True).click()
    await expect(page.get_by_role("heading", name="Tasks", exact=True)).to_be_visible()
    await page.get_by_label("Tenant", exact=True).select_option("carl")
    await expect(page.get_by_text("No task matches these filters.")).to_be_visible()
    await page.get_by_label("Tenant", exact=True).select_option("dora")
    row = page.locator("tbody tr", has_text="deep")
    await expect(row).to_contain_text("dora")
    await row.get_by_role("link", name="deep").click()
    await expect(page.locator(".strip")).to_contain_text("Tenantdora")
    await page.locator(".strip").get_by_role("link", name="digger").click()
    await expect(page.get_by_role("heading", name="Digger")).to_be_visible()
    await page.go_back()
    await page.get_by_role("link", name="Open in chat").click()
    await expect(page.locator(".bubble.user", has_text="deep")).to_be_visible()


async def test_a_tenant_sees_its_own_pages_and_what_its_agents_cost(page: Page, hub: Server) -> None:
    await enter(page, hub, ADMIN)
    token = await new_tenant(page, "bob")
    await log_out(page)
    await enter(page, hub, token)
    await expect(page.get_by_role("heading", name="bob")).to_be_visible()
    await page.evaluate(
        """token => fetch('/v1/orchestrate', {method: 'POST', headers: {authorization: 'Bearer ' + token},
           body: JSON.stringify({message: 'hello'})}).then(r => r.text())""",
        token,
    )
    await page.get_by_role("tab", name="Requests").click()
    await expect(page.locator("td .pill", has_text="completed")).to_be_visible()
    await page.get_by_role("tab", name="Usage").click()
    await expect(page.locator(".strip", has_text="Tokens in")).to_be_visible()
    await page.get_by_role("tab", name="Schedules").click()
    await page.get_by_label("When").fill("every day at 09:00")
    await page.get_by_label("What to ask").fill("sum up")
    await page.get_by_role("button", name="Schedule", exact=True).click()
    await expect(page.locator("td", has_text="every day at 09:00")).to_be_visible()
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("td .pill", has_text="paused")).to_be_visible()
    await page.get_by_role("tab", name="Schedules").focus()
    for _ in range(2):  # the keys go on from tab to tab
        await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("tab", name="Policy")).to_be_focused()
    await expect(page).to_have_url(re.compile("#hub/bob/policy$"))
    for tab in ("Memory", "Files", "Conversations", "Agents"):
        await page.get_by_role("tab", name=tab).click()
        await expect(page.locator(".hubbody .empty, .hubbody table").first).to_be_visible()


async def test_an_administrator_disables_a_tenant(page: Page, hub: Server) -> None:
    await enter(page, hub, ADMIN)
    await new_tenant(page, "eve")
    row = page.locator("tr", has=page.get_by_role("link", name="eve", exact=True))
    await row.get_by_role("button", name="Disable").click()
    await page.get_by_role("button", name="Disable it").click()
    await expect(row.locator(".pill", has_text="disabled")).to_be_visible()
