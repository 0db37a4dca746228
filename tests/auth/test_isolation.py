"""Two principals: operations of one do not affect the other.

The same things are done by the victim twice: alone, and while an attacker does whatever it likes in between, knowing
every id, context, page token and push config of the victim's. What the victim sees must be the same both times, and
what the attacker sees must not hold a word of the victim's.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman import Agent, Turn
from dragoman.auth import Bearer, Holder, hashed
from dragoman.engine.records import topic
from dragoman.model.ops import Scope
from dragoman.server.application import application
from tests.auth.people import NO_ONE_LISTENS, PUSH
from tests.server.wire import Answer, open_rpc, request, rpc

VICTIM, ATTACKER = "victim-token", "attacker-token"
WORD = "confidential"
"""In everything that the victim says."""

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


class Step(NamedTuple):
    attack: bool
    op: str
    which: int
    """Which of the known tasks; the attacker knows everybody's."""
    key: str = ""


OPS = (
    "send", "send old", "continue", "continue old", "in context", "stream", "get", "get old", "get http", "list", "list http",
    "next page", "cancel", "cancel http", "resubscribe", "push", "push get", "push list", "push delete", "extended",
)  # fmt: skip

steps = st.lists(
    st.builds(
        Step, st.booleans(), st.sampled_from(OPS), st.integers(0, 3), st.sampled_from(["", "", "same-key"])
    ),
    min_size=2,
    max_size=14,
)


tenants = st.sampled_from(["acme", "umbrella", ""])
"""The attacker's; the victim is with acme."""


def keeper(attackers_tenant: str) -> Agent:
    agent = Agent(
        "Keeper",
        auth=[
            Bearer(
                {
                    "victim": Holder(secret=hashed(VICTIM), tenant="acme"),
                    "attacker": Holder(secret=hashed(ATTACKER), tenant=attackers_tenant),
                }
            )
        ],
        extended_card=lambda principal: [],
    )

    @agent.skill
    async def keep(turn: Turn) -> str:
        text = turn.text
        return f"{text} and {await turn.ask(f'{text}. And then?')}"

    return agent


class Play:
    """One run of a list of steps against a server of its own."""

    def __init__(self, store: str, attackers_tenant: str) -> None:
        self._app = application(keeper(attackers_tenant), store=store, push=PUSH)
        self.tasks: dict[bool, list[str]] = {True: [], False: []}
        self.contexts: dict[bool, list[str]] = {True: [], False: []}
        self.pushes: dict[bool, list[str]] = {True: [], False: []}
        self.tokens: dict[bool, list[str]] = {True: [], False: []}
        self.seen: dict[bool, list[str]] = {True: [], False: []}

    async def run(self, steps: Sequence[Step]) -> None:
        try:
            for step in steps:
                answer = await self._do(step, len(self.seen[step.attack]))
                self._learn(step.attack, answer.body.decode())
                self.seen[step.attack].append(answer.body.decode())
        finally:
            await self._app.stop()

    def victims_view(self) -> list[Any]:
        names: dict[str, str] = {}

        def named(match: re.Match[str]) -> str:
            return names.setdefault(match[0], f"id-{len(names)}")

        return [_unordered(_TIME.sub("time", _ID.sub(named, body))) for body in self.seen[False]]

    def _pick(self, what: dict[bool, list[str]], step: Step) -> str:
        """Something of one's own; the attacker takes the victim's where there is one."""
        listed = (what[False] + what[True]) if step.attack else what[False]
        return listed[step.which % len(listed)] if listed else "nothing"

    async def _do(self, step: Step, n: int) -> Answer:
        text = f"attack {n}" if step.attack else f"{WORD} {n}"
        task, token = self._pick(self.tasks, step), ATTACKER if step.attack else VICTIM
        headers = {"Authorization": f"Bearer {token}"}
        if step.key:
            headers["Idempotency-Key"] = step.key
        # The attacker says it is of the victim's tenant.
        claim = {"tenant": "acme"} if step.attack else {}
        new, old = {**headers, "A2A-Version": "1.0"}, headers
        match step.op:
            case "send":
                return await rpc(self._app, "SendMessage", {**_message(text), **claim}, headers=new)
            case "send old":  # its clients choose the ids of tasks; the attacker takes the victim's
                known = self._pick(self.tasks, step)
                chosen = known if step.attack and known != "nothing" else f"chosen-{step.which}"
                return await rpc(self._app, "tasks/send", _old(text, chosen), headers=old)
            case "continue":
                return await rpc(
                    self._app, "SendMessage", {**_message(text, taskId=task), **claim}, headers=new
                )
            case "continue old":
                return await rpc(self._app, "tasks/send", _old(text, task), headers=old)
            case "in context":
                context = self._pick(self.contexts, step)
                return await rpc(self._app, "SendMessage", _message(text, contextId=context), headers=new)
            case "stream":
                params = _message(text, taskId=task)
                params["message"] |= {
                    "role": "user",
                    "kind": "message",
                    "parts": [{"kind": "text", "text": text}],
                }
                return await open_rpc(self._app, "message/stream", params, headers=old).end()
            case "resubscribe":
                return await open_rpc(
                    self._app, "tasks/resubscribe", {"id": task}, headers={**old, "A2A-Version": "0.3"}
                ).end()
            case "get":
                return await rpc(self._app, "GetTask", {"id": task, **claim}, headers=new)
            case "get old":
                return await rpc(self._app, "tasks/get", {"id": task, "historyLength": 9}, headers=old)
            case "get http":
                return await request(
                    self._app, "GET", f"/acme/tasks/{task}" if claim else f"/tasks/{task}", headers=new
                )
            case "list":
                wanted = {"contextId": self._pick(self.contexts, step)} if step.which % 2 else {}
                return await rpc(self._app, "ListTasks", {**wanted, **claim, "pageSize": 100}, headers=new)
            case "list http":
                return await request(self._app, "GET", "/tasks", query="pageSize=100", headers=new)
            case "next page":
                page = self._pick(self.tokens, step) if self.tokens[False] else ""
                return await rpc(self._app, "ListTasks", {"pageSize": 1, "pageToken": page}, headers=new)
            case "cancel":
                return await rpc(self._app, "CancelTask", {"id": task, **claim}, headers=new)
            case "cancel http":
                return await request(self._app, "POST", f"/tasks/{task}:cancel", b"{}", headers=new)
            case "push":
                config = {
                    "taskId": task,
                    "url": f"{NO_ONE_LISTENS}?{'x' if step.attack else WORD}",
                    "id": "mine",
                }
                return await rpc(self._app, "CreateTaskPushNotificationConfig", config, headers=new)
            case "push get":
                return await rpc(
                    self._app, "GetTaskPushNotificationConfig", {"taskId": task, "id": "mine"}, headers=new
                )
            case "push list":
                return await rpc(self._app, "ListTaskPushNotificationConfigs", {"taskId": task}, headers=new)
            case "push delete":
                return await rpc(
                    self._app, "DeleteTaskPushNotificationConfig", {"taskId": task, "id": "mine"}, headers=new
                )
        return await rpc(self._app, "GetExtendedAgentCard", headers=new)

    def _learn(self, attack: bool, body: str) -> None:
        for member, known in (
            ("id", self.tasks),
            ("taskId", self.tasks),
            ("contextId", self.contexts),
            ("sessionId", self.contexts),
            ("nextPageToken", self.tokens),
        ):
            for value in re.findall(rf'"{member}":"([^"]+)"', body):
                if value not in known[attack] and (
                    member != "id" or _ID.fullmatch(value) or value.startswith("chosen-")
                ):
                    known[attack].append(value)


