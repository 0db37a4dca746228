"""Make the pictures of the documents from the real thing: `make pictures`.

    python -m tests.browser.pictures                 the pictures of docs/pictures
    python -m tests.browser.pictures --all FOLDER    every view, at 1440 and 390 pixels, light and dark, to look at

It starts a server with agents of `examples/`, talks to them through the page, kills the server in the middle of a task and starts it again.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.browser import chromium
from tests.ports import free_port
from tests.serving import WAIT, Server

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs" / "pictures"
EXAMPLES = ("hello.py", "currency.py", "files.py", "report.py", "travel.py")
TOKEN = secrets.token_urlsafe(32)
SIZES = {1440: 900, 390: 844}


async def new_page(browser: Browser, server: Server, width: int, theme: str) -> Page:
    context: BrowserContext = await browser.new_context(
        viewport={"width": width, "height": SIZES.get(width, 800)},
        color_scheme=theme,
    )
    page = await context.new_page()
    await page.goto(f"{server.url}/console/#token={TOKEN}")
    await expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    return page


async def go(page: Page, place: str) -> None:
    await page.evaluate("place => { location.hash = place }", place)
    await expect(page.locator("main .view")).to_be_visible()


async def say(page: Page, text: str) -> None:
    await page.locator(".composer textarea").fill(text)
    await page.get_by_role("button", name="Send", exact=True).click()


async def ended(page: Page, n: int, state: str = "") -> None:
    badges = page.locator(".answerfoot .badge")
    await expect(badges).to_have_count(n, timeout=30_000)
    await expect(badges.last).to_contain_text(state)


async def api(page: Page, path: str) -> Any:
    return json.loads(await page.evaluate("path => fetch('api/' + path).then(r => r.text())", path))


async def settle(page: Page) -> None:
    """Wait until nothing is being fetched and the last frame is drawn."""
    await page.evaluate(
        "() => document.fonts.ready.then(() => new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d))))"
    )


async def story(browser: Browser, server: Server) -> str:
    """Some work that the pictures show; the key of the task that outlived its process."""
    page = await new_page(browser, server, 1440, "light")
    await go(page, "chat/hello")
    await say(page, "Ada")
    await ended(page, 1, "completed")
    await go(page, "chat/currency")
    await say(page, "how much is 10 USD in INR?")
    await ended(page, 1, "completed")
    await page.get_by_role("button", name="New conversation").click()
    await say(page, "how much is 100 USD?")
    await ended(page, 1, "input")
    await go(page, "chat/travel")
    await say(page, "3 days in Mumbai for 300 USD")
    await ended(page, 1, "completed")
    await go(page, "chat/report")
    await say(page, "the history of tea")
    await expect(page.locator(".side2 .record.k-step")).to_have_count(2, timeout=30_000)
    await server.kill()
    await expect(page.locator(".banner.bad")).to_be_visible()
    await server.start()
    await ended(page, 1, "completed")
    rows = (await api(page, "tasks?agent=report"))["tasks"]
    await page.context.close()
    return str(rows[0]["key"])


@asynccontextmanager
async def running(*command: str) -> AsyncIterator[str]:
    """A `dragoman` command that serves a console, as a process of its own: the address that it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman.cli", *command, "--port", str(free_port()),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    reading = None
    try:
        async with asyncio.timeout(WAIT):
            said = ""
            while (found := re.search(r"http://\S+#token=\S+", said)) is None:
                line = await process.stdout.readline()
                assert line, said
                said += line.decode()
        reading = asyncio.create_task(process.stdout.read())  # so that it never waits for a reader
        yield found[0]
    finally:
        process.terminate()
        await process.wait()
        if reading is not None:
            await reading


HUB_PAGES = {
    "hub": "hub",
    "hub-agents": "hub/demo/agents",
    "hub-editor": "hub/demo/agents/scribe",
    "hub-usage": "hub/demo/usage",
    "hub-requests": "hub/demo/requests",
    "hub-policy": "hub/demo/policy",
    "hub-tokens": "hub/demo/tokens",
    "hub-tenant": "hub/demo/tenant",
    "hub-tasks": "tasks",
}


