"""The clock that leases go by: the machine's own, which counts from its start and is the same for all its processes.

Nobody sets it, and it stands still while the machine sleeps. By the clock on the wall, a machine that wakes up, or is told
the right time, would find that everybody else has been dead for hours. What an earlier start of the machine left behind
is known by its locks (`node_locks.py`); where there are none, the clock on the wall has to do.
"""

from __future__ import annotations

import sys
import time


def now() -> float:
    return time.monotonic() if sys.platform != "win32" else time.time()


def wall_time(at: float) -> float:
    """A time of this clock in `time.time()` seconds, as of now."""
    return time.time() + at - now()
