"""Who can talk to whom, as a table: a row for each pair, binding and version, a column for each check."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.interop.running import BINDINGS, CLIENTS, SERVERS, VERSIONS, Outcome

OURS = "dragoman"
BEGIN, END = "<!-- make interop: begin -->", "<!-- make interop: end -->"

_NAMES = {
    "a2a-js-1.3.0": "@a2a-js/sdk 1.3.0",
    "a2a-sdk-0.3.26": "a2a-sdk 0.3.26",
    "a2a-sdk-0.2.16": "a2a-sdk 0.2.16",
    "a2a-sdk-1.3.0": "a2a-sdk 1.3.0",
    "fasta2a-2.1.1": "fasta2a 2.1.1",
    "JSONRPC": "JSON-RPC",
    "GRPC": "gRPC",
}


class Pair(NamedTuple):
    """Two who talk, and how."""

    client: str
    server: str
    binding: str
    version: str


JSONRPC_ONLY = ("fasta2a-2.1.1", "a2a-sdk-0.2.16")
"""Libraries with no other binding. a2a-sdk 0.2.16 has gRPC, but finds no task there whose id has a hyphen, as all of its own."""
TO_THEM = [
    Pair(OURS, name, binding, version)
    for name in SERVERS
    for version in VERSIONS[name]
    for binding in BINDINGS
    if binding == "JSONRPC" or name not in JSONRPC_ONLY
]
FROM_THEM = [
    Pair(name, OURS, binding, version)
    for name in CLIENTS
    for version in VERSIONS[name]
    for binding in BINDINGS
    if binding == "JSONRPC" or name not in JSONRPC_ONLY
]
ALL = (*TO_THEM, *FROM_THEM)


@dataclass(frozen=True)
class Lack:
    """What a peer does not have, and why. What is left empty stands for any."""

    checks: frozenset[str]
    why: str
    peer: str = ""
    role: str = ""
    """`client` or `server`."""
    bindings: frozenset[str] = frozenset()
    version: str = ""

    def concerns(self, pair: Pair) -> bool:
        role, peer = ("server", pair.server) if pair.client == OURS else ("client", pair.client)
        return (
            self.peer in ("", peer)
            and self.role in ("", role)
            and (not self.bindings or pair.binding in self.bindings)
            and self.version in ("", pair.version)
        )

    def __str__(self) -> str:
        bindings = " and ".join(_NAMES.get(binding, binding) for binding in sorted(self.bindings))
        who = " ".join(filter(None, (_NAMES.get(self.peer, self.peer), self.role)))
        version = self.version and f"A2A {self.version}"
        where = ", ".join(filter(None, (who, version, bindings)))
        return f"{where}: {', '.join(sorted(check.replace('_', ' ') for check in self.checks))}. {self.why}"


class Matrix:
    def __init__(self) -> None:
        self._found: dict[Pair, dict[str, Outcome]] = {}
        self._lacks: list[Lack] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, pair: Pair, outcomes: list[Outcome], lacks: Iterable[Lack] = ()) -> None:
        self._found[pair] = {outcome.check: outcome for outcome in outcomes}
        self._lacks += [lack for lack in lacks if lack not in self._lacks]

    @property
    def whole(self) -> bool:
        """Whether every pair there is has been tried."""
        return set(ALL) <= self._found.keys()

    def table(self) -> str:
        """In Markdown."""
        checks = list(dict.fromkeys(check for found in self._found.values() for check in found))
        rows = [["client", "server", "binding", "A2A", *(check.replace("_", " ") for check in checks)]]
        for pair in (pair for pair in ALL if pair in self._found):
            found = self._found[pair]
            signs = [self._sign(pair, found.get(check)) for check in checks]
            rows.append([*(_NAMES.get(name, name) for name in pair), *signs])
        return align(rows)

    def _sign(self, pair: Pair, outcome: Outcome | None) -> str:
        if outcome is not None and outcome.ok:
            return "yes"
        lacked = {check for lack in self._lacks if lack.concerns(pair) for check in lack.checks}
        return "–" if outcome is not None and outcome.check in lacked else "NO"

    def text(self) -> str:
        """The table, and why there are dashes in it."""
        notes = [textwrap.fill(f"- {lack}", 120, subsequent_indent="  ") for lack in self._lacks]
        return "\n\n".join(filter(None, (self.table(), "\n".join(notes))))

    def write(self, path: Path) -> None:
        """Put it between the marks in a document."""
        write_between(path, BEGIN, END, self.text())


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two marks in a document."""
    before = path.read_text("utf-8")
    head, _, rest = before.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise ValueError(f"{path.name} has no place for the matrix: {begin} … {end}")
    after = f"{head}{begin}\nMade by `make interop`.\n\n{text}\n{end}{tail}"
    if after != before:
        path.write_text(after, "utf-8")


def align(rows: list[list[str]]) -> str:
    """A table in Markdown; the first row is its head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def display_name(name: str) -> str:
    """A library or a binding as the tables name it."""
    return _NAMES.get(name, name)
