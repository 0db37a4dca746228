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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

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
    """Ends open streams before it waits for connections to close, so that a drain does not wait for readers."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

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
        _supervise(workers, lambda: _serve(agents, listener, log_level, shared=True, **options))
    else:
        _serve(agents, listener, log_level, **options)


def _serve(agents: Sequence[Agent], listener: socket.socket, log_level: str, **options: Any) -> None:
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
    server = _Server(config, app)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _supervise(workers: int, work: Callable[[], None]) -> None:
    """Run `work` in so many processes; start one again that dies; end them all when we are ended."""
    pids: set[int] = set()
    ending = False

    def end(signum: int, frame: Any) -> None:
        nonlocal ending
        ending = True
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def start() -> None:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            try:
                work()
            finally:
                os._exit(0)
        pids.add(pid)

    for _ in range(workers):
        start()
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    while pids:
        try:
            pid, _ = os.wait()
        except InterruptedError:
            continue
        except ChildProcessError:
            break
        pids.discard(pid)
        if not ending:
            logger.warning("worker %d ended; another one takes its place", pid)
            start()


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
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
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
