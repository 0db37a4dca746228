"""One request to a webhook: bounded in time and in what we read of the answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote

from dragoman.client.transport.transport import Response, Transport, retry_after
from dragoman.errors import A2AError, Unreachable
from dragoman.push.guard import Guard, Refused

_READ = 64 << 10
"""How much of an answer we read, so that its connection can be used again. What it says is of no interest."""
_PATIENCE = 2.0
CHALLENGE = "validationToken"


class Undelivered(Exception):
    """A notification did not get through."""

    def __init__(self, why: str, *, retry_in: float = 0.0, silent: bool = False, gone: bool = False) -> None:
        super().__init__(why)
        self.retry_in = retry_in
        """How long the webhook asks us to wait."""
        self.silent = silent
        """There was no answer."""
        self.gone = gone
        """There is no point in trying again."""


async def post(
    transport: Transport, guard: Guard, url: str, headers: Mapping[str, str], body: bytes, *, timeout: float
) -> None:
    """Raises `Undelivered` unless the webhook says that it has it."""
    try:
        async with asyncio.timeout(timeout):
            guard.check(url)
            response = await transport.request("POST", url, headers, body)
    except TimeoutError:
        raise Undelivered(f"no answer within {timeout:g} s", silent=True) from None
    except Refused as refused:
        raise Undelivered(f"we do not send there: {refused}") from None
    except Unreachable as error:
        shown = url.partition("?")[0]  # a query may hold a secret, and this goes into the log
        raise Undelivered(error.message.replace(url, shown), silent=True) from None
    await _read(response)
    status = response.status
    if 200 <= status < 300:
        return
    asked = retry_after(response.headers.get("retry-after", "")) or 0.0
    why = f"it answered HTTP {status}"
    if 300 <= status < 400:
        why += ", and redirects are not followed"
    raise Undelivered(why, retry_in=asked, gone=status == 410)


async def owned(transport: Transport, guard: Guard, url: str, *, timeout: float) -> bool:
    """Whether whoever answers at a URL wants our notifications: it repeats what only we know."""
    token = secrets.token_urlsafe(24)
    asked = f"{url}{'&' if '?' in url else '?'}{CHALLENGE}={quote(token)}"
    try:
        async with asyncio.timeout(timeout):
            guard.check(url)
            response = await transport.request("GET", asked, {"Accept": "text/plain"})
            said = await _read(response)
    except (TimeoutError, Refused, A2AError):
        return False
    return response.status == 200 and secrets.compare_digest(said.strip(), token.encode())


async def _read(response: Response) -> bytes:
    """The answer, or as much of it as comes soon. Its status has said what matters."""
    said = b""
    with suppress(TimeoutError, Unreachable):
        async with asyncio.timeout(_PATIENCE):
            async for chunk in response.chunks():
                said += chunk
                if len(said) > _READ:
                    break
    await response.close()
    return said[:_READ]
