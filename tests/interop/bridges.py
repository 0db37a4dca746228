"""The servers of others behind bridges, and the clients of others in front of them.

One `dragoman bridge` has a route for each way to call each server, in both modes. Clients of 0.3 over gRPC cannot say which agent
of a port they mean, so for them each route also has a bridge of its own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.request import urlopen

from dragoman.bridge.application import make_bridge
from dragoman.bridge.settings import make_one_route
from dragoman.server.runtime import running
from tests.interop.matrix import FROM_THEM, TO_THEM, align, display_name, write_between
from tests.interop.running import Outcome, checks_at, serving
from tests.ports import free_port
from tests.waiting import block_until

T = TypeVar("T")

BEGIN, END = "<!-- make interop, bridge: begin -->", "<!-- make interop, bridge: end -->"

MODES = ("durable", "pass")
OFFICIAL = ("a2a-sdk-1.3.0", "a2a-sdk-0.3.26", "a2a-js-1.3.0")
"""The clients. Each is tried in front of every server."""
AT_ONCE = 5
"""Processes of clients that run at the same time: each waits more than it works."""
IN_ONE_PROCESS = 6
"""Crossings that one of them tries: to start it takes longer than to try one."""


class Way(NamedTuple):
    """A library, and how it calls or is called."""

    library: str
    binding: str
    version: str

    @property
    def name(self) -> str:
        return f"{self.library}-{self.version}-{self.binding}".replace("+", "")


class Crossing(NamedTuple):
    """A client on one side of a bridge, a server on the other."""

    mode: str
    client: Way
    server: Way

    @property
    def route(self) -> str:
        return f"{self.mode}-{self.server.name}"


CLIENT_WAYS = [Way(pair.client, pair.binding, pair.version) for pair in FROM_THEM if pair.client in OFFICIAL]
SERVER_WAYS = [Way(pair.server, pair.binding, pair.version) for pair in TO_THEM]
CROSSINGS = [
    Crossing(mode, client, server) for mode in MODES for server in SERVER_WAYS for client in CLIENT_WAYS
]


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    rest = iter(items)
    while some := tuple(islice(rest, size)):
        yield some


def needs_own_port(client: Way) -> bool:
    return client.binding == "GRPC" and client.version == "0.3"


@dataclass(frozen=True)
class CrossingLack:
    """What a library or a version does not have, and why. What is left empty stands for any."""

    checks: frozenset[str]
    why: str
    mode: str = ""
    role: str = ""
    """`client` or `server`."""
    libraries: frozenset[str] = frozenset()
    versions: frozenset[str] = frozenset()
    bindings: frozenset[str] = frozenset()
    sometimes: bool = False
    """It may work: two things race with each other."""

    def concerns(self, crossing: Crossing) -> bool:
        ways = [getattr(crossing, role) for role in ("client", "server") if self.role in ("", role)]
        return self.mode in ("", crossing.mode) and any(
            (not self.libraries or way.library in self.libraries)
            and (not self.versions or way.version in self.versions)
            and (not self.bindings or way.binding in self.bindings)
            for way in ways
        )

    def __str__(self) -> str:
        names = ", ".join(sorted(check.replace("_", " ") for check in self.checks))
        return f"{names}{' (sometimes)' if self.sometimes else ''}: {self.why}"


class CrossingMatrix:
    """What works through a bridge: a table for each mode, with a row for each way to call a server."""

    def __init__(self, lacks: Sequence[CrossingLack] = ()) -> None:
        self.lacks = list(lacks)
        self._found: dict[Crossing, dict[str, Outcome]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, crossing: Crossing, outcomes: list[Outcome]) -> None:
        self._found[crossing] = {outcome.check: outcome for outcome in outcomes}

    @property
    def whole(self) -> bool:
        return set(CROSSINGS) <= self._found.keys()

    def lacking(self, crossing: Crossing) -> list[CrossingLack]:
        return [lack for lack in self.lacks if lack.concerns(crossing)]

    def wrong(self, crossing: Crossing) -> dict[str, str]:
        """The checks that are worse than the lacks say."""
        lacked = {check for lack in self.lacking(crossing) for check in lack.checks}
        found = self._found[crossing].values()
        return {each.check: each.note for each in found if not each.ok and each.check not in lacked}

    def better(self, crossing: Crossing) -> list[str]:
        """The checks that work though a lack says that they do not."""
        lacked = {check for lack in self.lacking(crossing) if not lack.sometimes for check in lack.checks}
        return [each.check for each in self._found[crossing].values() if each.ok and each.check in lacked]

    def table(self, mode: str) -> str:
        callers = list(dict.fromkeys((client.library, client.version) for client in CLIENT_WAYS))
        rows = [
            [
                "server",
                "binding",
                "A2A",
                *(f"{display_name(name)}, A2A {version}" for name, version in callers),
            ]
        ]
        for server in SERVER_WAYS:
            cells = [self._cell(mode, server, library, version) for library, version in callers]
            rows.append([display_name(server.library), display_name(server.binding), server.version, *cells])
        return align(rows)

    def _cell(self, mode: str, server: Way, library: str, version: str) -> str:
        """The result of one client over all its bindings; those that differ from the first are named."""
        signs: dict[str, list[str]] = {}
        for client in CLIENT_WAYS:
            crossing = Crossing(mode, client, server)
            if (client.library, client.version) == (library, version) and crossing in self._found:
                signs.setdefault(self._sign(crossing), []).append(display_name(client.binding))
        first, *others = signs.items() or [("", [""])]
        return "; ".join([first[0], *(f"{' and '.join(bindings)}: {sign}" for sign, bindings in others)])

    def _sign(self, crossing: Crossing) -> str:
        if self.wrong(crossing):
            return "NO"
        numbers = [str(self.lacks.index(lack) + 1) for lack in self.lacking(crossing)]
        return f"– {' '.join(numbers)}" if numbers else "yes"

    def text(self) -> str:
        tables = [f"Mode `{mode}`:\n\n{self.table(mode)}" for mode in MODES]
        used = {lack for crossing in self._found for lack in self.lacking(crossing)}
        notes = [
            textwrap.fill(f"{n}. {lack}", 120, subsequent_indent="   ")
            for n, lack in enumerate(self.lacks, 1)
            if lack in used
        ]
        return "\n\n".join([*tables, "\n".join(notes)])

    def write(self, path: Path) -> None:
        write_between(path, BEGIN, END, self.text())


class Crossings:
    """Runs the clients of some crossings, a few at a time, and knows what they found."""

    def __init__(self, wanted: Iterable[Crossing], folder: Path) -> None:
        self.wanted, self._folder = list(wanted), folder
        self._found: dict[Crossing, tuple[Future[dict[str, list[Outcome]]], str]] = {}

    def found(self, crossing: Crossing) -> list[Outcome]:
        run, url = self._found[crossing]
        return run.result()[url]

    @contextmanager
    def running(self) -> Iterator[Crossings]:
        with ExitStack() as stack:
            libraries = dict.fromkeys(each.server.library for each in self.wanted)
            urls = {name: stack.enter_context(serving(name)) for name in libraries}
            routes = dict.fromkeys((each.route, each.mode, each.server) for each in self.wanted)
            settings = {
                route: {
                    "url": urls[server.library],
                    "mode": mode,
                    "version": server.version,
                    "binding": server.binding,
                    "allow_private": True,  # gRPC is at another port of this machine
                }
                for route, mode, server in routes
            }
            shared = stack.enter_context(_bridge(settings, self._folder))
            alone = {each.route for each in self.wanted if needs_own_port(each.client)}
            own = stack.enter_context(_bridges({name: settings[name] for name in alone}))
            pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
            for client in dict.fromkeys(each.client for each in self.wanted):
                reached = {
                    each: own[each.route] if needs_own_port(client) else f"{shared}{each.route}/"
                    for each in self.wanted
                    if each.client == client
                }
                for some in batched(reached.items(), IN_ONE_PROCESS):
                    run = pool.submit(
                        checks_at, client.library, [url for _, url in some], client.binding, client.version
                    )
                    self._found |= {each: (run, url) for each, url in some}
            try:
                yield self
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _bridge(settings: dict[str, dict[str, Any]], folder: Path) -> Iterator[str]:
    """One bridge with all routes: `dragoman bridge bridge.toml`. Yields its URL."""
    file = folder / "bridge.toml"
    tables = [
        f'[agents."{name}"]\n' + "".join(f"{key} = {json.dumps(value)}\n" for key, value in route.items())
        for name, route in settings.items()
    ]
    file.write_text("\n".join(tables), "utf-8")
    port, grpc_port = free_port(), free_port()
    command = [str(Path(sys.executable).parent / "dragoman"), "bridge", str(file), "--store", "memory:"]
    log = folder / "bridge.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--grpc-port", str(grpc_port)], stdout=written, stderr=written
        )
    url = f"http://127.0.0.1:{port}/"
    try:
        _wait_until_ready(f"{url}readyz", process, log)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"the bridge did not start:\n{log.read_text('utf-8', 'replace')}")
        try:
            with urlopen(url, timeout=5):
                return True
        except OSError:
            return False

    block_until(answers, 60)


@contextmanager
def _bridges(settings: dict[str, dict[str, Any]]) -> Iterator[dict[str, str]]:
    """A bridge of its own for each route, all in a thread of this process. Yields their URLs."""
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    urls: dict[str, str] = {}

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            try:
                for name, route in settings.items():
                    app = make_bridge(make_one_route(**route)).app(store="memory:", grpc_port=0)
                    urls[name] = await stack.enter_async_context(running(app))
            finally:
                ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="bridges")
    thread.start()
    ready.wait()
    try:
        yield urls
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
