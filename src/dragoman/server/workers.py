"""Several processes that do the same work, and one that minds them; and which signals end them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from typing import Any, NoReturn

logger = logging.getLogger("dragoman.server")

HANGUP = getattr(signal, "SIGHUP", signal.SIGTERM)
_ENDS = tuple(dict.fromkeys((signal.SIGTERM, signal.SIGINT, HANGUP)))
_BRIEF, _HOPELESS = 3.0, 5
"""Workers that end by themselves within so many seconds, one after the other, until it is clear that none can start."""


def ends() -> Sequence[signal.Signals]:
    """What ends us. `nohup` means that a terminal that goes away does not."""
    return [each for each in _ENDS if each != HANGUP or signal.getsignal(each) != signal.SIG_IGN]


def supervise(workers: int, work: Callable[[int], None]) -> None:
    """Run `work` in so many processes, each with a number; start one again that dies; end them all when we end.

    However we end. A terminal's Ctrl-C, and its end, reach all of us: the workers leave it to the supervisor, who passes
    each signal on once.
    """
    born: dict[int, tuple[int, float]] = {}
    ending = False
    gone, here = os.pipe()  # read to its end when the last process that could write is gone: the supervisor

    def end(signum: int, frame: Any) -> None:
        nonlocal ending
        if ending and signum == HANGUP:
            return
        ending = True
        for pid in list(born):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def start(worker: int) -> None:
        """Unless we end."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # until everybody knows who they are
        if not ending:
            pid = os.fork()
            if pid == 0:
                os.close(here)
                _work(partial(work, worker), gone)
            born[pid] = worker, time.monotonic()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)

    for each in ends():
        signal.signal(each, end)
    for worker in range(workers):
        start(worker)
    hopeless = 0
    while born:
        pid, status = os.wait()
        if pid not in born:
            continue  # a child of what an agent's file does
        worker, since = born.pop(pid)
        lived = time.monotonic() - since
        if not ending:
            hopeless = hopeless + 1 if lived < _BRIEF and os.WIFEXITED(status) else 0
        if not ending and hopeless >= _HOPELESS:
            logger.error("workers cannot start; there is no point in going on")
            end(signal.SIGTERM, None)
        if not ending:
            logger.warning("worker %d ended; another one takes its place", pid)
            time.sleep(max(0.0, 1.0 - lived))  # one that cannot start at all must not keep us busy
        start(worker)
    if hopeless >= _HOPELESS:
        raise SystemExit(1)


def _work(work: Callable[[], None], gone: int) -> NoReturn:
    """Be a worker, and end with the supervisor."""
    for each in _ENDS:
        signal.signal(each, signal.SIG_DFL if each == signal.SIGTERM else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)

    def follow() -> None:
        os.read(gone, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=follow, name="dragoman-supervisor", daemon=True).start()
    code = 1
    try:
        work()
        code = 0
    except Exception:
        logger.exception("a worker failed")
    finally:
        os._exit(code)
