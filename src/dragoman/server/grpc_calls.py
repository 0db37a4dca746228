"""One call over gRPC, from its metadata and its bytes to its answer or its refusal.

Nothing is generated here: methods take bytes and give bytes, so that a request which cannot be read is refused like any
other, and an event that many read is encoded once. When a caller goes away its reading ends, and the task goes on.

To gRPC every method takes a stream of requests: then the body is not read before we ask for it, and we ask when the caller
is known. On the wire that is the same as one request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, cast

import grpc
from grpc import aio

from dragoman.dialects import select
from dragoman.dialects.proto.codec import Codec
from dragoman.dialects.proto.messages import Numbered
from dragoman.dialects.proto.status import DETAILS, sentence, write_status
from dragoman.errors import (
    A2AError,
    ExtendedCardNotConfigured,
    InvalidAgentResponse,
    InvalidParams,
    InvalidRequest,
    TaskNotFound,
    Unavailable,
    UnsupportedOperation,
)
from dragoman.model.card import AgentCard
from dragoman.model.ops import EXTENDED_CARD, Batch, Call, Op, Principal, Request
from dragoman.server.call import call_of, check_tenant
from dragoman.server.cards import signed
from dragoman.server.exchange import Header, TooSlow
from dragoman.server.http1.timeouts import TaskTimeout
from dragoman.server.limits import Limits
from dragoman.server.mount import ANONYMOUS, Authenticator, Mount
from dragoman.server.responses import activated, refusal, said
from dragoman.server.stream_end import Ending

Pairs = Sequence[tuple[str, str]]
_LARGE = 64 << 10
OURS = ("dragoman", "1")
"""From a server: events are numbered and an idempotency key is honoured. From a client: it understands the numbers."""


class Metadata:
    """A call's metadata, as the head of a request."""

    __slots__ = ("_context", "_pairs", "headers")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._pairs: Sequence[tuple[str, str | bytes]] = context.invocation_metadata() or ()
        self.headers: dict[bytes, bytes] = {name.encode(): _bytes(value) for name, value in self._pairs}

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1").strip()

    def listed(self, *names: bytes) -> tuple[str, ...]:
        lines = [_bytes(value).decode("latin-1") for name, value in self._pairs if name.encode() in names]
        return tuple(
            dict.fromkeys(item.strip() for line in lines for item in line.split(",") if item.strip())
        )

    async def principal(self, authenticator: Authenticator | None) -> Principal:
        """Who is calling. Raises `Unauthenticated` or `Forbidden`."""
        if authenticator is None:
            return ANONYMOUS
        headers: dict[str, str] = {}
        for name, value in self._pairs:
            text = _bytes(value).decode("latin-1")
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
        shown = self._context.auth_context().get("x509_pem_cert")
        certificate = ssl.PEM_cert_to_DER_cert(shown[0].decode()) if shown else b""
        return await authenticator.authenticate(headers, certificate=certificate)


