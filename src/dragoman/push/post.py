"""Requests to webhooks: limited in time, in what is read of the answer, and in number per origin."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote, urlsplit

from dragoman.client.transport.network import AddressRefused
from dragoman.client.transport.transport import Response, Transport, retry_after
from dragoman.errors import A2AError, Unreachable
from dragoman.push.guard import Guard

_MAX_ANSWER_BYTES = 64 << 10
"""How much of an answer is read, so that its connection can be used again. Its content is ignored."""
_ANSWER_SECONDS = 2.0
_MAX_ORIGINS = 10_000
CHALLENGE_PARAMETER = "validationToken"


class Undelivered(Exception):
    """A notification was not delivered."""

    def __init__(self, why: str, *, retry_in: float = 0.0, silent: bool = False, gone: bool = False) -> None:
        super().__init__(why)
        self.retry_in = retry_in
        """Seconds that the webhook asks us to wait."""
        self.silent = silent
        """There was no answer."""
        self.gone = gone
        """Trying again does not help."""


async def post(
    transport: Transport, guard: Guard, url: str, headers: Mapping[str, str], body: bytes, *, timeout: float
) -> None:
    """Raises `Undelivered` unless the webhook answers 2xx."""
    try:
        async with asyncio.timeout(timeout):
            guard.check(url)
            response = await transport.request("POST", url, headers, body)
    except TimeoutError:
        raise Undelivered(f"no answer within {timeout:g} s", silent=True) from None
    except AddressRefused as refused:
        raise Undelivered(f"the address is not allowed: {refused}") from None
    except Unreachable as error:
        without_query = url.partition("?")[0]  # a query may hold a secret, and this goes into the log
        raise Undelivered(error.message.replace(url, without_query), silent=True) from None
    await _read(response)
    status = response.status
    if 200 <= status < 300:
        return
    asked = retry_after(response.headers.get("retry-after", "")) or 0.0
    why = f"it answered HTTP {status}"
    if 300 <= status < 400:
        why += ", and redirects are not followed"
    raise Undelivered(why, retry_in=asked, gone=status == 410)


async def answers_challenge(transport: Transport, guard: Guard, url: str, *, timeout: float) -> bool:
    """True if the webhook repeats a random token: its owner wants our notifications."""
    token = secrets.token_urlsafe(24)
    asked = f"{url}{'&' if '?' in url else '?'}{CHALLENGE_PARAMETER}={quote(token)}"
    try:
        async with asyncio.timeout(timeout):
            guard.check(url)
            response = await transport.request("GET", asked, {"Accept": "text/plain"})
            body = await _read(response)
    except (TimeoutError, AddressRefused, A2AError):
        return False
    return response.status == 200 and secrets.compare_digest(body.strip(), token.encode())


async def _read(response: Response) -> bytes:
    """The answer, or as much of it as comes in time. Only its status matters."""
    body = b""
    with suppress(TimeoutError, Unreachable):
        async with asyncio.timeout(_ANSWER_SECONDS):
            async for chunk in response.chunks():
                body += chunk
                if len(body) > _MAX_ANSWER_BYTES:
                    break
    await response.close()
    return body[:_MAX_ANSWER_BYTES]


class Origin:
    """A host and a port: limits requests at the same time, and pauses after a request without an answer."""

    def __init__(self, slots: int, pause: float, longest: float) -> None:
        self.slots = asyncio.Semaphore(slots)
        self._pause, self._longest = pause, longest
        self._failures = 0
        self._failed = 0.0
        self._until = 0.0

    def pause_left(self) -> float:
        """Seconds until the next request may be sent."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def note_answer(self) -> None:
        self._failures, self._until = 0, 0.0

    def note_silence(self, began: float) -> None:
        """A request that began at `began` got no answer. Requests that began together and fail together count once."""
        if began < self._failed:
            return
        self._failed = asyncio.get_running_loop().time()
        self._until = self._failed + min(self._longest, self._pause * 2 ** min(self._failures, 10))
        self._failures += 1

    @property
    def idle(self) -> bool:
        return not self.slots.locked() and not self.pause_left()


class Origins:
    def __init__(self, *, slots: int, pause: float, longest: float) -> None:
        self._slots, self._pause, self._longest = slots, pause, longest
        self._known: dict[str, Origin] = {}

    def of(self, url: str) -> Origin:
        name = urlsplit(url).netloc.lower()
        origin = self._known.get(name)
        if origin is None:
            if len(self._known) >= _MAX_ORIGINS:
                self._known = {name: known for name, known in self._known.items() if not known.idle}
            origin = self._known[name] = Origin(self._slots, self._pause, self._longest)
        return origin
