"""Runs a server with the garbage collector set as `agent.run()` sets it: `python bench/tuned.py FILE ARGS...`"""

from __future__ import annotations

import gc
import runpy
import sys
import threading

STARTED_SECONDS = 1.0
"""When everything that a server keeps for good is there."""


def settle() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 400)


timer = threading.Timer(STARTED_SECONDS, settle)
timer.daemon = True
timer.start()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
