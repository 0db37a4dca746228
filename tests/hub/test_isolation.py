"""Two tenants, whatever they do: nothing crosses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.hub.models import Prompt
from tests.hub.house import Caller, house, message

WORDS = {"acme": "persimmon", "umbrella": "tamarind"}
"""EarlierMessage in everything that a tenant says or makes, and by nobody else."""

LISTS = (
    "/v1/agents",
    "/v1/requests",
    "/v1/conversations",
    "/v1/artifacts",
    "/v1/memory",
    "/v1/memory/helper",
    "/v1/memory/entries",
    "/v1/memory/entries?q=persimmon+tamarind",
    "/v1/memory/graph",
    "/v1/todos",
    "/v1/schedules",
    "/v1/runs",
    "/v1/agents/helper",
    "/v1/a2a/agents/helper/agent-card.json",
)

does = st.lists(
    st.tuples(
        st.sampled_from(sorted(WORDS)),
        st.sampled_from(
            [
                "agent",
                "native",
                "a2a",
                "conversation",
                "memory",
                "file",
                "todo",
                "schedule",
                "command",
            ]
        ),
    ),
    min_size=2,
    max_size=10,
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(does)
def test_a_tenant_can_neither_read_nor_change_data_of_another(deeds: list[tuple[str, str]]) -> None:
    asyncio.run(_live(deeds))


async def _live(deeds: list[tuple[str, str]]) -> None:
    async with house(_says) as hub:
        tenants = {name: await hub.tenant(name) for name in WORDS}
        made: dict[str, list[tuple[str, str]]] = {name: [] for name in WORDS}
        for n, (name, deed) in enumerate(deeds):
            made[name] += await DEEDS[deed](tenants[name], WORDS[name], n)
        for name, other in zip(WORDS, reversed(WORDS), strict=True):
            for path in LISTS:
                body = (await tenants[name]("GET", path)).body.decode()
                assert WORDS[other] not in body, (name, path, body)
            for method, path in made[other]:
                change = {"content": "x", "state": "completed"}
                if path.startswith("/v1/schedules/"):
                    change = {"status": "paused"}  # it takes nothing else
                answer = await tenants[name](method, path, change)
                assert answer.status == 404, (name, method, path, answer.status, answer.body)
            for kind, id in made[other]:
                if kind == "GET" and id.startswith("/v1/requests/") and id.count("/") == 3:
                    for method in ("tasks/get", "tasks/cancel", "tasks/resubscribe"):
                        task = id.rpartition("/")[2]
                        for agent in ("index", "helper"):
                            error = (await tenants[name].rpc(agent, method, {"id": task})).json["error"]
                            assert error["code"] == -32001
        for name in WORDS:  # and what is one's own is all still there
            for method, path in made[name]:
                if method == "GET":
                    assert (await tenants[name](method, path)).status == 200, path


def _says(prompt: Prompt) -> str:
    """Whoever is asked repeats what it was told, and what it remembers with it."""
    received = " ".join(m.content for m in prompt.messages).lower()
    if "[end" in received:
        return f"done: {received[-400:]}"
    word = next((word for word in WORDS.values() if word in received), "")
    if "please remember" in received:
        return f"/mem write {word}\n/mem shared write {word}\n/mem read\n/mem shared read\n/mem search {word}"
    return received


async def _agent(who: Caller, word: str, n: int) -> list[tuple[str, str]]:
    await who("PUT", "/v1/agents/helper", {"id": "helper", "goal": word})
    await who("PUT", f"/v1/agents/{word}", {"id": word, "goal": word})
    return [("GET", f"/v1/agents/{word}")]


async def _native(who: Caller, word: str, n: int) -> list[tuple[str, str]]:
    answer = await who("POST", "/v1/orchestrate", {"message": f"{word} {n}"}, idempotency_key=f"k{n % 2}")
    assert word.encode() in answer.body
    id = answer.headers["x-request-id"]
    return [(m, f"/v1/requests/{id}{p}") for m, p in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"))]


async def _a2a(who: Caller, word: str, n: int) -> list[tuple[str, str]]:
    task = (await who.rpc("index", "message/send", message(f"{word} {n}", id="same"))).json["result"]
    assert word in task["status"]["message"]["parts"][0]["text"]
    return [("GET", f"/v1/requests/{task['id']}"), ("GET", f"/v1/requests/{task['id']}/events")]


async def _conversation(who: Caller, word: str, n: int) -> list[tuple[str, str]]:
    id = (await who("POST", "/v1/conversations", {"title": word})).json["id"]
    await who("POST", f"/v1/conversations/{id}/messages", {"message": word})
    base = f"/v1/conversations/{id}"
    return [("GET", base), ("GET", f"{base}/messages"), ("GET", f"{base}/artifacts"), ("PATCH", base)]


async def _memory(who: Caller, word: str, n: int) -> list[tuple[str, str]]:
    entry = {"type": "project", "title": word, "content": word, "tags": [word]}
    id = (await who("POST", "/v1/memory/entries", entry)).json["id"]
    base = f"/v1/memory/entries/{id}"
    return [("GET", base), ("PATCH", base), ("POST", f"{base}/invalidate"), ("DELETE", base)]


async def _file(who: Caller, word: str, n: int) -> list[tuple[str, str]]:
    id = (await who("POST", "/v1/conversations", {})).json["id"]
    file = {"path": f"{word}.txt", "content": word}
    kept = (await who("POST", f"/v1/conversations/{id}/artifacts", file)).json["id"]
    paths = [f"/v1/artifacts/{kept}", f"/v1/conversations/{id}/artifacts/{kept}"]
    return [(m, p) for path in paths for m, p in (("GET", path), ("GET", f"{path}/raw"), ("DELETE", path))]


async def _todo(who: Caller, word: str, n: int) -> list[tuple[str, str]]:
    id = (await who("POST", "/v1/todos", {"subject": word})).json["id"]
    return [("PATCH", f"/v1/todos/{id}"), ("DELETE", f"/v1/todos/{id}")]


async def _schedule(who: Caller, word: str, n: int) -> list[tuple[str, str]]:
    made = await who("POST", "/v1/schedules", {"schedule": "every week", "message": word})
    base = f"/v1/schedules/{made.json['scheduled_task']['id']}"
    return [("GET", base), ("GET", f"{base}/runs"), ("PATCH", base), ("DELETE", base)]


async def _command(who: Caller, word: str, n: int) -> list[tuple[str, str]]:
    answer = await who("POST", "/v1/orchestrate", {"message": f"please remember {word} {n}"})
    return [("GET", f"/v1/requests/{answer.headers['x-request-id']}")]


DEEDS: dict[str, Callable[[Caller, str, int], Any]] = {
    "agent": _agent,
    "native": _native,
    "a2a": _a2a,
    "conversation": _conversation,
    "memory": _memory,
    "file": _file,
    "todo": _todo,
    "schedule": _schedule,
    "command": _command,
}
