"""Wait for what a test cannot be told of: look again and again, up to a deadline. The only sleep that polls is here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

SECONDS = 20.0
"""Nothing that a test waits for takes so long, unless it never comes."""
POLL_SECONDS = 0.005


async def until(look: Callable[[], Any], good: Callable[[Any], Any] = bool, seconds: float = SECONDS) -> Any:
    """Wait until what `look()` returns, or what that awaits, is good, and return it. Raises `TimeoutError`."""
    latest = time.monotonic() + seconds
    while True:
        found = look()
        if isinstance(found, Awaitable):
            found = await found
        if good(found):
            return found
        if time.monotonic() > latest:
            raise TimeoutError(f"still {found!r} after {seconds} s")
        await asyncio.sleep(POLL_SECONDS)
