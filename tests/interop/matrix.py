"""Who can talk to whom, as a table: a column for each pair, a row for each check."""

from __future__ import annotations

from tests.interop.running import Outcome

_SIGNS = {True: "yes", False: "NO", None: "-"}


class Matrix:
    def __init__(self) -> None:
        self._columns: dict[tuple[str, str], dict[str, Outcome]] = {}

    def __bool__(self) -> bool:
        return bool(self._columns)

    def add(self, client: str, server: str, outcomes: list[Outcome]) -> None:
        self._columns[client, server] = {outcome.check: outcome for outcome in outcomes}

    def table(self) -> str:
        """In Markdown. `-`: the peer, or its version of the protocol, does not have the operation."""
        pairs = list(self._columns)
        checks = list(dict.fromkeys(check for column in self._columns.values() for check in column))
        rows = [["client → server", *(f"{client} → {server}" for client, server in pairs)]]
        for check in checks:
            found = [self._columns[pair].get(check) for pair in pairs]
            rows.append([check.replace("_", " "), *(_SIGNS[o.ok] if o is not None else "" for o in found)])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
            for row in rows
        ]
        lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
        return "\n".join(lines)
