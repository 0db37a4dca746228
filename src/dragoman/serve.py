"""Wires agents, a store, the engine and the bindings into a server."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from threading import Thread
from types import FrameType
from typing import Any, NoReturn

import uvicorn

from dragoman.agent.agent import Agent
from dragoman.bindings.http import App
from dragoman.bindings.limits import Limits
from dragoman.bindings.mount import Mount
from dragoman.buses.local import LocalBus
from dragoman.client.peers import Peers
from dragoman.engine.service import Engine
from dragoman.stores import open_store

STORE = "sqlite:///dragoman.db"

logger = logging.getLogger("dragoman.serve")


def application(
    *agents: Agent,
    store: str = STORE,
    public_url: str = "",
    trusted_proxies: Sequence[str] = (),
    limits: Limits | None = None,
    keepalive: float = 15.0,
    drain: float = 10.0,
    retain: float | None = None,
    shared: bool = False,
    peer_credentials: Mapping[str, Any] | None = None,
    **engine: Any,
) -> App:
    """Agents as one ASGI app: a single one at `/`, several at `/<id>`.

    `store` is `memory:` or `sqlite:///path`. `retain`: forget finished tasks after so many seconds. `shared`: other
    processes write to the same store. `peer_credentials`: what the agents show to those they call, by URL or name.
    """
    if not agents:
        raise ValueError("there is no agent to serve")
    by_id: dict[str, Agent] = {}
    for agent in agents:
        if agent.id in by_id:
            raise ValueError(
                f"two agents have the id {agent.id!r}: give one of them another (`Agent(..., id=)`)"
            )
        by_id[agent.id] = agent
    opened, bus = open_store(store), LocalBus()
    service = Engine(
        opened, bus, lambda scope: by_id.get(scope.agent), peers=Peers(credentials=peer_credentials), **engine
    )
    mounts = [
        Mount(
            service=service,
            card=lambda agent=agent: agent.card,  # type: ignore[misc]
            agent=agent.id,
            path="/" if len(agents) == 1 else f"/{agent.id}",
            versions=agent.versions,
        )
        for agent in agents
    ]
    watch: list[asyncio.Task[None]] = []

    async def start() -> None:
        await service.start(retain=retain)
        if shared:
            watch.append(asyncio.create_task(_watch(opened, bus)))

    async def stop() -> None:
        for task in watch:
            task.cancel()
        await service.stop(drain)

    return App(
        mounts,
        limits=limits or Limits(),
        public_url=public_url,
        trusted_proxies=trusted_proxies,
        keepalive=keepalive,
        on_startup=[start],
        on_shutdown=[stop],
    )


async def _watch(store: Any, bus: LocalBus, every: float = 0.02) -> None:
    """Wake readers when another process wrote to the store."""
    while True:
        await asyncio.sleep(every)
        if store.changed():
            bus.wake_all()


class _Server(uvicorn.Server):
    """Ends open streams before it waits for connections to close, so that a drain does not wait for readers.

    The first of its `signals` drains. The next one does not wait: what runs is on disk, and goes on in another process.
    """

    def __init__(self, config: uvicorn.Config, app: App, signals: Sequence[signal.Signals] = ()) -> None:
        super().__init__(config)
        self._app = app
        self._signals = signals

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {signum: signal.signal(signum, self.handle_exit) for signum in self._signals}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.stop()
        await super().shutdown(sockets)


def serve(
    *agents: Agent,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    insecure: bool = False,
    announce: Callable[[str], None] | None = None,
    log_level: str = "info",
    **options: Any,
) -> None:
    """Serve agents until interrupted. SIGTERM and Ctrl-C drain; a second Ctrl-C does not wait."""
    if not insecure and not _loopback(host):
        raise SystemExit(
            f"{host} can be reached from other machines and nobody would have to say who they are: "
            "serve on 127.0.0.1, or say --insecure (insecure=True) if that is meant"
        )
    listener = _listen(host, port)
    url = f"http://{_show(host)}:{listener.getsockname()[1]}"
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    (announce or _announce(agents))(url)
    if workers > 1:
        _supervise(workers, lambda: _serve(agents, listener, (signal.SIGTERM,), shared=True, **options))
    else:
        _serve(agents, listener, (signal.SIGTERM, signal.SIGINT), **options)


def _serve(
    agents: Sequence[Agent], listener: socket.socket, signals: Sequence[signal.Signals], **options: Any
) -> None:
    app = application(*agents, **options)
    config = uvicorn.Config(
        app,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        http="httptools",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
        backlog=4096,
    )
    server = _Server(config, app, signals)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _supervise(workers: int, work: Callable[[], None]) -> None:
    """Run `work` in so many processes; start one again that dies; end them all when we end, however we end.

    A terminal's Ctrl-C reaches all of us. The workers leave it to the supervisor, who passes each signal on once.
    """
    born: dict[int, float] = {}
    ending = False
    gone, here = os.pipe()  # read to its end when the last process that could write is gone: the supervisor

    def end(signum: int, frame: Any) -> None:
        nonlocal ending
        ending = True
        for pid in list(born):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def start() -> None:
        pid = os.fork()
        if pid == 0:
            os.close(here)
            _work(work, gone)
        born[pid] = time.monotonic()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    for _ in range(workers):
        start()
    while born:
        pid, _ = os.wait()
        lived = time.monotonic() - born.pop(pid)
        if not ending:
            logger.warning("worker %d ended; another one takes its place", pid)
            time.sleep(max(0.0, 1.0 - lived))  # one that cannot start at all must not keep us busy
        if not ending:
            start()


def _work(work: Callable[[], None], gone: int) -> NoReturn:
    """Be a worker, and end with the supervisor."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow() -> None:
        os.read(gone, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=follow, name="dragoman-supervisor", daemon=True).start()
    code = 1
    try:
        work()
        code = 0
    except Exception:
        logger.exception("a worker failed")
    finally:
        os._exit(code)


def _announce(agents: Sequence[Agent]) -> Callable[[str], None]:
    def announce(url: str) -> None:
        for agent in agents:
            path = "/" if len(agents) == 1 else f"/{agent.id}"
            print(f"{agent.name}: {url}{path}", flush=True)

    return announce


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _show(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SystemExit(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listener.listen(4096)
    listener.set_inheritable(True)
    return listener


@contextlib.asynccontextmanager
async def running(app: App) -> AsyncIterator[str]:
    """`app` on a loopback port of its own, in this process: its URL."""
    listener = _listen("127.0.0.1", 0)
    config = uvicorn.Config(app, http="httptools", lifespan="on", log_level="warning", access_log=False)
    server = _Server(config, app)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                await task
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()
