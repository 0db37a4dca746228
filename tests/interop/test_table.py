"""The table itself: a cell that is worse than expected is seen, and a document keeps what is around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.matrix import ALL, BEGIN, END, FROM_THEM, TO_THEM, Lack, Matrix
from tests.interop.running import Outcome
from tests.interop.test_matrix import hold

GOOD, BAD, ABSENT = Outcome("send", True, ""), Outcome("send", False, "no"), Outcome("send", None, "none")
LIST_0_3 = next(pair for pair in TO_THEM if pair.version == "0.3" and pair.server == "a2a-sdk-0.3.26")


@pytest.mark.parametrize("worse", [BAD, ABSENT])
def test_a_cell_that_is_worse_than_expected_fails_and_is_written_in_capitals(worse: Outcome) -> None:
    matrix = Matrix()
    with pytest.raises(AssertionError):
        hold(TO_THEM[0], [worse], matrix)
    assert "| NO " in matrix.table()


def test_a_missing_feature_of_a_peer_is_a_dash_with_a_reason() -> None:
    matrix = Matrix()
    hold(LIST_0_3, [GOOD, Outcome("list", None, "")], matrix)
    assert "| yes  | –    |" in matrix.table()
    assert "- A2A 0.3: list. " in matrix.text()


def test_a_lack_that_is_none_any_more_fails() -> None:
    with pytest.raises(AssertionError, match="more works"):
        hold(LIST_0_3, [Outcome("list", True, "")], Matrix())


def test_a_lack_concerns_the_peer_whichever_side_it_is_on() -> None:
    lack = Lack(frozenset({"send"}), "why", peer="a2a-js-1.3.0", version="0.3", bindings=frozenset({"GRPC"}))
    concerned = [pair for pair in ALL if lack.concerns(pair)]
    assert {(pair.binding, pair.version) for pair in concerned} == {("GRPC", "0.3")}
    assert sorted((pair.client, pair.server) for pair in concerned) == [
        ("a2a-js-1.3.0", "dragoman"),
        ("dragoman", "a2a-js-1.3.0"),
    ]


def test_only_a_whole_matrix_is_whole() -> None:
    matrix = Matrix()
    for pair in ALL:
        assert not matrix.whole
        matrix.add(pair, [GOOD])
    assert matrix.whole


def test_the_table_replaces_the_text_between_its_marks(tmp_path: Path) -> None:
    document = tmp_path / "interop.md"
    document.write_text(f"before\n{BEGIN}\n{END}\nafter\n", "utf-8")
    for outcome in (BAD, GOOD):
        matrix = Matrix()
        matrix.add(FROM_THEM[0], [outcome])
        matrix.write(document)
    text = document.read_text("utf-8")
    assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n")
    assert text.count(matrix.table()) == 1 and "NO" not in text


def test_a_document_without_marks_is_left_alone(tmp_path: Path) -> None:
    document = tmp_path / "interop.md"
    document.write_text("nothing here\n", "utf-8")
    with pytest.raises(ValueError, match="no place"):
        Matrix().write(document)
