"""`dragoman inspect`: a page for any agent, and an exit status for scripts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dragoman import Agent
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.client.fakes import card, page
from tests.console.calls import Page
from tests.console.oauth_server import oauth_server
from tests.ports import free_port


def hello() -> Agent:
    agent = Agent("Hello", description="Says hello")

    @agent.skill
    async def hello(name: str) -> str:
        """Greets."""
        return f"Hello, {name}!"

    return agent


async def run(*words: str, **env: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman.cli", "inspect", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **env},
    )  # fmt: skip
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_json_has_card_findings_and_choice_and_the_status_says_that_all_is_well() -> None:
    async with running(application(hello(), store="memory:")) as url:
        code, out, _ = await run(url, "--json")
        assert (await run(url, "-o", "text"))[1].startswith("name")
    found = json.loads(out)
    assert code == 0
    assert found["card"]["name"] == "Hello" and found["chosen"]["version"] == "1.0"
    assert all(each["severity"] != "error" for each in found["findings"])


async def test_a_card_with_an_error_has_the_status_1() -> None:
    async with oauth_server() as site:
        site.pages["/.well-known/agent-card.json"] = page(card(description=7, supportedInterfaces=[]))
        code, out, _ = await run(site.base, "--json")
    assert code == 1
    assert "interface.none" in [each["rule"] for each in json.loads(out)["findings"]]


async def test_an_unreachable_agent_exits_with_3_and_a_refused_card_with_4() -> None:
    code, out, _ = await run(f"http://127.0.0.1:{free_port()}", "--json")
    assert code == 3 and json.loads(out)["error"]["code"] == "A2ACLI_ERR_UNREACHABLE"
    async with oauth_server() as site:
        site.pages["/.well-known/agent-card.json"] = page({}, 401)
        code, out, _ = await run(site.base, "--json")
    assert code == 4


async def test_a_card_cannot_lead_to_another_private_address() -> None:
    async with oauth_server() as inner, oauth_server() as site:
        site.pages["/.well-known/agent-card.json"] = (
            302,
            {"location": f"{inner.base}/.well-known/agent-card.json"},
            b"",
        )
        code, _, _ = await run(site.base, "--json")
        assert code == 3 and inner.asked == []
        code, _, _ = await run(site.base, "--json", "--allow-private")
        assert inner.asked


@pytest.mark.parametrize(
    "words", [["--host", "0.0.0.0"], ["--insecure"], ["--svc-param", "a:b"], ["--a2a-version", "1.0"]]
)
async def test_options_that_the_inspector_lacks_are_refused(words: list[str]) -> None:
    code, _, err = await run("http://127.0.0.1:1", *words)
    assert code == 2 and "inspector" in err


@asynccontextmanager
async def inspecting(*words: str, **env: str) -> AsyncIterator[Page]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman.cli", "inspect", *words,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, **env},
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(20):
        opened = Page((await process.stdout.readline()).decode().strip())
    try:
        yield opened
    finally:
        process.terminate()
        await process.wait()


async def test_the_page_is_on_loopback_and_its_token_works_once() -> None:
    async with running(application(hello(), store="memory:")) as url, inspecting(url) as page:
        assert page.base.startswith("http://127.0.0.1:")
        assert (await page("GET", "inspect"))[0] == 401
        assert (await page("POST", "session", {"token": page.token}))[0] == 204
        status, raw = await page("GET", "inspect")
        assert status == 200 and json.loads(raw) == {"url": url, "credentials": None}
        status, raw = await page("POST", "inspect", {"url": url})
        assert status == 200 and json.loads(raw)["card"]["name"] == "Hello"
        message = {"parts": [{"text": "Ada"}]}
        status, raw = await page("POST", "talk", {"url": url, "message": message})
        assert status == 200 and b"Hello, Ada!" in raw
        assert (await page("POST", "session", {"token": page.token}))[0] == 401


async def test_a_credential_of_the_command_line_is_used_and_not_shown() -> None:
    secret = "a-token-of-somebody"
    async with oauth_server(scheme={"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}) as site:
        site.valid.add(secret)
        async with inspecting(site.base, "--auth", "env:MY_TOKEN", MY_TOKEN=secret) as page:
            await page("POST", "session", {"token": page.token})
            handle = json.loads((await page("GET", "inspect"))[1])["credentials"]
            asked = {"url": site.base, "credentials": handle, "message": {"parts": [{"text": "hi"}]}}
            status, raw = await page("POST", "talk", asked)
            assert status == 200 and b"fine" in raw and secret.encode() not in raw
