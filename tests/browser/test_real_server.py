"""The page and `dragoman serve --console`, with a real agent: what a person does in the first minutes, and a `kill -9`."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from tests.browser.pictures import running
from tests.serving import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENT = Path(__file__).parent / "agent.py"
TOKEN = secrets.token_urlsafe(32)


def serve(folder: Path, **env: str) -> Server:
    return Server(
        AGENT, store=folder / "tasks.db", options=["--console"], env={"DRAGOMAN_CONSOLE_TOKEN": TOKEN, **env}
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with serve(tmp_path_factory.mktemp("console")) as running:
        yield running


async def enter(page: Page, server: Server, place: str) -> None:
    await page.goto(f"{server.url}/console/#token={TOKEN}")
    await expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    await page.evaluate("place => { location.hash = place }", place)


async def say(page: Page, text: str, skill: str = "") -> None:
    if skill:
        await page.get_by_label("Skill", exact=True).select_option(skill)
    await page.locator(".composer textarea").fill(text)
    await page.get_by_role("button", name="Send", exact=True).click()


def ended(page: Page, state: str) -> Locator:
    return page.locator(".answerfoot .badge", has_text=state)


async def open_task(page: Page) -> None:
    """From the chat to the log of its task."""
    await page.get_by_role("link", name="Open the task").click()
    await expect(page.locator(".taskhead .badge")).to_be_visible()


async def records(page: Page) -> list[tuple[int, str, str]]:
    """The records on the page in their order: number, kind, text."""
    found = await page.evaluate(
        """[...document.querySelectorAll('.record')].map(r => [Number(r.dataset.seq), r.querySelector('.kind')?.textContent,
           r.querySelector('.summary')?.textContent]).sort((a, b) => a[0] - b[0])"""
    )
    return [tuple(each) for each in found]


async def test_a_chat_streams_markdown_and_shows_log_events_and_bytes(page: Page, server: Server) -> None:
    await enter(page, server, "chat/clerk")
    await say(page, "tell me", "story")
    await expect(page.locator(".answer .latest")).to_contain_text("Chapter")
    await expect(ended(page, "completed")).to_be_visible()
    await expect(page.locator(".answer li")).to_have_count(6)
    await expect(page.locator(".answer strong", has_text="done")).to_have_count(6)
    await expect(page.locator(".side2 .record.k-step")).to_have_count(6)
    await page.locator("[data-tab=events]").click()
    await expect(page.locator(".events li").first).to_be_visible()
    await page.locator("[data-tab=wire]").click()
    await expect(page.locator(".wire .out", has_text="SendStreamingMessage")).to_have_count(1)
    seqs = await page.evaluate(
        "[...document.querySelectorAll('.events .seq')].map(n => n.textContent).filter(t => /\\d/.test(t))"
    )
    assert len(seqs) == len(set(seqs))


async def test_questions_get_inputs_of_their_types(page: Page, server: Server) -> None:
    await enter(page, server, "chat/clerk")
    await say(page, "ask me", "questions")
    await expect(page.locator(".said").last).to_contain_text("What is your name?")
    await say(page, "Ada")
    await page.locator(".question").get_by_role("button", name="large").click()
    await page.locator(".question input[type=number]").fill("7")
    await page.locator(".question").get_by_role("button", name="Answer").click()
    await page.get_by_label("city").fill("Rome")
    await page.get_by_label("nights").fill("2")
    await page.get_by_label("breakfast").check()
    await page.locator(".question").get_by_role("button", name="Answer").click()
    await page.get_by_label("Which colour?").fill("red")
    await page.get_by_label("How many legs?").fill("4")
    await page.locator(".question").get_by_role("button", name="Answer").click()
    await page.locator(".question").get_by_role("button", name="Approve").click()
    await expect(ended(page, "completed")).to_be_visible()
    await expect(page.locator(".answer").last).to_contain_text(
        "Ada, large, 7, Rome for 2, True, {'colour': 'red', 'legs': 4}, True"
    )


async def test_files_go_both_ways(page: Page, server: Server) -> None:
    await enter(page, server, "chat/clerk")
    await page.get_by_label("Files to send").set_input_files(
        [{"name": "note.txt", "mimeType": "text/plain", "buffer": b"hello"}]
    )
    await expect(page.locator(".chosenfile")).to_contain_text("note.txt")
    await say(page, "", "upper")
    await expect(ended(page, "completed")).to_be_visible()
    async with page.expect_download() as saving:
        await page.locator(".answer").get_by_role("button", name="Download").click()
    download = await saving.value
    assert download.suggested_filename == "big-note.txt"
    assert (await download.path()).read_bytes() == b"HELLO"


async def test_a_task_is_canceled_from_the_chat(page: Page, server: Server) -> None:
    await enter(page, server, "chat/clerk")
    await say(page, "go", "forever")
    await expect(page.locator(".answer .latest")).to_have_text("Working on it")
    await page.locator(".composer").get_by_role("button", name="Cancel").click()
    await expect(ended(page, "canceled")).to_be_visible()


async def test_an_authorisation_is_asked_for_and_continued(page: Page, server: Server) -> None:
    await enter(page, server, "chat/clerk")
    await say(page, "go", "login")
    await page.get_by_role("button", name="It is done").click()
    await expect(ended(page, "completed")).to_be_visible()
    await expect(page.locator(".answer").last).to_contain_text("welcome")


async def test_a_message_is_copied_as_commands_that_work(page: Page, server: Server, tmp_path: Path) -> None:
    await enter(page, server, "chat/helper")
    await page.locator(".composer textarea").fill('it\'s "me" $HOME')
    await page.get_by_role("button", name="Copy as").click()
    dialog = page.get_by_role("dialog")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for tab, command in (
        ("dragoman", None),
        ("curl", None),
        ("Python", [sys.executable, str(tmp_path / "copied.py")]),
    ):
        await dialog.get_by_role("tab", name=tab).click()
        text = await dialog.locator("pre").inner_text()
        if tab == "curl" and shutil.which("curl") is None:
            continue
        (tmp_path / "copied.py").write_text(text)
        process = await asyncio.create_subprocess_exec(
            *(command or ["sh", "-c", text]), stdout=asyncio.subprocess.PIPE, env={**os.environ, "PATH": path}
        )
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, (tab, text)
        assert "helped with it's" in said and "$HOME" in said, (tab, said)


async def test_the_page_follows_a_task_through_a_kill_and_shows_every_event_once(
    page: Page, tmp_path: Path
) -> None:
    async with serve(tmp_path, PACE="0.6") as server:
        await enter(page, server, "chat/clerk")
        await say(page, "tell me", "story")
        await expect(page.locator(".side2 .record.k-step")).to_have_count(2)
        await server.kill()
        await expect(page.get_by_text("The server does not answer.")).to_be_visible()
        await server.start(PACE="0.1")
        await expect(ended(page, "completed")).to_be_visible()
        await expect(page.locator(".answer li")).to_have_count(6)
        texts = await page.locator(".answer li").all_text_contents()
        assert texts == [f"chapter {n} is done" for n in range(1, 7)]
        await open_task(page)
        await expect(page.locator(".loglist .record.died")).to_contain_text("attempt 2")
        shown = await records(page)
        assert [seq for seq, _, _ in shown] == list(range(1, len(shown) + 1))
        assert [text for _, kind, text in shown if kind == "step"] == [
            f'chapter/{n} = "chapter {n} is **done**"' for n in range(1, 7)
        ]
        await page.locator(".pane [data-tab=steps]").click()
        await expect(page.locator(".chart .bar.attempt")).to_have_count(2)
        await expect(page.locator(".gapnote")).to_contain_text("A process ended")


async def test_the_slider_shows_the_task_as_it_was(page: Page, server: Server) -> None:
    await enter(page, server, "chat/clerk")
    await say(page, "tell me", "story")
    await expect(ended(page, "completed")).to_be_visible()
    await open_task(page)
    await expect(page.locator(".was li")).to_have_count(6)
    shown = await records(page)
    third = [seq for seq, kind, _ in shown if kind == "artifact"][3]
    slider = page.get_by_label("Show the task as it was at this record")
    await slider.evaluate("(node, n) => { node.value = n; node.dispatchEvent(new Event('input')); }", third)
    await expect(page.locator(".was li")).to_have_count(3)
    await expect(page.locator(".was .badge")).to_have_text("working")
    await slider.press("Home")
    await expect(page.locator(".was")).to_contain_text("No artifacts yet.")
    await page.get_by_role("button", name="Live").click()
    await expect(page.locator(".was li")).to_have_count(6)


async def test_a_record_is_shown_in_every_version_and_binding(page: Page, server: Server) -> None:
    await enter(page, server, "chat/clerk")
    await say(page, "tell me", "story")
    await expect(ended(page, "completed")).to_be_visible()
    await open_task(page)
    await page.locator(".pane [data-tab=as]").click()
    versions = page.get_by_role("tablist", name="Versions of A2A").get_by_role("tab")
    await expect(versions.first).to_be_visible()
    names = await versions.all_text_contents()
    assert {"1.0", "0.3"} <= set(names)
    await versions.filter(has_text=re.compile("^0.3$")).click()
    await expect(page.locator(".wireview", has_text="status-update").first).to_be_visible()


async def test_children_are_a_tree_that_can_be_opened(page: Page, server: Server) -> None:
    await enter(page, server, "chat/clerk")
    await say(page, "go", "delegate")
    await expect(ended(page, "completed")).to_be_visible()
    await open_task(page)
    await page.get_by_role("tab", name="Children 1").click()
    await page.locator(".tree summary").click()
    await expect(page.locator(".treebody .badge")).to_have_text("completed")
    await page.locator(".treebody").get_by_role("link", name="Open").click()
    await expect(page.locator(".taskhead h1")).to_have_text("the work")


async def test_a_child_that_somebody_opened_stays_open_while_the_log_grows(
    page: Page, server: Server
) -> None:
    await enter(page, server, "chat/clerk")
    await say(page, "go", "delegate_and_wait")
    await expect(page.get_by_role("link", name="Open the task")).to_be_visible()
    await open_task(page)
    await page.get_by_role("tab", name="Children 1").click()
    await page.locator(".tree summary").click()
    await expect(page.locator(".treebody .badge")).to_have_text("completed")
    opened = await page.locator(".treebody").element_handle()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_role("button", name="Cancel the task").click()
    await expect(page.locator(".taskhead .badge")).to_have_text("canceled")
    await expect(page.locator(".record", has_text="canceled")).to_be_visible()
    assert opened is not None and await opened.is_visible()


async def test_the_table_of_tasks_is_live_and_says_what_waits_for_a_person(
    page: Page, server: Server
) -> None:
    await enter(page, server, "tasks")
    await expect(page.locator(".live.live")).to_be_visible()
    other = await page.context.new_page()
    await other.goto(f"{server.url}/console/#chat/clerk")
    await say(other, "please ask me now", "questions")
    await expect(ended(other, "input required")).to_be_visible()
    row = page.locator("table.tasks tr", has_text="please ask me now")
    await expect(row).to_contain_text("What is your name?")
    await page.get_by_role("button", name="Waits for a person").click()
    await expect(row).to_be_visible()
    await row.get_by_role("link", name="Answer").click()
    await say(page, "Bob")
    await expect(page.locator(".said").last).to_contain_text("Which size?")


async def test_the_inspector_shows_the_card_of_an_agent_elsewhere_and_talks_to_it(
    page: Page, server: Server
) -> None:
    async with running("inspect", f"{server.url}/clerk") as address:
        await page.goto(address)
        await expect(page.locator(".inspectbody h2").first).to_have_text("Clerk")
        await expect(page.locator(".inspectbody .skill")).to_have_count(8)
        await page.get_by_role("tab", name=re.compile("Findings")).click()
        await expect(page.locator(".inspectbody .tabpanel").first).not_to_be_empty()
        await page.get_by_role("tab", name="Chat").click()
        await say(page, "tell me", "story")
        await expect(ended(page, "completed")).to_be_visible()
        await expect(page.locator(".answer li")).to_have_count(6)
        await page.locator("[data-tab=wire]").click()
        await expect(page.locator(".wire .out", has_text="SendStreamingMessage")).to_have_count(1)


async def test_an_operator_cancels_forks_and_retries(page: Page, server: Server) -> None:
    await enter(page, server, "chat/clerk")
    await say(page, "go", "forever")
    await expect(page.locator(".answer .latest")).to_have_text("Working on it")
    await open_task(page)
    await page.locator(".taskhead").get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Cancel the task").click()
    await expect(page.locator(".taskhead .badge")).to_have_text("canceled")
    await page.evaluate("location.hash = 'chat/clerk'")
    await page.get_by_role("button", name="New conversation").click()
    await say(page, "break", "broken")
    await expect(ended(page, "failed")).to_be_visible()
    await open_task(page)
    address = page.url
    await page.get_by_role("button", name="Retry").click()
    await expect(page).not_to_have_url(address)
    await expect(page.locator(".taskhead .badge")).to_have_text("failed")
    address = page.url
    await page.get_by_label("Show the task as it was at this record").press("Home")
    await page.get_by_role("button", name="Fork here").click()
    await expect(page).not_to_have_url(address)
    await expect(page.locator(".taskhead .badge")).to_have_text("failed")


async def test_a_test_receiver_shows_what_a_webhook_gets(page: Page, server: Server) -> None:
    await enter(page, server, "webhooks")
    await page.get_by_role("button", name="Make a receiver").click()
    address = await page.locator(".receiver code.address").text_content()
    assert address is not None
    await page.evaluate(
        "url => fetch(url, {method: 'POST', body: JSON.stringify({hello: 'there'}), headers: {'content-type': 'application/json'}})",
        address,
    )
    await expect(page.locator(".deliveries li")).to_contain_text("hello")


async def test_the_page_says_when_code_is_loaded_again_and_when_it_has_an_error(
    page: Page, tmp_path: Path
) -> None:
    file = tmp_path / "greeter.py"
    code = """
from dragoman import Agent

agent = Agent("Greeter", description="Greets")


@agent.skill
async def greet(name: str) -> str:
    return f"Hello, {name}!"
"""
    file.write_text(code)
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with running("dev", str(file), "--store", store) as address:
        await page.goto(address)
        await page.get_by_role("link", name="Chat", exact=True).first.click()
        await say(page, "Ada")
        await expect(page.locator(".answer").last).to_contain_text("Hello, Ada!")
        file.write_text(code.replace("async def", "async df"))
        await expect(page.locator(".devbar")).to_contain_text("The old code goes on serving.")
        await expect(page.locator(".devbar")).to_contain_text("line 8: invalid syntax")
        await page.get_by_role("button", name="Hide this error").click()
        await expect(page.locator(".devbar")).to_be_hidden()
        file.write_text(code.replace("Hello,", "Good day,"))
        await expect(page.locator(".devbar.good")).to_be_visible()
        await say(page, "Bob")
        await expect(page.locator(".answer").last).to_contain_text("Good day, Bob!")