class Calls:
    """Every call of a port. An agent is chosen by the request's `tenant` where there is more than one.

    `find`, if given, knows the mount of each agent, for those that come and go; the empty name is that of those who name
    none.
    """

    def __init__(
        self,
        mounts: Sequence[Mount],
        *,
        limits: Limits,
        strict_versioning: bool,
        placed: Callable[[AgentCard, Mount], AgentCard],
        find: Callable[[str], Mount] | None = None,
    ) -> None:
        self._find = find
        self.limits = limits
        self.strict = strict_versioning
        self.placed = placed
        self._mounts = {mount.agent: mount for mount in mounts}
        root = [mount for mount in mounts if not mount.prefix] if len(mounts) > 1 else list(mounts)
        self.default = root[0] if root else None
        """The agent of those who name none."""
        self._open: set[_Running] = set()
        self._ended = asyncio.Event()
        self.draining = False
        self._body_timeout = TaskTimeout(limits.body_timeout)
        self._uploads: dict[str, _Uploads] = {}

    def handler(self, codec: Codec) -> grpc.GenericRpcHandler:
        """The service of a version."""
        methods = {
            name: grpc.stream_stream_rpc_method_handler(partial(self._stream, codec, op))
            if op.streams
            else grpc.stream_unary_rpc_method_handler(partial(self._unary, codec, op))
            for op, name in codec.methods.items()
        }
        return grpc.method_handlers_generic_handler(codec.service, methods)

    @property
    def several(self) -> bool:
        """Whether it has to be said which agent is meant."""
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
    def doors(self) -> Sequence[Mount]:
        """The agents that someone who has not said which one is meant may mean. Where agents come and go, the one for those
        who name none speaks for all.
        """
        return [self._find("")] if self._find is not None else list(self._mounts.values())

    @asynccontextmanager
    async def upload(self, peer: str) -> AsyncIterator[None]:
        """Around reading a body: one connection has so many at once, and each has its time. Raises `TooSlow`."""
        uploads = self._uploads.setdefault(peer, _Uploads(self.limits.max_uploads))
        uploads.users += 1
        try:
            with self._body_timeout:
                async with uploads.room:
                    yield
        except TimeoutError:
            raise TooSlow("the request did not arrive in time") from None
        finally:
            uploads.users -= 1
            if not uploads.users:
                del self._uploads[peer]

    async def end(self, *, streams_only: bool) -> None:
        """Turn callers away, and end the calls there are: streams, or all of them."""
        self.draining = True
        for running in list(self._open):
            if running.streams or not streams_only:
                running.end()
        while any(running.ended for running in self._open):
            self._ended.clear()
            await self._ended.wait()

    def running(self, op: Op) -> _Running:
        """Around a call: it can be ended from here, and is then `Unavailable`."""
        if self.draining:
            raise Unavailable("shutting down", retry_after=1)
        return _Running(op.streams, self)

    def begun(self, running: _Running) -> None:
        self._open.add(running)

    def over(self, running: _Running) -> None:
        self._open.discard(running)
        if self.draining:
            self._ended.set()

    async def _unary(self, codec: Codec, op: Op, requests: Any, context: Any) -> bytes:
        rpc = _Rpc(self, codec, op, context)
        try:
            with self.running(op):
                return await rpc.answer()
        except Exception as error:
            await rpc.refuse(error)
            raise

    async def _stream(self, codec: Codec, op: Op, requests: Any, context: Any) -> None:
        rpc = _Rpc(self, codec, op, context)
        try:
            with self.running(op):
                await rpc.stream()
        except Exception as error:
            await rpc.refuse(error)


class _Uploads:
    """Bodies that are being read from one connection."""

    __slots__ = ("room", "users")

    def __init__(self, most: int) -> None:
        self.room, self.users = asyncio.Semaphore(most), 0


class _Running:
    """A call that can be ended."""

    __slots__ = ("_calls", "ended", "streams", "task")

    def __init__(self, streams: bool, calls: Calls) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self.streams = streams
        self.ended = False
        self._calls = calls

    def __enter__(self) -> None:
        self._calls.begun(self)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._calls.over(self)
        if self.ended and kind is asyncio.CancelledError:  # else the caller went away
            self.task.uncancel()
            raise Unavailable("shutting down", retry_after=1) from None

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self.task.cancel()


