"""Runs a server with a garbage collector that rarely looks: `python bench/tuned.py (-m MODULE | FILE) ARGS...`"""

from __future__ import annotations

import gc
import runpy
import sys

gc.set_threshold(100_000, 50, 1000)
if sys.argv[1] == "-m":
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
