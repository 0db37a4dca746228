"""Canceled stays canceled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests import raw
from tests.crash.checks import check_log
from tests.crash.reader import insist, message
from tests.crash.stage import Stage, rise


async def begin(stage: Stage, steps: int, skill: str = "patience") -> str:
    received = {
        **message(str(steps)),
        "configuration": {"returnImmediately": True},
        "metadata": {"skillId": skill},
    }
    answer = await insist(stage.server, "SendMessage", received, idempotency_key="k")
    task: str = answer["result"]["task"]["id"]
    return task


async def state(stage: Stage, task: str) -> str:
    answer = await insist(stage.server, "GetTask", {"id": task})
    word: str = answer["result"]["status"]["state"]
    return word


async def test_a_canceled_task_stays_canceled_when_the_server_is_killed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, PACE="0.01")
    async with stage.server:
        task = await begin(stage, 1000)
        canceled = await raw.result(stage.server.url, "CancelTask", {"id": task})
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        await stage.restart()
        again = await raw.result(stage.server.url, "GetTask", {"id": task})
        assert again == canceled
        done = stage.did(task)
        await raw.result(stage.server.url, "SendMessage", message("1"))  # a whole task later
        assert stage.did(task) == done
        await check_log(stage.store, task)


@pytest.mark.parametrize("number", range(2, 6))
async def test_a_cancel_that_is_killed_halfway_is_done_once_or_not_at_all(
    number: int, tmp_path: Path
) -> None:
    """The transactions around a cancel: the delivery, the cancel, the settling. A repeated cancel finds it as it is."""
    stage = Stage(tmp_path, PACE="0.01")
    await stage.server.start(DIE=f"{'before' if number % 2 else 'after'}:{number}")
    rising = asyncio.create_task(rise(stage))
    try:
        task = await begin(stage, 1000)
        answer = await insist(stage.server, "CancelTask", {"id": task})
        assert answer["result"]["status"]["state"] == "TASK_STATE_CANCELED"
        assert await state(stage, task) == "TASK_STATE_CANCELED"
        await check_log(stage.store, task)
        assert stage.deaths == 1
    finally:
        rising.cancel()
        await stage.server.kill()


async def test_a_cancel_on_record_is_settled_by_the_next_process_without_running_anything(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    async with stage.server:
        task = await begin(stage, 0, skill="stubborn")
        canceling = asyncio.create_task(insist(stage.server, "CancelTask", {"id": task}))
        async for event in raw.stream(stage.server.url, "SubscribeToTask", {"id": task}, last_event_id="0"):
            if "I will not stop" in str(event.result):
                break
        await stage.restart()
        answer = await canceling
        assert answer["result"]["status"]["state"] == "TASK_STATE_CANCELED"
        assert stage.did(task) == ["began"]
