"""The envelope of a JSON-RPC request, checked before anything in it is believed.

The id is kept as it came, byte for byte, because it is spliced into every answer: so it is bounded, and whatever could
end a line of an event stream (a control character, bytes that are not UTF-8) has been refused with the request.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from dragoman.errors import InvalidRequest, ParseError, ProtocolError
from dragoman.server.limits import Limits

MAX_ID = 512
"""Bytes in a request's id: it comes back with every event."""
NO_ID = b"null"


class Malformed(Exception):
    """No usable request: what to say, under which id, and the method if there is one."""

    def __init__(self, error: ProtocolError, id: bytes = NO_ID, method: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.id = id
        self.method = method


class Envelope(Struct, frozen=True, gc=False):
    method: str
    params: bytes
    id: bytes
    labelled: bool = True
    """It says that it is JSON-RPC 2.0."""


class _Wire(Struct, gc=False):
    method: str
    jsonrpc: str = ""
    id: Raw = Raw()
    params: Raw = Raw()


_decode = msgspec.json.Decoder(_Wire).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_raw = msgspec.json.Decoder(Raw).decode


def read_envelope(body: bytes, limits: Limits) -> Envelope:
    """Raises `Malformed`."""
    if exceeded := limits.exceeded_by(body):
        raise Malformed(InvalidRequest(exceeded))
    try:
        if not body.isascii():
            body.decode()
        try:
            wire = _decode(body)
        except msgspec.ValidationError:
            raise _no_request(body) from None
    except UnicodeDecodeError:
        raise Malformed(ParseError("the request is not UTF-8")) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(ParseError(f"the request is not JSON: {error}")) from None
    id = _checked(bytes(wire.id), wire.method)
    if wire.jsonrpc != "2.0" or not wire.id:
        # The examples of the versions before 1.0 leave out `jsonrpc` and `id`, so their callers may.
        if wire.jsonrpc not in ("", "2.0") or (not wire.jsonrpc and "/" not in wire.method):
            raise Malformed(InvalidRequest('jsonrpc must be "2.0"'), id, wire.method)
        if "/" not in wire.method:
            raise Malformed(InvalidRequest("id is missing"), id, wire.method)
    return Envelope(wire.method, bytes(wire.params), id, wire.jsonrpc == "2.0")


def _no_request(body: bytes) -> Malformed:
    """It is JSON, perhaps (raises `DecodeError` if not), but no request."""
    match bytes(_decode_raw(body))[:1]:
        case b"[":
            return Malformed(InvalidRequest("batches are not supported: send one request at a time"))
        case b"{":
            members = {name: bytes(value) for name, value in _decode_members(body).items()}
        case _:
            return Malformed(InvalidRequest("a request is an object"))
    stated = members.get("method", b"")
    method = msgspec.json.decode(stated, type=str) if stated[:1] == b'"' else ""
    id = _checked(members.get("id", b""), method)
    if not stated:
        why = "method is missing"
    else:
        why = "method must be a string" if stated[:1] != b'"' else 'jsonrpc must be "2.0"'
    return Malformed(InvalidRequest(why), id, method)


def _checked(id: bytes, method: str) -> bytes:
    if id and (id[0] not in b'"-0123456789n' or len(id) > MAX_ID):
        why = f"id must be a string or a number of up to {MAX_ID} bytes"
        raise Malformed(InvalidRequest(why), method=method)
    return id or NO_ID
