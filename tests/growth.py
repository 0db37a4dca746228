"""Say that a cost grows with its input, and not with the square of it.

CPU time of this thread. Linear work doubles with its input, quadratic work quadruples. Sizes grow by two from a small one, so
that work that is not linear is found before it takes minutes, until a size takes long enough to be measured. The last one is
eight times that size.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")

RUNS = 4
MOST = 3.3
"""How many times as much twice the input may cost: two, and what memory costs that is in no cache any more."""
NOISE = 0.002
"""Seconds below which a measurement says nothing."""
ENOUGH = 0.003
"""Seconds that can be compared with eight times as many."""
FIRST, LAST_STEP = 1024, 8


def cost(work: Callable[[T], Any], given: T, runs: int = 1) -> float:
    """The least of several runs."""
    best = float("inf")
    collecting = gc.isenabled()
    gc.disable()  # which looks at all objects of the process now and then, whosever they are
    try:
        for _ in range(runs):
            begun = time.thread_time()
            work(given)
            best = min(best, time.thread_time() - begun)
    finally:
        if collecting:
            gc.enable()
    return best


def assert_linear(work: Callable[[T], Any], make: Callable[[int], T], size: int = 1 << 20) -> None:
    """Up to n = `size`, `work(make(2 * n))` costs less than `MOST` times as much as `work(make(n))`.

    Each size is run once; what looks steep is run several times. Steep twice in a row is a failure: once is what memory costs
    when it stops coming from a cache.
    """
    n = max(1, min(FIRST, size // LAST_STEP // 4))
    given = make(n)
    before, step = cost(work, given, 2), 2
    while step == 2 and n < size:
        if before > ENOUGH:
            before = min(before, cost(work, given))  # or it was something else that took long
        step = LAST_STEP if before > ENOUGH or n * LAST_STEP >= size else 2
        n = min(size, n * step)
        given = make(n)
        now = cost(work, given)
        most = MOST / 2 * step * max(before, 2 * NOISE / step)
        if now > most and cost(work, given, 2) > most:
            assert_not_steep(work, make, n)
        before = now


def assert_not_steep(work: Callable[[T], Any], make: Callable[[int], T], n: int) -> None:
    """The sizes take turns, so that a machine that is slow for a while is slow for each of them."""
    sizes = (n // 4, n // 2, n)
    rounds = [
        [cost(work, make(each), runs) for each, runs in zip(sizes, (4, 2, 1), strict=True)]
        for _ in range(RUNS)
    ]
    costs = [min(each) for each in zip(*rounds, strict=True)]
    steep = [b > MOST * max(a, NOISE) for a, b in pairwise(costs)]
    assert not all(steep), f"{n // 4}, {n // 2} and {n} cost {[f'{each * 1e3:.1f} ms' for each in costs]}"


def assert_constant(work: Callable[[T], Any], make: Callable[[int], T], small: int, large: int) -> None:
    """`work(make(large))` costs about as much as `work(make(small))`; `large` is many times `small`."""
    given = make(small), make(large)
    before, now = (min(cost(work, each) for _ in range(RUNS)) for each in given)
    assert now < MOST * max(before, NOISE), (
        f"{small} and {large} cost {before * 1e3:.1f} ms and {now * 1e3:.1f} ms"
    )
