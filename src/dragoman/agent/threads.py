"""Call a blocking function without blocking anybody else.

Each call has a thread of its own, and the thread is a daemon: one that is stuck holds up neither the loop nor the end
of the process.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

MOST = 100
"""Threads at a time. Who needs more waits."""

_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def in_thread(function: Callable[..., T], *args: Any, **kw: Any) -> T:
    """Call `function` on a thread. If we are cancelled, it goes on and nobody waits for it."""
    loop = asyncio.get_running_loop()
    places = _places.setdefault(loop, asyncio.Semaphore(MOST))
    await places.acquire()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        places.release()
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def run() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(function, *args, **kw)
        except StopIteration as stop:  # which a future cannot carry
            error = RuntimeError(f"{getattr(function, '__name__', function)} raised StopIteration")
            error.__cause__ = stop
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, value, error)

    Thread(target=run, name="dragoman-skill", daemon=True).start()
    return await future
