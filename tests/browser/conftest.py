"""One browser for all tests, and pages that fail a test if anything that an agent said runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.browser import chromium
from tests.browser.fake_console import FakeConsole

try:
    from playwright.async_api import Browser, Page, async_playwright
except ImportError:  # `make test` alone does not install it
    collect_ignore_glob = ["test_*.py"]
MISSING = "" if chromium.find() else chromium.MISSING


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if "tests/browser" in str(item.path)]
    for item in here:
        item.add_marker(pytest.mark.browser)
        if MISSING:
            item.add_marker(pytest.mark.skip(reason=MISSING))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MISSING and any(
        "tests/browser" in str(report.nodeid) for report in terminalreporter.stats.get("skipped", ())
    ):
        terminalreporter.section("browser")
        terminalreporter.line(MISSING)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(
            executable_path=chromium.find(),
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            env=dict(chromium.environment()),
        )
        yield launched
        await launched.close()


class Watch:
    """What must not happen on a page: an error, a breach of its policy, or a script of an agent."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def console(self, message: Any) -> None:
        if (
            (message.type == "error" and "Failed to load resource" not in message.text)
            or "Content Security Policy" in message.text
            or "pwned" in message.text
        ):
            self.problems.append(message.text)


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(15_000)
    opened = await context.new_page()
    watch = Watch()
    opened.on("console", watch.console)
    opened.on("pageerror", lambda error: watch.problems.append(f"{error}\n{error.stack}"))
    opened.on("dialog", lambda dialog: watch.problems.append(f"a dialog: {dialog.message}"))
    await opened.add_init_script(
        "document.addEventListener('securitypolicyviolation', e => console.error('Content Security Policy: ' + e.violatedDirective + ' ' + e.blockedURI))"
    )
    yield opened
    pwned = None if opened.is_closed() else await opened.evaluate("window.__pwned")
    await context.close()
    assert not watch.problems, watch.problems
    assert pwned is None, pwned


@pytest_asyncio.fixture(loop_scope="session")
async def fake() -> AsyncIterator[FakeConsole]:
    async with FakeConsole() as served:
        yield served
