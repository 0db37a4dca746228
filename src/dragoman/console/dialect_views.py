"""A record as each version of A2A writes it, in each binding that the version has."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.console.records import MAX_STRING_CHARACTERS
from dragoman.dialects import paths, select
from dragoman.dialects.dialect import Dialect
from dragoman.engine.records import KINDS, Mail, Record
from dragoman.errors import A2AError
from dragoman.model.ops import STREAM, SUBSCRIBE, Configuration, SendMessage, SubscribeToTask
from dragoman.observe.redact import redact, suspicious
from dragoman.server.pipeline import Frames

JSONRPC = ("1.0", "0.3", "0.2", "0.2-type", "0.1", "draft", "arbiter")
REST = ("1.0", "0.3")
_NOT_EXPRESSIBLE = (A2AError, ValueError, KeyError, TypeError, AttributeError)
"""Errors of a version that cannot express something."""


class DialectView(Struct, frozen=True, rename="camel"):
    dialect: str
    binding: str
    content_type: str
    text: str


def views(record: Record, task: str) -> list[DialectView]:
    """A record in every version: as an event for peers, or as the request of a client. None for records that peers never see."""
    record = _redact_record(record)
    out: list[DialectView] = []
    for each in (_json_rpc(record, task), _rest(record, task), _grpc(record)):
        out += each
    return out


def _redact_record(record: Record) -> Record:
    raw = record.raw
    if not suspicious(raw):
        return Record(record.kind, record.body, record.seq, raw)
    raw = msgspec.json.encode(redact(msgspec.json.decode(raw)))
    return Record(record.kind, msgspec.json.decode(raw, type=KINDS[record.kind]), record.seq, raw)


def _view(dialect: str, binding: str, content_type: str, text: bytes) -> DialectView:
    return DialectView(
        dialect, binding, content_type, text.decode("utf-8", "replace")[:MAX_STRING_CHARACTERS]
    )


def _json_rpc(record: Record, task: str) -> Iterator[DialectView]:
    for name in JSONRPC:
        dialect = select.DIALECTS[name]
        try:
            if isinstance(record.body, Mail):
                params = dialect.write_request(STREAM, _request(record.body))
                head = {"jsonrpc": "2.0", "id": 1, "method": dialect.method(STREAM)}
                body = msgspec.json.encode({**head, "params": msgspec.Raw(params)})
                yield _view(name, "JSON-RPC", "application/json", body)
            elif record.public:
                opening = b'data: {"jsonrpc":"2.0","id":1,"result":'
                if dialect.sse_event:
                    opening = b"event: %b\n%b" % (dialect.sse_event.encode(), opening)
                text = _frames(dialect, record, task, opening=opening, closing=b"}\n\n")
                if text:
                    yield _view(name, "JSON-RPC", "text/event-stream", text)
        except _NOT_EXPRESSIBLE:
            continue


def _rest(record: Record, task: str) -> Iterator[DialectView]:
    for version in REST:
        dialect = select.of_paths(version)
        try:
            if isinstance(record.body, Mail):
                path = paths.path_of(version, STREAM)
                body = dialect.write_request(STREAM, _request(record.body))
                if path is not None:
                    line = f"{next(iter(path.verbs))} {path.template}\n\n".encode()
                    yield _view(version, "HTTP+JSON", "application/json", line + body)
            elif record.public and (text := _frames(dialect, record, task)):
                yield _view(version, "HTTP+JSON", "text/event-stream", text)
        except _NOT_EXPRESSIBLE:
            continue


def _grpc(record: Record) -> Iterator[DialectView]:
    if find_spec("grpc") is None:  # an extra
        return
    from dragoman.dialects.proto import v0_3, v1_0

    for codec in (v1_0.CODEC, v0_3.CODEC):
        try:
            if isinstance(record.body, Mail):
                kind = codec.requests[STREAM]
                messages = [kind.FromString(codec.write_request(STREAM, _request(record.body)))]
            elif record.public:
                parts = codec.write_event(record, last=record.terminal)
                messages = [codec.event.FromString(part) for part in parts]
            else:
                return
            text = "\n".join(str(message) for message in messages).encode()
            yield _view(codec.version, "gRPC", "application/grpc+proto", text)
        except _NOT_EXPRESSIBLE:
            continue


def _frames(dialect: Dialect, record: Record, task: str, **more: Any) -> bytes:
    frames = Frames(dialect, SUBSCRIBE, SubscribeToTask(id=task), **more)
    return frames.batch([record])[0]


def _request(mail: Mail) -> SendMessage:
    configuration = Configuration(accepted_output_modes=mail.accepted_output_modes)
    return SendMessage(message=mail.message, configuration=configuration, metadata=mail.metadata)
