"""Who can talk to whom, as a table: a row for each pair and binding, a column for each check."""

from __future__ import annotations

from tests.interop.running import Outcome

_SIGNS = {True: "yes", False: "NO", None: "–"}


class Matrix:
    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str, str], dict[str, Outcome]] = {}

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def add(self, client: str, server: str, binding: str, outcomes: list[Outcome]) -> None:
        self._pairs[client, server, binding] = {outcome.check: outcome for outcome in outcomes}

    def table(self) -> str:
        """In Markdown. A dash: the peer, or its version of the protocol, does not have the operation."""
        checks = list(dict.fromkeys(check for found in self._pairs.values() for check in found))
        rows = [["client", "server", "binding", *(check.replace("_", " ") for check in checks)]]
        for pair, found in self._pairs.items():
            signs = [_SIGNS[found[check].ok] if check in found else "" for check in checks]
            rows.append([*(name.replace("-sdk-", "-sdk ") for name in pair), *signs])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
            for row in rows
        ]
        lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
        return "\n".join(lines)
