"""Clients that leave while they wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.errors import Unavailable
from dragoman.server.asgi import Disconnected
from dragoman.server.waits import Waits
from tests.waiting import until


class Caller:
    """As much of an exchange as it takes."""

    direct = None

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def forever(cleaned: list[bool]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        cleaned.append(True)


async def test_wait_ends_when_the_client_leaves() -> None:
    caller, cleaned = Caller(), list[bool]()
    waiting = asyncio.create_task(Waits(0.001).wait(caller, forever(cleaned)))  # type: ignore[arg-type]
    caller.gone.set()
    async with asyncio.timeout(20):
        with pytest.raises(Disconnected):
            await waiting
    assert cleaned == [True]


async def test_wait_returns_the_answer() -> None:
    waits, answered = Waits(0.001), asyncio.Event()

    async def answer() -> int:
        await answered.wait()
        return 42

    waiting = asyncio.create_task(waits.wait(Caller(), answer()))  # type: ignore[arg-type]
    await until(lambda: waits._watchers)
    answered.set()
    assert await waiting == 42
    assert not waits._watchers and not waits._waiting


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    waiting = asyncio.create_task(Waits(60).wait(Caller(), forever([])))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_error_is_passed_on() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await Waits().wait(Caller(), fail())  # type: ignore[arg-type]


async def test_wait_raises_unavailable_when_the_server_stops() -> None:
    waits, cleaned = Waits(), list[bool]()
    waiting = asyncio.create_task(waits.wait(Caller(), forever(cleaned)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waits.close()
    with pytest.raises(Unavailable):
        await waiting
    assert cleaned == [True]
