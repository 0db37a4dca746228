"""A server, its store, and the steps that its agent really took."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.crash.checks import check_story
from tests.crash.reader import Listener, Teller
from tests.raw import StreamEvent
from tests.serving import Server

AGENT = Path(__file__).parent / "agent.py"


class Stage:
    def __init__(self, folder: Path, *options: str, **env: str) -> None:
        folder.mkdir(exist_ok=True)
        self.store, self.steps = folder / "tasks.db", folder / "steps"
        self.steps.touch()
        self.server = Server(AGENT, store=self.store, options=options, env={"STEPS": str(self.steps), **env})
        self.deaths = 0
        self._told: list[tuple[Teller, list[StreamEvent], dict[str, Any]]] = []

    async def start(self, die: str) -> None:
        """A life that ends at a transaction. If that is before anybody is served, another one follows."""
        try:
            await self.server.start(DIE=die)
        except AssertionError:
            self.deaths += 1
            await self.server.ended()
            await self.server.start()

    async def restart(self) -> None:
        """SIGKILL, and another life."""
        self.deaths += 1
        await self.server.kill()
        await self.server.start()

    async def tell(self, title: str, on_event: Callable[[int], None] = lambda _: None) -> None:
        """Have a story told from beginning to end. `on_event` hears how many events have come."""
        teller = Teller(self.server, title)
        listener = Listener(self.server, teller)
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(teller.tell())
            listening = group.create_task(listener.listen(on_event))
        self._told.append((teller, listening.result(), telling.result()))

    async def check(self) -> None:
        """Check every story that was told."""
        for teller, listened, task in self._told:
            await check_story(self.server, self.store, self.steps, teller, listened, task, self.deaths)

    def did(self, task: str) -> Sequence[str]:
        """The keys of the steps that were done for a task, in order."""
        lines = [line.split() for line in self.steps.read_text().splitlines()]
        return [line[1] for line in lines if line[0] == task]


async def rise(stage: Stage, *again: str) -> None:
    """Start it again whenever it dies; `again` is how the next lives end."""
    for die in (*again, ""):
        await stage.server.ended()
        stage.deaths += 1
        await stage.start(die)
