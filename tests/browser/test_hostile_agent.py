"""An agent that says, in every field, what could run in a browser. Nothing of it runs, loads or opens by itself."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.browser.fake_console import FakeConsole, agent, record, row
from tests.browser.payloads import ALL, CHECK, PAYLOADS, RUN
from tests.browser.test_pages import enter

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Requests:
    """Every request of the page that goes elsewhere."""

    def __init__(self, page: Page, home: str) -> None:
        self.elsewhere: list[str] = []
        page.on("request", lambda request: self._saw(request.url, home))
        page.context.on("page", lambda other: self.elsewhere.append(f"a new page {other.url}"))

    def _saw(self, url: str, home: str) -> None:
        if not url.startswith((home, "blob:", "data:")):
            self.elsewhere.append(url)


@pytest.fixture
def hostile(page: Page, fake: FakeConsole) -> Requests:
    return Requests(page, fake.url)


async def harmless(page: Page, requests: Requests) -> None:
    assert await page.evaluate(CHECK) == []
    assert requests.elsewhere == []


def hostile_skill(text: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "title": text,
        "required": [text],
        "properties": {
            text: {"type": "string", "description": text, "default": text, "title": text},
            "choice": {"enum": [text, text]},
            "inner": {"type": "object", "title": text, "properties": {text: {"type": text, "format": text}}},
        },
    }
    return {"id": text, "name": text, "description": text, "tags": [text], "examples": [text], "inputSchema": schema,
            "outputSchema": {text: text}}  # fmt: skip


def hostile_card(text: str) -> dict[str, Any]:
    return {
        "name": text, "description": text, "version": text, "documentationUrl": text, "iconUrl": text,
        "provider": {"organization": text, "url": text}, "defaultInputModes": [text], "defaultOutputModes": [text],
        "skills": [hostile_skill(text)], "capabilities": {text: True}, "securitySchemes": {text: {text: text}},
        "supportedInterfaces": [{"url": text, "protocolBinding": text, "protocolVersion": text}], "signatures": [{text: text}],
    }  # fmt: skip


def hostile_agent(text: str, n: int) -> dict[str, Any]:
    card = hostile_card(text)
    return agent(id=f"a{n}{text}", name=text, description=text, path=text, url=text, card=card, skills=card["skills"],
                 interfaces=card["supportedInterfaces"], counts={text: 1}, error=text if n % 2 else None)  # fmt: skip


def hostile_parts(text: str) -> list[dict[str, Any]]:
    raw = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
    svg = base64.b64encode(f"<svg xmlns='http://www.w3.org/2000/svg' onload='{RUN}'/>".encode()).decode()
    return [
        {"text": text, "metadata": {text: text}},
        {"text": text, "mediaType": text, "filename": text},
        {"text": f"<script>{RUN}</script>", "mediaType": "text/html"},
        {"data": {text: [text, {text: text}]}},
        {"raw": raw, "filename": text, "mediaType": text},
        {"raw": raw, "filename": text, "mediaType": "text/html"},
        {"raw": raw, "filename": text, "mediaType": "image/png"},
        {"raw": svg, "filename": f"{text}.svg", "mediaType": "image/svg+xml"},
        {"raw": text, "filename": "x.png", "mediaType": "image/png"},
        {"url": text, "filename": text, "mediaType": text},
    ]


def hostile_task(text: str) -> dict[str, Any]:
    message = {
        "messageId": text,
        "role": "ROLE_AGENT",
        "parts": hostile_parts(text),
        "metadata": {text: text},
    }
    return {
        "id": text, "contextId": text, "status": {"state": text, "message": message, "timestamp": text},
        "history": [{**message, "role": role} for role in ("ROLE_USER", text)],
        "artifacts": [{"artifactId": text, "name": text, "description": text, "parts": hostile_parts(text)}],
        "metadata": {text: text},
    }  # fmt: skip


async def test_cards_run_nothing(page: Page, fake: FakeConsole, hostile: Requests) -> None:
    fake.agents = [hostile_agent(text, n) for n, text in enumerate(PAYLOADS)]
    await enter(page, fake)
    await expect(page.locator(".card")).to_have_count(len(PAYLOADS))
    await harmless(page, hostile)
    found = await page.evaluate(
        f"""async ids => {{
          const check = {CHECK}, found = [];
          for (const id of ids) {{
            const shown = new Promise(done => addEventListener('hashchange', done, {{once: true}}));
            location.hash = 'agents/' + encodeURIComponent(id.toWellFormed());
            await shown;
            if (!document.querySelector('.detail .skill, .detail .empty')) found.push('nothing for ' + id.slice(0, 40));
            found.push(...await check());
          }}
          return found;
        }}""",
        [each["id"] for each in fake.agents],
    )
    assert found == []
    assert hostile.elsewhere == []


async def test_tasks_run_nothing(page: Page, fake: FakeConsole, hostile: Requests) -> None:
    fake.rows = [
        row(f"k{n}", id=text, agent=text, scope=text, contextId=text, text=text, node=text, question=text,
            state="TASK_STATE_INPUT_REQUIRED" if n % 2 else text, updated=text if n % 3 else row()["updated"])
        for n, text in enumerate(PAYLOADS)
    ]  # fmt: skip
    await enter(page, fake, "tasks")
    await expect(page.locator("table.tasks tbody tr")).to_have_count(len(PAYLOADS))
    await harmless(page, hostile)


def hostile_record(seq: int) -> dict[str, Any]:
    text = PAYLOADS[seq - 1]
    kind = ("status", "step", "artifact", "question", "child", "note", text)[seq % 7]
    status = {"state": text, "message": {"parts": hostile_parts(text)}}
    data = {"status": status, text: text, "key": text, "value": text, "peer": text, "task": text, "cut": 1}
    return record(seq, kind, summary=text, data=data, time=text if seq % 3 == 2 else row()["updated"])


async def test_a_task_and_its_log_run_nothing(page: Page, fake: FakeConsole, hostile: Requests) -> None:
    fake.rows = [row("k1", id=ALL, agent=ALL, scope=ALL, contextId=ALL, text=ALL, node=ALL, question=ALL, state=ALL)]  # fmt: skip
    fake.records["k1"], fake.last["k1"] = hostile_record, len(PAYLOADS)
    tasks = [hostile_task(text) for text in PAYLOADS]
    fake.task = {**hostile_task(ALL), "artifacts": [each["artifacts"][0] for each in tasks],
                 "history": [message for each in tasks for message in each["history"]]}  # fmt: skip
    fake.views = [{"dialect": text if n % 2 else "1.0", "binding": text, "contentType": text, "text": text} for n, text in enumerate(PAYLOADS)]  # fmt: skip
    await enter(page, fake, "task/k1")
    await expect(page.locator(".was .artifact")).to_have_count(len(PAYLOADS))
    await harmless(page, hostile)
    for tab, shown in (("as", ".wireview"), ("steps", ".chartrow"), ("json", ".json"), ("record", ".json")):
        await page.locator(f".pane [data-tab={tab}]").click()
        await expect(page.locator(f".tabpanel {shown}").first).to_be_visible()
        await harmless(page, hostile)
    found = await page.evaluate(
        f"""async last => {{
          const check = {CHECK}, found = [], slider = document.querySelector('#slider');
          for (let n = 1; n <= last; n++) {{
            slider.value = n;
            slider.dispatchEvent(new Event('input'));
            if (!document.querySelector('.tabpanel .json')) found.push('nothing for ' + n);
            found.push(...await check());
          }}
          return found;
        }}""",
        len(PAYLOADS),
    )
    assert found == []
    assert hostile.elsewhere == []


async def say(page: Page, text: str = "hello") -> None:
    """Send a message, and wait for the end of the answer."""
    before = await page.locator(".answerfoot .badge").count()
    await (
        page.get_by_role("textbox", name="Message")
        .or_(page.get_by_role("textbox", name="Your answer"))
        .fill(text)
    )
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator(".answerfoot .badge")).to_have_count(before + 1)


def hostile_talk(state: str, schema: dict[str, Any] | None = None) -> list[tuple[str, Any]]:
    ids = {"taskId": ALL, "contextId": ALL}
    talk: list[tuple[str, Any]] = []
    for text in PAYLOADS if schema is None else ():
        artifact = {"artifactId": text, "name": text, "parts": hostile_parts(text)}
        working = {"state": "TASK_STATE_WORKING", "message": {"parts": [{"text": text}]}}
        talk += [
            ("chosen", {"version": text, "binding": text, "url": text, "why": [text]}),
            ("wire", {"n": 1, "direction": text, "time": text, "kind": text, "text": text, "headers": {text: text}}),
            ("event", {"statusUpdate": {**ids, "status": working}}),
            ("event", {"artifactUpdate": {**ids, "artifact": artifact}}),
            ("event", {"artifactUpdate": {**ids, "artifact": artifact, "append": True}}),
            ("event", {"message": {"messageId": text, "role": text, "parts": hostile_parts(text)}}),
        ]  # fmt: skip
    asks = {"parts": [{"text": ALL}, {"data": {"schema": schema}}] if schema else [{"text": ALL}]}
    talk.append(("event", {"statusUpdate": {**ids, "status": {"state": state, "message": asks}}}))
    return [*talk, ("end", {"task": ALL, "context": ALL, "state": state, "key": None})]


async def test_output_of_an_agent_in_a_chat_runs_no_script(
    page: Page, fake: FakeConsole, hostile: Requests
) -> None:
    await enter(page, fake, "chat/echo")
    properties = {f"{n}{text}": each for n, text in enumerate(PAYLOADS) for each in hostile_skill(text)["inputSchema"]["properties"].values()}  # fmt: skip
    for state, schema in (
        ("TASK_STATE_INPUT_REQUIRED", {"type": "object", "title": ALL, "properties": properties}),
        ("TASK_STATE_INPUT_REQUIRED", {"enum": PAYLOADS[:8]}),
        ("TASK_STATE_AUTH_REQUIRED", {"type": "string"}),
        (ALL, None),
    ):
        fake.talk = hostile_talk(state, schema)
        await page.get_by_role("button", name="New conversation").click()
        await say(page)
        await harmless(page, hostile)
    for tab in ("events", "wire"):
        await page.locator(f"[data-tab={tab}]").click()
        await harmless(page, hostile)


async def test_the_error_of_an_agent_runs_nothing(page: Page, fake: FakeConsole, hostile: Requests) -> None:
    await enter(page, fake, "chat/echo")
    fake.talk = [("error", {"code": text, "message": text}) for text in PAYLOADS]
    await page.get_by_role("textbox", name="Message").fill("hello")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator(".answerfoot .error")).to_have_count(len(PAYLOADS))
    await harmless(page, hostile)


async def test_webhooks_audit_and_metrics_run_nothing(
    page: Page, fake: FakeConsole, hostile: Requests
) -> None:
    fake.webhooks = [{"key": f"w{n}", "task": text, "id": text, "url": text, "cursor": 1, "last": 2, "pending": n % 2, "attempts": 3,
                      "lastError": text, "nextAttempt": text, "dead": n % 3 == 0} for n, text in enumerate(PAYLOADS)]  # fmt: skip
    fake.audit = [{"at": text, "principal": text, "operation": text, "agent": text, "outcome": text, text: text} for text in PAYLOADS]  # fmt: skip
    fake.metrics = [{"name": text, "type": text, "help": text, "samples": [{"labels": {text: text}, "value": 1}]} for text in PAYLOADS]  # fmt: skip
    await enter(page, fake, "webhooks")
    for place, shown in (("webhooks", "tbody tr"), ("audit", "tbody tr"), ("metrics", ".metric")):
        await page.evaluate("place => { location.hash = place }", place)
        await expect(page.locator(f"main {shown}")).to_have_count(len(PAYLOADS))
        await harmless(page, hostile)


async def test_foreign_cards_and_their_findings_run_nothing(
    page: Page, fake: FakeConsole, hostile: Requests
) -> None:
    cards = [hostile_card(text) for text in PAYLOADS]
    fake.inspected = {
        "card": {**hostile_card(ALL), "skills": [each["skills"][0] for each in cards],
                 "supportedInterfaces": [each["supportedInterfaces"][0] for each in cards]},
        "found": {"path": ALL, "status": ALL, "version": ALL}, "signature": {ALL: ALL}, "interfaces": [],
        "findings": [{"rule": text, "severity": text, "message": text, "fix": text, "pointer": text} for text in PAYLOADS],
    }  # fmt: skip
    await enter(page, fake, "inspect")
    await page.get_by_label("Address of an agent").fill(ALL)
    await page.get_by_label("Address of an agent").press("Enter")
    await expect(page.locator(".inspectbody .skill")).to_have_count(len(PAYLOADS))
    await harmless(page, hostile)
    for tab in ("findings", "json", "chat"):
        await page.locator(f".inspectbody > .tabbed > .tabs [data-tab={tab}]").click()
        await harmless(page, hostile)


WRONG: list[Any] = [None, 7, "text", [], ["x", 1, None], {}, {"x": 1}, True]


async def test_a_foreign_card_with_values_of_wrong_types_is_shown(
    page: Page, fake: FakeConsole, hostile: Requests
) -> None:
    await enter(page, fake, "inspect")
    for wrong in WRONG:
        card: dict[str, Any] = dict.fromkeys(hostile_card("x"), wrong)
        for shape in (
            card,
            {
                **card,
                "skills": [dict.fromkeys(hostile_skill("x"), wrong), wrong],
                "supportedInterfaces": [wrong],
            },
            wrong,
        ):
            fake.inspected = {
                "card": shape,
                "found": wrong,
                "signature": wrong,
                "interfaces": wrong,
                "findings": wrong,
            }
            await page.get_by_label("Address of an agent").fill("x")
            await page.get_by_label("Address of an agent").press("Enter")
            await expect(page.locator(".inspectbody .tabs").first).to_be_visible()
            await harmless(page, hostile)
            await page.evaluate("document.querySelector('.inspectbody').replaceChildren()")


async def test_a_line_of_ten_megabytes_is_cut_and_shown_piece_by_piece(page: Page, fake: FakeConsole) -> None:
    huge = "x" * 10_000_000
    ids = {"taskId": "t", "contextId": "c"}
    fake.talk = [
        ("wire", {"n": 1, "direction": "in", "time": "", "kind": "frame", "text": huge, "headers": {}}),
        ("event", {"artifactUpdate": {**ids, "artifact": {"artifactId": "a", "parts": [{"text": huge}]}}}),
        ("event", {"statusUpdate": {**ids, "status": {"state": "TASK_STATE_COMPLETED", "message": {"parts": [{"text": huge}]}}}}),
        ("end", {"task": "t", "context": "c", "state": "TASK_STATE_COMPLETED", "key": None}),
    ]  # fmt: skip
    await enter(page, fake, "chat/echo")
    await page.get_by_role("textbox", name="Message").fill("hello")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator(".answerfoot .badge")).to_be_visible()
    size = "document.body.textContent.length"
    before = await page.evaluate(size)
    assert before < 200_000
    await page.locator(".answer .more").first.click()
    assert before < await page.evaluate(size) < before + 300_000


async def test_links_show_where_they_lead_before_they_open(page: Page, fake: FakeConsole) -> None:
    text = "[your bank](https://evil.example/login) [x](ftp://evil.example) ![p](https://evil.example/p.png)"
    fake.talk = [("event", {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": text}]}}),
                 ("end", {"task": None, "context": None, "state": None, "key": None})]  # fmt: skip
    await enter(page, fake, "chat/echo")
    await page.get_by_role("textbox", name="Message").fill("hello")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator(".answer")).to_contain_text("your bank (evil.example)")
    await expect(page.locator(".answer .deadlink")).to_have_text("x")
    assert await page.locator(".answer img").count() == 0
    await page.get_by_role("button", name="your bank").click()
    await expect(page.get_by_role("dialog")).to_contain_text("https://evil.example/login")


async def test_files_are_saved_as_bytes_under_a_harmless_name(page: Page, fake: FakeConsole) -> None:
    part = {
        "raw": base64.b64encode(b"<script>").decode(),
        "filename": "../../a\u202egnp.html",
        "mediaType": "text/html",
    }
    fake.talk = [("event", {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [part]}}),
                 ("end", {"task": None, "context": None, "state": None, "key": None})]  # fmt: skip
    await enter(page, fake, "chat/echo")
    await page.get_by_role("textbox", name="Message").fill("hello")
    await page.get_by_role("button", name="Send", exact=True).click()
    async with page.expect_download() as saving:
        await page.get_by_role("button", name="Download").click()
    download = await saving.value
    assert not set("/\\\u202e") & set(download.suggested_filename)
    path = await download.path()
    assert path.read_bytes() == b"<script>"
