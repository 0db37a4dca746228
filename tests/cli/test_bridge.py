"""`dragoman bridge`, as a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.client import connect
from dragoman.server.runtime import running
from tests.bridge.bridging import Crew, crew_app
from tests.serving import Server


def bridge_process(target: str, store: Path | None = None, options: tuple[str, ...] = ()) -> Server:
    """`dragoman bridge TARGET` as a process of its own."""
    server = Server(store=store, options=options)
    place = server.command.index("serve")
    server.command[place : place + 1] = ["bridge", target]
    return server


async def test_a_bridge_serves_the_agent_at_a_url(tmp_path: Path) -> None:
    async with running(crew_app(Crew(versions=("0.3",)))) as direct:
        async with bridge_process(direct, tmp_path / "bridge.db") as bridge, connect(bridge.url) as client:
            assert client.version == "1.0"
            assert (await client("hi")).text == "HI"
            assert len([task async for task in client.list()]) == 1


async def test_a_bridge_serves_the_agents_of_a_file_with_the_options_of_a_server(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    async with running(crew_app(Crew())) as direct:
        file.write_text(f"[agents.crew]\nurl = '{direct}'\nmode = 'pass'\n")
        async with bridge_process(str(file), options=("--rate", "1", "--burst", "1000")) as bridge:
            async with connect(f"{bridge.url}/crew") as client:
                assert (await client("hi")).text == "HI"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["no-such-file.toml"], "cannot be read"),
        (
            ["http://crew:9000", "--oidc", "https://login.example.com"],
            "--oidc and --audience belong together",
        ),
        (["bridge.toml", "--mode", "pass"], "--mode is for one URL"),
        (["http://crew:9000", "--versions", "2.0"], "versions are some of"),
        (["http://crew:9000", "--host", "0.0.0.0"], "--insecure"),
    ],
)
def test_contradictory_options_are_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(["bridge", *words, "--store", "memory:"]))
    assert why in f"{stopped.value.code} {capsys.readouterr().err}"
