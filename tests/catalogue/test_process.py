"""The catalogue of a server that is killed and started again, with two workers that share its store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dragoman.client.catalogue import ListedAgent, RemoteCatalogue
from dragoman.client.transport.network import HttpTransport
from dragoman.stores import open_store
from tests.catalogue.elsewhere import elsewhere
from tests.serving import Server
from tests.waiting import until

AGENT = """
from dragoman import Agent, Turn

agent = Agent("Refunds", "Returns money.")


@agent.skill
async def refund(turn: Turn) -> str:
    return "done"
"""


async def search(url: str, text: str) -> list[ListedAgent]:
    transport = HttpTransport()
    try:
        return list(await RemoteCatalogue(url, transport).search(text))
    finally:
        await transport.close()


async def dragoman(*words: str) -> str:
    """The output of a command."""
    import sys

    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman.cli", *words, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await run.communicate()
    assert run.returncode == 0
    return out.decode()


async def test_what_was_registered_is_found_and_checked_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "refunds.py").write_text(AGENT)
    store = f"sqlite:///{tmp_path}/tasks.db"
    options = ["--catalogue", "--catalogue-allow-private", "--workers", "2"]
    async with elsewhere() as site, Server(tmp_path / "refunds.py", store=store, options=options) as server:
        said = await dragoman("find", "--add", site.url, "--name", "money", "--store", store)
        assert said == "registered money: Currency desk, up\n"
        for _ in range(4):  # whichever worker answers
            (money,) = await until(lambda: search(server.url, "convert currency"))
            assert (money.name, money.health) == ("money", "up")
        await server.kill()
        opened = open_store(store)
        await opened.open()
        taken = await opened.catalogue.take_due(4e9, 0.0, limit=9)  # they are due at once
        await opened.close()
        assert [agent.name for agent in taken] == ["money"]
        site.asked.clear()
        site.come.clear()
        site.card = {**site.card, "version": "3.0"}
        await server.start()
        await site.come.wait()
        changed = await until(
            lambda: search(server.url, "convert currency"),
            lambda agents: agents and agents[0].version == "3.0",
        )
        assert [agent.name for agent in changed] == ["money"]
        assert (
            sum(path.startswith("/.well-known/agent-card.json") for path in site.asked) <= 2
        )  # card, and its 1.0 form
