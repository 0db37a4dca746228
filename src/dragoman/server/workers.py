"""Worker processes, their supervisor, and the signals that stop them."""

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
_STOP_SIGNALS = tuple(dict.fromkeys((signal.SIGTERM, signal.SIGINT, HANGUP)))
STARTUP_SECONDS, MAX_FAILED_STARTS = 3.0, 5
"""A worker that exits within this time has failed to start; after so many in a row the supervisor gives up."""


def stop_signals() -> Sequence[signal.Signals]:
    """The signals that stop a server. With `nohup`, SIGHUP does not."""
    return [each for each in _STOP_SIGNALS if each != HANGUP or signal.getsignal(each) != signal.SIG_IGN]


def supervise(workers: int, work: Callable[[int], None]) -> None:
    """Run `work(number)` in each of `workers` processes. Restart a worker that exits. Stop all of them when the
    supervisor stops, also if it is killed.

    A terminal sends Ctrl-C and its hangup to all processes. The workers ignore both; the supervisor passes each signal on
    once.
    """
    running: dict[int, tuple[int, float]] = {}
    ending = False
    gone, here = os.pipe()  # the workers read EOF when the supervisor exits

    def end(signum: int, frame: Any) -> None:
        nonlocal ending
        if ending and signum == HANGUP:
            return
        ending = True
        for pid in list(running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def start(worker: int) -> None:
        """Start a worker, unless the supervisor stops."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # until the child has its own handlers
        if not ending:
            pid = os.fork()
            if pid == 0:
                os.close(here)
                _work(partial(work, worker), gone)
            running[pid] = worker, time.monotonic()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)

    for each in stop_signals():
        signal.signal(each, end)
    for worker in range(workers):
        start(worker)
    failed_starts = 0
    while running:
        pid, status = os.wait()
        if pid not in running:
            continue  # a child process of an agent's code
        worker, since = running.pop(pid)
        lived = time.monotonic() - since
        if not ending:
            failed_starts = failed_starts + 1 if lived < STARTUP_SECONDS and os.WIFEXITED(status) else 0
        if not ending and failed_starts >= MAX_FAILED_STARTS:
            logger.error("workers cannot start; giving up")
            end(signal.SIGTERM, None)
        if not ending:
            logger.warning("worker %d exited; starting another one", pid)
            time.sleep(max(0.0, 1.0 - lived))  # do not loop fast if a worker cannot start
        start(worker)
    if failed_starts >= MAX_FAILED_STARTS:
        raise SystemExit(1)


def _work(work: Callable[[], None], gone: int) -> NoReturn:
    """Run as a worker, and stop with the supervisor."""
    for each in _STOP_SIGNALS:
        signal.signal(each, signal.SIG_DFL if each == signal.SIGTERM else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)

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
