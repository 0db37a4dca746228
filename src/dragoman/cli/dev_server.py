"""The process of `dragoman dev` that runs the agents.

It loads them, says so on its control socket, and serves on the listening socket that it was given when it is told to. It ends
when `dragoman dev` ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import dragoman
from dragoman.cli.load import load
from dragoman.observe.logs import configure

if TYPE_CHECKING:
    from dragoman.console.dev import ReloadEvents

_INTERRUPTS = (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT))


def main(control: int, listener: int) -> int:
    for each in _INTERRUPTS:  # a terminal sends them to all processes; `dragoman dev` stops this one
        signal.signal(each, lambda *_: None)
    with socket.socket(fileno=control) as channel, channel.makefile("rwb", buffering=0) as stream:
        lines = cast(BinaryIO, stream)
        given = json.loads(lines.readline())
        configure(given["serve"]["log_level"], lines="short")

        def report(state: str, **about: Any) -> None:
            lines.write(json.dumps({"state": state, **about}).encode() + b"\n")

        try:
            agents = load(*given["files"])
            report("loaded", agents=[agent.name for agent in agents], files=imported_files())
            if not (order := lines.readline()):  # told to serve, or never to be
                return 0
            given["token"] = json.loads(order)["token"]
            _serve(agents, given, socket.socket(fileno=listener), lines, report)
        except SystemExit as stop:
            if not isinstance(stop.code, str):
                raise
            report("error", message=stop.code)
            return 1
    return 0


def _serve(
    agents: list[Any],
    given: dict[str, Any],
    listener: socket.socket,
    lines: BinaryIO,
    report: Callable[..., None],
) -> None:
    from dragoman.console.dev import ReloadEvents
    from dragoman.server.runtime import serve

    def path_of(agent: Any) -> str:
        return "/" if len(agents) == 1 else f"/{agent.id}"

    def announce(url: str) -> None:
        shown = [[each.name, f"{url}{path_of(each)}"] for each in agents]
        report("serving", agents=shown, console=console.url if console is not None else "")

    events = ReloadEvents()
    console = _console(given, events, report) if given["console"] is not None else None
    Thread(target=_follow, args=(lines, events, report), name="dragoman-dev", daemon=True).start()
    serve(
        *agents,
        **given["serve"],
        listener=listener,
        signals=(signal.SIGTERM,),
        announce=announce,
        log_lines="short",
        console=console,
    )


def _console(given: dict[str, Any], events: ReloadEvents, report: Callable[..., None]) -> Any:
    """A console whose one-time token is that of `dragoman dev`, so that the printed URL works after a reload."""
    from dragoman.console import AgentConsole
    from dragoman.console.access import OneTimeToken
    from dragoman.console.dev import routes

    class DevToken(OneTimeToken):
        def use(self, token: str) -> bool:
            used = super().use(token)
            if used:
                report("used")
            return used

    class DevConsole(AgentConsole):
        url = ""

        def prepare(self, **server: Any) -> list[str]:
            (line,) = super().prepare(**server)
            self.url = line.removeprefix("console: ")
            return []  # `dragoman dev` prints it, once

    return DevConsole(
        given["console"]["operator"],
        modules=[partial(routes, events=events)],
        features=["dev"],
        allow_private=given["console"]["allow_private"],
        one_time=DevToken(given["token"]),
    )


def _follow(lines: BinaryIO, events: ReloadEvents, report: Callable[..., None]) -> None:
    """Read what `dragoman dev` says until it ends."""
    while line := lines.readline():
        message = json.loads(line)
        if "reload" in message:
            events.publish(**message["reload"])
            if message["reload"]["state"] == "restarting":
                events.wait_for_readers(1.0)
                report("notified")
    os.kill(os.getpid(), signal.SIGTERM)


def imported_files() -> list[str]:
    """The files of all modules that are neither installed nor part of Python."""
    libraries = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    libraries |= {str(Path(dragoman.__file__).parent), sys.prefix, sys.base_prefix}
    found = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.isabs(file) and not file.startswith(tuple(libraries)):
            found.add(file)
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
