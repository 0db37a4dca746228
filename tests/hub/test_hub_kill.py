"""A hub is killed (SIGKILL) in the middle of orchestrated work and started again, as often as it likes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.client.http import HttpTransport
from dragoman.dialects.sse import Frame, SseReader
from dragoman.engine.log import Step
from dragoman.errors import A2AError
from dragoman.hub.database import Database
from dragoman.hub.scratchpads import SHARED, Scratchpads
from dragoman.hub.todos import Todos
from dragoman.model.ops import ListTasks, Scope
from dragoman.stores.sqlite import SqliteStore
from tests.ports import free_port

ROOT = Path(__file__).parent.parent.parent
ADMIN = "adm_" + "1" * 64

SCRIPT = {
    "replies": {
        "Index": [
            "Asking around.\n/mem shared write begun\n/mem add entry project Looking\nall over\n/endmem\n/todo add look\n"
            "/parallel\n/agent scout look in the north\n"
            "/agent scout look in the south\n/endparallel",
            "They have looked.\n/write report.md\n# Report\nall is well\n/endwrite\n/mem shared read",
            "Everybody has looked, and all is well in the north and in the south.",
        ],
        "Scout": [
            "/agent critic is this good enough to be told to others",
            "It is quiet there, says the scout.",
        ],
        "Critic": ["It is good enough, says the critic, and so it can be told."],
    },
}
ANSWER = SCRIPT["replies"]["Index"][-1]


class Process:
    """A hub as an operator runs it."""

    def __init__(self, folder: Path, *options: str, pace: float = 0.004) -> None:
        self._folder, self._port = folder, free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        script = folder / "script.json"
        script.write_bytes(msgspec.json.encode({**SCRIPT, "pace": pace}))
        self._command = [
            sys.executable,
            "-m",
            "dragoman.cli",
            "hub",
            "--data",
            str(folder),
            "--log",
            "warning",
        ]
        self._command += ["--port", str(self._port), "--model", f"scripted:{script}", *options]

    async def start(self) -> None:
        environment = {**os.environ, "DRAGOMAN_ADMIN_TOKEN": ADMIN, "PYTHONPATH": str(ROOT / "src")}
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=self._folder, env=environment, stdout=asyncio.subprocess.DEVNULL
        )
        http = HttpTransport()
        async with asyncio.timeout(30):
            while True:
                with suppress(A2AError):
                    response = await http.request("GET", f"{self.url}/v1/health", {})
                    if await response.read() == b"ok\n":
                        break
                await asyncio.sleep(0.02)
        await http.close()

    async def stop(self) -> int:
        """As an operator does it; the exit code."""
        self._process.terminate()
        return await self._process.wait()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def call(url: str, token: str, method: str, path: str, body: Any = None) -> Any:
    http = HttpTransport()
    try:
        raw = b"" if body is None else msgspec.json.encode(body)
        response = await http.request(method, url + path, {"Authorization": f"Bearer {token}"}, raw)
        return msgspec.json.decode(await response.read())
    finally:
        await http.close()


async def listen(
    url: str, token: str, method: str, path: str, body: Any, last: str, most: int
) -> list[Frame]:
    """The events of a stream, until `done`, or until `most` of them, or until it breaks."""
    headers = {"Authorization": f"Bearer {token}", **({"Last-Event-ID": last} if last else {})}
    http, reader, heard = HttpTransport(), SseReader(), []
    try:
        raw = b"" if body is None else msgspec.json.encode(body)
        response = await http.request(method, url + path, headers, raw)
        assert response.status == 200, await response.read()
        async for chunk in response.chunks():
            heard += reader.feed(chunk)
            if len(heard) >= most or any(frame.event == "done" for frame in heard):
                break
        await response.close()
    except A2AError:
        pass
    finally:
        await http.close()
    return heard


@pytest.mark.parametrize("points", [(1, 7, 20), (3, 12, 25), (5, 16, 31)])
async def test_a_killed_hub_goes_on_and_no_model_call_and_no_command_counts_twice(
    tmp_path: Path, points: tuple[int, ...]
) -> None:
    hub = Process(tmp_path)
    await hub.start()
    try:
        token = (await call(hub.url, ADMIN, "POST", "/v1/admin/tenants", {"name": "acme"}))["token"]
        for id, name in (("scout", "Scout"), ("critic", "Critic")):
            await call(hub.url, token, "POST", "/v1/agents", {"id": id, "name": name, "goal": "look"})
        body = {"message": "look around"}
        heard = await listen(hub.url, token, "POST", "/v1/orchestrate", body, "", points[0])
        id = msgspec.json.decode(heard[0].data)["request_id"]
        for point in (*points[1:], 10_000):
            await hub.kill()
            await hub.start()
            last = [frame.id for frame in heard if frame.id][-1]
            heard += await listen(hub.url, token, "GET", f"/v1/requests/{id}/events", None, last, point)
        assert heard[0].event == "request_received" and heard[-1].event == "done"
        numbers = [int(frame.id) for frame in heard if frame.id]
        assert numbers == sorted(set(numbers)), "an event came twice, or out of order"
        done = msgspec.json.decode(heard[-1].data)
        assert done["ok"] is True and done["content"] == ANSWER
        asked = await call(hub.url, token, "GET", f"/v1/requests/{id}")
        assert asked["request"]["state"] == "completed"
        entries = await call(hub.url, token, "GET", "/v1/memory/entries")
        assert [entry["title"] for entry in entries["entries"]] == ["Looking"]
    finally:
        await hub.kill()
    steps = await recorded(tmp_path / "tasks.db")
    assert [key for key, n in Counter(steps).items() if n > 1] == []
    assert sum(key.startswith("tool/") for _, key in steps) == 4 + 2 + 2
    assert sum(key.startswith("model/") for _, key in steps) == 3 + 2 * 2 + 2 * 1
    database = Database(tmp_path / "hub.db").open()
    try:
        notes = await Scratchpads(database).read(1, SHARED)
        todos = await Todos(database).list(1)
    finally:
        database.close()
    assert notes.count("begun") == 1 and [todo.subject for todo in todos] == ["look"]


async def recorded(path: Path) -> list[tuple[str, str]]:
    """Every step on record: (task, key)."""
    store = SqliteStore(path)
    await store.open()
    out: list[tuple[str, str]] = []
    try:
        for agent in ("index", "scout", "critic"):
            log = store.scope(Scope("1", agent, "1"))
            for snapshot in (await log.find(ListTasks(), limit=100)).snapshots:
                for record in await log.read(snapshot.task_id):
                    if isinstance(record.body, Step):
                        out.append((snapshot.task_id, record.body.key))
    finally:
        await store.close()
    return out
