"""Calls over gRPC: metadata and bytes in, bytes or a status out.

Nothing is generated here: methods take bytes and give bytes, so that a request which cannot be read is refused like any
other, and an event that many read is encoded once. When a caller goes away its reading ends, and the task goes on.

To gRPC every method takes a stream of requests: then the body is not read before we ask for it, and we ask when the caller
is known. On the wire that is the same as one request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, cast

import grpc
from grpc import aio

from dragoman.dialects import select
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.proto.codec import Codec
from dragoman.dialects.proto.extensions import ExtensionCodec
from dragoman.dialects.proto.messages import Numbered
from dragoman.dialects.proto.status import DETAILS, status_message, write_status
from dragoman.dialects.proto.values import has_many_values
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    InvalidParams,
    InvalidRequest,
    TaskNotFound,
    Unavailable,
)
from dragoman.model.byte_budget import ByteBudget
from dragoman.model.card import AgentCard
from dragoman.model.ops import STREAM, Batch, Op, Principal, ends_stream
from dragoman.model.task import Task
from dragoman.server.exchange import TooSlow, joined, listed
from dragoman.server.grpc.readers import CallReader, Client, Readers
from dragoman.server.limits import Limits, TaskTimeout
from dragoman.server.mount import ANONYMOUS, Authenticator, Header, Mount
from dragoman.server.pipeline import PAUSES, Parsed, collect, handle, is_large

T = TypeVar("T")
Pairs = Sequence[tuple[str, str]]
LARGE_REQUEST_BYTES = 64 << 10
UNKNOWN = Mount(service=cast(Any, None), card=AgentCard(name="", description="", version=""))
"""The mount of a call before its agent is known."""


class Metadata:
    """A call's metadata, as the `RequestHead` of the pipeline."""

    __slots__ = ("_context", "_lines", "headers")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._lines: list[Header] = [
            (name.encode(), value.encode() if type(value) is str else value)
            for name, value in context.invocation_metadata() or ()
        ]
        self.headers: dict[bytes, bytes] = dict(self._lines)

    def header(self, name: bytes) -> str:
        value = self.headers.get(name)
        return value.decode("latin-1").strip() if value else ""

    def listed(self, *names: bytes) -> tuple[str, ...]:
        return listed(self._lines, names)

    async def principal(self, authenticator: Authenticator) -> Principal:
        """Who is calling. Raises `Unauthenticated` or `Forbidden`."""
        presented = self._context.auth_context().get("x509_pem_cert")
        certificate = ssl.PEM_cert_to_DER_cert(presented[0].decode()) if presented else b""
        return await authenticator.authenticate(joined(self._lines), certificate=certificate)


