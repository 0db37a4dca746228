"""`dragoman serve --otel`: spans go where the environment says."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dragoman.observe.otel import tracer_from_environment
from tests import raw
from tests.crash.reader import message
from tests.serving import Server

AGENT = """
from dragoman import Agent
agent = Agent("Echo")
@agent.skill
async def echo(text: str) -> str:
    return text
"""


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_spans_are_sent_before_the_server_ends(tmp_path: Path, workers: str) -> None:
    (tmp_path / "echo.py").write_text(AGENT)
    server = Server(
        tmp_path / "echo.py",
        store=tmp_path / "t.db",
        options=("--otel", "--workers", workers),
        env={"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "60000"},
    )
    async with server:
        assert await raw.result(server.url, "SendMessage", message("hello"))
        server.signal(signal.SIGTERM)
        assert server.process is not None and server.process.stdout is not None
        said = await server.process.stdout.read()
        assert await server.ended() == 0
    assert b'"a2a SendMessage"' in said and b'"invoke_agent echo"' in said
    assert b'"service.name": "dragoman"' in said


def test_an_unknown_exporter_is_an_error() -> None:
    with pytest.raises(ValueError, match="there is no exporter 'pigeon'"):
        tracer_from_environment({"OTEL_TRACES_EXPORTER": "pigeon"})
