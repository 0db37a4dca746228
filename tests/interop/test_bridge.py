"""Official clients in front of a bridge, the servers of others behind it: the checks of the matrix, in both modes.

Everything has to pass, except what `LACKS` says and why: a cell that is worse fails, and so does a lack that is none.
`make interop` writes the tables into `docs/interop.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.bridges import (
    BEGIN,
    CLIENT_WAYS,
    CROSSINGS,
    END,
    SERVER_WAYS,
    Crossing,
    CrossingLack,
    CrossingMatrix,
    Crossings,
)
from tests.interop.running import Outcome

LACKS = (
    CrossingLack(
        frozenset({"list"}), "Clients of 0.3 cannot list tasks.", role="client", versions=frozenset({"0.3"})
    ),
    CrossingLack(
        frozenset({"list"}),
        "Agents of 0.3 and 0.2 cannot list tasks, and mode `pass` keeps none.",
        mode="pass",
        role="server",
        versions=frozenset({"0.3", "0.2"}),
    ),
    CrossingLack(
        frozenset({"parts"}),
        "Files of @a2a-js/sdk have no names in 0.3 over HTTP+JSON and gRPC, and their bytes are not the base64 in base64 "
        "of the other SDKs.",
        libraries=frozenset({"a2a-js-1.3.0"}),
        versions=frozenset({"0.3"}),
        bindings=frozenset({"HTTP+JSON", "GRPC"}),
    ),
    CrossingLack(
        frozenset({"message", "multi_turn"}),
        "fasta2a has no answer without a task, and no questions.",
        role="server",
        libraries=frozenset({"fasta2a-2.1.1"}),
    ),
    CrossingLack(
        frozenset({"list", "cancel"}),
        "fasta2a does not list tasks, and answers a cancel before the task is canceled.",
        mode="pass",
        role="server",
        libraries=frozenset({"fasta2a-2.1.1"}),
    ),
    CrossingLack(
        frozenset({"cancel"}),
        "a2a-sdk 0.2.16 answers every send only when the task stops.",
        mode="pass",
        role="server",
        libraries=frozenset({"a2a-sdk-0.2.16"}),
    ),
)


def named(crossing: Crossing) -> str:
    return f"{crossing.mode}-{crossing.client.name}-to-{crossing.server.name}"


@pytest.fixture(scope="module")
def crossings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Crossings]:
    """The bridge, the servers, and the clients of all crossings that are selected, while they run."""
    wanted: list[Any] = [
        item.callspec.params["crossing"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "crossings" in item.fixturenames
    ]
    with Crossings(wanted, tmp_path_factory.mktemp("bridge")).running() as running:
        yield running


@pytest.mark.interop
@pytest.mark.parametrize("crossing", CROSSINGS, ids=named)
def test_every_check_passes_through_a_bridge(
    crossing: Crossing, crossings: Crossings, crossing_matrix: CrossingMatrix
) -> None:
    crossing_matrix.lacks = list(LACKS)
    crossing_matrix.add(crossing, crossings.found(crossing))
    assert crossing_matrix.wrong(crossing) == {}
    assert crossing_matrix.better(crossing) == [], "more works than LACKS says"


# --- the table itself

GOOD, BAD = Outcome("send", True, ""), Outcome("send", False, "no")
FIRST = CROSSINGS[0]
RACE = CrossingLack(frozenset({"send"}), "Two race.", role="server", sometimes=True)
NEVER = CrossingLack(
    frozenset({"send"}), "It has none.", role="client", libraries=frozenset({FIRST.client.library})
)


def test_every_client_meets_every_server_in_both_modes() -> None:
    assert len(CROSSINGS) == 2 * len(CLIENT_WAYS) * len(SERVER_WAYS) == len(set(CROSSINGS))


def test_a_crossing_that_is_worse_than_its_lacks_is_written_in_capitals() -> None:
    matrix = CrossingMatrix()
    matrix.add(FIRST, [BAD])
    assert matrix.wrong(FIRST) == {"send": "no"} and "| NO " in matrix.table(FIRST.mode)
    assert "NO" not in matrix.table("pass")


def test_a_lack_is_a_number_with_a_reason_and_may_not_be_none() -> None:
    matrix = CrossingMatrix([NEVER])
    matrix.add(FIRST, [BAD])
    assert matrix.wrong(FIRST) == {} and matrix.better(FIRST) == []
    assert "| – 1 " in matrix.text() and "1. send: It has none." in matrix.text()
    matrix.add(FIRST, [GOOD])
    assert matrix.better(FIRST) == ["send"]


@pytest.mark.parametrize("outcome", [GOOD, BAD])
def test_what_sometimes_works_may_do_both(outcome: Outcome) -> None:
    matrix = CrossingMatrix([RACE])
    matrix.add(FIRST, [outcome])
    assert matrix.wrong(FIRST) == {} and matrix.better(FIRST) == []


def test_the_tables_replace_the_text_between_their_marks(tmp_path: Path) -> None:
    document = tmp_path / "interop.md"
    document.write_text(f"before\n{BEGIN}\n{END}\nafter\n", "utf-8")
    matrix = CrossingMatrix()
    matrix.add(FIRST, [GOOD])
    assert not matrix.whole
    matrix.write(document)
    text = document.read_text("utf-8")
    assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n") and "| yes " in text
