"""The console of real processes: several workers, and a server that is killed and started again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from tests import raw
from tests.serving import WAIT, Server
from tests.waiting import until

TOKEN = "op_0123456789abcdef0123456789abcdef"
AGENT = """
import asyncio, os, pathlib
from dragoman import Agent, Turn

agent = Agent("Steps")
GO = pathlib.Path(os.environ["GO"])

@agent.skill
async def steps(turn: Turn):
    for n in range(3):
        await turn.step(f"s{n}", lambda: os.getpid())
        yield f"part {n} "
    if turn.text == "wait":
        while not GO.exists():
            await asyncio.sleep(0.02)
    yield "end"
"""


class Page:
    """A browser with a session, on a connection of its own for each request."""

    def __init__(self, url: str) -> None:
        self.url, self.cookie = url, ""

    def headers(self) -> dict[str, str]:
        given = {"Origin": self.url, "Sec-Fetch-Site": "same-origin"}
        return {**given, "Cookie": self.cookie} if self.cookie else given

    async def log_in(self, token: str) -> int:
        body = json.dumps({"token": token}).encode()
        async with raw.post(f"{self.url}/console/api/session", body, self.headers()) as response:
            if response.status == 204:
                self.cookie = response.headers["set-cookie"].partition(";")[0]
            return response.status

    async def get(self, path: str) -> Any:
        async with raw.post(f"{self.url}/console/api{path}", b"", self.headers(), method="GET") as response:
            document = json.loads(await raw.read(response))
            assert response.status == 200, (response.status, document)
            return document

    async def events(self, path: str, **headers: str) -> AsyncGenerator[tuple[str, int, Any], None]:
        """The event, the id and the data of each frame."""
        given = {**self.headers(), **raw.spelled(headers)}
        async with raw.post(f"{self.url}/console/api{path}", b"", given, method="GET") as response:
            assert response.status == 200, response
            event, seq = "", 0
            async for line in raw.lines(response.reader):
                name, _, value = line.decode().partition(": ")
                if name == "event":
                    event = value
                elif name == "id":
                    seq = int(value)
                elif name == "data":
                    yield event, seq, json.loads(value)
                    event, seq = "", 0


async def send(url: str, text: str) -> str:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    params = {"message": message, "configuration": {"returnImmediately": True}}
    result = await raw.result(url, "SendMessage", params, **{"A2A-Version": "1.0"})
    id: str = result["task"]["id"]
    return id


async def printed_token(server: Server) -> str:
    assert server.process is not None and server.process.stdout is not None
    async with asyncio.timeout(WAIT):
        line = (await server.process.stdout.readline()).decode()
    return line.strip().partition("#token=")[2]


def make_server(tmp_path: Path, *options: str) -> Server:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    env = {"GO": str(tmp_path / "go")}
    return Server(agent, store=tmp_path / "tasks.db", options=["--console", *options], env=env)


async def test_a_page_follows_a_task_through_a_kill_and_sees_attempt_2_and_each_event_once(
    tmp_path: Path,
) -> None:
    async with make_server(tmp_path) as server, asyncio.timeout(60):
        page = Page(server.url)
        assert await page.log_in(await printed_token(server)) == 204
        task = await send(server.url, "wait")
        (row,) = (await page.get("/tasks"))["tasks"]
        assert row["id"] == task
        seen: list[tuple[int, str]] = []
        try:
            async with aclosing(page.events(f"/tasks/{row['key']}/events")) as events:
                async for _, seq, data in events:
                    if seq:
                        seen.append((seq, data["kind"]))
                    if "part 2" in str(data):
                        await server.kill()
        except (EOFError, OSError):
            pass
        (tmp_path / "go").touch()
        await server.start()
        after = {"Last-Event-ID": str(seen[-1][0])}
        async with aclosing(page.events(f"/tasks/{row['key']}/events", **after)) as events:
            async for event, seq, data in events:
                if seq:
                    seen.append((seq, data["kind"]))
                if event == "state" and data["state"] == "TASK_STATE_COMPLETED":
                    break
        assert [seq for seq, _ in seen] == list(range(1, len(seen) + 1))
        kinds = [kind for _, kind in seen]
        assert kinds.count("attempt") == 1 and kinds.count("step") == 3
        detail = await page.get(f"/tasks/{row['key']}")
        assert detail["attempts"] == 2 and detail["records"] == len(seen)
        nodes = (await page.get("/nodes"))["nodes"]
        assert [node["self"] for node in nodes].count(True) == 1


async def test_sessions_lists_and_logs_work_on_every_worker(tmp_path: Path) -> None:
    async with make_server(tmp_path, "--workers", "2") as server, asyncio.timeout(60):
        page, token = Page(server.url), await printed_token(server)
        assert await page.log_in(token) == 204
        other = Page(server.url)
        assert [await other.log_in(token) for _ in range(6)] == [401] * 6, (
            "the token works once, on all workers"
        )

        async def nodes() -> set[str]:
            return {node["id"] for node in (await page.get("/nodes"))["nodes"] if node["self"]}

        workers: set[str] = set()

        async def look() -> int:
            workers.update(await nodes())
            return len(workers)

        await until(look, lambda found: found == 2)
        streams = [page.events("/tasks/stream") for _ in range(4)]
        first = [asyncio.ensure_future(anext(each)) for each in streams]
        while not all(each.done() for each in first):
            await send(server.url, "go")
            await asyncio.wait(first, timeout=0.3)
        assert all(each.result()[0] == "task" for each in first)
        for each in streams:
            await each.aclose()
        task = await send(server.url, "wait")
        rows = await until(
            lambda: page.get("/tasks"), lambda found: any(r["id"] == task for r in found["tasks"])
        )
        key = next(row["key"] for row in rows["tasks"] if row["id"] == task)
        live = [asyncio.ensure_future(_follow(page, key)) for _ in range(6)]
        (tmp_path / "go").touch()
        found = await asyncio.gather(*live)
        assert (
            all(each == list(range(1, len(each) + 1)) for each in found)
            and len({len(each) for each in found}) == 1
        )


async def _follow(page: Page, key: str) -> list[int]:
    """The numbers of a task's records, up to the last one of the task when it has completed."""
    numbers, last = list[int](), 0
    async with aclosing(page.events(f"/tasks/{key}/events")) as events:
        async for event, seq, data in events:
            if seq:
                numbers.append(seq)
            if event == "state" and data["state"] == "TASK_STATE_COMPLETED":
                last = data["records"]  # the first event, if the task ended before the stream began
            if last and numbers and numbers[-1] >= last:
                break
    return numbers


async def test_a_server_without_the_option_has_no_console(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    async with Server(agent, store=tmp_path / "tasks.db", env={"GO": str(tmp_path / "go")}) as server:
        async with raw.post(f"{server.url}/console/", b"", {}, method="GET") as response:
            assert response.status == 404
    assert not (tmp_path / "tasks.db-console").exists()
