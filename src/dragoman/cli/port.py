"""`dragoman port PATH`: a project on a2a-sdk becomes one on `dragoman.executor`."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
    if not args.path.exists():
        raise SystemExit(f"{args.path}: no such file or folder")
    changes, imported, remarks = _port_programs(args.path)
    changes += _port_requirements(args.path, imported)
    for change in changes:
        if args.diff:
            show.say(change.diff())
        else:
            change.file.write_text(change.new, encoding="utf-8")
            show.say(f"ported  {change.file}")
    if not changes:
        show.say(f"nothing in {args.path} imports a2a-sdk")
    for remark in remarks:
        show.say(f"look at {remark}")
    return 2 if remarks else 0


class _Change(NamedTuple):
    file: Path
    old: str
    new: str

    def diff(self) -> str:
        old, new = self.old.splitlines(keepends=True), self.new.splitlines(keepends=True)
        return "".join(difflib.unified_diff(old, new, str(self.file), str(self.file))).rstrip("\n")


def _port_programs(path: Path) -> tuple[list[_Change], dict[Path, set[str]], list[str]]:
    """Python files that change, the packages that each file imports afterwards, and what needs a person."""
    from dragoman.executor.porting import imported_packages, port

    changes: list[_Change] = []
    imported: dict[Path, set[str]] = {}
    remarks: list[str] = []
    for file in _files(path, ".py"):
        try:
            old = file.read_text(encoding="utf-8")
            ported = port(old)
            imported[file] = set(imported_packages(ported.text))
        except (SyntaxError, ValueError) as error:
            remarks.append(f"{file}: not read: {error}")
            continue
        remarks += [f"{file}:{remark.line}: {remark.text}" for remark in ported.remarks]
        if ported.changed:
            changes.append(_Change(file, old, ported.text))
    return changes, imported, remarks


def _port_requirements(path: Path, imported: Mapping[Path, set[str]]) -> list[_Change]:
    """Files of requirements that change. `imported`: the packages that each Python file imports."""
    from dragoman.executor.porting import port_requirements

    changes: list[_Change] = []
    for file in [*_files(path, ".txt"), *_files(path, ".toml")]:
        if file.name == "pyproject.toml" or file.name.startswith("requirements"):
            old = file.read_text(encoding="utf-8")
            below = set().union(*(names for each, names in imported.items() if file.parent in each.parents))
            new = port_requirements(old, below, keep_sdk="a2a" in below)
            if new != old:
                changes.append(_Change(file, old, new))
    return changes


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