class _Rpc:
    """One call."""

    __slots__ = ("_calls", "_codec", "_context", "_metadata", "_mount", "_op")

    def __init__(self, calls: Calls, codec: Codec, op: Op, context: Any) -> None:
        self._calls, self._codec, self._op, self._context = calls, codec, op, context
        self._metadata = Metadata(context)
        self._mount: Mount | None = None

    async def answer(self) -> bytes:
        op = self._op
        mount, call, request, said = await self._read()
        self._context.set_trailing_metadata(said)
        try:
            result = await mount.service.call(call, request)
        except (UnsupportedOperation, ExtendedCardNotConfigured):
            if op is not EXTENDED_CARD or self._codec.version == "1.0":
                raise
            result = mount.current_card()  # before 1.0 it is the call for the card, whichever there is
        if op is EXTENDED_CARD:
            result = self._calls.placed(result, mount)
            if self._codec.version == "1.0":
                result = signed(result, mount)
        return self._codec.write_result(op, result)

    async def stream(self) -> None:
        mount, call, request, said = await self._read()
        ends_with = Ending(select.by_name(self._codec.name), self._op).comes_with
        numbers = b"dragoman" in self._metadata.headers
        begun = False
        batches = cast(Any, mount.service.stream(call, request))  # type: ignore[arg-type]
        async with aclosing(batches):
            async for batch in cast(AsyncIterator[Batch], batches):
                if not begun:
                    begun = True
                    await self._context.send_initial_metadata(said)
                for n, response in enumerate(batch, 1):
                    last = ends_with(response.event, n == len(batch))
                    messages = self._codec.write_event(response, last=last)
                    if numbers and response.seq and messages:  # only then has the whole event arrived
                        messages[-1] += Numbered(seq=response.seq).SerializeToString()
                    for message in messages:
                        await self._write(message)
                    if last:
                        return

    async def _read(self) -> tuple[Mount, Call, Request, Pairs]:
        """Who is called, by whom, what is asked, and what our metadata says. Nobody is heard before being known."""
        calls, codec, metadata = self._calls, self._codec, self._metadata
        named = metadata.header(b"a2a-tenant")
        if calls.several and not named:
            known = await self._admit(calls.doors)
        else:
            mount = self._mount = calls.mount_of(named)
            known = mount, await metadata.principal(mount.authenticator)
        body = await self._body()
        message = codec.parsed(self._op, body)
        mount = self._mount = calls.mount_of(codec.tenant_of(message) or named)
        if known is not None and known[0].authenticator is mount.authenticator:
            principal = known[1]
        else:
            principal = await metadata.principal(mount.authenticator)
        dialect = select.rest(
            metadata.header(b"a2a-version"), codec.version, strict=calls.strict, allowed=mount.dialects
        )
        read = partial(codec.read_message, self._op, message, max_nodes=calls.limits.max_nodes)
        # A large one is read beside the loop: value by value, which takes a microsecond for each.
        request = await asyncio.to_thread(read) if len(body) > _LARGE else read()
        call = call_of(metadata, mount, principal, dialect)
        check_tenant(call, request)
        return mount, call, request, (OURS, *_pairs(activated(mount, dialect, call)))

    async def _admit(self, doors: Sequence[Mount]) -> tuple[Mount, Principal] | None:
        """One of them must let the caller in before the body, which says who is meant, is read. None: one of them lets
        everybody in. Raises what the first one says to strangers.
        """
        if any(mount.authenticator is None for mount in doors):
            return None
        for mount in doors if len(doors) > 1 else ():
            # without a record of those that refuse: nobody has asked for them
            door = getattr(mount.authenticator, "inner", mount.authenticator)
            try:
                return mount, await self._metadata.principal(door)
            except A2AError:
                pass
        self._mount = doors[0]
        return doors[0], await self._metadata.principal(doors[0].authenticator)

    async def _body(self) -> bytes:
        async with self._calls.upload(self._context.peer()):
            body = await self._context.read()
        if body is aio.EOF:
            raise InvalidRequest("this call has no request in it")
        return cast(bytes, body)

    async def _write(self, message: bytes) -> None:
        limit = self._calls.limits.max_event
        if len(message) > limit:
            raise InvalidAgentResponse(
                f"an event of this task is larger than {limit} bytes; get the task instead"
            )
        await self._context.write(message)

    async def refuse(self, error: Exception) -> None:
        """Raises: that is how gRPC ends a call."""
        if isinstance(error, select.Refused):
            error = error.error
        heard: A2AError = said(error)
        trailers: list[tuple[str, str | bytes]] = [(DETAILS, write_status(heard, self._codec.version))]
        if self._mount is not None:
            trailers += _pairs(refusal(self._mount, heard, heard.http))
        code, words = getattr(grpc.StatusCode, heard.grpc), sentence(heard, self._codec.version)
        await self._context.abort(code, words, tuple(trailers))


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _pairs(headers: Iterable[Header]) -> Pairs:
    """Headers as metadata, which is ASCII only."""
    return [(name.decode(), value.decode()) for name, value in headers if value.isascii()]
