"""Real servers whose agents, models and callers say what could run in a browser. Nothing of it runs, loads or opens by itself."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.browser.hostile_program import ALL_TEXTS, TEXTS
from tests.browser.payloads import CHECK, RUN
from tests.browser.pictures import running
from tests.browser.test_hostile_agent import Requests, harmless, say
from tests.serving import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parent.parent.parent
TOKEN = "t" * 40
ADMIN = "adm_" + "6" * 64
SHORT = f"<img src=x onerror={RUN}>"


async def enter(page: Page, server: Server, token: str, place: str) -> Requests:
    requests = Requests(page, server.url)
    await page.goto(f"{server.url}/console/#token={token}")
    await expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    await go(page, place)
    return requests


async def go(page: Page, place: str) -> None:
    await page.evaluate("place => { location.hash = place }", place)


# -- dragoman serve ------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("hostile")
    env = {"DRAGOMAN_CONSOLE_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
    program = Path(__file__).parent / "hostile_program.py"
    async with Server(program, store=folder / "tasks.db", options=["--console"], env=env) as served:
        yield served


async def test_an_agent_and_its_tasks_run_nothing(page: Page, server: Server) -> None:
    requests = await enter(page, server, TOKEN, "agents")
    await expect(page.locator(".card")).to_have_count(1)
    await harmless(page, requests)
    await page.locator(".card h2 a").click()
    await expect(page.locator(".detail .skill")).to_have_count(3)
    await harmless(page, requests)
    await page.locator(".detail").get_by_role("link", name="Chat", exact=True).click()
    await harmless(page, requests)
    await say(page, ALL_TEXTS)
    await expect(page.locator(".answer .artifact")).to_have_count(3 * len(TEXTS) + 2)
    await harmless(page, requests)
    for tab in ("events", "wire", "log"):
        await page.locator(f".side2 [data-tab={tab}]").click()
        await harmless(page, requests)
    await page.get_by_role("link", name="log of the task").click()
    await expect(page.locator(".was .artifact").first).to_be_visible()
    await harmless(page, requests)
    for tab in ("record", "as", "steps", "json"):
        await page.locator(f".pane [data-tab={tab}]").click()
        await harmless(page, requests)
    last = await page.evaluate("Number(document.querySelector('#slider').max)")
    assert last > 8 * len(TEXTS)
    found = await page.evaluate(
        f"""async last => {{
          const check = {CHECK}, found = [], slider = document.querySelector('#slider');
          document.querySelector('.pane [data-tab=record]').click();
          for (let n = 1; n <= last; n += 3) {{
            slider.value = n;
            slider.dispatchEvent(new Event('input'));
            found.push(...await check());
          }}
          return found;
        }}""",
        last,
    )
    assert found == [] and requests.elsewhere == []
    await go(page, "tasks")
    await expect(page.locator("table.tasks tbody tr")).not_to_have_count(0)
    await harmless(page, requests)


async def test_questions_and_refusals_run_nothing(page: Page, server: Server) -> None:
    requests = await enter(page, server, TOKEN, "chat/evil")
    await page.get_by_label("Skill", exact=True).select_option("ask")
    await say(page, "hello")
    await expect(page.locator(".question form")).to_be_visible()
    await harmless(page, requests)
    await page.locator(".question").get_by_role("button", name="Answer").click()
    await expect(page.locator(".question button")).to_have_count(6)
    await harmless(page, requests)
    await page.locator(".question button").first.click()
    await expect(page.get_by_role("button", name="Approve")).to_be_visible()
    await harmless(page, requests)
    await page.get_by_role("button", name="Approve").click()
    await expect(page.locator(".answerfoot .badge", has_text="completed")).to_be_visible()
    await page.get_by_label("Skill", exact=True).select_option("fail")
    await say(page, "hello")
    await expect(page.locator(".answerfoot .badge", has_text="rejected")).to_be_visible()
    await harmless(page, requests)


async def test_the_inspector_shows_a_hostile_agent_and_runs_nothing(page: Page, server: Server) -> None:
    async with running("inspect", server.url) as address:
        requests = Requests(page, address.partition("/console")[0])
        await page.goto(address)
        await expect(page.locator(".inspectbody .skill")).to_have_count(3)
        await harmless(page, requests)
        await page.locator("[data-tab=findings]").click()
        await harmless(page, requests)
        await page.locator("[data-tab=chat]").click()
        await say(page, "hello")
        await harmless(page, requests)
        await page.locator(".side2 [data-tab=wire]").click()
        await harmless(page, requests)


# -- dragoman hub --------------------------------------------------------------------------------------------------

SAID = "\n\n".join(text for text in TEXTS if not text.startswith("/"))
SCRIPT: dict[str, Any] = {
    "replies": {
        "Evil": [f"/write {SHORT}.html\n{SAID}\n/endwrite\n{SAID}", SAID],
        "Asks": [f"/schedule in 3 days: {SHORT} {RUN}", "asked"],
        "*": [SAID],
    }
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("hub")
    script: Path = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    server = Server(env={"DRAGOMAN_ADMIN_TOKEN": ADMIN})
    server.command = [
        sys.executable, "-m", "dragoman.cli", "hub", "--data", str(folder / "data"), "--model", f"scripted:{script}",
        "--port", str(server.port), "--console",
    ]  # fmt: skip
    async with server:
        pass
    # names of users come from an issuer; a tenant may be from a version that took any name
    with sqlite3.connect(folder / "data" / "hub.db") as database:
        add = "insert into tenants (name, generation, created_at, last_used_at) values (?, 1, 1, 1)"
        tenant = database.execute(add, (SHORT,)).lastrowid
        for n, text in enumerate(TEXTS):
            database.execute(
                "insert into tokens (tenant_id, kind, name, scope, generation, created_at, created_by) values (?, 'user', ?, 'run', ?, 1, ?)",
                (tenant, text, n + 2, text),
            )
    database.close()
    await server.start()
    yield server
    await server.kill()


async def fill_tenant(page: Page) -> None:
    """Callers of the tenant store hostile texts wherever the API takes them."""
    done = await page.evaluate(
        """async ([tenant, texts, short]) => {
          const base = `api/hub/tenants/${encodeURIComponent(tenant)}/`, statuses = [];
          const call = async (method, path, body) => {
            const answer = await fetch(base + path, {method, headers: {'content-type': 'application/json'}, body: JSON.stringify(body)});
            statuses.push([path, answer.status, answer.status < 300 ? '' : await answer.clone().text()]);
            return answer.status < 300 ? answer.json() : null;
          };
          for (const [id, name, goal] of [['evil', 'Evil', texts.join(' ').slice(0, 2000)], ['asks', 'Asks', short], ['named', short, short]])
            await call('POST', 'agents', {id, name, goal, role: short, capabilities: ['write', 'schedule']});
          for (const text of texts.slice(0, 45)) {
            await call('POST', 'memory/entries', {title: text.slice(0, 200), content: text, type: 'reference'});
            await call('POST', 'conversations', {title: text.slice(0, 200), agent: 'evil'});
          }
          await call('POST', 'schedules', {schedule: 'every day at 09:00', message: texts.join(' ').slice(0, 2000), agent: 'evil'});
          return statuses.filter(([, status]) => status >= 300);
        }""",
        [SHORT, [text for text in TEXTS if text.strip() and "\x00" not in text], SHORT],
    )
    assert done == []


async def test_a_hub_with_a_hostile_tenant_model_and_callers_runs_nothing(page: Page, hub: Server) -> None:
    requests = await enter(page, hub, ADMIN, "hub")
    await expect(page.get_by_role("link", name=SHORT)).to_be_visible()
    await harmless(page, requests)
    await fill_tenant(page)
    named = f"hub/{'%3Cimg%20src%3Dx%20onerror%3D' + RUN + '%3E'}"
    await go(page, f"chat/evil?tenant={named.removeprefix('hub/')}")
    await say(page, ALL_TEXTS)
    await expect(page.locator(".answerfoot .badge", has_text="completed")).to_be_visible()
    await harmless(page, requests)
    await go(page, f"chat/asks?tenant={named.removeprefix('hub/')}")
    await say(page, "plan")
    await expect(page.get_by_role("button", name="Approve")).to_be_visible()
    await harmless(page, requests)
    tabs = (
        "agents",
        "conversations",
        "requests",
        "memory",
        "files",
        "schedules",
        "usage",
        "policy",
        "tokens",
        "tenant",
    )
    for tab in tabs:
        await go(page, f"{named}/{tab}")
        await expect(page.locator(".hubbody table, .hubbody h2").first).to_be_visible()
        await harmless(page, requests)
    await expect(page.locator(".crumbs")).to_contain_text(SHORT)
    await go(page, f"{named}/tokens")
    await expect(page.get_by_role("region", name="Tokens").locator("tbody tr")).to_have_count(len(TEXTS))
    await go(page, f"{named}/agents/named")
    await expect(page.get_by_label("Constitution as JSON")).to_be_visible()
    await harmless(page, requests)
    for place in ("agents", "tasks", "audit", "metrics", "hub"):
        await go(page, place)
        await expect(page.locator("main h1").first).to_be_visible()
        await harmless(page, requests)


async def test_hostile_names_of_tenants_and_tokens_are_refused_and_the_refusal_runs_nothing(
    page: Page, hub: Server
) -> None:
    requests = await enter(page, hub, ADMIN, "hub")
    for text in TEXTS[:3]:
        await page.get_by_label("Name of the new tenant").fill(text)
        await page.get_by_role("button", name="Create a tenant").click()
        await expect(page.locator(".toast.bad").first).to_be_visible()
        await harmless(page, requests)
