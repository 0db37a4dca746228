"""A terminal for tests: a program runs on a pseudo-terminal, and a screen model says what a person would see."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyte


class Terminal:
    """Runs `dragoman WORDS` on a terminal of its own."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        columns: int = 80,
        lines: int = 50,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.bytes = b""
        self._ours, theirs = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": str(lines)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dragoman.cli", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**env, **(environment or {})},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(theirs)

    @property
    def lines(self) -> list[str]:
        """What is on the screen, without the empty lines at its end."""
        lines = [line.rstrip() for line in self._screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, text: str, *, seconds: float = 60) -> None:
        """Read until the screen shows `text`."""
        end = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < end and self._read(end), f"never saw {text!r} in:\n{self.text}"

    def end(self, *, seconds: float = 60) -> int:
        """Read until the program has ended. Returns its exit status."""
        end = time.monotonic() + seconds
        while self._read(end):
            assert time.monotonic() < end, f"still running:\n{self.text}"
        os.close(self._ours)
        return self.process.wait(timeout=10)

    def _read(self, end: float) -> bool:
        """Show what the program has written. False when it will write no more."""
        ready, _, _ = select.select([self._ours], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return True
        try:
            found = os.read(self._ours, 65536)
        except OSError:  # Linux says so when the last program on the terminal has ended
            return False
        self.bytes += found
        self._stream.feed(found)
        return bool(found)
