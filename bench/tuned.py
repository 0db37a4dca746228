"""Runs a server with a garbage collector that rarely looks: `python bench/tuned.py FILE ARGS...`"""

from __future__ import annotations

import gc
import runpy
import sys

gc.set_threshold(100_000, 50, 1000)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
