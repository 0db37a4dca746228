"""`dragoman port PATH`: a project on a2a-sdk becomes one on `dragoman.executor`."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.cli import show
from dragoman.cli.arguments import add_command, add_flag

EPILOG = """\
PATH is a Python file, or a folder with all Python files below it, requirements*.txt and pyproject.toml. Programs for a2a-sdk
0.2, 0.3 and 1.x are understood. Imports are changed to dragoman.executor; the rest of the code stays as it is. What has no
counterpart keeps its import of a2a-sdk, and is listed with what to write instead. Clients are not
ported: write them with dragoman.connect.

  dragoman port myagent --diff            show the changes, and change nothing
  dragoman port myagent                   change the files
  dragoman serve myagent/agent.py         or start it as before: python -m myagent

Exits with 2 if something needs a person.
"""

_SKIPPED = {"node_modules", "site-packages", "__pycache__", "venv", "build", "dist"}


def register(commands: Any) -> None:
    parser = add_command(commands, "port", "rewrite a project on a2a-sdk for dragoman", EPILOG, run)
    parser.add_argument("path", type=Path, metavar="PATH", help="a Python file or a folder")
    add_flag(parser, "--diff", help="show the changes, and change nothing")


def run(args: argparse.Namespace) -> int:
    """Exit 0 if all was ported, 2 if something needs a person."""
    from dragoman.executor.porting import imported_packages, port, port_requirements

    if not args.path.exists():
        raise SystemExit(f"{args.path}: no such file or folder")
    changes: dict[Path, tuple[str, str]] = {}
    remarks: list[str] = []
    imported: dict[Path, set[str]] = {}
    """What each file imports after it was ported."""
    for file in _files(args.path, ".py"):
        try:
            old = file.read_text(encoding="utf-8")
            ported = port(old)
            imported[file] = set(imported_packages(ported.text))
        except (SyntaxError, ValueError) as error:
            remarks.append(f"{file}: not read: {error}")
            continue
        remarks += [f"{file}:{remark.line}: {remark.text}" for remark in ported.remarks]
        if ported.changed:
            changes[file] = (old, ported.text)
    for file in [*_files(args.path, ".txt"), *_files(args.path, ".toml")]:
        if file.name == "pyproject.toml" or file.name.startswith("requirements"):
            old = file.read_text(encoding="utf-8")
            below = set().union(*(names for each, names in imported.items() if file.parent in each.parents))
            new = port_requirements(old, below, keep_sdk="a2a" in below)
            if new != old:
                changes[file] = (old, new)
    for file, (old, new) in changes.items():
        if args.diff:
            lines = difflib.unified_diff(
                old.splitlines(keepends=True), new.splitlines(keepends=True), str(file), str(file)
            )
            show.say("".join(lines).rstrip("\n"))
        else:
            file.write_text(new, encoding="utf-8")
            show.say(f"ported  {file}")
    if not changes:
        show.say(f"nothing in {args.path} imports a2a-sdk")
    for remark in remarks:
        show.say(f"look at {remark}")
    return 2 if remarks else 0


def _files(path: Path, suffix: str) -> Iterator[Path]:
    """The files below a folder, without those of environments; a file is itself."""
    if path.is_file():
        if path.suffix == suffix:
            yield path
        return
    for each in sorted(path.iterdir()):
        if each.is_symlink() or each.name.startswith(".") or each.name in _SKIPPED:
            continue
        if each.is_dir():
            yield from _files(each, suffix) if not (each / "pyvenv.cfg").exists() else ()
        elif each.suffix == suffix:
            yield each
