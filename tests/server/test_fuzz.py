"""Thousands of damaged requests: each is answered, none with a 5xx, none with our insides."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from dragoman.errors import A2AError
from dragoman.model.task import TaskState
from tests.server.wire import HELLO, Scripted, app_of, chunk, open_request, status

LEGACY = {
    "message": {
        "kind": "message",
        "messageId": "m",
        "role": "user",
        "parts": [{"kind": "text", "text": "hi"}],
    }
}
OLD = {"id": "t1", "sessionId": "s", "message": {"role": "user", "parts": [{"type": "text", "text": "hi"}]}}
FILE = {"kind": "file", "file": {"name": "a", "mimeType": "text/plain", "bytes": "aGk="}}
PUSH = {
    "taskId": "t1",
    "pushNotificationConfig": {"url": "https://hook.example", "authentication": {"schemes": ["Basic"]}},
}

CALLS: list[tuple[str, Any]] = [
    ("SendMessage", {**HELLO, "configuration": {"historyLength": 3, "acceptedOutputModes": ["text/plain"]}}),
    ("SendStreamingMessage", {"message": {**HELLO["message"], "parts": [{"raw": "aGk=", "mediaType": "a/b"}, {"data": {"a": [1]}}]}}),
    ("GetTask", {"id": "t1", "historyLength": 2}),
    ("ListTasks", {"contextId": "c", "status": "TASK_STATE_WORKING", "pageSize": 5, "pageToken": "x"}),
    ("CancelTask", {"id": "t1"}),
    ("SubscribeToTask", {"id": "t1"}),
    ("CreateTaskPushNotificationConfig", {"taskId": "t1", "url": "https://hook.example"}),
    ("message/send", LEGACY),
    ("message/stream", {"message": {**LEGACY["message"], "parts": [FILE]}, "configuration": {"blocking": False}}),
    ("tasks/get", {"id": "t1", "historyLength": 1}),
    ("tasks/cancel", {"id": "t1"}),
    ("tasks/resubscribe", {"id": "t1"}),
    ("tasks/pushNotificationConfig/set", PUSH),
    ("tasks/send", OLD),
    ("tasks/sendSubscribe", {**OLD, "pushNotification": {"url": "https://hook.example"}}),
    ("tasks/pushNotification/get", {"id": "t1"}),
]  # fmt: skip

ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**70, -(2**70), 1e300, "", "x", "\x00", "é🦀", "aGk", "not base64!", "2025-01-01",
    "TASK_STATE_NOPE", [], [[]], [None], {}, {"": None}, {"kind": "text"}, {"text": 1, "raw": "x"}, "../../etc/passwd", "a" * 5000,
]  # fmt: skip

ALPHABET = b'{}[]":,\\ntu0189.eE+- \x00\xff\xc3\xed\xa0\x80\n\r'


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def changed(dice: random.Random, document: Any) -> Any:
    """The same document with one place replaced, removed, renamed, doubled or wrapped."""
    document = msgspec.json.decode(msgspec.json.encode(document))
    path = dice.choice(places(document)[1:])
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    match dice.randrange(6):
        case 0 | 1:
            holder[key] = dice.choice(ODD)
        case 2:
            del holder[key]
        case 3 if isinstance(holder, dict):
            holder[dice.choice(["kind", "type", "id", "data", "result", key.upper(), "context_id"])] = (
                holder.pop(key)
            )
        case 4:
            holder[key] = [holder[key], holder[key]]
        case _:
            holder[key] = {"value": holder[key]}
    return document


def damaged(dice: random.Random, body: bytes) -> bytes:
    """The same bytes with a few cut out, overwritten, repeated or put in."""
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(body) + 1)
        length = dice.randint(1, 8)
        put = bytes(dice.choice(ALPHABET) for _ in range(length))
        body = dice.choice(
            [body[:at] + body[at + length :], body[:at] + put + body[at + length :], body[:at] + put + body[at:],
             body[:at] + body[at : at + length] * 50 + body[at:], body[:at]]
        )  # fmt: skip
    return body


def requests(seed: int, many: int) -> list[tuple[bytes, dict[str, str]]]:
    dice = random.Random(seed)
    made = []
    for _ in range(many):
        method, params = dice.choice(CALLS)
        document: Any = {
            "jsonrpc": "2.0",
            "id": dice.choice([1, "a", None, 0]),
            "method": method,
            "params": params,
        }
        for _ in range(dice.randint(0, 3)):
            if isinstance(document, dict) and document:
                document = changed(dice, document)
        body = msgspec.json.encode(document)
        if dice.random() < 0.5:
            body = damaged(dice, body)
        headers = {}
        if dice.random() < 0.6:
            headers["A2A-Version"] = dice.choice(
                ["1.0", "1", "0.3", "0.2.5", "0.1", "9.9", "", "v1", "ü", "1.0,0.3"]
            )
        if dice.random() < 0.1:
            name = dice.choice(
                ["Last-Event-ID", "Idempotency-Key", "A2A-Extensions", "Content-Length", "traceparent"]
            )
            headers[name] = dice.choice(["", "5", "-1", "x" * 600, ",,,", "é", "\t"])
        made.append((body, headers))
    return made


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("only", ["", "arbiter"])
async def test_a_damaged_request_is_answered_like_any_other(
    seed: int, only: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = Scripted([chunk("a", 1)], [status(TaskState.COMPLETED, 2)], result=A2AError("nothing to see"))
    app = app_of(service, only=only)
    seen = set()
    for body, headers in requests(seed, 400):
        answer = open_request(app, "POST", "/", body, headers=headers)
        async with asyncio.timeout(20):
            await answer.end()
        assert answer.status in (200, 415), (body, headers, answer.body)
        assert b"Traceback" not in answer.body and b'File "' not in answer.body
        if answer.headers["content-type"] == "text/event-stream":
            documents = [msgspec.json.decode(frame.data) for frame in answer.frames()]
        else:
            documents = [answer.json]
        for document in documents:
            assert document["jsonrpc"] == "2.0" and ("result" in document) != ("error" in document)
            seen.add(document["error"]["code"] if "error" in document else 0)
    # -32603 is what the service says; nothing of ours may say it, and each would leave a record
    assert {0, -32700, -32600, -32602, -32603} <= seen
    assert not [record for record in caplog.records if record.name.startswith("dragoman")]
