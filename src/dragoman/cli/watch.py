"""Finds out which files of an agent have changed, for `dragoman dev`.

Every look compares the size and the time of each file with the look before. That needs no library, works in containers and on
network folders where file notifications do not, and sees editors that write a new file and rename it. A look at 5,000 files
takes some 50 ms, and looks take at most a tenth of the time, so large folders are looked at less often.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

MAX_FILES = 5_000
MAX_DEPTH = 12
SCAN_SECONDS = 0.25
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}

State = dict[Path, tuple[int, int]]
"""The modification time (ns) and the size of each file."""


class FileWatch:
    """Watches the Python files below `folders`, and `files` of any kind."""

    def __init__(self, folders: Iterable[Path] = (), files: Iterable[Path] = ()) -> None:
        self.folders = list(dict.fromkeys(path.resolve() for path in folders))
        self.files = {path.resolve() for path in files}
        self.cut = False
        """There are more than `MAX_FILES` files: those that were not reached are not watched, unless they are named."""
        self.pause = SCAN_SECONDS
        """How long to wait before the next scan."""
        self._before = self._scan()

    def add(self, files: Iterable[Path]) -> None:
        """Watch these, too, from now on."""
        new = {path.resolve() for path in files} - self.files
        self.files |= new
        for path in new - self._before.keys():
            if (state := _state(path)) is not None:
                self._before[path] = state

    def find_changes(self) -> list[Path]:
        """The files that were written, made or removed since the last call."""
        before, now = self._before, self._scan()
        self._before = now
        return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))

    def __len__(self) -> int:
        return len(self._before)

    def _scan(self) -> State:
        began = time.monotonic()
        found: State = {}
        self.cut = False
        for folder in self.folders:
            for path in python_files(folder):
                if len(found) >= MAX_FILES:
                    self.cut = True
                    break
                if (state := _state(path)) is not None:
                    found[path] = state
        for path in self.files:
            if path not in found and (state := _state(path)) is not None:
                found[path] = state
        self.pause = max(SCAN_SECONDS, 9 * (time.monotonic() - began))
        return found


def _state(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def python_files(folder: Path, depth: int = 0) -> Iterator[Path]:
    """The Python files below `folder`, the nearest first. Hidden folders and virtual environments are left out."""
    below: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.startswith(".") or entry.name in _SKIPPED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    below.append(Path(entry.path))
                elif entry.name.endswith(".py"):
                    yield Path(entry.path)
    except OSError:
        return
    for each in below if depth < MAX_DEPTH else ():
        if not (each / "pyvenv.cfg").exists():
            yield from python_files(each, depth + 1)


def folder_of(source: str) -> Path | None:
    """The folder to watch for a file or a module: its topmost package, or the folder that the file is in."""
    path = Path(source)
    if not path.is_file():
        top = source.partition(".")[0]
        spec = importlib.util.find_spec(top) if top.isidentifier() else None
        if spec is None:
            return None
        if spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)))
        return Path(spec.origin).parent if spec.origin else None
    folder = path.resolve().parent
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder
