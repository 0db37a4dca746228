"""Runs agents as a server: options are checked, a socket is opened, workers start."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import json
import logging
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Unpack

from dragoman.agent.agent import Agent
from dragoman.auth.schemes import MutualTLS
from dragoman.buses import open_bus
from dragoman.errors import A2AError
from dragoman.model.ids import timestamp
from dragoman.model.options import check_options
from dragoman.observe.logs import configure
from dragoman.observe.shared_memory import SharedCounters
from dragoman.server.address import PublicAddress, bracketed, is_loopback
from dragoman.server.app import App
from dragoman.server.application import application, check_extras, check_ids, signing_keys
from dragoman.server.http1.server import BACKLOG, HttpServer, new_event_loop
from dragoman.server.options import AppOptions, Bridged, ServeOptions
from dragoman.server.tls import ServerTls
from dragoman.server.workers import stop_signals, supervise
from dragoman.stores import UnsupportedSchema, default_store, open_store

logger = logging.getLogger("dragoman.server")


def serve(
    *agents: Agent,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    insecure: bool = False,
    announce: Callable[[str], None] | None = None,
    log_level: str = "info",
    log_lines: str = "plain",
    tls_cert: str = "",
    tls_key: str = "",
    tls_client_ca: str = "",
    listener: socket.socket | None = None,
    signals: Sequence[signal.Signals] | None = None,
    **options: Unpack[AppOptions],
) -> None:
    """Serve agents until interrupted. SIGTERM, SIGHUP and Ctrl-C drain; a second Ctrl-C does not wait.

    `grpc_port`: over gRPC, too. `mcp`: MCP clients, too, at /mcp. `tls_cert`, `tls_key`: speak TLS, with this certificate; `tls_client_ca`: and ask clients
    for theirs, signed by this authority. `listener`: a socket that listens already, in place of `host` and `port`;
    `signals`: those that stop the server. `AppSettings` says what the other options mean.
    """
    _check_called(options)
    _check_authentication(agents, host, insecure)
    store = options["store"] = options.get("store") or default_store()
    if workers > 1 and store.startswith("memory:"):
        raise SystemExit("memory: is for one process: workers share a file (sqlite:///dragoman.db)")
    _check_options(agents, **options)
    tls = _tls(agents, tls_cert, tls_key, tls_client_ca)
    asyncio.run(check_store(store, options.get("bus", "")))
    listener = listener or _listen(host, port)
    url = f"{'https' if tls else 'http'}://{bracketed(host)}:{listener.getsockname()[1]}"
    if options.get("keys") and is_loopback(host):
        options["public_url"] = options.get("public_url") or url
    configure(log_level, lines=log_lines)
    if (grpc_port := options.get("grpc_port")) is not None:
        grpc_port = free_port(host, grpc_port)
        options["grpc_port"], options["grpc_host"] = grpc_port, host
        if tls is not None:
            pair = {"certificate": tls_cert, "key": tls_key or tls_cert}
            options["grpc_tls"] = {**pair, "client_ca": tls_client_ca} if tls_client_ca else pair
    grpc = f"{bracketed(host)}:{grpc_port}" if grpc_port else ""
    say, lines = say_json if log_lines == "json" else _say, list[str]()
    if (console := options.get("console")) is not None:
        public_url = options.get("public_url", "")
        lines += console.prepare(host=host, url=url, store=store, public_url=public_url, tls=tls is not None)
    (announce or _announce(agents, grpc, options.get("bridged") or {}, say=say))(url)
    if options.get("mcp"):
        for agent in agents:
            lines.append(f"MCP of {agent.name}: {url}{'' if len(agents) == 1 else '/' + agent.id}/mcp")
    for line in lines:
        say(line)
    if workers > 1:
        shared_counters = SharedCounters.create(workers)
        options["shared"] = True

        def work(worker: int) -> None:
            counters = shared_counters.for_worker(worker)
            _serve(agents, listener, (signal.SIGTERM,), tls, counters, **options)

        supervise(workers, work)
    else:
        _serve(agents, listener, stop_signals() if signals is None else signals, tls, **options)


def _check_called(options: Mapping[str, Any]) -> None:
    """Reject wrong calls before announcing the address."""
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(
            "an event loop is running already, and this starts one of its own: call it from code that is not async, "
            "or give agent.app() to a server that runs in this loop"
        )
    check_options(options, ServeOptions, "serve")


def _check_authentication(agents: Sequence[Agent], host: str, insecure: bool) -> None:
    """Refuse to serve agents without authentication to other machines, unless `insecure`."""
    open_agents = [agent.name for agent in agents if not agent.auth]
    if open_agents and not insecure and not is_loopback(host):
        raise SystemExit(
            f"{host} can be reached from other machines and nobody would have to say who they are to call "
            f"{', '.join(open_agents)}: give Agent(..., auth=[...]), serve on 127.0.0.1, or say --insecure "
            "(insecure=True) if that is meant"
        )


def _check_options(
    agents: Sequence[Agent],
    public_url: str = "",
    trusted_proxies: Sequence[str] = (),
    keys: Any = None,
    grpc_port: int | None = None,
    mcp: bool = False,
    **others: Any,
) -> None:
    """Reject contradictory options before announcing the address."""
    check_extras(grpc_port, mcp)
    try:
        check_ids(agents)
        PublicAddress(public_url, trusted_proxies)
        if keys is not None:
            signing_keys(keys)
    except ValueError as error:
        raise SystemExit(f"dragoman: {error}") from error


async def check_store(url: str, bus: str = "") -> None:
    """Open the store and the bus once, so that an error is reported before the server starts."""
    try:
        store, opened_bus = open_store(url), open_bus(bus or url)
        await store.open()
        try:
            await store.purge("", limit=0)  # writes to the store, and purges nothing
        finally:
            await store.close()
        await opened_bus.open()
        await opened_bus.close()
    except (A2AError, UnsupportedSchema, ValueError) as error:
        raise SystemExit(f"dragoman: {error}") from error


def _tls(agents: Sequence[Agent], certificate: str, key: str, client_ca: str) -> ServerTls | None:
    asked = [agent for agent in agents if agent.auth.somebody_shows(MutualTLS)]
    if asked and not client_ca:
        raise SystemExit(f"{asked[0].name} asks for client certificates: say whose with --tls-client-ca")
    if not certificate:
        if key or client_ca:
            raise SystemExit("--tls-key and --tls-client-ca need --tls-cert")
        return None
    # If another scheme is enough, a client may connect without a certificate.
    required = not asked or all(agent.auth.everybody_shows(MutualTLS) for agent in agents)
    return open_tls(certificate, key, client_ca, required=required)


def open_tls(certificate: str, key: str = "", client_ca: str = "", *, required: bool = True) -> ServerTls:
    """TLS with these files. Raises `SystemExit`."""
    try:
        return ServerTls(certificate, key or None, client_ca=client_ca or None, required=required)
    except (OSError, ValueError) as error:
        raise SystemExit(f"TLS cannot be set up: {error}") from error


def _serve(
    agents: Sequence[Agent],
    listener: socket.socket,
    signals: Sequence[signal.Signals],
    tls: ServerTls | None,
    shared_counters: SharedCounters | None = None,
    **options: Unpack[AppOptions],
) -> None:
    app = application(*agents, shared_counters=shared_counters, **options)
    _run(app, listener, signals, tls)


def run(
    app: App, host: str, port: int, announce: Callable[[str], None], *, tls: ServerTls | None = None
) -> None:
    """Serve any app until interrupted, as `serve` does; `announce` is called with its URL first."""
    listener = _listen(host, port)
    announce(f"{'https' if tls else 'http'}://{bracketed(host)}:{listener.getsockname()[1]}")
    _run(app, listener, stop_signals(), tls)


def _run(app: App, listener: socket.socket, signals: Sequence[signal.Signals], tls: ServerTls | None) -> None:
    server = _server(app, listener, tls.context if tls else None, tls.renew if tls else None)

    def stopping() -> None:
        again = "; Ctrl-C again does not wait" if sys.stdin is not None and sys.stdin.isatty() else ""
        logger.info("stopping%s%s", app.waits_for(), again)

    _tune_memory()
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(server.serve(signals, stopping=stopping))


def _server(
    app: App,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    each_second: Callable[[], None] | None = None,
) -> HttpServer:
    return HttpServer(
        app,
        listener,
        limits=app.limits,
        connections=app.connections,
        tls=tls,
        startup=app.start,
        drain=app.stop,
        each_second=each_second,
    )


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def _tune_memory() -> None:
    """Freeze objects that stay, and collect less often: garbage collection is most of a slow response.

    A store in memory makes objects that stay, too: the first two thresholds limit how many are looked through at once.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 400)
    _return_large_blocks()


