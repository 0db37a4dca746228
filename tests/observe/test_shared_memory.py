"""Memory that the workers of a server share: usage of callers, connections, load, metrics."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dragoman import Agent, Turn
from dragoman.observe import shared_memory
from dragoman.observe.limit import Quota
from dragoman.observe.metrics import Metrics
from dragoman.observe.shared_memory import (
    CallerUsage,
    SharedCounters,
    SharedGauge,
    SharedReports,
    SharedSecrets,
)
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests import raw
from tests.serving import Server
from tests.waiting import until

HELLO = {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_caller_may_use_its_burst_at_once_and_then_its_rate(now: list[float]) -> None:
    usage = CallerUsage()
    slot = usage.slot("ada")
    assert [usage.take(slot, 2.0, 3) for _ in range(5)] == [0, 0, 0, 0.5, 0.5]
    now[0] += 0.5
    assert [usage.take(slot, 2.0, 3) for _ in range(2)] == [0, 0.5]
    now[0] += 100
    assert [usage.take(slot, 2.0, 3) for _ in range(4)] == [0, 0, 0, 0.5]


def test_workers_count_the_usage_of_a_caller_together(now: list[float]) -> None:
    shared = CallerUsage(2)
    one, two = shared.for_worker(0), shared.for_worker(1)
    slot = one.slot("ada")
    assert two.slot("ada") == slot
    assert [each.take(slot, 1.0, 3) for each in (one, two, one, two)] == [0, 0, 0, 1]
    one.enter(slot)
    two.enter(slot)
    assert one.active(slot) == two.active(slot) == 2


def test_a_new_worker_forgets_the_operations_of_the_worker_whose_place_it_takes() -> None:
    shared = CallerUsage(2)
    one, two = shared.for_worker(0), shared.for_worker(1)
    slot = one.slot("ada")
    one.enter(slot)
    one.enter(slot)
    two.enter(slot)
    assert shared.for_worker(0).active(slot) == 1


def test_when_the_table_is_full_the_caller_that_was_idle_longest_is_forgotten(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_MAX_CALLERS", 8)
    usage = CallerUsage()
    slots = {}
    for caller in range(1, 9):
        now[0] += 1
        slots[caller] = usage.slot(caller)
        usage.take(slots[caller], 1.0, 1)
    assert len(set(slots.values())) == 8
    usage.enter(slots[1])
    assert usage.slot(9) == slots[2]  # 1 is older, and busy
    assert all(usage.slot(caller) == slots[caller] for caller in (1, 3, 4, 5, 6, 7, 8))


def test_callers_share_a_slot_when_all_slots_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_MAX_CALLERS", 8)
    usage = CallerUsage()
    for caller in range(1, 9):
        usage.enter(usage.slot(caller))
    slot = usage.slot(9)
    usage.enter(slot)
    assert usage.active(slot) == 2
    usage.leave(slot)
    assert usage.active(slot) == 1


def test_a_gauge_is_the_sum_over_all_workers() -> None:
    shared = SharedGauge(3)
    one, two = shared.for_worker(0), shared.for_worker(1)
    one.set(4)
    two.set(3)
    one.set(2)
    assert one.total() == two.total() == 5


def test_the_gauge_of_a_new_worker_starts_at_zero() -> None:
    shared = SharedGauge(2)
    one, two = shared.for_worker(0), shared.for_worker(1)
    one.set(4)
    two.set(3)
    assert shared.for_worker(0).total() == two.total() == 3


async def test_the_queue_limit_counts_the_turns_of_all_workers() -> None:
    counters, go = SharedCounters.create(2), asyncio.Event()
    agent = Agent("Waits")

    @agent.skill
    async def wait(turn: Turn) -> str:
        await go.wait()
        return "done"

    busy, idle = [
        application(agent, store="memory:", quota=Quota(queue=1), shared_counters=counters.for_worker(each))
        for each in (0, 1)
    ]
    async with running(busy) as url, running(idle) as other, asyncio.timeout(15):
        sent = {**HELLO, "configuration": {"returnImmediately": True}}
        await raw.result(url, "SendMessage", sent)
        await until(lambda: counters.load.total)
        with pytest.raises(raw.Refused) as refused:
            await raw.result(other, "SendMessage", sent)
        assert refused.value.status == 503
        go.set()
        await until(lambda: not (counters.load.total))
        await raw.result(other, "SendMessage", HELLO)


async def test_the_connection_limit_counts_the_connections_of_all_workers(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(
        "from dragoman import Agent\nagent = Agent('A')\n@agent.skill\ndef a(x: str) -> str: return x\n"
    )
    options = ("--workers", "2", "--max-connections", "3")
    async with Server(file, store=tmp_path / "tasks.db", options=options) as server, asyncio.timeout(15):
        parts, said, wires = urlsplit(server.url), [], []
        for _ in range(5):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
            said.append((await reader.readuntil(b"\r\n\r\n"))[9:12])
            wires.append((reader, writer))
            if said[-1] == b"503":
                await reader.read(-1)  # it is gone, and counted no more
        for _, writer in wires:
            writer.close()
    assert said == [b"200", b"200", b"200", b"503", b"503"]


def test_each_worker_reads_the_last_report_of_the_others() -> None:
    one, two, three = (
        (reports := SharedReports(3)).for_worker(0),
        reports.for_worker(1),
        reports.for_worker(2),
    )
    assert one.read_own() == b"" and one.read_others() == []
    one.write(b"one")
    two.write(b"two and more")
    two.write(b"2")
    assert (one.read_own(), one.read_others(), three.read_others()) == (b"one", [b"2"], [b"one", b"2"])


def test_a_report_that_is_too_long_leaves_the_previous_one() -> None:
    reports = SharedReports(1)
    reports.write(b"before")
    reports.write(b"x" * (2 << 20))
    assert reports.read_own() == b"before"


def counted(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


OK = 'dragoman_requests_total{agent="a",dialect="1.0",operation="GetTask",outcome="OK"}'
COUNT = 'dragoman_request_seconds_count{agent="a",operation="GetTask"}'
OPEN = 'dragoman_open_streams{agent="a"}'


def count_request(metrics: Metrics) -> None:
    metrics.counts.requests["a", "GetTask", "1.0", "OK"] += 1
    metrics.counts.seconds["a", "GetTask"].add(0.002)


def test_any_worker_answers_a_scrape_for_all_workers() -> None:
    reports = SharedReports(2)
    one, two = Metrics(reports.for_worker(0)), Metrics(reports.for_worker(1))
    for metrics in (one, two, two):
        count_request(metrics)
        metrics.counts.streams[("a",)] += 1
    assert counted(one)[OK] == 1  # `two` has not reported yet; `one` has now
    assert counted(two) == counted(one)
    assert (counted(one)[OK], counted(one)[COUNT], counted(one)[OPEN]) == (3, 3, 3)


def test_a_new_worker_continues_the_counters_but_not_the_gauges_of_the_one_before() -> None:
    reports = SharedReports(2)
    one, two = Metrics(reports.for_worker(0)), Metrics(reports.for_worker(1))
    for metrics in (one, two):
        count_request(metrics)
        metrics.counts.streams[("a",)] += 1
        metrics.text()
    again = Metrics(reports.for_worker(0))
    count_request(again)
    assert (counted(again)[OK], counted(again)[OPEN]) == (3, 1)
    assert counted(Metrics(reports.for_worker(0)))[OK] == 3


def test_workers_see_each_others_secrets() -> None:
    shared = SharedCounters.create(2)
    one, two = shared.for_worker(0).secrets, shared.for_worker(1).secrets
    assert one.get("ada") == b""
    one.put("ada", b"first")
    two.put("bob", b"other")
    assert (two.get("ada"), one.get("bob")) == (b"first", b"other")
    two.put("ada", b"x" * 5000)
    assert one.get("ada") == b"x" * 5000
    one.put("ada", b"short")
    assert two.get("ada") == b"short"
    one.put("ada", b"")
    assert two.get("ada") == b"" and two.get("bob") == b"other"


def test_a_secret_that_is_too_large_is_not_shared_and_nothing_older_is_shown_instead() -> None:
    secrets = SharedSecrets()
    secrets.put("ada", b"old")
    secrets.put("ada", b"x" * 10_000)
    assert secrets.get("ada") == b""


def test_a_secret_that_is_half_written_is_not_there() -> None:
    secrets = SharedSecrets()
    secrets.put("ada", b"a secret")
    place = secrets._memory.find(b"a secret")
    secrets._memory[place : place + 4] = b"half"
    assert secrets.get("ada") == b""
    secrets.put("ada", b"whole")
    assert secrets.get("ada") == b"whole"


def test_where_all_slots_are_taken_the_oldest_secret_is_lost(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    monkeypatch.setattr(shared_memory, "_SECRET_SLOTS", shared_memory._PROBES)
    secrets = SharedSecrets()
    for n in range(shared_memory._PROBES + 1):
        now[0] += 1
        secrets.put(f"caller-{n}", b"%d" % n)
    held = [secrets.get(f"caller-{n}") for n in range(shared_memory._PROBES + 1)]
    assert held == [b"", *(b"%d" % n for n in range(1, shared_memory._PROBES + 1))]
