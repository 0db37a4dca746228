"""Saves the files of an answer. They go where we were told, whatever their names say, and replace none that is there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dragoman.model.content import Part


def save_files(parts: Sequence[Part], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for n, part in enumerate(parts, 1):
        if part.raw is not None:
            path = _write(directory, _plain(part.filename) or f"file-{n}", part.raw)
            print(f"saved {path}", file=sys.stderr)


def _write(directory: Path, name: str, content: bytes) -> Path:
    """The file, under the first name that is free: `a.txt`, `a-2.txt`, `a-3.txt` ..."""
    path, n = directory / name, 1
    while True:
        try:
            with path.open("xb") as new:
                new.write(content)
            return path
        except FileExistsError:
            n += 1
            path = directory / f"{Path(name).stem}-{n}{Path(name).suffix}"


def _plain(filename: str) -> str:
    """The last piece of what an agent calls a file, if that is a name: it leads nowhere, hides nothing, and fits."""
    name = Path(filename.replace("\\", "/")).name
    return (
        name if name.isprintable() and not name.startswith((".", "-")) and len(name.encode()) <= 255 else ""
    )
