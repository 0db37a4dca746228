"""The clock of leases: the time since this machine started, the same for all its processes.

It cannot be set, and it stops while the machine sleeps. By the time of day, all nodes would count as dead after the machine
wakes up or its clock is corrected. Nodes from before a restart of the machine are found by their locks (`node_locks.py`). On
Windows, which has no such locks, leases use the time of day.
"""

from __future__ import annotations

import sys
import time


def now() -> float:
    return time.monotonic() if sys.platform != "win32" else time.time()


def wall_time(at: float) -> float:
    """A time of this clock as the time of day, in `time.time()` seconds."""
    return time.time() + at - now()