class Calls:
    """Every call of a port. An agent is chosen by the request's `tenant` where there is more than one.

    `find`, if given, knows the mount of each agent, for those that come and go; the empty name is that of those who name
    none. `client` finds the connection of a peer.
    """

    def __init__(
        self,
        mounts: Sequence[Mount],
        *,
        limits: Limits,
        bodies: ByteBudget,
        placed: Callable[[AgentCard, Mount], AgentCard],
        find: Callable[[str], Mount] | None = None,
        client: Callable[[str], Client | None] = lambda peer: None,
    ) -> None:
        self._find = find
        self.limits = limits
        self._bodies = bodies
        self.placed = placed
        self._mounts = {mount.agent: mount for mount in mounts}
        root = [mount for mount in mounts if not mount.prefix] if len(mounts) > 1 else list(mounts)
        self.default = root[0] if root else None
        """The agent of calls that name none."""
        self._open: dict[asyncio.Task[Any], bool] = {}
        """The tasks of calls, and whether they stream."""
        self._ending: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()
        self.draining = False
        self._body_timeout = TaskTimeout(limits.body_timeout)
        self._readers = Readers(limits, client)
        self.large_answers = asyncio.Lock()
        """Held while a large answer is written."""

    def handler(self, codec: Codec | ExtensionCodec) -> grpc.GenericRpcHandler:
        """The service of a version."""
        methods = {name: self._method(codec, op) for op, name in codec.methods.items()}
        return grpc.method_handlers_generic_handler(codec.service, methods)

    def _method(self, codec: Codec | ExtensionCodec, op: Op) -> Any:
        # plain functions: for anything else, gRPC finds out in each call, slowly, whether it is asynchronous
        async def unary(requests: Any, context: Any) -> bytes:
            return (await self._handle(codec, op, context)).result

        async def stream(requests: Any, context: Any) -> None:
            await self._handle(codec, op, context)

        if op.streams:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.stream_unary_rpc_method_handler(unary)

    @property
    def several(self) -> bool:
        """True if a call must name its agent."""
        return self._find is not None or len(self._mounts) > 1

    def mount_of(self, tenant: str) -> Mount:
        if self._find is not None:
            return self._find(tenant)
        mount = self._mounts.get(tenant) or (None if tenant and len(self._mounts) > 1 else self.default)
        if mount is not None:
            return mount
        if tenant:
            raise TaskNotFound("", message="there is no such agent")
        why = "must name the agent: there are several here"
        raise InvalidParams(f"tenant {why}", fields=(("tenant", why),))

    @property
    def candidates(self) -> Sequence[Mount]:
        """The agents that a call may be for if it names none. With `find`, the default one stands for all."""
        return [self._find("")] if self._find is not None else list(self._mounts.values())

    async def receive(self, context: Any, uploads: asyncio.Semaphore) -> Any:
        """The body of a call, or `aio.EOF`. One connection sends so many at once, and each has its time. A large one
        keeps its place until there is memory for it. Raises `TooSlow`."""
        try:
            with self._body_timeout:
                await uploads.acquire()
                try:
                    body = await context.read()
                except BaseException:
                    uploads.release()
                    raise
            try:
                if body is not aio.EOF:
                    await self._bodies.hold(len(body))
            finally:
                uploads.release()
            return body
        except TimeoutError:
            raise TooSlow("the request did not arrive in time") from None

    async def end(self, *, streams_only: bool) -> None:
        """Refuse new calls, and end the open streams, or all open calls."""
        self.draining = True
        for task, streams in self._open.items():
            if (streams or not streams_only) and task not in self._ending:
                self._ending.add(task)
                task.cancel()
        while self._ending:
            self._ended.clear()
            await self._ended.wait()

    async def _handle(self, codec: Codec | ExtensionCodec, op: Op, context: Any) -> _GrpcCall:
        reader = self._readers.begin(context.peer(), streams=op.streams)
        call = _GrpcCall(self, codec, op, context, reader)
        try:
            await self._run(call, reader.task, op)
        except Unavailable as error:  # the server stops
            if call.aborted:  # and an earlier error waits behind a message that nobody reads
                raise asyncio.CancelledError from None
            await call.send_error(error)
        return call

    async def _run(self, call: _GrpcCall, task: asyncio.Task[Any], op: Op) -> None:
        """Run a call, which `end` can end with `Unavailable`."""
        if self.draining:
            raise Unavailable("shutting down", retry_after=1)
        self._open[task] = op.streams
        try:
            await handle(call)
        except asyncio.CancelledError:
            if task not in self._ending:  # the caller went away
                raise
            task.uncancel()
            raise Unavailable("shutting down", retry_after=1) from None
        finally:
            del self._open[task]
            if task in self._ending:
                self._ending.remove(task)
                self._ended.set()


