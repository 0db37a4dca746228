"""The example of a webhook works."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from dragoman import Agent
from dragoman.push import PushOptions
from dragoman.server.application import application
from dragoman.server.runtime import running

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


async def test_the_webhook_of_the_example_receives_the_whole_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPORT_PACE", "0")
    agent = runpy.run_path(str(EXAMPLES / "report.py"), run_name="example")["agent"]
    assert isinstance(agent, Agent)
    app = application(agent, store="memory:", push=PushOptions(allow_private=True))
    async with running(app) as url:
        monkeypatch.setattr(sys, "argv", ["webhook.py", url, "tea"])
        main = runpy.run_path(str(EXAMPLES / "webhook.py"), run_name="example")["main"]
        await main()
    out = capsys.readouterr().out
    chapters = [out.index(f"## {i}. ") for i in range(1, 6)]
    assert chapters == sorted(chapters) and out.index("# tea") < chapters[0]
    assert "[working] Chapter 3 of 5: Ceremony" in out and out.rstrip().endswith("[completed]")
