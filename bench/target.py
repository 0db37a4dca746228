"""The server under test, as bytes: how a request to it looks over HTTP/1.1, and when an answer is whole.

The echo agent chooses its behaviour by the text of the message:

    stream:N   working, N artifact chunks of 20 bytes (append), completed
    paced:N    the same, giving way to the event loop after each chunk
    history:N  a task that has N messages in its history, completed
    wait       working, then nothing until some client sends `release`, then completed
    other      working, one text artifact (the echo), completed
"""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

DONE = {"v1": "TASK_STATE_COMPLETED", "v03": '"completed"', "rest": "TASK_STATE_COMPLETED"}
METHODS = {
    "v1": {"send": "SendMessage", "stream": "SendStreamingMessage", "get": "GetTask"},
    "v03": {"send": "message/send", "stream": "message/stream", "get": "tasks/get"},
    "rest": {"send": "message:send", "stream": "message:stream", "get": "tasks/"},
}
"""JSON-RPC 1.0 and 0.3, and the paths of HTTP+JSON 1.0."""
UNIQUE = "N" * 12
"""Where a request has a number of its own."""


class Target:
    """One A2A endpoint, spoken to in one dialect over HTTP/1.1."""

    def __init__(self, url: str, dialect: str = "v1", *, state_after_send: str = "") -> None:
        parts = urlsplit(url)
        self.address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.host, self.path = parts.netloc, parts.path or "/"
        self.dialect = dialect
        self.sent = state_after_send or DONE[dialect]
        """What the answer to a send contains."""
        self.card = f"GET /.well-known/agent-card.json HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode()
        self._sent = 0

    @property
    def done(self) -> str:
        """What the answer to a finished task contains."""
        return DONE[self.dialect]

    def template(self, op: str, *, text: str = "", task: str = "") -> bytes:
        """A whole HTTP request, with `UNIQUE` where `render` puts a number."""
        method, path = "POST", self.path
        if self.dialect == "rest":
            path += METHODS["rest"][op] + task
            method = "GET" if op == "get" else "POST"
        body = b"" if method == "GET" else _body(self.dialect, op, text, task)
        accept = "text/event-stream" if op == "stream" else "application/json"
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nAccept: {accept}\r\n"
        if self.dialect != "v03":
            head += "A2A-Version: 1.0\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body

    def render(self, template: bytes) -> bytes:
        self._sent += 1
        return template.replace(UNIQUE.encode(), b"%012d" % self._sent)

    def connect(self) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def exchange(self, request: bytes, *, timeout: float = 60) -> tuple[int, bytes]:
        """One request on a connection of its own: the status and the body."""
        data, chunk = b"", b"-"
        with self.connect() as connection:
            connection.settimeout(timeout)
            connection.sendall(request)
            while chunk and not complete(data)[0]:
                chunk = connection.recv(262144)
                data += chunk
        return int(data[9:12] or 0), data.partition(b"\r\n\r\n")[2]

    def call(self, op: str, *, text: str = "", task: str = "") -> tuple[int, bytes]:
        return self.exchange(self.render(self.template(op, text=text, task=task)))


def complete(data: bytes) -> tuple[bool, bool]:
    """Whether `data` is a whole HTTP response, and whether the server will close the connection."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False, False
    head = data[: end + 1].lower()
    at = head.find(b"content-length:")
    if at >= 0:
        done = len(data) - end - 4 >= int(head[at + 15 : head.find(b"\r", at)])
    else:
        done = b"chunked" in head and data.endswith(b"0\r\n\r\n")
    return done, b"connection: close" in head


def _body(dialect: str, op: str, text: str, task: str) -> bytes:
    params: dict[str, Any]
    if op == "get":
        params = {"id": task}
    elif dialect != "v03":
        params = {"message": {"messageId": f"msg-{UNIQUE}", "role": "ROLE_USER", "parts": [{"text": text}]}}
    else:
        part = {"kind": "text", "text": text}
        params = {
            "message": {"kind": "message", "messageId": f"msg-{UNIQUE}", "role": "user", "parts": [part]}
        }
        if op == "send":
            params["configuration"] = {"blocking": True, "acceptedOutputModes": ["text/plain"]}
    if dialect == "rest":
        return _json(params)
    rpc = {"jsonrpc": "2.0", "id": f"req-{UNIQUE}", "method": METHODS[dialect][op], "params": params}
    return _json(rpc)


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
