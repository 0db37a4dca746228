"""A server made of functions, for answers that a Dragoman server does not give."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode()))


def page(document: Any, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"content-type": "application/json", **named}, json.dumps(document).encode()


@dataclass
class Site:
    """Answers `pages[path]`: an answer, or a function that makes one from what was asked."""

    pages: dict[str, Answer | Callable[[Asked], Answer]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = (await receive())["body"]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = dict(parse_qsl(scope["query_string"].decode()))
        asked = Asked(scope["method"], scope["path"], query, headers, body)
        self.asked.append(asked)
        found = self.pages.get(asked.path, (404, {}, b""))
        status, out, content = found(asked) if callable(found) else found
        raw = [(name.encode(), value.encode()) for name, value in out.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": content})


def card(**members: Any) -> dict[str, Any]:
    """A card of 1.0 with one JSON-RPC endpoint at `/rpc`."""
    return {
        "name": "Fake",
        "description": "Pretends",
        "version": "1",
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["s"]}],
        "supportedInterfaces": [
            {"url": "http://agent.test/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        **members,
    }


def old_card(**members: Any) -> dict[str, Any]:
    """A card from before 1.0."""
    out = card(url="http://agent.test/rpc", **members)
    del out["supportedInterfaces"]
    return out


def answer(asked: Asked) -> Answer:
    """A message, in 1.0."""
    message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "fine"}]}
    return page({"jsonrpc": "2.0", "id": asked.json["id"], "result": {"message": message}})


def error(asked: Asked, code: int, message: str = "no") -> Answer:
    return page({"jsonrpc": "2.0", "id": asked.json["id"], "error": {"code": code, "message": message}})
