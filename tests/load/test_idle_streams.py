"""Two thousand open streams in one process, on which nothing happens until all of them finish."""

from __future__ import annotations

import pytest

from bench.load import idle
from bench.servers import DURABLE, raise_file_limit, running

STREAMS = 2000


def test_two_thousand_idle_streams_all_finish(capsys: pytest.CaptureFixture[str]) -> None:
    if not raise_file_limit(STREAMS + 200):
        pytest.skip("the system does not let a process open so many connections")
    with running(DURABLE) as (target, pid):
        found = idle(target, conns=STREAMS, hold=0, pid=pid)
    assert found["got_first_event"] == STREAMS
    assert found["ended_early"] == 0
    assert found["finished"] == STREAMS
    with capsys.disabled():
        print(f"\n{STREAMS} idle streams: {found['rss_per_stream_kb']} KB each", end=" ")
