"""The examples of the specifications, damaged in every way, against a whole server: each is answered, and none hurts.

Over a socket, through every dialect, down to a database, with ids of tasks that exist. Nothing may hang, say 5xx, or
show what we are made of.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dragoman import Agent, Part, Turn
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests import raw
from tests.server.test_fuzz import ODD, changed, damaged
from tests.spec.examples import EXAMPLES

MANY = 1500
TOGETHER = 16
PATHS = ["/", "/", "/", "/", "/message:send", "/message:stream", "/v1/message:send", "/v1/tasks/{id}", "/tasks/{id}",
         "/tasks/{id}:cancel", "/tasks/{id}:subscribe", "/tasks", "/nothing", "/.well-known/agent-card.json"]  # fmt: skip
VERSIONS = ["", "1.0", "1.0", "0.3", "0.2", "0.2.5", "0.1", "9.9", "1", "x", "1.0, 0.3"]


def agent_of() -> Agent:
    agent = Agent("Fuzzed", description="Takes it all", input_modes=["*/*"], output_modes=["*/*"])

    @agent.skill(default=True)
    async def echo(turn: Turn) -> list[Part]:
        """Gives back what it gets, and asks if it is told to."""
        if "flight" in turn.text:
            await turn.status("thinking")
            await turn.ask("Where to?")
        return list(turn.message.parts)

    @agent.skill(reply=True)
    async def reply(text: str) -> str:
        """Answers without a task."""
        return text

    @agent.skill
    async def typed(amount: int, unit: str = "EUR") -> str:
        """Takes members of data."""
        return f"{amount} {unit}"

    return agent


class Attack:
    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._dice = random.Random(seed)
        self._ids: list[str] = ["nobody"]
        self.codes: set[int] = set()

    async def run(self) -> None:
        for _ in range(MANY // TOGETHER):
            async with asyncio.TaskGroup() as group:
                for _ in range(TOGETHER):
                    group.create_task(self._one())

    async def _one(self) -> None:
        dice = self._dice
        example = dice.choice(EXAMPLES)
        document: Any = self._with_ids(json.loads(json.dumps(example.request)))
        if dice.random() < 0.2:
            document.setdefault("params", {})["metadata"] = {
                "skillId": dice.choice(["reply", "typed", "no", 5])
            }
        for _ in range(dice.choice([0, 0, 1, 1, 2, 3])):
            if isinstance(document, dict) and document:
                document = changed(dice, document)
        path = dice.choice(PATHS).replace("{id}", quote(dice.choice(self._ids), safe=""))
        if path != "/" and isinstance(document, dict):
            document = document.get("params", document)
        body = json.dumps(document).encode()
        if dice.random() < 0.3:
            body = damaged(dice, body)
        headers = {"A2A-Version": dice.choice([example.version, dice.choice(VERSIONS)])}
        if dice.random() < 0.2:
            name = dice.choice(
                ["Last-Event-ID", "Idempotency-Key", "A2A-Extensions", "traceparent", "Accept"]
            )
            headers[name] = dice.choice(["0", "3", "999999", "-1", "x" * 300, ",;=", "nonsense"])
        method = "POST" if path == "/" else dice.choice(["POST", "GET", "DELETE", "PUT"])
        await self._send(method, path, body, {name: value for name, value in headers.items() if value})

    def _with_ids(self, document: Any) -> Any:
        """The same with ids of tasks that are there, here and there."""
        params, dice = document["params"], self._dice
        for holder, name in ((params, "id"), (params, "taskId"), (params.get("message", {}), "taskId")):
            if name in holder and dice.random() < 0.7:
                holder[name] = dice.choice(self._ids)
        if "message" in params and dice.random() < 0.1:
            params["message"][dice.choice(["taskId", "contextId", "metadata", "parts"])] = dice.choice(ODD)
        return document

    async def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        what = (method, path, body[:2000], headers)
        try:
            async with (
                asyncio.timeout(10),
                raw.post(self._url + path, body, headers, method=method) as response,
            ):
                answer = await raw.read(response)
        except TimeoutError:
            raise AssertionError(f"no answer: {what}") from None
        assert response.status < 500, (what, answer)
        assert b"Traceback" not in answer and b'File "' not in answer, what
        if path == "/" and response.status == 200:
            for document in documents(answer):
                assert document["jsonrpc"] == "2.0" and ("result" in document) != ("error" in document)
                code = document.get("error", {}).get("code", 0)
                assert code != -32603, (what, document)
                self.codes.add(code)
                self._learn(document.get("result"))

    def _learn(self, result: Any) -> None:
        if isinstance(result, dict):
            task = result.get("task", result)
            if isinstance(task, dict) and isinstance(task.get("id"), str) and len(self._ids) < 50:
                self._ids.append(task["id"])


def documents(answer: bytes) -> list[Any]:
    if answer.startswith(b"{"):
        return [json.loads(answer)]
    return [json.loads(line[6:]) for line in answer.split(b"\n") if line.startswith(b"data: ")]


@pytest.mark.parametrize("seed", range(4))
async def test_damaged_examples_do_not_hurt_a_whole_server(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with running(application(agent_of(), store=store, push=None)) as url:
        attack = Attack(url, seed)
        await attack.run()
        assert {0, -32700, -32602, -32001} <= attack.codes
        page = await raw.result(url, "ListTasks", {"pageSize": 100})
        for task in page["tasks"]:  # all that was kept can be had again
            await raw.result(url, "GetTask", {"id": task["id"]})
    wrong = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert not wrong, [record.getMessage() for record in wrong]
