"""Webhooks that fail, and a server that is killed: every notification arrives, at least once and in order."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from dragoman.model.ops import Scope
from dragoman.stores import open_store
from tests import raw
from tests.push.conftest import SCOPE, Open, PushSetup
from tests.push.counting import by_task, check_all_sent, expected, first_times
from tests.push.webhook import Answer, Notification, Receiver
from tests.serving import Server
from tests.waiting import elapse, until

AGENT = Path(__file__).parent / "agent.py"
PER_TASK = 12
"""A status when it begins, ten words, a status when it ends."""


async def begin(here: PushSetup, webhook: Receiver, count: int) -> list[str]:
    sent = [here.send("say:10", webhook=webhook, wait=False) for _ in range(count)]
    return [task.id for task in await asyncio.gather(*sent)]


async def all_told(here: PushSetup, webhook: Receiver, tasks: list[str]) -> int:
    await webhook.until(lambda: _ended(webhook.notifications) >= set(tasks))
    return await check_all_sent(here.store, SCOPE, tasks, webhook.notifications)


def _ended(received: list[Notification]) -> set[str]:
    """The tasks of which we heard the end."""
    ends = [each.document.get("statusUpdate", {}) for each in received]
    return {end["taskId"] for end in ends if end and end["status"]["state"] == "TASK_STATE_COMPLETED"}


async def test_a_webhook_that_is_down_for_a_while(setup: Open, webhook: Receiver) -> None:
    here = await setup()
    await webhook.down()
    tasks = await begin(here, webhook, 20)
    async with asyncio.timeout(10):
        await until(lambda: here.sender.outcomes["failed"] >= 3)
    assert webhook.notifications == []
    await webhook.up()
    assert await all_told(here, webhook, tasks) == 20 * PER_TASK


@pytest.mark.parametrize("seed", range(3))
async def test_a_webhook_that_comes_and_goes(setup: Open, webhook: Receiver, seed: int) -> None:
    dice, more = random.Random(seed), asyncio.Semaphore(0)

    async def answer(received: Notification) -> Answer:
        more.release()
        lot = dice.random()
        return 200 if lot < 0.7 else None if lot < 0.85 else 500

    async def flap() -> None:
        while True:
            for _ in range(dice.randint(1, 8)):
                await more.acquire()
            await webhook.down()
            await elapse(dice.uniform(0.0, 0.03))
            await webhook.up()

    webhook.answer = answer
    here = await setup()
    flapping = asyncio.create_task(flap())
    try:
        tasks = await begin(here, webhook, 10)
        assert await all_told(here, webhook, tasks) == 10 * PER_TASK
    finally:
        flapping.cancel()
        await asyncio.wait([flapping])
    assert webhook.refused


async def test_a_webhook_whose_acknowledgement_is_lost_gets_the_notification_again_with_the_same_id(
    setup: Open, webhook: Receiver
) -> None:
    heard: list[Notification] = []

    async def answer(received: Notification) -> Answer:
        heard.append(received)
        return 200 if len(heard) % 2 == 0 else None  # it dealt with it, and then the connection broke

    webhook.answer = answer
    here = await setup()
    (task,) = await begin(here, webhook, 1)
    await webhook.wait_for(PER_TASK)
    assert len(heard) == 2 * PER_TASK
    assert first_times(heard) == await expected(here.store, SCOPE, task)


async def test_a_slow_webhook(setup: Open, webhook: Receiver) -> None:
    dice = random.Random(0)
    together = most = 0

    async def answer(received: Notification) -> Answer:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await elapse(dice.uniform(0.0, 0.02))
        together -= 1
        return 200

    webhook.answer = answer
    here = await setup(per_origin=4)
    tasks = await begin(here, webhook, 10)
    assert await all_told(here, webhook, tasks) == 10 * PER_TASK
    assert most == 4


async def test_several_nodes_share_the_work_and_keep_the_order(setup: Open, webhook: Receiver) -> None:
    setups = [await setup() for _ in range(3)]
    tasks = [task for here in setups for task in await begin(here, webhook, 5)]
    assert await all_told(setups[0], webhook, tasks) == 15 * PER_TASK
    assert len(webhook.notifications) == 15 * PER_TASK  # nobody was told twice


async def test_a_stopped_server_sends_the_rest_after_its_next_start(setup: Open, webhook: Receiver) -> None:
    here = await setup()
    await webhook.down()
    tasks = await begin(here, webhook, 5)
    for task in tasks:
        await _completed(here, task)
    await here.engine.stop(drain=0.05)
    await webhook.up()
    again = await setup()
    assert await all_told(again, webhook, tasks) == 5 * PER_TASK


async def test_a_stopping_server_sends_what_it_can(setup: Open, webhook: Receiver) -> None:
    here = await setup()
    tasks = await begin(here, webhook, 5)
    await here.engine.stop(drain=5)
    assert sum(len(received) for received in by_task(webhook.notifications).values()) == 5 * PER_TASK
    assert _ended(webhook.notifications) == set(tasks)


@pytest.mark.parametrize("seed", range(2))
async def test_a_killed_server_loses_no_notification(tmp_path: Path, webhook: Receiver, seed: int) -> None:
    """SIGKILL at any moment, four times, while tasks run and their webhook comes and goes."""
    dice = random.Random(seed)
    store = tmp_path / "tasks.db"
    server = Server(AGENT, store=store, options=("--allow-private-push",), env={"PACE": "0.01"})
    count, words = 8, 20
    async with server:
        tasks = [await _begin(server, webhook, f"{seed}/{n}", words) for n in range(count)]
        for life in range(4):
            await elapse(dice.uniform(0.0, 0.15))
            if life == 2:
                await webhook.down()
            await server.kill()
            if life == 2:
                await webhook.up()
            await server.start()
        await webhook.until(lambda: _ended(webhook.notifications) >= set(tasks))
    opened = open_store(f"sqlite:///{store}")
    await opened.open()
    try:
        scope = Scope("", "told", "")
        assert await check_all_sent(opened, scope, tasks, webhook.notifications) >= count * (words + 2)
    finally:
        await opened.close()


async def test_workers_that_share_a_store_send_each_notification_once(
    tmp_path: Path, webhook: Receiver
) -> None:
    store = tmp_path / "tasks.db"
    options = ("--allow-private-push", "--workers", "2")
    async with Server(AGENT, store=store, options=options, env={"PACE": "0.002"}) as server:
        tasks = [await _begin(server, webhook, str(n), 20) for n in range(8)]
        await webhook.until(lambda: _ended(webhook.notifications) >= set(tasks))
        async with Receiver() as late:  # registered with whichever worker answers
            for task in tasks:
                config = {"taskId": task, "url": late.url}
                await raw.result(server.url, "CreateTaskPushNotificationConfig", config)
            await late.wait_for(len(tasks))
    opened = open_store(f"sqlite:///{store}")
    await opened.open()
    try:
        assert (
            await check_all_sent(opened, Scope("", "told", ""), tasks, webhook.notifications)
            == len(webhook.notifications)
            == 8 * 22
        )
    finally:
        await opened.close()


async def _begin(server: Server, webhook: Receiver, key: str, words: int) -> str:
    message = {"messageId": key, "role": "ROLE_USER", "parts": [{"text": str(words)}]}
    config = {"taskPushNotificationConfig": {"url": webhook.url}, "returnImmediately": True}
    result: Any = await raw.result(
        server.url, "SendMessage", {"message": message, "configuration": config}, idempotency_key=key
    )
    task: str = result["task"]["id"]
    return task


async def _completed(here: PushSetup, task: str) -> None:
    await until(lambda: here.store.scope(SCOPE).load(task), lambda snapshot: snapshot.terminal)
