"""Clients that leave while they wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.errors import Unavailable
from dragoman.server.disconnect import Attendance
from dragoman.server.exchange import Disconnected


class Caller:
    """As much of an exchange as it takes."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    def mark_slow(self) -> None: ...

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def forever(cleaned: list[bool]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        cleaned.append(True)


async def test_who_leaves_is_not_waited_for() -> None:
    caller, cleaned = Caller(), list[bool]()
    waiting = asyncio.create_task(Attendance(0.001).attend(caller, forever(cleaned)))  # type: ignore[arg-type]
    caller.gone.set()
    async with asyncio.timeout(5):
        with pytest.raises(Disconnected):
            await waiting
    assert cleaned == [True]


async def test_who_stays_gets_the_answer() -> None:
    attendance, answered = Attendance(0.001), asyncio.Event()

    async def answer() -> int:
        await answered.wait()
        return 42

    waiting = asyncio.create_task(attendance.attend(Caller(), answer()))  # type: ignore[arg-type]
    while not attendance._watchers:
        await asyncio.sleep(0.001)
    answered.set()
    assert await waiting == 42
    assert not attendance._watchers and not attendance._waiting


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    waiting = asyncio.create_task(Attendance(60).attend(Caller(), forever([])))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_error_is_passed_on() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await Attendance().attend(Caller(), fail())  # type: ignore[arg-type]


async def test_who_still_waits_when_we_go_is_told() -> None:
    attendance, cleaned = Attendance(), list[bool]()
    waiting = asyncio.create_task(attendance.attend(Caller(), forever(cleaned)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    attendance.close()
    with pytest.raises(Unavailable):
        await waiting
    assert cleaned == [True]