def _return_large_blocks() -> None:
    """Make glibc return freed blocks of a megabyte to the system. By default it stops doing so after the first."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 20)
        mallopt(_M_TRIM_THRESHOLD, 16 << 20)


def _announce(
    agents: Sequence[Agent], grpc: str, bridged: Mapping[str, Bridged], *, say: Callable[[str], None]
) -> Callable[[str], None]:
    def announce(url: str) -> None:
        for agent in agents:
            path = "/" if len(agents) == 1 else f"/{agent.id}"
            if (bridge := bridged.get(agent.id)) is not None:
                path = bridge.path
            say(f"{agent.name}: {url}{path}")
        if grpc:
            say(f"gRPC: {grpc}")

    return announce


def _say(line: str) -> None:
    print(line, flush=True)


def say_json(message: str, **about: str) -> None:
    """Print a line on standard output, as JSON, for servers whose log is JSON."""
    line = {"at": timestamp(), "level": "info", "logger": logger.name, "message": message, **about}
    print(json.dumps(line), flush=True)


def _listen(host: str, port: int) -> socket.socket:
    listener = bind(host, port)
    listener.listen(BACKLOG)
    return listener


def bind(host: str, port: int) -> socket.socket:
    """A socket that does not listen yet: until it does, connections are refused. Raises `SystemExit`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets whose protocol is TCP
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        advice = "; give another --port, or port= in code" if taken else ""
        raise SystemExit(
            f"cannot listen on {host}:{port}: {getattr(error, 'strerror', error)}{advice}"
        ) from error
    return listener


def free_port(host: str, port: int) -> int:
    """The port, or a free one if it is 0. Raises `SystemExit` if the port is taken."""
    with contextlib.closing(_listen(host, port)) as probe:
        found: int = probe.getsockname()[1]
    return found


@contextlib.asynccontextmanager
async def running(app: App, *, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve `app` on a loopback port in this process; yields its URL."""
    listener = _listen("127.0.0.1", port)
    server = _server(app, listener, tls)
    await server.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.stop()
