"""A webhook as a small ASGI app: it checks what arrives, and calls a function with what is good.

    async def told(received: Received) -> None:
        print(received.task_id, received.event)

    app = Webhook(told, Verifier(token="..."))

It answers 204 when the function has returned, so that the sender tries again when it has not. What arrives twice is
acknowledged twice and handed on once. `GET ?validationToken=x`, with which a server asks whether this webhook is really
ours, is answered with x.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from dragoman.errors import A2AError, Unauthenticated, Unavailable
from dragoman.push.post import CHALLENGE
from dragoman.push.receive import Received, Verifier

logger = logging.getLogger("dragoman.push")

Told = Callable[[Received], Awaitable[None] | None]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_TOKEN = re.compile(r"[!-~]{1,512}")


class Webhook:
    def __init__(self, told: Told, verifier: Verifier, *, max_body: int = 16 << 20) -> None:
        self._told, self._verifier, self._max_body = told, verifier, max_body
        self._busy: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            status, body, kind = await self._answer(scope, receive)
            headers = [
                (b"content-type", kind),
                (b"content-length", b"%d" % len(body)),
                (b"x-content-type-options", b"nosniff"),
            ]
            await send(
                {
                    "type": "http.response.start",
                    "status": status,
                    "headers": headers if body else headers[1:2],
                }
            )
            await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes, bytes]:
        if scope["method"] in ("GET", "HEAD"):
            tokens = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(CHALLENGE, [""])
            if not _TOKEN.fullmatch(tokens[-1]):
                return _said(404, "there is nothing to see here")
            return 200, tokens[-1].encode(), b"text/plain"
        if scope["method"] != "POST":
            return _said(405, "notifications are POSTed")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._verifier.check_head(headers)
            body = await self._body(receive)
            if body is None:
                return _said(413, "the notification is too large")
            return await self._take(await self._verifier.verify(headers, body))
        except Unauthenticated as error:
            logger.warning("a notification was refused: %s", error)
            return _said(401, error.message)
        except Unavailable as error:
            return _said(503, error.message)
        except A2AError as error:
            logger.warning("a notification was not understood: %s", error)
            return _said(400, error.message)

    async def _take(self, received: Received) -> tuple[int, bytes, bytes]:
        if received.duplicate and received.delivery in self._busy:
            return _said(503, "it is being dealt with")
        if received.duplicate:
            return 204, b"", b""
        self._busy.add(received.delivery)
        try:
            outcome = self._told(received)
            if inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError:  # the server stops: it may come again
            self._verifier.seen.forget(received.delivery)
            raise
        except Exception:
            logger.exception("a notification of task %s could not be dealt with", received.task_id)
            self._verifier.seen.forget(received.delivery)
            return _said(500, "it could not be dealt with")
        finally:
            self._busy.discard(received.delivery)
        return 204, b"", b""

    async def _body(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_body or message["type"] == "http.disconnect":
                return None  # who has left hears nothing of it
            if not message.get("more_body"):
                return bytes(body)


def _said(status: int, message: str) -> tuple[int, bytes, bytes]:
    return status, msgspec.json.encode({"error": message}), b"application/json"


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{event}.complete"})
        if event == "shutdown":
            return