class _GrpcCall:
    __slots__ = ("_authenticated", "_calls", "_codec", "_context", "_op", "_tenant", "aborted", "dialect", "head", "mount", "one_card",
                 "principal", "reader", "responding", "result")  # fmt: skip

    def __init__(
        self, calls: Calls, codec: Codec | ExtensionCodec, op: Op, context: Any, reader: CallReader
    ) -> None:
        self.reader = reader
        self._calls, self._op, self._context = calls, op, context
        self._codec: Any = codec
        self.head = Metadata(context)
        self._tenant = self.head.header(b"a2a-tenant")
        self.dialect: Dialect | None = None
        self.mount: Mount = UNKNOWN
        """Until it is known, and if there is none."""
        self.principal = ANONYMOUS
        self._authenticated = False
        self.one_card = codec.version != "1.0"
        self.responding = self.aborted = False
        self.result = b""

    async def _authenticate(self) -> None:
        """The body may name the agent. Before it is read, one of the agents must accept the caller."""
        if self._calls.several and not self._tenant:
            await self._authenticate_at_any(self._calls.candidates)
        else:
            await self._authenticate_at(self._calls.mount_of(self._tenant))

    async def _authenticate_at(self, mount: Mount) -> None:
        self.mount, authenticator = mount, mount.authenticator
        self.principal = ANONYMOUS if authenticator is None else await self.head.principal(authenticator)
        self._authenticated = True

    async def _authenticate_at_any(self, mounts: Sequence[Mount]) -> None:
        """Raises the error of the first mount if none accepts the caller."""
        if any(mount.authenticator is None for mount in mounts):
            return
        for mount in mounts if len(mounts) > 1 else ():
            # without an audit entry for those that refuse: nobody has asked for them
            authenticator: Any = getattr(mount.authenticator, "inner", mount.authenticator)
            try:
                self.principal = await self.head.principal(authenticator)
                self.mount, self._authenticated = mount, True
                return
            except A2AError:
                pass
        await self._authenticate_at(mounts[0])

    async def read(self) -> Parsed:
        await self._authenticate()
        calls, codec, op = self._calls, self._codec, self._op
        body = await calls.receive(self._context, self.reader.connection.uploads)
        if body is aio.EOF:
            raise InvalidRequest("this call has no request in it")
        message = codec.parsed(op, body)
        mount = calls.mount_of(codec.tenant_of(message) or self._tenant)
        if self._authenticated and self.mount.authenticator is mount.authenticator:
            self.mount = mount
        else:
            await self._authenticate_at(mount)
        version = self.head.header(b"a2a-version")
        dialect = self.dialect = select.choose_for_rest(version, codec.version, allowed=mount.dialects)
        most = calls.limits.max_nodes
        if len(body) > LARGE_REQUEST_BYTES:  # in a thread: each value takes a microsecond
            request = await asyncio.to_thread(codec.read_message, op, message, max_nodes=most)
        else:
            request = codec.read_message(op, message, max_nodes=most)
        return Parsed(dialect, op, request)

    async def wait(self, answer: Coroutine[Any, Any, T]) -> T:
        return await answer

    def place(self, card: AgentCard) -> AgentCard:
        return self._calls.placed(card, self.mount)

    async def send_result(self, parsed: Parsed, result: Any, headers: Sequence[Header]) -> None:
        self._context.set_trailing_metadata(_pairs(headers))
        op, write = parsed.op, self._codec.write_result
        if is_large(result):
            pieces = self._codec.write_pieces(op, result)
            self.result = b"".join(await collect(pieces, self._calls.large_answers))
        else:
            many = has_many_values(result)
            self.result = await asyncio.to_thread(write, op, result) if many else write(op, result)
        self.reader.writing(len(self.result))

    async def send_stream(
        self, parsed: Parsed, batches: AsyncIterator[Batch], headers: Sequence[Header]
    ) -> None:
        pauses = PAUSES[parsed.dialect.ends_on_interrupt, parsed.op is STREAM]
        write = self._codec.write_event
        numbers = b"dragoman" in self.head.headers
        begun = False
        async with aclosing(cast(Any, batches)):
            async for batch in batches:
                if not begun:
                    begun = True
                    await self._context.send_initial_metadata(_pairs(headers))
                for n, response in enumerate(batch, 1):
                    event = response.event
                    last = ends_stream(event, pauses[isinstance(event, Task)] if n == len(batch) else ())
                    if has_many_values(event):  # in a thread, like a large request is read
                        messages = await asyncio.to_thread(write, response, last=last)
                    else:
                        messages = write(response, last=last)
                    if numbers and response.seq and messages:  # the last message completes the event
                        messages[-1] += Numbered(seq=response.seq).SerializeToString()
                    for message in messages:
                        await self._write(message)
                    if last:
                        return

    async def _write(self, message: bytes) -> None:
        limit = self._calls.limits.max_event
        if len(message) > limit:
            raise InvalidAgentResponse(
                f"an event of this task is larger than {limit} bytes; get the task instead"
            )
        with self.reader.writing(len(message)):
            await self._context.write(message)

    async def send_error(self, error: A2AError) -> None:
        """Raises: that ends a call of gRPC."""
        version = self._codec.version
        trailers: list[tuple[str, str | bytes]] = [(DETAILS, write_status(error, version))]
        if self.mount is not UNKNOWN:
            trailers += _pairs((*self.mount.marks, *self.mount.refusal(error, error.http)))
        code = getattr(grpc.StatusCode, error.grpc)
        self.aborted = True
        await self._context.abort(code, status_message(error, version), tuple(trailers))


def _pairs(headers: Iterable[Header]) -> Pairs:
    """Headers as metadata, which is ASCII only."""
    return [(name.decode(), value.decode()) for name, value in headers if value.isascii()]
