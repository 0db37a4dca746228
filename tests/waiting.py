"""The only sleeps of the tests are here.

`until` waits for what a test gets no event for: it looks again and again, up to a deadline. `elapse` is for tests in which
time itself matters.
"""

from __future__ import annotations

import asyncio
import selectors
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


async def until_works(
    attempt: Callable[[], Awaitable[Any]], *errors: type[BaseException], seconds: float = SECONDS
) -> Any:
    """Try until `attempt()` raises none of `errors`, and return its result. Raises the last error."""
    latest = time.monotonic() + seconds
    while True:
        try:
            return await attempt()
        except errors:
            if time.monotonic() > latest:
                raise
        await asyncio.sleep(POLL_SECONDS)


def block_until(look: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """`until`, for code without an event loop."""
    latest = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > latest:
            raise TimeoutError(f"still {found!r} after {seconds} s")
        time.sleep(POLL_SECONDS)
    return found


async def elapse(seconds: float) -> None:
    """Let time pass where time is what the test is about: a kill at a random moment, a lease that expires, slow work.

    Never to wait for something: that is `until`.
    """
    await asyncio.sleep(seconds)


async def forever() -> None:
    """Wait until somebody cancels it: work that never ends."""
    await asyncio.Event().wait()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is ready.

    For tests that count what happens in a time, without input from outside: how busy the machine is makes no difference.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self._advance))

    def time(self) -> float:
        return self._now

    def _advance(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.SelectSelector):
    """Calls `advance` where another selector would wait."""

    def __init__(self, advance: Callable[[float], object]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().select()
        self._advance(max(timeout, 0.0))
        return super().select(0)