async def hub_pages(browser: Browser, folder: Path) -> None:
    """The pages of a hub with a tenant, after one question."""
    for theme in ("light", "dark"):
        for width, height in SIZES.items():
            context = await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=theme
            )
            page = await context.new_page()
            agents = ("--agents", str(ROOT / "examples" / "currency.py"))
            with tempfile.TemporaryDirectory() as data:
                async with running("hub", "--demo", "make run", "--data", data, *agents) as address:
                    await page.goto(address)
                    await expect(page.get_by_role("navigation", name="Main")).to_be_visible()
                    await go(page, "chat/index?tenant=demo")
                    await say(page, "how much is 10 USD in INR?")
                    await ended(page, 1, "completed")
                    for name, place in HUB_PAGES.items():
                        await go(page, place)
                        await settle(page)
                        await page.wait_for_timeout(300)
                        await page.screenshot(path=folder / f"{name}-{theme}-{width}.png")
            await context.close()


async def everything(browser: Browser, server: Server, key: str, folder: Path) -> None:
    for theme in ("light", "dark"):
        for width in SIZES:
            page = await new_page(browser, server, width, theme)

            async def take(name: str, page: Page = page, end: str = f"{theme}-{width}") -> None:
                await settle(page)
                await page.wait_for_timeout(300)
                await page.screenshot(path=folder / f"{name}-{end}.png")

            for name, place in (
                ("agents", "agents"), ("agent", "agents/travel"), ("tasks", "tasks"), ("webhooks", "webhooks"), ("audit", "audit"),
                ("metrics", "metrics"),
            ):  # fmt: skip
                await go(page, place)
                await take(name)
            async with running("inspect", f"{server.url}/currency") as address:
                other = await page.context.new_page()
                await other.goto(address)
                await expect(other.locator(".inspectbody .skill")).to_be_visible()
                await take("inspect", other)
                await other.locator("[data-tab=findings]").click()
                await take("inspect-findings", other)
                await other.close()
            await go(page, "chat/travel")
            await say(page, "a trip")
            await ended(page, 1)
            await say(page, "tokyo")
            await ended(page, 2)
            await take("chat")
            await go(page, f"task/{key}")
            await expect(page.locator(".was .artifact")).to_be_visible()
            await take("task")
            for tab in ("record", "as", "steps", "children"):
                await page.locator(f".pane [data-tab={tab}]").click()
                await take(f"task-{tab}")
            await page.context.close()


SMALLER = """async png => {
  const bytes = Uint8Array.from(atob(png), c => c.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], {type: 'image/png'}));
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  canvas.getContext('2d').drawImage(picture, 0, 0);
  const blob = await canvas.convertToBlob({type: 'image/webp', quality: 0.72});
  return btoa(Array.from(new Uint8Array(await blob.arrayBuffer()), c => String.fromCharCode(c)).join(''));
}"""


async def save(page: Page, name: str) -> None:
    """Write a picture for the documents, as WebP: a third of the bytes."""
    await settle(page)
    png = await page.screenshot()
    blank = await page.context.new_page()
    small = await blank.evaluate(SMALLER, base64.b64encode(png).decode())
    await blank.close()
    (DOCS / f"{name}.webp").write_bytes(base64.b64decode(small))


async def documents(browser: Browser, server: Server, key: str) -> None:
    DOCS.mkdir(exist_ok=True)
    page = await new_page(browser, server, 1280, "light")
    await go(page, "chat/travel")
    await say(page, "3 days in Tokyo for 500 USD")
    await ended(page, 1, "completed")
    await save(page, "console-chat")
    await go(page, f"task/{key}")
    await page.locator(".pane [data-tab=steps]").click()
    await expect(page.locator(".gapnote")).to_be_visible()
    await page.locator(".record.died").scroll_into_view_if_needed()
    await save(page, "console-task")
    await page.context.close()


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", metavar="FOLDER", type=Path, help="every view, to look at")
    wanted = parser.parse_args().all
    if chromium.find() is None:
        raise SystemExit(chromium.MISSING)
    with tempfile.TemporaryDirectory() as folder:
        files = [ROOT / "examples" / name for name in EXAMPLES]
        env = {"DRAGOMAN_CONSOLE_TOKEN": TOKEN, "REPORT_PACE": "0.9"}
        store = Path(folder) / "tasks.db"
        async with (
            async_playwright() as playwright,
            Server(*files, store=store, options=["--console"], env=env) as server,
        ):
            browser = await playwright.chromium.launch(
                executable_path=chromium.find(), args=["--no-sandbox"], env=dict(chromium.environment())
            )
            key = await story(browser, server)
            if wanted:
                wanted.mkdir(parents=True, exist_ok=True)
                await everything(browser, server, key, wanted)
                await hub_pages(browser, wanted)
            else:
                await documents(browser, server, key)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
