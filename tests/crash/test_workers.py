"""Several processes on one store and one port: any of them may die, and any of them may be asked."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import raw
from tests.crash.reader import message
from tests.crash.stage import Stage
from tests.serving import Server
from tests.waiting import elapse, until, until_works

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")


def workers(stage: Stage) -> list[int]:
    pid = stage.server.pid
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_two_workers_run_tasks_of_one_store(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--workers", "2", PACE="0.01")
    async with stage.server:
        async with asyncio.TaskGroup() as group:
            for n in range(8):
                group.create_task(stage.tell(f"story {n}"))
        await stage.check()
        assert len(workers(stage)) == 2


@pytest.mark.parametrize("seed", range(2))
async def test_a_worker_that_is_killed_is_replaced_and_the_other_goes_on_with_its_tasks(
    seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    stage = Stage(tmp_path, "--workers", "2", PACE="0.05")
    async with stage.server:
        async with asyncio.TaskGroup() as group:
            for n in range(6):
                group.create_task(stage.tell(f"story {n}"))
            for _ in range(3):
                await elapse(dice.uniform(0.1, 0.3))
                stage.deaths += 1
                os.kill(dice.choice(workers(stage)), signal.SIGKILL)
        await stage.check()


async def test_a_cancel_reaches_the_worker_that_runs_the_task(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--workers", "2", PACE="600")
    async with stage.server, asyncio.timeout(8):
        begun = {**message("1"), "configuration": {"returnImmediately": True}}
        for _ in range(8):  # some of these pairs of calls go to different workers
            task = (await raw.result(stage.server.url, "SendMessage", begun))["task"]["id"]
            canceled = await raw.result(stage.server.url, "CancelTask", {"id": task})
            assert canceled["status"]["state"] == "TASK_STATE_CANCELED"


async def test_workers_do_not_outlive_their_supervisor(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--workers", "2", "--drain", "0", PACE="0.05")
    async with stage.server:
        async with asyncio.TaskGroup() as group:
            for n in range(4):
                group.create_task(stage.tell(f"story {n}"))
            await elapse(0.3)
            await stage.restart()  # returns when nobody holds its standard error: when all of them are gone
        await stage.check()


async def test_stopping_workers_release_their_tasks(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--workers", "2", "--drain", "0.05", PACE="0.1")
    async with stage.server:
        begun = {**message("4"), "configuration": {"returnImmediately": True}}
        tasks = [(await raw.result(stage.server.url, "SendMessage", begun))["task"]["id"] for _ in range(6)]
        stage.server.signal(signal.SIGTERM)
        assert await stage.server.ended() == 0
        await stage.server.start()
        for task in tasks:
            heard = raw.stream(stage.server.url, "SubscribeToTask", {"id": task}, last_event_id="0")
            events = [event async for event in heard]
            assert "TASK_STATE_COMPLETED" in str(events[-1].result)
            assert [did for did in sorted(stage.did(task)) if did != "began"] == [
                f"wait/{i}" for i in range(4)
            ]
        assert b"Traceback" not in stage.server.said


async def test_a_worker_that_drains_leaves_new_connections_to_the_other(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--workers", "2", "--drain", "5", PACE="600")
    async with stage.server, asyncio.timeout(30):
        streams = [raw.stream(stage.server.url, "SendStreamingMessage", message("1")) for _ in range(12)]
        for stream in streams:
            await anext(stream)
        leaving = workers(stage)[0]
        os.kill(leaving, signal.SIGTERM)
        ends = [asyncio.create_task(_end_of(stream)) for stream in streams]
        gone = asyncio.create_task(_until_ended(stage, leaving))  # if all of them are with the other worker
        await asyncio.wait([*ends, gone], return_when=asyncio.FIRST_COMPLETED)
        for _ in range(60):
            assert "tasks" in await raw.result(stage.server.url, "ListTasks", {"pageSize": 1})
        for task in (*ends, gone):
            task.cancel()


async def _end_of(stream: AsyncIterator[raw.StreamEvent]) -> None:
    async for _ in stream:
        pass


async def _until_ended(stage: Stage, pid: int) -> None:
    await until(lambda: pid not in workers(stage))


async def test_a_server_without_descriptors_says_so(tmp_path: Path) -> None:
    stage = Stage(tmp_path, PACE="0.01")
    stage.server.command = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", *stage.server.command]
    async with stage.server, asyncio.timeout(30):
        port = stage.server.port
        open_ = [await asyncio.open_connection("127.0.0.1", port) for _ in range(110)]
        await until(lambda: b"no file descriptors left" in stage.server.said)
        for _, writer in open_:
            writer.close()

        async def answers() -> bool:
            with suppress(OSError, AssertionError, EOFError):
                await raw.result(stage.server.url, "ListTasks", {})
                return True
            return False

        await until(answers)  # when there are some again, it goes on
        assert stage.server.said.count(b"no file descriptors left") == 1


async def test_a_second_signal_ends_all_workers_at_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--workers", "2", "--drain", "600", PACE="600")
    async with stage.server:
        streams = [raw.stream(stage.server.url, "SendStreamingMessage", message("1")) for _ in range(4)]
        for stream in streams:
            await anext(stream)
        stage.server.signal(signal.SIGINT)
        for stream in streams:
            async for _ in stream:  # ended by the drain
                pass
        stage.server.signal(signal.SIGINT)
        await stage.server.ended()


async def refused(stage: Stage, params: object) -> bool:
    try:
        await raw.call(stage.server.url, "SendMessage", params)
    except raw.Refused as refusal:
        return refusal.status == 429
    return False


@pytest.mark.parametrize("whose", ["", "agent-"])
async def test_workers_count_together(tmp_path: Path, whose: str) -> None:
    stage = Stage(tmp_path, "--workers", "2", f"--{whose}rate", "0.0001", f"--{whose}burst", "6")
    async with stage.server:
        assert [await refused(stage, message("0")) for _ in range(12)] == [False] * 6 + [True] * 6


async def test_workers_count_the_tasks_of_a_caller_together_also_those_that_are_just_begun(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, "--workers", "2", "--open-tasks", "2")
    async with stage.server:
        asks = {**message("t"), "metadata": {"skillId": "story"}}
        said = await asyncio.gather(*(refused(stage, asks) for _ in range(12)))
        assert said.count(False) == 2


async def test_workers_take_on_together_exactly_as_much_as_they_may_also_in_a_burst(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--workers", "2", "--max-running", "8", "--queue", "20", PACE="600")
    async with stage.server, asyncio.timeout(20):
        begun = {**message("1"), "configuration": {"returnImmediately": True}}
        sends = [raw.call(stage.server.url, "SendMessage", begun) for _ in range(60)]
        said = await asyncio.gather(*sends, return_exceptions=True)
        refused = [each for each in said if isinstance(each, BaseException)]
        assert all(isinstance(each, raw.Refused) and each.status == 503 for each in refused), refused
        assert len(said) - len(refused) == 20
        await until(lambda: stage.steps.read_text().count("began") >= 16)


async def test_running_requests_of_a_killed_worker_do_not_count_forever(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--workers", "2", "--concurrency", "2", PACE="600")
    async with stage.server, asyncio.timeout(15):
        sends = [asyncio.create_task(raw.call(stage.server.url, "SendMessage", message("1"))) for _ in "ab"]
        await until(lambda: stage.steps.read_text().count("began") >= 2)
        assert await refused(stage, message("0"))
        for pid in workers(stage):
            os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*sends, return_exceptions=True)
        again = {**message("0"), "configuration": {"returnImmediately": True}}
        assert not await until_works(lambda: refused(stage, again), OSError)


async def settled(stage: Stage) -> float:
    """How many tasks were completed, as the worker says that happens to be asked."""
    async with raw.post(stage.server.url + "/metrics", b"", {}, method="GET") as response:
        lines = (await raw.read(response)).decode().splitlines()
    found = [line for line in lines if line.startswith("dragoman_tasks_total{") and '"completed"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


async def test_every_worker_reports_the_metrics_of_all_workers(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--workers", "2")
    async with stage.server, asyncio.timeout(15):
        for _ in range(12):
            await raw.result(stage.server.url, "SendMessage", message("0"))

        async def counted() -> list[object]:
            return [await settled(stage) for _ in range(6)]

        await until(counted, lambda counts: counts == [12] * 6)
        os.kill(workers(stage)[0], signal.SIGKILL)
        assert [await settled(stage) for _ in range(6)] == [12] * 6


async def test_a_server_whose_workers_cannot_start_ends(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(
        "import os\nfrom dragoman import Agent\nagent = Agent('A')\n"
        "os.register_at_fork(after_in_child=lambda: os._exit(7))\n"
    )
    server = Server(file, store=tmp_path / "t.db", options=("--workers", "2"))
    await server.start()
    assert await server.ended() == 1
    assert b"workers cannot start" in server.said


async def test_a_server_that_is_stopped_while_its_workers_start_ends(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(
        "import os, signal\nfrom dragoman import Agent\nagent = Agent('A')\n"
        "signals = [signal.SIGTERM]\n"
        "os.register_at_fork(after_in_parent=lambda: signals and os.kill(os.getpid(), signals.pop()))\n"
    )
    server = Server(file, store=tmp_path / "t.db", options=("--workers", "6"))
    await server.start()
    try:
        assert await server.ended() == 0
    finally:
        await server.kill()


async def test_a_process_that_an_agents_file_has_started_may_end(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(
        "import subprocess\nfrom dragoman import Agent\nagent = Agent('A')\n"
        "@agent.skill\ndef echo(text: str) -> str: return text\n"
        "other = subprocess.Popen(['sleep', '60'])\nprint(other.pid, flush=True)\n"
    )
    server = Server(file, store=tmp_path / "t.db", options=("--workers", "2"))
    with pytest.raises(AssertionError):  # the first thing it says is not where it is
        await server.start()
    assert server.process is not None and server.process.stdout is not None
    try:
        assert server.url.encode() in await server.process.stdout.readline()
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        (other,) = [
            pid
            for pid in children.read_text().split()
            if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(int(other), signal.SIGKILL)
        await until(lambda: other not in children.read_text().split())
        assert await raw.result(server.url, "SendMessage", message("hello"))
    finally:
        await server.kill()
