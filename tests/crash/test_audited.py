"""What a killed server had begun is in its audit, also if nobody got an answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from dragoman.stores import open_store
from dragoman.stores.audit_chain import check_chain
from tests import raw
from tests.crash.reader import BROKEN, message
from tests.crash.stage import Stage
from tests.waiting import until


async def finished(stage: Stage) -> set[str]:
    """The tasks that there are, when all of them are finished."""
    page = await until(
        lambda: raw.result(stage.server.url, "ListTasks", {}),
        lambda page: all(task["status"]["state"] == "TASK_STATE_COMPLETED" for task in page["tasks"]),
    )
    return {task["id"] for task in page["tasks"]}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(3, 8))
async def test_every_task_that_a_killed_server_leaves_is_in_its_audit(
    number: int, when: str, tmp_path: Path
) -> None:
    """The transactions of a send: the delivery, what the agent says, the settling."""
    stage = Stage(tmp_path)
    await stage.start(f"{when}:{number}")
    with suppress(*BROKEN):
        await raw.call(stage.server.url, "SendMessage", message("2"))
    await stage.restart()
    try:
        tasks = await finished(stage)
    finally:
        await stage.server.kill()
    store = open_store(f"sqlite:///{stage.store}")
    await store.open()
    entries = await store.audit.entries()
    chain = await check_chain(store.audit)
    await store.close()
    assert {entry.task for entry in entries if entry.operation in ("SendMessage", "resume")} >= tasks
    assert not chain.breaks


async def test_a_running_send_is_in_the_audit_log(tmp_path: Path) -> None:
    stage = Stage(tmp_path, PACE="0.01")
    async with stage.server:
        sending = asyncio.create_task(raw.call(stage.server.url, "SendMessage", message("100000")))
        store = open_store(f"sqlite:///{stage.store}")
        await store.open()
        entries = await until(store.audit.entries)
        await store.close()
        assert not sending.done()
        await stage.server.kill()
        with suppress(*BROKEN):
            await sending
    assert [(entry.operation, entry.outcome, bool(entry.task)) for entry in entries] == [
        ("SendMessage", "OK", True)
    ]
