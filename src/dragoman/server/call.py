"""A `Call` from the headers of a request. The scope of its tasks is made here, and nowhere else."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Protocol

from msgspec.structs import replace

from dragoman.dialects.dialect import Dialect
from dragoman.errors import InvalidRequest, TaskNotFound
from dragoman.model.ops import Call, Principal, Request, Scope
from dragoman.server.mount import Mount

MAX_KEY = 256
_MAX_TRACE = 512
_CREDENTIALS = (b"authorization", b"x-api-key")
_TRACE = (b"traceparent", b"tracestate")
_IDS = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = re.compile(rf"00{_IDS}|(?!00|ff)[0-9a-f]{{2}}{_IDS}(?:-[!-~]*)?")
_PRINTABLE = re.compile(r"[\t -~]*")
"""What can be sent on in a header. Metadata of gRPC may hold anything."""

_SAID = frozenset(
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


class Head(Protocol):
    """What comes before the body of a request: headers, or the metadata of a call over gRPC."""

    headers: dict[bytes, bytes]
    """By lower-case name; of a repeated header, the last line."""

    def listed(self, *names: bytes) -> tuple[str, ...]:
        """The members of comma-separated headers, over all their lines, each once."""
        ...


def call_of(head: Head, mount: Mount, principal: Principal, dialect: Dialect) -> Call:
    """Raises `InvalidRequest` for an unusable `Idempotency-Key`; whatever else makes no sense is left out."""
    call = Call(
        scope=Scope(principal.tenant, mount.agent, principal.id),
        principal=principal,
        dialect=dialect.name,
        names_tasks=dialect.names_tasks,
        strict_cancel=dialect.strict_cancel,
        reads_finished=dialect.subscribes_to_finished,
    )
    if _SAID.isdisjoint(head.headers):
        return call
    headers = {name: value.decode("latin-1").strip() for name, value in head.headers.items() if name in _SAID}
    key = headers.get(b"idempotency-key", "")
    if len(key) > MAX_KEY:
        raise InvalidRequest(f"an Idempotency-Key may have up to {MAX_KEY} characters")
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
    """The caller's trace. One that makes no sense is not passed on (W3C Trace Context, 3.2), nor is what came with it."""
    if not _TRACEPARENT.fullmatch(headers.get(b"traceparent", "")):
        return {}
    return {
        name.decode(): headers[name]
        for name in _TRACE
        if name in headers and len(headers[name]) <= _MAX_TRACE and _PRINTABLE.fullmatch(headers[name])
    }


def check_tenant(call: Call, request: Request) -> None:
    """A request may name its caller's own tenant, or the agent (as the card of one among several says over gRPC). Raises
    `TaskNotFound`: whether there is another tenant of that name is nobody's business. Where nobody is asked who they
    are there are no tenants, and it is a label.
    """
    if request.tenant and call.principal.id and request.tenant not in (call.scope.tenant, call.scope.agent):
        raise TaskNotFound(message="there is no such agent")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def _deadline(seconds: str) -> float | None:
    """A peer says how long it will wait, so that clocks need not agree."""
    try:
        wait = float(seconds) if seconds else math.nan
    except ValueError:
        return None
    return time.time() + wait if math.isfinite(wait) else None
