"""A webhook as a small ASGI app: it verifies notifications, and calls a function with each.

    async def handle(received: Received) -> None:
        print(received.task_id, received.event)

    app = Webhook(handle, Verifier(token="..."))

It answers 204 after the function has returned, so that the sender tries again if it fails. A repeated notification is
acknowledged again, and the function is not called. `GET ?validationToken=x`, with which a server asks whether the webhook
wants its notifications, is answered with x. `per_minute` limits how many requests the app takes; the others are answered
429, and senders try them again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from dragoman.errors import A2AError, Unauthenticated, Unavailable
from dragoman.push.post import CHALLENGE_PARAMETER
from dragoman.push.receive import Received, Verifier

logger = logging.getLogger("dragoman.push")

NotificationHandler = Callable[[Received], Awaitable[None] | None]
AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_TOKEN = re.compile(r"[!-~]{1,512}")


class Webhook:
    def __init__(
        self,
        handler: NotificationHandler,
        verifier: Verifier,
        *,
        max_body: int = 16 << 20,
        per_minute: int | None = None,
    ) -> None:
        if per_minute is not None and per_minute < 1:
            raise ValueError("per_minute is at least 1; without a limit, leave it out")
        self._handler, self._verifier, self._max_body = handler, verifier, max_body
        self._busy: set[str] = set()
        self._per_minute = per_minute
        self._left, self._counted_at = float(per_minute or 0), time.monotonic()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
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

    async def _answer(self, scope: AsgiScope, receive: Receive) -> tuple[int, bytes, bytes]:
        if not self._within_limit():
            return _error_answer(429, "too many notifications; try again later")
        if scope["method"] in ("GET", "HEAD"):
            tokens = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(CHALLENGE_PARAMETER, [""])
            if not _TOKEN.fullmatch(tokens[-1]):
                return _error_answer(404, "there is no page here")
            return 200, tokens[-1].encode(), b"text/plain"
        if scope["method"] != "POST":
            return _error_answer(405, "notifications are POSTed")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._verifier.check_headers(headers)
            body = await self._body(receive)
            if body is None:
                return _error_answer(413, "the notification is too large")
            return await self._handle(await self._verifier.verify(headers, body))
        except Unauthenticated as error:
            logger.warning("a notification was refused: %s", error)
            return _error_answer(401, error.message)
        except Unavailable as error:
            return _error_answer(503, error.message)
        except A2AError as error:
            logger.warning("a notification was not understood: %s", error)
            return _error_answer(400, error.message)

    def _within_limit(self) -> bool:
        """Count one request. False if there were more than `per_minute`: a token bucket, full at the start."""
        if self._per_minute is None:
            return True
        now = time.monotonic()
        refill = (now - self._counted_at) * self._per_minute / 60
        self._left, self._counted_at = min(float(self._per_minute), self._left + refill), now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    async def _handle(self, received: Received) -> tuple[int, bytes, bytes]:
        if received.duplicate and received.delivery in self._busy:
            return _error_answer(503, "it is being handled")
        if received.duplicate:
            return 204, b"", b""
        self._busy.add(received.delivery)
        try:
            outcome = self._handler(received)
            if inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError:  # the server stops: the sender tries again
            self._verifier.seen.forget(received.delivery)
            raise
        except Exception:
            logger.exception("a notification of task %s could not be handled", received.task_id)
            self._verifier.seen.forget(received.delivery)
            return _error_answer(500, "it could not be handled")
        finally:
            self._busy.discard(received.delivery)
        return 204, b"", b""

    async def _body(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_body or message["type"] == "http.disconnect":
                return None  # a sender that disconnected gets no answer
            if not message.get("more_body"):
                return bytes(body)


def _error_answer(status: int, message: str) -> tuple[int, bytes, bytes]:
    return status, msgspec.json.encode({"error": message}), b"application/json"


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{event}.complete"})
        if event == "shutdown":
            return
