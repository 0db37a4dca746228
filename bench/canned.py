"""A server that does nothing: the same answer to every call, the same events to every stream. `python canned.py PORT`

What is measured against it is the client alone.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

EVENTS = 2000
PER_WRITE = 20
"""Events that leave together, as they do from a busy agent."""


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _page(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def _card(port: int) -> bytes:
    url = f"http://127.0.0.1:{port}/"
    return _page(
        _json(
            {
                "name": "Canned",
                "description": "Does nothing",
                "version": "1",
                "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
                "capabilities": {"streaming": True},
                "defaultInputModes": ["text/plain"],
                "defaultOutputModes": ["text/plain"],
                "skills": [{"id": "none", "name": "None", "description": "None", "tags": ["none"]}],
            }
        )
    )


_MESSAGE = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hello"}]}
_CALL = b'{"jsonrpc":"2.0","id":%b,"result":{"message":' + _json(_MESSAGE) + b"}}"


def _events() -> list[bytes]:
    ids = {"taskId": "t", "contextId": "c"}
    task = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
    out: list[object] = [{"task": task}]
    for n in range(EVENTS):
        artifact = {"artifactId": "a", "parts": [{"text": f"chunk {n} "}]}
        out.append({"artifactUpdate": {**ids, "artifact": artifact, "append": n > 0}})
    out.append({"statusUpdate": {**ids, "status": {"state": "TASK_STATE_COMPLETED"}}})
    return [_json(each) for each in out]


_STREAM = _events()
_ID = re.compile(rb'"id":\s*("[^"]*"|\d+)')


class Canned(asyncio.Protocol):
    def __init__(self, card: bytes) -> None:
        self._card = card
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while (end := self._rest.find(b"\r\n\r\n")) >= 0:
            head = self._rest[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
            if len(self._rest) < end + 4 + length:
                return
            body = self._rest[end + 4 : end + 4 + length]
            self._rest = self._rest[end + 4 + length :]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if not body:
            self._transport.write(self._card)
            return
        found = _ID.search(body)
        assert found is not None
        id = found[1]
        if b'"SendMessage"' in body:
            self._transport.write(_page(_CALL % id))
            return
        write = self._transport.write
        write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        opening = b'data: {"jsonrpc":"2.0","id":' + id + b',"result":'
        for n in range(0, len(_STREAM), PER_WRITE):
            chunk = b"".join([opening + event + b"}\n\n" for event in _STREAM[n : n + PER_WRITE]])
            write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        write(b"0\r\n\r\n")


async def main(port: int) -> None:
    card = _card(port)
    server = await asyncio.get_running_loop().create_server(lambda: Canned(card), "127.0.0.1", port)
    print("READY", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
