"""Memory that the worker processes of one server share: counters, limits, metrics, and credentials of callers.

The supervisor creates `SharedCounters` before it forks. Each worker then takes its own view with `for_worker`. Nobody locks:
each worker writes only its own cells, apart from the rate limits of `CallerUsage`, which may be off by one, and `SharedSecrets`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import blake2b
from mmap import mmap
from typing import Self

from dragoman.engine.load import Load

_CELL_BYTES = 8


class SharedGauge:
    """One number per worker, and their sum. A killed worker's number counts until another worker takes its place."""

    def __init__(self, workers: int = 1, worker: int = 0, memory: mmap | None = None) -> None:
        self._worker = worker
        self._memory = memory or mmap(-1, workers * _CELL_BYTES)
        self._values = memoryview(self._memory)[: workers * _CELL_BYTES].cast("q")

    def for_worker(self, worker: int) -> SharedGauge:
        """Return the view of one worker. Its number starts at 0."""
        gauge = SharedGauge(len(self._values), worker, self._memory)
        gauge.set(0)
        return gauge

    def set(self, value: int) -> None:
        self._values[self._worker] = value

    def total(self) -> int:
        return sum(self._values)


_MAX_CALLERS = 1 << 14
"""Callers that are remembered at a time."""
_PROBES = 8
"""Slots in which a caller may be. If all are taken, the caller that was idle longest is forgotten."""


class CallerUsage:
    """Rate and concurrency of each caller, over all workers.

    A caller is a slot in a table: the time until which its rate is used up, and how many operations each worker runs for it.
    Two workers that count the same caller in the same microsecond may count one too few. Exactness would cost more. When a
    worker takes the place of a killed one, the operations of the killed one are forgotten.
    """

    def __init__(self, workers: int = 1, worker: int = 0, memory: mmap | None = None) -> None:
        self._workers, self._worker = workers, worker
        size = _MAX_CALLERS * _CELL_BYTES
        self._memory = memory or mmap(-1, (2 + workers) * size)
        cells = memoryview(self._memory)
        self._names = cells[:size].cast("q")
        self._used_until = cells[size : 2 * size].cast("d")
        self._active = cells[2 * size :].cast("q")

    def for_worker(self, worker: int) -> CallerUsage:
        """Return the view of one worker. It runs nothing yet."""
        usage = CallerUsage(self._workers, worker, self._memory)
        for slot in range(worker * _MAX_CALLERS, (worker + 1) * _MAX_CALLERS):
            usage._active[slot] = 0
        return usage

    def slot(self, caller: Hashable) -> int:
        """Find the slot of a caller, or give it one."""
        name = hash(caller) or 1  # workers are forked from one process, so a hash is the same in all of them
        best, oldest = name % _MAX_CALLERS, float("inf")
        for place in range(best, best + _PROBES):
            slot = place % _MAX_CALLERS
            found = self._names[slot]
            if found == name:
                return slot
            until = self._used_until[slot] if found else 0.0
            if until < oldest and not (found and self.active(slot)):
                best, oldest = slot, until
        self._names[best], self._used_until[best] = name, 0.0
        return best

    def take(self, slot: int, rate: float, burst: int) -> float:
        """Count one operation. Returns 0 if it is within `rate` per second and `burst`, else the seconds to wait."""
        now = time.monotonic()
        until = max(now, self._used_until[slot])
        wait = until - now - (burst - 1) / rate
        if wait > 0:
            return wait
        self._used_until[slot] = until + 1 / rate
        return 0.0

    def active(self, slot: int) -> int:
        """Count the operations that all workers run for this caller."""
        return sum(self._active[slot + worker * _MAX_CALLERS] for worker in range(self._workers))

    def enter(self, slot: int) -> None:
        self._active[slot + self._worker * _MAX_CALLERS] += 1

    def leave(self, slot: int) -> None:
        self._active[slot + self._worker * _MAX_CALLERS] -= 1


_REPORT_BYTES = 1 << 20
_HEADER_BYTES = 32
"""Which of the two buffers is current, and the length of each."""


