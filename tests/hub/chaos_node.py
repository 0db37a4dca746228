"""One hub of several: `python -m tests.hub.chaos_node PORT STORE BUS FOLDER TTL`, whose model writes down what it is asked.

A message names its work: `<<kind name>>`. The model's replies to it:

    work    runs a command that may not repeat, and makes a note; then answers
    asks    runs a command that may not repeat, which its tenant has to approve; then answers
    hold    answers slowly
    last    streams words for ever, each of which is written down

The file `asked` in FOLDER has a line for each call: the moment, `ask`, `end`, `cut` (nobody wants the rest) or `word`, the name, and the
number of the call.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from dragoman.hub.assembly import application
from dragoman.hub.models import Delta, ModelEvent, ModelTraits, Prompt, Stop, Usage
from dragoman.hub.settings import Settings
from dragoman.hub.store import workspace_leases
from dragoman.observe.logs import configure
from dragoman.server.runtime import run
from tests.hub.house import ADMIN
from tests.waiting import elapse

WORK = re.compile(r"<<(\w+) ([\w-]+)>>")
HOLD_SECONDS, WORD_SECONDS = 0.3, 0.05


class WritingModel:
    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name="writing")

    def _write(self, what: str, name: str, n: int) -> None:
        os.write(self._file, f"{time.time():.3f} {what} {name} {n}\n".encode())

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        (at, (kind, name)) = max(
            (i, found[-1]) for i, each in enumerate(prompt.messages) if (found := WORK.findall(each.content))
        )
        at = min(i for i, each in enumerate(prompt.messages) if f"<<{kind} {name}>>" in each.content)
        n = sum(message.role == "assistant" for message in prompt.messages[at + 1 :])
        self._write("ask", name, n)
        ended = False
        try:
            async for piece in self._reply(kind, name, n):
                yield Delta(piece)
            self._write("end", name, n)
            ended = True
        finally:
            if not ended:
                self._write("cut", name, n)
        yield Usage(input_tokens=100, output_tokens=100)
        yield Stop()

    async def _reply(self, kind: str, name: str, n: int) -> AsyncIterator[str]:
        while kind == "last":
            self._write("word", name, n)
            yield "word "
            await elapse(WORD_SECONDS)
        if kind == "hold":
            await elapse(HOLD_SECONDS)
        command = f"/exec echo {name} >> done\n"
        replies = {"work": f"{command}/mem write {name}\n", "asks": command} if n == 0 else {}
        for piece in replies.get(kind, f"Answer {name}").split(" "):
            yield piece + " "
            await elapse(WORD_SECONDS)


if __name__ == "__main__":
    port, store, bus, folder, ttl = sys.argv[1:]
    configure("warning", lines="plain")
    workspace_leases._EXTRA_SECONDS = 2.0
    given = Settings(
        admin_token=ADMIN,
        data=folder,
        store=store,
        bus=bus,
        drain=0.1,
        allow_exec=True,
        exec_unconfined=True,
        exec_seconds=3.0,
        approve=("none",),
    )
    _, app = application(given, model=WritingModel(Path(folder) / "asked"), ttl=float(ttl))
    run(app, "127.0.0.1", int(port), lambda url: print(url, flush=True))
