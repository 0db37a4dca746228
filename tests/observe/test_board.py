"""What workers tell each other, and the numbers they have counted together."""

from __future__ import annotations

from dragoman.observe.board import Board
from dragoman.observe.metrics import Metrics


def test_each_reads_what_the_others_wrote_last() -> None:
    one, two, three = (board := Board(3)).of(0), board.of(1), board.of(2)
    assert one.mine() == b"" and one.others() == []
    one.write(b"one")
    two.write(b"two and more")
    two.write(b"2")
    assert (one.mine(), one.others(), three.others()) == (b"one", [b"2"], [b"one", b"2"])


def test_what_does_not_fit_leaves_what_was_there() -> None:
    board = Board(1)
    board.write(b"before")
    board.write(b"x" * (2 << 20))
    assert board.mine() == b"before"


def counted(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


OK = 'dragoman_requests_total{agent="a",dialect="1.0",operation="GetTask",outcome="OK"}'
COUNT = 'dragoman_request_seconds_count{agent="a",operation="GetTask"}'
OPEN = 'dragoman_open_streams{agent="a"}'


def test_it_does_not_matter_who_is_asked_for_the_numbers() -> None:
    board = Board(2)
    one, two = Metrics(board.of(0)), Metrics(board.of(1))
    for metrics in (one, two, two):
        metrics.answered("a", "GetTask", "1.0", "OK", 0.002)
        metrics.stream("a", 1)
    assert counted(one)[OK] == 1  # it has not heard of the other yet, which has now heard of it
    assert counted(two) == counted(one)
    assert (counted(one)[OK], counted(one)[COUNT], counted(one)[OPEN]) == (3, 3, 3)


def test_who_takes_the_place_of_another_goes_on_with_its_numbers_but_not_with_its_streams() -> None:
    board = Board(2)
    one, two = Metrics(board.of(0)), Metrics(board.of(1))
    for metrics in (one, two):
        metrics.answered("a", "GetTask", "1.0", "OK", 0.002)
        metrics.stream("a", 1)
        metrics.text()
    again = Metrics(board.of(0))
    again.answered("a", "GetTask", "1.0", "OK", 0.002)
    assert (counted(again)[OK], counted(again)[OPEN]) == (3, 1)
    assert counted(Metrics(board.of(0)))[OK] == 3
