"""What a hub and a server do in the background goes on, whatever goes wrong once."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from dragoman.buses.local import LocalBus
from dragoman.cli import main
from dragoman.engine import follow
from dragoman.engine.engine import Engine
from dragoman.errors import Unavailable, keep_going
from dragoman.hub.conversations.retention import Retention
from dragoman.hub.sandbox.container import ContainerIsolation
from dragoman.observe import metrics
from dragoman.stores import open_store
from tests.hub.house import events, house

log = logging.getLogger("dragoman.test")


class Stumbles:
    """Fails with each of some errors in turn, then does what it stands for, and says that it did."""

    def __init__(self, work: Any, *errors: BaseException) -> None:
        self._work, self._errors, self.did = work, list(errors), asyncio.Event()

    def __call__(self, *given: Any, **more: Any) -> Any:
        if self._errors:
            raise self._errors.pop(0)
        self.did.set()
        return self._work(*given, **more)


ERRORS = (ValueError("once"), RuntimeError("twice"), asyncio.CancelledError("from inside"), KeyError("more"))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of rest after a failure are none here."""
    rest = asyncio.sleep

    async def sleep(seconds: float, result: Any = None) -> Any:
        return await rest(min(seconds, 0.01), result)

    monkeypatch.setattr("asyncio.sleep", sleep)


async def test_disabling_a_tenant_from_the_shell_works_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with house([("word\n", asyncio.Event())], folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        database = hub.hub.database
        monkeypatch.setattr(database, "version", Stumbles(database.version, *ERRORS))
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        silence = Stumbles(hub.hub.stop_tenant, Unavailable("the store is away"), ValueError("broken"))
        monkeypatch.setattr(hub.hub._watch, "_stop_tenant", silence)
        assert await asyncio.to_thread(main, ["tenant", "disable", "acme", "--data", str(tmp_path)]) == 0
        assert events(await live.end())[-1][1]["error_code"] == "cancelled"
        assert silence.did.is_set() and hub.hub._watch.periodic.running
    said = [record.getMessage() for record in caplog.records]
    assert any("checking tenants for changes failed, and continues" in line for line in said)
    assert any("stopping what runs for tenant 1: the store is away" in line for line in said)


async def test_a_task_that_cannot_be_canceled_is_tried_again_and_the_others_are_canceled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holds = [asyncio.Event(), asyncio.Event()]
    async with house([("word\n", hold) for hold in holds]) as hub:
        acme = await hub.tenant("acme")
        live = [acme.open("POST", "/v1/orchestrate", {"message": "go"}) for _ in holds]
        for each in live:
            await each.until(lambda each=each: b"word" in each.body)  # type: ignore[misc]
        monkeypatch.setattr(hub.hub, "_cancel", Stumbles(hub.hub._cancel, Unavailable("away")))
        path = f"/v1/admin/tenants/{acme.tenant.id}"
        rotated = await hub.admin("POST", f"{path}/rotate-token")
        assert rotated.status == 200 and rotated.json["token"].startswith("atr_"), "the token is not lost"
        for each in live:
            assert events(await each.end())[-1][1]["ok"] is False


async def test_retention_goes_on_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house() as hub:
        forgets = Retention(hub.hub, 1.0)
        look = Stumbles(forgets.delete_batch, *ERRORS)
        monkeypatch.setattr(forgets, "delete_batch", look)
        forgets.periodic.start()
        await asyncio.wait_for(look.did.wait(), 10)
        await forgets.periodic.stop()


async def test_idle_containers_are_removed_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    container = ContainerIsolation("img", idle=0.001)
    reap = Stumbles(container.remove_idle, *ERRORS)
    monkeypatch.setattr(container.periodic, "_work", reap)
    container.periodic.start()
    await asyncio.wait_for(reap.did.wait(), 10)
    await container.close()


async def test_an_engine_purges_old_tasks_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory:")
    engine = Engine(store, LocalBus(), lambda scope: None)
    purge = Stumbles(store.purge, *ERRORS)
    monkeypatch.setattr(store, "purge", purge)
    await engine.start(retain=1.0)
    await asyncio.wait_for(purge.did.wait(), 10)
    await engine.stop(0)


async def test_readers_are_polled_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.001)
    readers = follow.Readers(open_store("memory:"), LocalBus())
    wake = Stumbles(readers.wake_behind, *ERRORS)
    monkeypatch.setattr(readers, "wake_behind", wake)
    polling = asyncio.create_task(readers.poll())
    await asyncio.wait_for(wake.did.wait(), 10)
    polling.cancel()


async def test_workers_share_their_numbers_after_an_unexpected_error() -> None:
    class Reports:
        write = Stumbles(lambda data: None, *ERRORS)

    numbers = metrics.Metrics()
    numbers._reports = Reports()  # type: ignore[assignment]
    task = asyncio.create_task(numbers.share())
    await asyncio.wait_for(Reports.write.did.wait(), 10)
    task.cancel()


async def test_a_loop_ends_when_it_is_cancelled_and_only_then() -> None:
    rounds, begun = 0, asyncio.Event()

    async def loop() -> None:
        nonlocal rounds
        while True:
            with keep_going(log, "counting"):
                rounds += 1
                if rounds == 1:
                    raise asyncio.CancelledError
                begun.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(loop())
    await asyncio.wait_for(begun.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rounds == 2
