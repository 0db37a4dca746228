"""gRPC: `lf.a2a.v1.A2AService` (1.0) and `a2a.v1.A2AService` (0.3) on one port, with health and reflection.

It needs the extra `grpc`. gRPC has no paths. If several agents share a port, the `tenant` of a request names the agent, as
its card says. A single agent, or the one at `/`, needs no name. 0.3 has no `tenant`, so it reaches only that one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from msgspec import Struct

from dragoman.auth.secrets import file_stamp
from dragoman.dialects.proto import v0_3, v1_0
from dragoman.dialects.proto.extensions import ExtensionCodec
from dragoman.dialects.proto.messages import POOL
from dragoman.model.byte_budget import ByteBudget
from dragoman.model.card import GRPC, AgentCard, Interface
from dragoman.server.address import bracketed
from dragoman.server.grpc.calls import Calls
from dragoman.server.grpc.front import AVAILABLE, Front
from dragoman.server.limits import BODIES_BYTES, Connections, Limits
from dragoman.server.mount import Mount, with_interfaces
from dragoman.server.pipeline import Binding, Handler

log = logging.getLogger(__name__)

CODECS = (v1_0.CODEC, v0_3.CODEC)
_SERVICES = (
    *(codec.service for codec in CODECS),
    health.SERVICE_NAME,
    reflection.SERVICE_NAME,
)
_SECOND = 1000
IDLE_SECONDS = 60
"""How long a connection may be open without a call. Its client connects again for the next call."""
MAX_DRAIN_SECONDS = 3600.0
"""Longer than any drain; `stop` ends it."""
MAX_METADATA_BYTES = 32 << 10
"""Of metadata in a call. A token with many claims needs a few thousand."""

for _file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
    POOL.AddSerializedFile(_file.serialized_pb)  # so that reflection can describe them, too


class Tls(Struct, frozen=True, kw_only=True):
    """PEM files. With `client_ca`, callers must have a certificate of one of those authorities.

    New connections use the files as they are then.
    """

    certificate: str
    key: str
    client_ca: str = ""

    def credentials(self) -> Any:
        stamp = self._look()

        def changed() -> Any:
            nonlocal stamp
            try:
                before, stamp = stamp, self._look()
                return self._read() if stamp != before else None
            except OSError as error:
                log.error("the certificate for gRPC cannot be read, the old one stays: %s", error)
                return None

        return grpc.dynamic_ssl_server_credentials(self._read(), changed, bool(self.client_ca))

    def _read(self) -> Any:
        pair = Path(self.key).read_bytes(), Path(self.certificate).read_bytes()
        authorities = Path(self.client_ca).read_bytes() if self.client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], authorities)

    def _look(self) -> object:
        return file_stamp(*filter(None, (self.certificate, self.key, self.client_ca)))


class Grpc:
    """The `Binding`, and the server behind it. It answers from `start` to `stop`.

    `public` is where clients reach it (`agents.example:443`), if that is not the host they know us by and our port.
    `share_port`: other processes serve the same port. `others` and `public_url` are for the extended card, which
    names every way to reach an agent. `connections` counts those of HTTP, too, and `bodies` their large bodies. `find`
    stands in for `mounts` where agents come and go: see `Calls`.
    """

    def __init__(
        self,
        mounts: Sequence[Mount],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        public: str = "",
        tls: Tls | None = None,
        limits: Limits | None = None,
        connections: Connections | None = None,
        bodies: ByteBudget | None = None,
        keepalive: float = 60.0,
        share_port: bool = False,
        others: Sequence[Binding] = (),
        public_url: str = "",
        find: Callable[[str], Mount] | None = None,
    ) -> None:
        self.port = port
        """0 until the server listens."""
        self._host, self._public, self._tls = host, public, tls
        self._others, self._public_url = (*others, self), public_url.rstrip("/")
        self._limits = limits = limits or Limits()
        self._connections = connections or Connections(limits.max_connections)
        self._share_port = share_port
        self._front: Front | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._options: tuple[tuple[str, int], ...] = (
            ("grpc.so_reuseport", int(share_port)),
            ("grpc.max_concurrent_streams", limits.max_streams),
            ("grpc.server_handshake_timeout_ms", int(limits.head_timeout * _SECOND)),
            ("grpc.max_connection_idle_ms", IDLE_SECONDS * _SECOND),
            # Windows do not grow before we read: a caller can send 64 KB per call without being asked.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.max_receive_message_length", self._limits.max_body),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.keepalive_time_ms", int(keepalive * _SECOND)),
            ("grpc.keepalive_timeout_ms", 20 * _SECOND),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10 * _SECOND),
        )
        if limits.max_connections and not AVAILABLE:  # then only this port counts its connections
            self._options += (("grpc.max_allowed_incoming_connections", limits.max_connections),)
        self._calls = Calls(
            mounts,
            limits=self._limits,
            bodies=bodies or ByteBudget(BODIES_BYTES),
            placed=self._place,
            find=find,
            client=lambda peer: self._front.client(peer) if self._front is not None else None,
        )
        self._server: aio.Server | None = None
        self._health: Any = None

    # -- as a binding --------------------------------------------------------------------------------------------

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        return None

    def interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        named = mount is not self._calls.default
        return [
            Interface(
                url=self._address(url),
                protocol_binding=GRPC,
                protocol_version=codec.version,
                tenant=mount.agent if named else "",
            )
            for codec in CODECS
            if mount.speaks(codec.version) and not (named and codec is v0_3.CODEC)
        ]

    def _address(self, url: str) -> str:
        """`host:port`, with the host of the URL that the client uses."""
        if self._public:
            return self._public
        host = urlsplit(url).hostname or self._host
        return f"{bracketed(host)}:{self.port}"

    def _place(self, card: AgentCard, mount: Mount) -> AgentCard:
        """The extended card with the agent's interfaces; those over HTTP only with a `public_url`."""
        known = self._others if self._public_url else (self,)
        url = self._public_url + mount.path
        return with_interfaces(card, [each for binding in known for each in binding.interfaces(mount, url)])

    # -- as a server ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises `OSError` if the port is taken."""
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_our_error)
        server = aio.server(options=self._options)
        server.add_generic_rpc_handlers(
            tuple(self._calls.handler(codec) for codec in (*CODECS, ExtensionCodec()))
        )
        self._health = health.aio.HealthServicer()
        generic: Any = _GenericHandlers(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, generic)
        reflected = reflection.aio.ReflectionServicer(_SERVICES, pool=POOL)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, generic)
        address = f"{bracketed(self._host)}:{self.port}"
        front = self._front = self._create_front()
        try:
            where = front.address if front is not None else address
            if self._tls is None:
                port = server.add_insecure_port(where)
            else:
                port = server.add_secure_port(where, self._tls.credentials())
            await server.start()
            if front is not None:
                port = await front.start(self._host, self.port, share_port=self._share_port)
            self.port = port
        except (RuntimeError, OSError) as error:
            await server.stop(None)
            if front is not None:
                await front.close()
            raise OSError(f"cannot listen on {address} for gRPC: {error}") from error
        self._calls.draining = False
        for codec in CODECS:
            await self._health.set(codec.service, health_pb2.HealthCheckResponse.SERVING)
        self._server = server
        log.debug("gRPC on %s:%d", bracketed(self._host), self.port)

    def _create_front(self) -> Front | None:
        if not AVAILABLE:
            return None
        try:
            return Front(self._connections)
        except OSError as error:
            log.warning(
                "gRPC has no folder for its socket (%s): its connections are not counted, and clients that do not read "
                "keep theirs. Set TMPDIR to a folder that can be written.",
                error,
            )
            return None

    async def drain(self) -> None:
        """End the open streams and refuse new calls. Calls that wait for an answer go on."""
        if self._front is not None:
            self._front.stop_accepting()
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            # closes the listener and tells clients to reconnect elsewhere; open calls go on until `stop`
            self._stopping = asyncio.create_task(self._server.stop(MAX_DRAIN_SECONDS))
            await self._calls.end(streams_only=True)

    async def stop(self, grace: float = 1.0) -> None:
        """End all calls."""
        if self._server is not None:
            server, self._server = self._server, None
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._calls.end(streams_only=False)
            await server.stop(grace)
            if self._stopping is not None:
                await self._stopping
        if self._front is not None:
            await self._front.close()


class _GenericHandlers:
    """What generated code adds its services to. It adds each method twice: under its service and, only to be found faster,
    by its name. For each of the latter gRPC has a future, and with every call, of any method, waits for all of these anew.
    """

    def __init__(self, server: aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None: ...


def _is_our_error(record: logging.LogRecord) -> bool:
    """False for an error that gRPC logs when a caller has left before the answer."""
    return not (record.exc_info and isinstance(record.exc_info[1], aio.InternalError))
