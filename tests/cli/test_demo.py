"""`make run`: the demo of a hub prints the URL of its console, also after a kill -9."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.cli import main
from tests.console.calls import Page
from tests.ports import free_port


@asynccontextmanager
async def demo(folder: Path, port: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, Page]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman.cli", "hub", "--demo", "make run", "--data", str(folder / "hub"),
        "--port", str(port), "-q", "--agents", "examples/hello.py",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            lines: list[str] = []
            while not lines or not lines[-1].startswith("console: "):
                lines.append((await process.stdout.readline()).decode())
                assert lines[-1], "it ended without the URL of the console"
        yield process, Page(lines[-1].removeprefix("console: ").strip())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_demo_prints_the_url_of_the_console_and_a_session_survives_kill_9(tmp_path: Path) -> None:
    port = free_port()
    async with demo(tmp_path, port) as (process, page):
        assert (await page("POST", "session", {"token": page.token}))[0] == 204
        assert json.loads((await page("GET", "me"))[1])["kind"] == "hub"
        message = {"parts": [{"text": "Ada"}]}
        status, raw = await page("POST", "talk", {"agent": "hello", "message": message})
        assert status == 200 and b"Hello, Ada!" in raw
        process.kill()
    async with demo(tmp_path, port) as (_, again):
        assert again.token != page.token
        assert (await page("GET", "me"))[0] == 200, "the cookie is still good"
        assert (await again("POST", "session", {"token": again.token}))[0] == 204


async def test_a_demo_does_not_print_tokens_that_were_rotated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with demo(tmp_path, 0) as (process, _):
        assert process.stdout is not None
        token = (await process.stdout.readline()).decode().removeprefix("tenant: ").strip()
        assert token.startswith("atr_")
    await asyncio.to_thread(main, ["tenant", "rotate", "demo", "--data", str(tmp_path / "hub")])
    capsys.readouterr()
    async with demo(tmp_path, 0) as (process, _):
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
    assert "tenant rotate demo" in line and token not in line
