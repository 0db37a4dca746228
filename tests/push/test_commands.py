"""`dragoman listen` and `dragoman push`, with and without keys."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.auth.keys import KeyRing
from dragoman.cli import main
from dragoman.engine.push_configs import StoredPushConfig as Kept
from dragoman.model.ops import PushConfig
from dragoman.model.task import TaskState
from dragoman.stores import open_store
from tests import raw
from tests.conformance.conftest import SCOPE
from tests.conformance.records import chunk, mail, status
from tests.ports import free_port
from tests.serving import Server

AGENT = Path(__file__).parent / "agent.py"


@asynccontextmanager
async def listening(*options: str) -> AsyncIterator[asyncio.StreamReader]:
    """What `dragoman listen` prints, from the moment it listens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman.cli", "listen", *options, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(15):
            assert b"listening on http://127.0.0.1:" in await process.stdout.readline()
            yield process.stdout
    finally:
        process.terminate()
        await process.wait()


async def _send(server: Server, url: str, **config: str) -> str:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "3"}]}
    settings = {"taskPushNotificationConfig": {"url": url, **config}}
    result = await raw.result(server.url, "SendMessage", {"message": message, "configuration": settings})
    task: str = result["task"]["id"]
    return task


async def test_a_listener_with_the_servers_keys_prints_signed_notifications(tmp_path: Path) -> None:
    KeyRing(tmp_path / "keys").add()
    options = (
        "--allow-private-push",
        "--keys",
        str(tmp_path / "keys"),
        "--public-url",
        "https://agent.example",
    )
    server = Server(AGENT, store=tmp_path / "tasks.db", options=options)
    port = free_port()
    url = f"http://127.0.0.1:{port}/webhook"
    where = f"{server.url}/.well-known/jwks.json"
    keys = ("--jwks", where, "--issuer", "https://agent.example", "--audience", url)
    async with server, listening("--port", str(port), "--token", "t0k", "--json", *keys) as printed:
        task = await _send(server, url, token="t0k")
        lines: list[dict[str, Any]] = [json.loads(await printed.readline()) for _ in range(5)]
    assert {line["task"] for line in lines} == {task}
    assert [line["event"].get("status", {}).get("state", "") for line in lines] == [
        "TASK_STATE_WORKING",
        "",
        "",
        "",
        "TASK_STATE_COMPLETED",
    ]
    assert len({line["delivery"] for line in lines}) == 5


async def test_a_listener_prints_one_line_per_notification(tmp_path: Path) -> None:
    port = free_port()
    server = Server(AGENT, store=tmp_path / "tasks.db", options=("--allow-private-push",))
    async with server, listening("--port", str(port)) as printed:
        sending = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dragoman.cli", "send", server.url, "3", "--no-wait"),
            *("--push", f"http://127.0.0.1:{port}/"),
            stdout=asyncio.subprocess.PIPE,
        )
        task = (await sending.communicate())[0].decode().strip()
        lines = [(await printed.readline()).decode() for _ in range(5)]
    assert task and all(task in line for line in lines)
    assert "working" in lines[0] and "completed" in lines[-1]


async def _given_up(path: Path) -> int:
    """A store with a webhook that was given up, one that waits, and one that knows everything. The number of the first."""
    store = open_store(f"sqlite:///{path}")
    await store.open()
    await store.join("n1", ttl=60)
    log = store.scope(SCOPE)
    for task in ("dead", "waiting", "fine"):
        webhook = Kept(config=PushConfig(id="c", task_id=task, url=f"https://{task}.example/x?key=secret"))
        lease = (await log.create(task, "c", mail(), node="n1", webhook=webhook)).lease
        assert lease is not None
        await log.settle(lease, [chunk(), status(TaskState.COMPLETED)], mail=1)
        (delivery,) = await store.push_queue.claim_due("n1", limit=1)
        if task == "fine":
            await store.push_queue.release(delivery, 3)
        else:
            await store.push_queue.release(delivery, 1, error="HTTP 500", retry_in=100, dead=task == "dead")
    key = (await store.push_queue.find(dead=True, limit=1))[0].key
    await store.leave("n1")
    await store.close()
    return key


def test_notifications_that_failed_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(_given_up(tmp_path / "tasks.db"))
    store = f"--store=sqlite:///{tmp_path}/tasks.db"
    assert main(["push", "list", store]) == 0
    dead, waiting = capsys.readouterr().out.splitlines()
    assert dead.split("\t")[1:3] == ["dead", "https://dead.example/x"] and "given up" in dead
    assert waiting.split("\t")[1] == "waiting" and "again in" in waiting and "HTTP 500" in waiting
    assert main(["push", "list", "--dead", "--json", store]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document.items() >= {"task": "dead", "dead": True, "told": 1, "last": 3, "attempts": 1}.items()
    assert "secret" not in str(document)


@pytest.mark.parametrize("which", ["number", "--dead"])
def test_a_notification_that_was_given_up_can_be_sent_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    key = asyncio.run(_given_up(tmp_path / "tasks.db"))
    store = f"--store=sqlite:///{tmp_path}/tasks.db"
    assert main(["push", "redeliver", str(key) if which == "number" else "--dead", store]) == 0
    assert main(["push", "list", store]) == 0
    assert capsys.readouterr().out.splitlines()[0].split("\t")[4] == "due"
    assert main(["push", "redeliver", "999", store]) == 1


def test_all_events_of_a_task_can_be_sent_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(_given_up(tmp_path / "tasks.db"))
    store = f"--store=sqlite:///{tmp_path}/tasks.db"
    assert main(["push", "redeliver", "3", "--from-start", store]) == 0
    assert main(["push", "list", "--json", store]) == 0
    fine = [each for each in json.loads(capsys.readouterr().out) if each["task"] == "fine"]
    assert [(each["told"], each["last"]) for each in fine] == [(0, 3)]


def test_push_list_does_not_create_a_store(tmp_path: Path) -> None:
    for verb in (["list"], ["redeliver", "--dead"]):
        with pytest.raises(SystemExit):
            main(["push", *verb, f"--store=sqlite:///{tmp_path}/missing.db"])
    assert list(tmp_path.iterdir()) == []


async def test_a_webhook_that_answered_the_challenge_gets_signed_notifications(tmp_path: Path) -> None:
    port = free_port()
    server = Server(
        AGENT,
        options=("--allow-private-push", "--push-challenge", "--push-only", "127.0.0.1"),
        env={"DRAGOMAN_PUSH_SECRET": "s3cret"},
    )
    async with listening("--port", str(port), "--secret", "s3cret") as printed, server:
        task = await _send(server, f"http://127.0.0.1:{port}/")
        assert task.encode() in await printed.readline()
        for elsewhere in (
            "http://localhost:9/",
            f"http://127.0.0.1:{free_port()}/",
        ):  # not named; nobody there
            with pytest.raises(AssertionError):
                await _send(server, elsewhere)