class SharedReports:
    """One report (bytes) per worker, which the other workers can read.

    Each worker has two buffers. It writes the one that is not current and then makes it current. A worker that is killed
    while it writes leaves its previous report, which the worker that takes its place can read.
    """

    def __init__(self, workers: int, worker: int = 0, memory: mmap | None = None) -> None:
        self._workers, self._worker = workers, worker
        self._memory = memory or mmap(-1, workers * (_HEADER_BYTES + 2 * _REPORT_BYTES))

    def for_worker(self, worker: int) -> SharedReports:
        return SharedReports(self._workers, worker, self._memory)

    def write(self, report: bytes) -> None:
        """Replace this worker's report. A report that is too long is not written."""
        if len(report) > _REPORT_BYTES:
            return
        start, header = self._header(self._worker)
        buffer = 1 - header[0]
        at = start + _HEADER_BYTES + buffer * _REPORT_BYTES
        self._memory[at : at + len(report)] = report
        header[1 + buffer] = len(report)
        header[0] = buffer

    def read_own(self) -> bytes:
        """Read the last report of this worker, or of the worker whose place it took."""
        return self._read(self._worker)

    def read_others(self) -> list[bytes]:
        reports = [self._read(worker) for worker in range(self._workers) if worker != self._worker]
        return [report for report in reports if report]

    def _read(self, worker: int) -> bytes:
        start, header = self._header(worker)
        buffer = header[0]
        at = start + _HEADER_BYTES + buffer * _REPORT_BYTES
        return bytes(self._memory[at : at + header[1 + buffer]])

    def _header(self, worker: int) -> tuple[int, memoryview]:
        start = worker * (_HEADER_BYTES + 2 * _REPORT_BYTES)
        return start, memoryview(self._memory)[start : start + _HEADER_BYTES].cast("q")


_SECRET_SLOTS, _SECRET_BYTES = 1 << 11, 1 << 13
"""How many secrets there can be, and how large one may be with its name. Memory is used as it is written."""
_DIGEST_BYTES = 16


class SharedSecrets:
    """Small secrets, by name, that workers show each other. They are in memory only.

    A slot has the digest of the name, a digest of the rest, the time of writing, and the secret. Nobody locks: what is read
    while another worker writes it has a wrong digest, and counts as not there. If all slots of a name are taken, the oldest
    secret is lost.
    """

    def __init__(self) -> None:
        self._memory = mmap(-1, _SECRET_SLOTS * _SECRET_BYTES)

    def put(self, name: str, secret: bytes) -> None:
        """Replace a secret. One that is too large is not shared. An empty one removes it."""
        digest, rest = _digest(name.encode()), struct.pack("=dI", time.monotonic(), len(secret)) + secret
        if 2 * _DIGEST_BYTES + len(rest) > _SECRET_BYTES:
            rest = struct.pack("=dI", time.monotonic(), 0)
        found = [(at, *self._read(at)) for at in self._slots(digest)]
        mine = next((at for at, whose, _, _ in found if whose == digest), None)
        if mine is None:
            mine, *_ = min(found, key=lambda slot: slot[2])
        entry = digest + _digest(digest + rest) + rest
        self._memory[mine : mine + len(entry)] = entry

    def get(self, name: str) -> bytes:
        """The secret; empty if there is none."""
        digest = _digest(name.encode())
        for at in self._slots(digest):
            whose, _, secret = self._read(at)
            if whose == digest:
                return secret
        return b""

    def _slots(self, digest: bytes) -> list[int]:
        first = int.from_bytes(digest[:8], "big")
        return [(first + n) % _SECRET_SLOTS * _SECRET_BYTES for n in range(_PROBES)]

    def _read(self, at: int) -> tuple[bytes, float, bytes]:
        """Whose secret is in a slot, since when, and the secret. Empty if it is not complete."""
        slot = self._memory[at : at + _SECRET_BYTES]
        whose, check, rest = (
            slot[:_DIGEST_BYTES],
            slot[_DIGEST_BYTES : 2 * _DIGEST_BYTES],
            slot[2 * _DIGEST_BYTES :],
        )
        since, length = struct.unpack_from("=dI", rest)
        rest = rest[: 12 + length]
        if _digest(whose + rest) != check:
            return b"", 0.0, b""
        return whose, since, rest[12:]


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class SharedCounters:
    """All memory that the workers of one server share."""

    usage: CallerUsage
    reports: SharedReports
    connections: SharedGauge
    load: Load
    secrets: SharedSecrets

    @classmethod
    def create(cls, workers: int) -> Self:
        return cls(
            CallerUsage(workers),
            SharedReports(workers),
            SharedGauge(workers),
            Load(workers),
            SharedSecrets(),
        )

    def for_worker(self, worker: int) -> SharedCounters:
        return SharedCounters(
            self.usage.for_worker(worker),
            self.reports.for_worker(worker),
            self.connections.for_worker(worker),
            self.load.for_worker(worker),
            self.secrets,
        )
