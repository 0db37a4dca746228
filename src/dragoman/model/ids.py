"""Ids and timestamps."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from struct import iter_unpack

_last = 0
_ms, _head = -1, ""


def new_id() -> str:
    """A UUIDv7: time-ordered, because random keys halve the insert rate of a B-tree."""
    global _last, _ms, _head
    _last = now = max(_last + 1, time.time_ns() // 1_000)  # microseconds, never the same twice
    ms, us = divmod(now, 1000)
    if ms != _ms:
        stamp = f"{ms:012x}"
        _ms, _head = ms, f"{stamp[:8]}-{stamp[8:]}-7"
    try:
        tail = _tails.pop()
    except IndexError:
        tail = _draw_tails()
    return f"{_head}{us * 4096 // 1000:03x}-{tail}"


_tails: list[str] = []
"""Random ends of ids. The system is asked for many at a time: for one, asking is most of the cost."""


def _draw_tails() -> str:
    drawn = iter_unpack("<HQ", os.urandom(10 * 64))
    tail, *others = [f"{high & 0x3FFF | 0x8000:04x}-{low & 0xFFFFFFFFFFFF:012x}" for high, low in drawn]
    _tails.extend(others)
    return tail


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tails.clear)  # or two processes would use the same


_second, _moment = -1, -1
_day = _stamp = ""


def timestamp(at: float | None = None) -> str:
    """`2026-11-15T14:40:54.123Z`."""
    global _second, _moment, _day, _stamp
    moment = int((time.time() if at is None else at) * 1000)
    if moment != _moment:
        second, ms = divmod(moment, 1000)
        if second != _second:
            _second, _day = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        _moment, _stamp = moment, f"{_day}.{ms:03d}Z"
    return _stamp


def read_timestamp(text: str) -> str:
    """Any ISO-8601 moment as our kind of timestamp; no zone means UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text.upper())  # RFC 3339 has t and z, too
    try:
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:  # the first or the last day there is, seen from elsewhere
        raise ValueError("no such moment in UTC") from None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
