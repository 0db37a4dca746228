"""A hub that is told to stop (SIGTERM) while a request runs and a client listens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.hub.killing import ADMIN, Process, call, listen
from tests.hub.test_hub_kill import ANSWER, SCRIPT


@pytest.mark.timeout(60)
@pytest.mark.parametrize("drain", ["0", "30"], ids=["at-once", "when-done"])
async def test_a_hub_that_stops_loses_no_request(drain: str, tmp_path: Path) -> None:
    hub = Process(tmp_path, {**SCRIPT, "pace": 0.03}, "--drain", drain)
    await hub.start()
    try:
        made = await call(hub.url, ADMIN, "POST", "/v1/admin/tenants", {"name": "acme"})
        token = made["token"]
        for name in ("Scout", "Critic"):
            await call(hub.url, token, "POST", "/v1/agents", {"id": name.lower(), "name": name})
        begun = asyncio.Event()
        listening = asyncio.create_task(
            listen(hub.url, token, "POST", "/v1/orchestrate", {"message": "look"}, "", 10_000, begun)
        )
        async with asyncio.timeout(20):
            await begun.wait()
            request = (await call(hub.url, token, "GET", "/v1/requests"))["requests"][0]["request_id"]
            assert await hub.stop() == 0
            heard = await listening
        assert heard[0].event == "request_received" and heard[-1].event != "done"
        await hub.start()
        if drain != "0":
            assert (await call(hub.url, token, "GET", f"/v1/requests/{request}"))["request"][
                "state"
            ] == "completed"
        last = next(frame.id for frame in reversed(heard) if frame.id)
        path = f"/v1/requests/{request}/events"
        heard += await listen(hub.url, token, "GET", path, None, last, 10_000)
        done = msgspec.json.decode(heard[-1].data)
        assert heard[-1].event == "done" and done["ok"] and done["content"] == ANSWER
        numbers = [int(frame.id) for frame in heard if frame.id]
        assert numbers == sorted(set(numbers))
    finally:
        await hub.kill()
