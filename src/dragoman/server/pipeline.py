"""One call of any binding: authenticate, read, check the tenant, call the agent, write the answer or the error.

`handle` does that. A binding contributes a `BoundCall`: how bytes become an operation and its request, and how results,
events and errors become bytes. The HTTP bindings share `HttpCall` and the frames of event streams (`Frames`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.dialects import pieces, select
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.sse import MAX_EVENT_BYTES
from dragoman.errors import (
    A2AError,
    ContentTypeNotSupported,
    ExtendedCardNotConfigured,
    InvalidAgentResponse,
    InvalidParams,
    InvalidRequest,
    TaskNotFound,
    Unavailable,
    UnsupportedOperation,
)
from dragoman.model.card import AgentCard, Interface
from dragoman.model.ops import (
    CANCEL,
    EXTENDED_CARD,
    SEND,
    STREAM,
    Batch,
    Call,
    ExtensionCall,
    Op,
    Principal,
    Request,
    Scope,
    ends_stream,
)
from dragoman.model.task import INTERRUPTED, ArtifactUpdate, Task, TaskState
from dragoman.server.asgi import Disconnected
from dragoman.server.exchange import Exchange
from dragoman.server.mount import ANONYMOUS, MARKS, RETRY_SECONDS, Header, Mount

log = logging.getLogger(__name__)

T = TypeVar("T")
Handler = Callable[[Exchange, Mount], Awaitable[None]]

NOT_SHARED: Header = (b"cache-control", b"private, no-cache")
"""Of an extended card, which is for one caller."""
MAX_IDEMPOTENCY_KEY_CHARACTERS = 256
"""Characters."""
_MAX_TRACE_CHARACTERS = 512
"""Characters in a header of a trace."""
_CREDENTIALS = (b"authorization", b"x-api-key")
_TRACE = (b"traceparent", b"tracestate")
_IDS = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = re.compile(rf"00{_IDS}|(?!00|ff)[0-9a-f]{{2}}{_IDS}(?:-[!-~]*)?")
_PRINTABLE = re.compile(r"[\t -~]*")
"""What can be passed on in a header. Metadata of gRPC may have any bytes."""

_READ = frozenset(
    {
        b"idempotency-key",
        b"a2a-extensions",
        b"x-a2a-extensions",
        b"last-event-id",
        b"dragoman-timeout",
        b"dragoman-depth",
        *_CREDENTIALS,
        *_TRACE,
    }
)


class Binding(Protocol):
    """One way to call the agents of an application over HTTP."""

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        """The handlers of a path below a mount, by HTTP method; None for other paths. The mount itself is `` or `/`."""
        ...

    def interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        """The binding's entries in the card; `url` is the mount's."""
        ...


class RequestHead(Protocol):
    """The headers of an HTTP request, or the metadata of a gRPC call."""

    headers: dict[bytes, bytes]
    """By lower-case name; of a repeated header, the last line."""

    def listed(self, *names: bytes) -> tuple[str, ...]:
        """The members of comma-separated headers, over all their lines, each once."""
        ...


class Parsed(NamedTuple):
    dialect: Dialect
    op: Op
    request: Request


class BoundCall(Protocol):
    """One call, as its binding sees it."""

    mount: Mount
    principal: Principal
    dialect: Dialect | None
    """None until it is known. Errors are written in it."""
    one_card: bool
    """The agent's card stands in for an extended card that it does not have."""

    @property
    def head(self) -> RequestHead: ...

    @property
    def responding(self) -> bool:
        """A response has begun: an error cannot be sent any more."""
        ...

    async def read(self) -> Parsed:
        """Authenticate the caller, then read the body. Sets `principal`, and `dialect` as soon as it is known.

        Raises `A2AError` or `select.DialectRefused`.
        """
        ...

    def wait(self, answer: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Wait for an answer that may take long. Raises `Disconnected` if the client leaves."""
        ...

    def place(self, card: AgentCard) -> AgentCard:
        """The card with the agent's interfaces."""
        ...

    async def send_result(self, parsed: Parsed, result: Any, headers: Sequence[Header]) -> None: ...

    async def send_stream(
        self, parsed: Parsed, batches: AsyncIterator[Batch], headers: Sequence[Header]
    ) -> None: ...

    async def send_error(self, error: A2AError) -> None: ...


async def handle(bound: BoundCall) -> None:
    try:
        parsed = await bound.read()
        dialect, op, request = parsed
        mount = bound.mount
        call = call_of(bound.head, mount, bound.principal, dialect)
        if request.tenant:
            _check_tenant(call, request)
        plain = mount.deduplicates is None and not call.extensions
        headers = MARKS if plain else _headers(mount, dialect, call)
        if op.streams:
            await bound.send_stream(parsed, mount.service.stream(call, request), headers)  # type: ignore[arg-type]
        elif op is EXTENDED_CARD:
            await bound.send_result(parsed, await _extended_card(bound, dialect, call, request), headers)
        else:
            answer = mount.service.call(call, request)
            result = await (bound.wait(answer) if op is SEND or op is CANCEL else answer)
            await bound.send_result(parsed, result, headers)
    except Disconnected:
        pass
    except Exception as error:
        if bound.responding:
            log.exception("a response could not be finished")
            return
        if isinstance(error, select.DialectRefused):
            bound.dialect, error = error.dialect, error.error
        await bound.send_error(to_error(error))


async def _extended_card(bound: BoundCall, dialect: Dialect, call: Call, request: Request) -> AgentCard:
    try:
        card: AgentCard = await bound.mount.service.call(call, request)
    except (UnsupportedOperation, ExtendedCardNotConfigured) as error:
        if bound.one_card:
            card = bound.mount.current_card()
        elif dialect.extended_card_has_one_error and isinstance(error, UnsupportedOperation):
            raise ExtendedCardNotConfigured(error.message, metadata=error.metadata) from error
        else:
            raise
    card = bound.place(card)
    return bound.mount.sign_card(card) if dialect.signs_cards else card


def _headers(mount: Mount, dialect: Dialect, call: Call) -> Sequence[Header]:
    """Of an answer: our mark, and the active extensions, which the caller asked for and the agent has."""
    if not call.extensions:
        return mount.marks
    try:
        known = {extension.uri for extension in mount.current_card().capabilities.extensions}
    except A2AError:  # a bridge that has not reached the agent yet
        return mount.marks
    active = ", ".join(uri for uri in call.extensions if uri in known)
    return (*mount.marks, (dialect.extensions_header, active.encode("latin-1"))) if active else mount.marks


def read_extension_call(method: str, params: bytes) -> ExtensionCall:
    """The call of a method that an extension adds. Raises `InvalidParams`."""
    try:
        given = msgspec.json.decode(params or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidParams(f"params are not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidParams("params must be an object")
    return ExtensionCall(method=method, params=given)


def to_error(error: Exception) -> A2AError:
    """The error for the peer. An exception that is not an `A2AError` is logged, and the peer gets an internal error."""
    if isinstance(error, A2AError):
        if isinstance(error, Unavailable) and error.retry_after is None:
            error.retry_after = RETRY_SECONDS
        return error
    log.error("a call failed", exc_info=error)
    return A2AError()


def call_of(head: RequestHead, mount: Mount, principal: Principal, dialect: Dialect) -> Call:
    """The `Call` of a request. The scope of tasks is made here and nowhere else.

    Raises `InvalidRequest` for an unusable `Idempotency-Key`; other headers that make no sense are ignored.
    """
    call = Call(
        scope=Scope(principal.tenant, mount.agent, principal.owner or principal.id),
        principal=principal,
        dialect=dialect.name,
        names_tasks=dialect.names_tasks,
        strict_cancel=dialect.strict_cancel,
        reads_finished=dialect.subscribes_to_finished,
    )
    if _READ.isdisjoint(head.headers):
        return call
    headers = {name: value.decode("latin-1").strip() for name, value in head.headers.items() if name in _READ}
    key = headers.get(b"idempotency-key", "")
    if len(key) > MAX_IDEMPOTENCY_KEY_CHARACTERS:
        raise InvalidRequest(f"an Idempotency-Key may have up to {MAX_IDEMPOTENCY_KEY_CHARACTERS} characters")
    return replace(
        call,
        idempotency_key=key,
        extensions=head.listed(b"a2a-extensions", b"x-a2a-extensions"),
        after=_number(headers.get(b"last-event-id", "")) if dialect.resumable else None,
        deadline=_deadline(headers.get(b"dragoman-timeout", "")),
        trace=_trace(headers),
        depth=_number(headers.get(b"dragoman-depth", "")) or 0,
        credentials={name.decode(): headers[name] for name in _CREDENTIALS if name in headers},
    )


def _trace(headers: Mapping[bytes, str]) -> dict[str, str]:
    """The caller's trace; empty if it is invalid (W3C Trace Context, 3.2)."""
    if not _TRACEPARENT.fullmatch(headers.get(b"traceparent", "")):
        return {}
    return {
        name.decode(): headers[name]
        for name in _TRACE
        if name in headers
        and len(headers[name]) <= _MAX_TRACE_CHARACTERS
        and _PRINTABLE.fullmatch(headers[name])
    }


def _check_tenant(call: Call, request: Request) -> None:
    """A request that names a tenant may name the caller's own, or the agent (as cards do over gRPC). Raises `TaskNotFound`
    for any other, whether it exists or not. Without authentication there are no tenants, and the name means nothing.
    """
    if call.principal.id and request.tenant not in (call.scope.tenant, call.scope.agent):
        raise TaskNotFound(message="there is no such agent")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def _deadline(seconds: str) -> float | None:
    """A peer sends how many seconds it waits, so that clocks need not agree."""
    try:
        wait = float(seconds) if seconds else math.nan
    except ValueError:
        return None
    return time.time() + wait if math.isfinite(wait) else None


async def collect(pieces: Iterator[bytes], one_at_a_time: asyncio.Lock) -> list[bytes]:
    """The pieces of a large answer. Other work is done between them, but no other large answer is written: all of them
    would be in memory at once."""
    collected = []
    async with one_at_a_time:
        for piece in pieces:
            collected.append(piece)
            await asyncio.sleep(0)
    return collected


def is_large(result: Any) -> bool:
    """True for a task whose JSON takes more than `pieces.LARGE_BYTES`."""
    if type(result) is not Task:
        return False
    size = 0
    for each in result.artifacts + result.history:  # every answer with a task comes here: no calls for text
        for part in each.parts:
            size += pieces.size_of(part) if part.text is None else len(part.text) + pieces.PART_BYTES
            if size > pieces.LARGE_BYTES:
                return True
    return False


# -- the HTTP bindings -----------------------------------------------------------------------------------------------


class WrongContentType(ContentTypeNotSupported):
    """The content type of the request itself."""


class Compressed(InvalidRequest):
    http = 415


class HttpCall:
    """The part of a `BoundCall` that is the same for both HTTP bindings."""

    one_card = False
    principal = ANONYMOUS

    def __init__(self, exchange: Exchange, mount: Mount, dialect: Dialect | None = None) -> None:
        self.exchange = self.head = exchange
        self.mount = mount
        self.dialect = dialect
        self.version = exchange.version()

    @property
    def responding(self) -> bool:
        return self.exchange.responding

    async def read_body(self) -> bytes:
        """The body, within the limits of JSON. A request without a content type is accepted, but not from a web page:
        browsers send such requests to any site without asking.
        """
        headers = self.exchange.headers
        kind = headers.get(b"content-type", b"")
        if b"json" not in kind.split(b";")[0].lower() if kind else b"origin" in headers:
            named = kind.decode("latin-1")[:80] or "none"
            raise WrongContentType(f"content type {named!r} is not supported: a request is application/json")
        if headers.get(b"content-encoding", b"identity").strip(b" \t").lower() != b"identity":
            raise Compressed("a request is not compressed")
        body = await self.exchange.body()
        if exceeded := self.exchange.shared.limits.exceeded_by(body):
            raise InvalidRequest(exceeded)
        return body

    def wait(self, answer: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return self.exchange.shared.waits.wait(self.exchange, answer)

    def place(self, card: AgentCard) -> AgentCard:
        return self.exchange.place(card, self.mount)

    async def respond_error(self, error: A2AError, status: int, body: bytes, kind: Header) -> None:
        headers = (kind, *self.mount.marks, *self.mount.refusal(error, status))
        try:
            await self.exchange.respond(status, body, headers)
        except Disconnected:
            pass


# -- streams -----------------------------------------------------------------------------------------------------------


_NEVER: frozenset[TaskState] = frozenset()
_QUESTION = frozenset({TaskState.INPUT_REQUIRED})

Pauses = tuple[frozenset[TaskState], frozenset[TaskState]]
PAUSES: Mapping[tuple[bool, bool], Pauses] = {
    (False, False): (_NEVER, _NEVER),
    (False, True): (_QUESTION, _NEVER),
    (True, False): (INTERRUPTED, INTERRUPTED),
    (True, True): (INTERRUPTED, _NEVER),
}
"""The states in which a task waits that end a stream: in an update, and in a task (see `ends_stream`). The key is
`Dialect.ends_on_interrupt`, and whether the stream answers a message.

They do so in the newest event only: an earlier one may be history. A task that was just answered may still show that it
waits; in a subscription, the state is current.
"""


class Frames:
    """The events of one stream as bytes of an event stream."""

    __slots__ = ("_writer", "_openings", "_opening", "_closing", "_max", "_pauses")

    def __init__(
        self,
        dialect: Dialect,
        op: Op,
        request: Request,
        *,
        opening: bytes = b"data: ",
        closing: bytes = b"\n\n",
        max_event: int = MAX_EVENT_BYTES,
    ) -> None:
        self._writer = dialect.writer(request)
        self._opening, self._closing = opening, closing
        """Before and after each document; documents have no line breaks."""
        self._openings: Mapping[type, bytes] = getattr(self._writer, "openings", {})
        """Before an event's own JSON, in dialects that write it as it is; `}` follows it."""
        self._pauses = PAUSES[dialect.ends_on_interrupt, op is STREAM]
        self._max = max_event

    def batch(self, batch: Batch) -> tuple[bytes, bool]:
        """The frames of a batch; True if the stream ends with it."""
        frames: list[bytes] = []
        opening, closing, openings, add = self._opening, self._closing, self._openings, frames.append
        final, last = len(batch) - 1, False
        for n, response in enumerate(batch):
            event, seq = response.event, response.seq
            kind = type(event)
            if kind is not ArtifactUpdate:
                last = ends_stream(event, self._pauses[kind is Task] if n == final else ())
            if openings and seq:
                raw = response.raw or response.encode()
                add(b"id: %d\n%b%b%b}%b" % (seq, opening, openings[kind], raw, closing))
            else:
                documents = self._writer.write(response, last=last)
                for document in documents[:-1]:
                    add(opening + document + closing)
                if documents:  # the last document has the id: with it the event is complete
                    add((b"id: %d\n" % seq if seq else b"") + opening + documents[-1] + closing)
            if last:
                break
        chunk = b"".join(frames)
        if len(chunk) > self._max and max(map(len, frames)) > self._max:
            raise InvalidAgentResponse(
                f"an event of this task is larger than {self._max} bytes; get the task instead"
            )
        return chunk, last

    def fail(self, error: A2AError) -> bytes:
        """The events that end a failed stream, in dialects that have such events; empty in others."""
        if (fail := getattr(self._writer, "fail", None)) is None:
            return b""
        return b"".join([self._opening + document + self._closing for document in fail(error)])