def _message(text: str, **more: str) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}], **more}}


def _old(text: str, task: str) -> dict[str, Any]:
    return {"id": task, "message": {"role": "user", "parts": [{"type": "text", "text": text}]}}


def _unordered(body: str) -> Any:
    """Tasks of one millisecond have no order of their own, and a page token says when it was made."""
    try:
        document = json.loads(body)
    except ValueError:
        return body  # an event stream
    page = document.get("result") or document if isinstance(document, dict) else None
    if isinstance(page, dict) and "nextPageToken" in page:
        return len(page["tasks"]), page["totalSize"], bool(page["nextPageToken"])
    return document


async def check(store: str, other: str, tenant: str, steps: list[Step]) -> None:
    together, alone = Play(store, tenant), Play(other, tenant)
    async with asyncio.timeout(20):
        await together.run(steps)
        await alone.run([step for step in steps if not step.attack])
    assert together.victims_view() == alone.victims_view()
    heard = "".join(together.seen[True])
    assert WORD not in heard


@given(tenant=tenants, steps=steps)
@settings(max_examples=120)
async def test_operations_of_one_principal_do_not_affect_another(tenant: str, steps: list[Step]) -> None:
    await check("memory:", "memory:", tenant, steps)


@given(tenant=tenants, steps=steps)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_operations_of_one_principal_do_not_affect_another_on_disk(
    tmp_path: Path, tenant: str, steps: list[Step]
) -> None:
    for n in range(2):
        for file in tmp_path.glob(f"{n}.db*"):
            file.unlink()
    await check(f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/1.db", tenant, steps)


words = st.text("ab/%2F\x00é", max_size=4)


@given(st.tuples(words, words, words, words), st.tuples(words, words, words, words))
def test_no_two_tasks_share_a_topic(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    topics = {topic(Scope(*words[:3]), words[3]) for words in (one, other)}
    assert len(topics) == len({one, other})


@pytest.mark.parametrize("owner", ["x", "x/y"])
async def test_an_id_with_a_slash_does_not_lead_to_another_owners_stream(owner: str) -> None:
    """0.1 lets clients choose ids: `x` calls a task `y/z`, and `x/y` has a task `z`."""
    agent = Agent("A", auth=[Bearer({"x": hashed("one"), "x/y": hashed("two")})])

    @agent.skill
    async def keep(turn: Turn) -> str:
        return f"{turn.text} and {await turn.ask('And then?')}"

    app = application(agent, store="memory:", push=PUSH)
    one, two = ({"Authorization": f"Bearer {token}"} for token in ("one", "two"))
    await rpc(app, "tasks/send", _old("mine", "y/z"), headers=one)
    await rpc(app, "tasks/send", _old("yours", "z"), headers=two)
    reader, id, other, theirs = (one, "y/z", two, "z") if owner == "x" else (two, "z", one, "y/z")
    stream = open_rpc(app, "SubscribeToTask", {"id": id}, headers={**reader, "A2A-Version": "1.0"})
    await stream.until(lambda: bool(stream.sends))
    await rpc(app, "tasks/cancel", {"id": theirs}, headers=other)
    await rpc(app, "tasks/send", _old("done", id), headers=reader)
    await stream.end()
    assert b"done" in stream.body and b"CANCELED" not in stream.body
    await app.stop()
