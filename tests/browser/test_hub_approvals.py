"""A hub's agent asks before it runs a command, and a person answers with the buttons of the console."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from tests.browser.test_hub_pages import ADMIN, enter, log_out, new_tenant
from tests.serving import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

REPLIES: dict[str, list[str]] = {
    "Planner": ["/schedule in 3 days: water the plants", "It is planned."],
    "Twice": ["/schedule in 3 days: the first", "/schedule in 3 days: the second", "Both were asked for."],
    "Writer": ["/write a.md\n<img src=x onerror=window.__pwned=1>\n/endwrite", "It is written."],
}
AGENTS: list[dict[str, Any]] = [
    {"id": name.lower(), "name": name, "capabilities": ["schedule", "write"]} for name in REPLIES
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("hub")
    script: Path = folder / "script.json"
    script.write_text(json.dumps({"replies": REPLIES}))
    server = Server(env={"DRAGOMAN_ADMIN_TOKEN": ADMIN})
    server.command = [
        sys.executable, "-m", "dragoman.cli", "hub", "--data", str(folder / "data"), "--model", f"scripted:{script}",
        "--port", str(server.port), "--console", "--approve", "/schedule", "--approve", "/write",
    ]  # fmt: skip
    async with server:
        yield server


async def tenant_with_agents(page: Page, hub: Server, name: str) -> str:
    """An operator makes a tenant whose agents run commands. Returns its token."""
    await enter(page, hub, ADMIN)
    token = await new_tenant(page, name)
    for agent in AGENTS:
        made = await page.evaluate(
            """async ([tenant, agent]) => (await fetch(`api/hub/tenants/${tenant}/agents`, {method: 'POST',
               headers: {'content-type': 'application/json'}, body: JSON.stringify(agent)})).status""",
            [name, agent],
        )
        assert made == 201
    return token


async def go(page: Page, place: str) -> None:
    await page.evaluate("place => { location.hash = place }", place)


async def say(page: Page, text: str) -> None:
    await page.locator(".composer textarea").fill(text)
    await page.get_by_role("button", name="Send", exact=True).click()


async def ask_natively(page: Page, token: str, agent: str) -> None:
    """Somebody sends a message with the native API, and its stream ends with a question."""
    received = await page.evaluate(
        """([token, agent]) => fetch(`/v1/agents/${agent}/chat`, {method: 'POST', headers: {authorization: 'Bearer ' + token},
           body: JSON.stringify({message: 'do it'})}).then(r => r.text())""",
        [token, agent],
    )
    assert "event: question" in received


async def answer_natively(page: Page, token: str, approved: bool) -> None:
    """Somebody answers the newest request with the native API."""
    status = await page.evaluate(
        """async ([token, approved]) => {
          const headers = {authorization: 'Bearer ' + token};
          const {requests: [newest]} = await (await fetch('/v1/requests', {headers})).json();
          return (await fetch(`/v1/requests/${newest.request_id}/answer`, {method: 'POST', headers, body: JSON.stringify({approved})})).status;
        }""",
        [token, approved],
    )
    assert status == 202


def question_box(page: Page) -> Locator:
    return page.get_by_role("group", name="The agent asks")


async def test_the_chat_asks_and_the_command_runs_after_yes(page: Page, hub: Server) -> None:
    await tenant_with_agents(page, hub, "ada")
    await go(page, "chat/planner?tenant=ada")
    await say(page, "plan it")
    await expect(page.locator(".answerfoot .badge", has_text="input required")).to_be_visible()
    await question_box(page).get_by_role("button", name="Approve").click()
    await expect(page.locator(".answerfoot .badge", has_text="completed")).to_be_visible()
    await expect(question_box(page)).to_have_count(0)
    await expect(page.locator(".answerfoot .badge", has_text="input required")).to_have_count(0)
    await expect(page.locator(".answerfoot .pill", has_text="answered")).to_be_visible()
    said = await page.locator(".answer").last.inner_text()
    assert said.count("It is planned.") == 1, "what the artifact and the last status say is shown once"
    await go(page, "hub/ada/schedules")
    await expect(page.locator("td", has_text="water the plants")).to_be_visible()


async def test_a_command_that_is_refused_in_the_chat_does_not_run_and_the_agent_is_told_why(
    page: Page, hub: Server
) -> None:
    await tenant_with_agents(page, hub, "bob")
    await go(page, "chat/planner?tenant=bob")
    await say(page, "plan it")
    await question_box(page).get_by_label("Why not").fill("no plants here")
    await question_box(page).get_by_role("button", name="Refuse").click()
    await expect(page.locator(".answerfoot .badge", has_text="completed")).to_be_visible()
    await page.get_by_role("link", name="log of the task").last.click()
    await expect(
        page.locator(".record", has_text="the user refused this command: no plants here")
    ).to_be_visible()
    await go(page, "hub/bob/schedules")
    await expect(page.get_by_text("No schedules")).to_be_visible()


async def test_the_requests_of_a_tenant_are_approved_and_refused_and_lead_to_their_task(
    page: Page, hub: Server
) -> None:
    token = await tenant_with_agents(page, hub, "carl")
    await ask_natively(page, token, "twice")
    await go(page, "hub/carl/requests")
    row = page.locator("tbody tr")
    await expect(row).to_contain_text("/schedule in 3 days: the first")
    await row.get_by_role("button", name="Approve").click()
    await expect(row).to_contain_text("/schedule in 3 days: the second")
    await row.get_by_label("Why not").fill("one is enough")
    await row.get_by_role("button", name="Refuse").click()
    await expect(row.locator(".pill", has_text="completed")).to_be_visible(timeout=15_000)
    await expect(row.get_by_role("button", name="Approve")).to_have_count(0)
    await row.locator("td a.mono").click()
    await expect(page.locator(".taskhead h1")).to_contain_text("do it")
    await expect(page.locator(".record", has_text="one is enough").first).to_be_visible()
    await page.go_back()
    await expect(row.locator(".pill", has_text="completed")).to_be_visible()
    await go(page, "hub/carl/schedules")
    await expect(page.locator("td", has_text="the first")).to_be_visible()
    await expect(page.locator("td", has_text="the second")).to_have_count(0)


async def test_a_tenant_sees_all_of_the_command_before_it_approves_it(page: Page, hub: Server) -> None:
    token = await tenant_with_agents(page, hub, "dora")
    await ask_natively(page, token, "writer")
    await log_out(page)
    await enter(page, hub, token)
    await page.get_by_role("tab", name="Requests").click()
    group = page.get_by_role("group")
    await expect(group).to_contain_text("/write a.md")
    await page.get_by_role("link", name="writer").click()
    await expect(page.locator("table.tasks tbody tr")).to_contain_text("do it")
    await page.go_back()
    await expect(group).to_contain_text("<img src=x onerror=window.__pwned=1>")
    await group.get_by_role("button", name="Approve").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("td .pill", has_text="completed")).to_be_visible(timeout=15_000)


async def test_an_answer_never_meets_a_question_that_came_after_the_page_was_read(
    page: Page, hub: Server
) -> None:
    token = await tenant_with_agents(page, hub, "eve")
    await ask_natively(page, token, "twice")
    await go(page, "hub/eve/requests")
    row = page.locator("tbody tr")
    await row.get_by_label("Why not").focus()  # the page is not read again while somebody types
    await answer_natively(page, token, True)
    await page.wait_for_function(
        """async token => (await (await fetch('/v1/requests', {headers: {authorization: 'Bearer ' + token}})).json())
           .requests[0].question?.includes('the second')""",
        arg=token,
    )
    await expect(row).to_contain_text("the first")
    await row.get_by_role("button", name="Approve").click()
    await expect(
        page.locator(".toast.bad", has_text="does not wait for an answer to this question any more")
    ).to_be_visible()
    await expect(row).to_contain_text("the second")
    await expect(row.get_by_role("button", name="Approve")).to_be_visible()


async def test_a_chat_notices_that_its_question_was_answered_elsewhere(page: Page, hub: Server) -> None:
    token = await tenant_with_agents(page, hub, "fay")
    await go(page, "chat/twice?tenant=fay")
    await say(page, "do it")
    await expect(question_box(page)).to_be_visible()
    await expect(page.locator(".record.k-ask")).to_have_count(1)
    await answer_natively(page, token, True)
    await expect(page.get_by_text("Answered elsewhere.")).to_be_visible()
    await expect(page.locator(".answerbody", has_text="the second")).to_be_visible()
    await question_box(page).get_by_role("button", name="Approve").click()
    await expect(page.locator(".answerfoot .badge", has_text="completed")).to_be_visible()
    await expect(page.locator(".answerfoot .badge", has_text="input required")).to_have_count(0)


async def test_a_task_that_waits_is_answered_in_a_chat_that_is_opened_later(page: Page, hub: Server) -> None:
    token = await tenant_with_agents(page, hub, "gus")
    await ask_natively(page, token, "planner")
    await go(page, "tasks?state=TASK_STATE_INPUT_REQUIRED")
    await page.get_by_label("Tenant", exact=True).select_option("gus")
    await page.locator("tbody tr", has_text="gus").get_by_role("link", name="do it").click()
    await page.get_by_role("link", name="Answer in chat").click()
    await question_box(page).get_by_role("button", name="Approve").click()
    await expect(page.locator(".answerfoot .badge", has_text="completed")).to_be_visible()
    await expect(page.locator(".answerfoot .badge", has_text="input required")).to_have_count(0)
