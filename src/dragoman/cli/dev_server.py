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
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO, cast

import dragoman
from dragoman.cli.load import load
from dragoman.observe.logs import configure

_INTERRUPTS = (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT))


def main(control: int, listener: int) -> int:
    for each in _INTERRUPTS:  # a terminal sends them to all processes; `dragoman dev` stops this one
        signal.signal(each, lambda *_: None)
    with socket.socket(fileno=control) as channel, channel.makefile("rwb", buffering=0) as stream:
        lines = cast(BinaryIO, stream)
        given = json.loads(lines.readline())
        configure(given["log_level"], lines="short")

        def tell(state: str, **about: Any) -> None:
            lines.write(json.dumps({"state": state, **about}).encode() + b"\n")

        try:
            agents = load(*given["files"])
            tell("loaded", agents=[agent.name for agent in agents], files=imported_files())
            if not lines.readline():  # told to serve, or never to be
                return 0
            _serve(agents, given, socket.socket(fileno=listener), lines, tell)
        except SystemExit as stop:
            if not isinstance(stop.code, str):
                raise
            tell("error", message=stop.code)
            return 1
    return 0


def _serve(
    agents: list[Any],
    given: dict[str, Any],
    listener: socket.socket,
    lines: BinaryIO,
    tell: Callable[..., None],
) -> None:
    from dragoman.server.runtime import serve

    def path_of(agent: Any) -> str:
        return "/" if len(agents) == 1 else f"/{agent.id}"

    Thread(target=_follow, args=(lines,), name="dragoman-dev", daemon=True).start()
    serve(
        *agents,
        host=given["host"],
        listener=listener,
        signals=(signal.SIGTERM,),
        announce=lambda url: tell(
            "serving", agents=[[each.name, f"{url}{path_of(each)}"] for each in agents]
        ),
        log_level=given["log_level"],
        log_lines="short",
        store=given["store"],
        drain=given["drain"],
        grpc_port=given["grpc_port"],
        insecure=given["insecure"],
    )


def _follow(lines: BinaryIO) -> None:
    """Read what `dragoman dev` says until it ends."""
    while lines.readline():
        pass
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
