"""What is asked of a client, whichever it is. Runs in the environments of others too, so it imports nothing but Python."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

AT_ONCE = 16
Call = Callable[[], Awaitable[object]]
Stream = Callable[[], Awaitable[int]]


async def measure(call: Call, stream: Stream, *, seconds: float) -> dict[str, float]:
    """Calls per second one after the other and 16 at a time, and events per second of streams."""
    await _rate(call, 0.2)
    await stream()
    return {
        "calls /s, one at a time": await _rate(call, seconds),
        f"calls /s, {AT_ONCE} at a time": await _rates(call, seconds),
        "events /s": await _events(stream, seconds),
    }


async def _rate(call: Call, seconds: float) -> float:
    began, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < seconds:
        await call()
        done += 1
    return done / spent


async def _rates(call: Call, seconds: float) -> float:
    return sum(await asyncio.gather(*(_rate(call, seconds) for _ in range(AT_ONCE))))


async def _events(stream: Stream, seconds: float) -> float:
    began, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < seconds:
        done += await stream()
    return done / spent


def report(numbers: dict[str, float]) -> None:
    json.dump(numbers, sys.stdout)
