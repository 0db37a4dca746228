"""Say that a cost grows with its input, and not with the square of it.

CPU time of this thread, the least of several runs, at n and at 2n. Linear work doubles, quadratic work quadruples. Sizes
grow from a small one, so that work that is not linear is found before it takes minutes: by two, and at the end by sixteen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")

RUNS = 3
MOST = 3.0
"""How many times as much twice the input may cost."""
NOISE = 0.002
"""Seconds below which a measurement says nothing."""


def cost(work: Callable[[T], Any], given: T, runs: int = RUNS) -> float:
    best = float("inf")
    for _ in range(runs):
        begun = time.thread_time()
        work(given)
        best = min(best, time.thread_time() - begun)
    return best


def assert_linear(work: Callable[[T], Any], make: Callable[[int], T], size: int = 1 << 20) -> None:
    """Up to n = `size`, `work(make(2 * n))` costs at most three times as much as `work(make(n))`.

    Each size is run once; what looks steep is run several times. Steep twice in a row is a failure: once is what memory costs
    when it stops coming from a cache.
    """
    sizes = [size, size // 16]
    while sizes[-1] > 2048:
        sizes.append(sizes[-1] // 2)
    sizes.reverse()
    before = cost(work, make(sizes[0]), 1)
    for smaller, larger in pairwise(sizes):
        now = cost(work, make(larger), 1)
        times = larger // smaller
        if now > MOST / 2 * times * max(before, 2 * NOISE / times):
            costs = [cost(work, make(n), 2 * RUNS) for n in (larger // 2, larger, 2 * larger)]
            steep = [b > MOST * max(a, NOISE) for a, b in pairwise(costs)]
            assert not all(steep), (
                f"{larger // 2}, {larger} and {2 * larger} cost {[f'{each * 1e3:.1f} ms' for each in costs]}"
            )
        before = now
