"""Requests that are small until somebody unpacks them, or that are more than they seem."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import msgspec
import pytest

from tests.server.wire import HELLO, Scripted, app_of, envelope, request, task

V1 = {"A2A-Version": "1.0", "Content-Type": "application/json"}
PATHS = [("/", envelope("SendMessage", HELLO)), ("/message:send", msgspec.json.encode(HELLO))]


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_compressed_request_is_refused_and_not_unpacked(
    path: str, body: bytes, coding: str, pack: Any
) -> None:
    service = Scripted(result=task())
    packed = pack(body + b" " * (32 << 20))
    assert len(packed) < 100_000
    answer = await request(app_of(service), "POST", path, packed, headers={**V1, "Content-Encoding": coding})
    assert answer.status == 415 and service.calls == []


@pytest.mark.parametrize("member", ["metadata", "message"])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
async def test_deep_nesting_is_refused_over_http_as_well(member: str, opening: bytes, closing: bytes) -> None:
    service, deep = Scripted(result=task()), opening * 100_000 + b"1" + closing * 100_000
    body = b'{"%b": %b}' % (member.encode(), deep)
    answer = await request(app_of(service), "POST", "/message:send", body, headers=V1)
    assert answer.status == 400 and "64 levels" in answer.json["error"]["message"] and service.calls == []


# --- headers

KNOWN = "https://ext.example/a"
"""An extension of the agent."""
SAID = [
    f"{KNOWN}, x\r\nSet-Cookie: a=b",
    f"x\nSet-Cookie: a=b,{KNOWN}",
    f"{KNOWN},\x00,{KNOWN}\r\nX: y",
]


@pytest.mark.parametrize("path", ["/", "/message:send"])
@pytest.mark.parametrize("said", SAID)
async def test_request_headers_are_not_copied_into_the_response(path: str, said: str) -> None:
    body = dict(PATHS)[path]
    headers = {
        **V1,
        "A2A-Extensions": said,
        "Idempotency-Key": said,
        "traceparent": said,
        "Dragoman-Depth": said,
    }
    answer = await request(app_of(Scripted(result=task())), "POST", path, body, headers=headers)
    assert answer.status == 200
    assert answer.headers["a2a-extensions"] == KNOWN
    for name, value in answer.headers.items():
        assert name != "set-cookie" and value.isprintable()
