"""A tenant that fills everything it may fill, while another one works: what the other one notices.

`python -m tests.hub.test_full_tenant` prints the figures.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.hub.models import Usage
from dragoman.hub.tenants.policy import Policy
from tests.hub.house import Caller, House, house

CAPS: dict[str, Any] = {
    "max_agents": 10,
    "max_versions": 3,
    "max_conversations": 10,
    "max_messages": 10,
    "max_conversation_mb": 1,
    "max_memories": 40,
    "max_artifacts": 20,
    "max_artifact_mb": 2,
    "max_scratchpads": 5,
    "max_scratchpad_mb": 1,
    "max_todos": 40,
    "max_schedules": 10,
    "tokens_per_day": 8_000,
    "reads_per_min": 600,
    "rate_per_min": 600,
    "max_concurrent": 8,
    "approve": ("/schedule",),
}
REFUSED = (413, 429)
WORK = Usage(input_tokens=80, output_tokens=20)


def reply(prompt: Any) -> Any:
    """The greedy tenant's agents write notes and want approvals; the other one's answer."""
    asked = prompt.messages[-1].content
    if "wait" in asked and "TOOL RESULTS" not in asked:
        return ("/schedule tomorrow at 09:00: again", WORK)
    return (f"answer to {asked[-40:]}", WORK)


async def fill(caller: Caller) -> Counter[int]:
    """Ask for more of everything than there is. Returns how often each status was the answer."""
    seen: Counter[int] = Counter()

    async def many(n: int, make: Callable[[int], Awaitable[Any]]) -> None:
        for i in range(n):
            seen[(await make(i)).status] += 1

    def agent(id: str, i: int) -> dict[str, Any]:
        return {"id": id, "capabilities": ["schedule"], "goal": f"{i} " + "x" * 15_000}

    async def write_agent(i: int) -> Any:
        return await caller("PUT", f"/v1/agents/a{i % 15}", agent(f"a{i % 15}", i))

    async def write_entry(i: int) -> Any:
        return await caller(
            "POST", "/v1/memory/entries", {"type": "user", "title": f"m{i}", "content": "y" * 30_000}
        )

    async def plan(i: int) -> Any:
        return await caller("POST", "/v1/schedules", {"schedule": "in 2 hours", "message": f"s{i}"})

    async def read(i: int) -> Any:
        return await caller("GET", ("/v1/requests", "/v1/agents", "/v1/memory/entries?q=m")[i % 3])

    async def wait_for_approval(i: int) -> Any:
        return await caller("POST", "/v1/orchestrate", {"message": "wait", "agent_def": agent(f"i{i}", i)})

    async def spend(i: int) -> Any:
        return await caller("POST", "/v1/orchestrate", {"message": f"spend {i}"})

    async def fill_conversation(talk: int) -> None:
        path = f"/v1/conversations/{talk}"
        await many(
            4, lambda i: caller("POST", f"{path}/artifacts", {"path": f"f{i}", "content": "z" * 300_000})
        )
        await many(8, lambda i: caller("POST", f"{path}/messages", {"message": "w" * 50_000}))

    await asyncio.gather(
        many(30, write_agent),
        many(20, lambda i: caller("POST", "/v1/conversations", {"title": f"c{i}"})),
        many(80, write_entry),
        many(80, lambda i: caller("POST", "/v1/todos", {"subject": f"t{i}"})),
        many(20, plan),
        many(200, read),
    )
    talks = [each["id"] for each in (await caller("GET", "/v1/conversations")).json.get("conversations", ())]
    await asyncio.gather(
        *(fill_conversation(talk) for talk in talks),
        many(30, wait_for_approval),
        many(30, spend),
        many(400, read),
    )
    await many(60, spend)
    return seen


async def work(hub: House, caller: Caller, until: Callable[[], bool]) -> list[float]:
    """Work as a user does, until it is enough. Returns the seconds of each round. Everything must succeed."""
    times: list[float] = []
    while not until() or len(times) < 10:
        n, began = len(times), time.perf_counter()
        talk = (await caller("POST", "/v1/conversations", {"title": f"{n}"})).json["id"]
        received = await caller.ask(f"question {n}", f"/v1/conversations/{talk}/messages")
        assert received[-1][1]["ok"], received[-1]
        assert (
            await caller("POST", "/v1/memory/entries", {"type": "user", "title": f"note {n}"})
        ).status == 201
        read = (await caller("GET", f"/v1/conversations/{talk}/messages")).json["messages"]
        assert [each["role"] for each in read] == ["user", "assistant"]
        assert (await caller("DELETE", f"/v1/conversations/{talk}")).status == 204
        found = (await caller("GET", "/v1/memory/entries?q=note&limit=200")).json["entries"]
        for each in found:
            assert each["title"].startswith("note"), "it sees its own entries only"
            await caller("DELETE", f"/v1/memory/entries/{each['id']}")
        times.append(time.perf_counter() - began)
    return times


async def compare(folder: Any) -> dict[str, Any]:
    """A tenant works alone, beside one that fills everything, and beside one that is full."""
    async with house(reply, folder=folder, **CAPS) as hub:
        good, greedy = await hub.tenant("good"), await hub.tenant("greedy")
        unlimited = {"tokens_per_day": 0, "reads_per_min": 0}
        assert (
            await hub.admin("PATCH", f"/v1/admin/tenants/{good.tenant.id}/policy", unlimited)
        ).status == 200
        limits = {"rate_per_min": 0}
        assert (await hub.admin("PATCH", f"/v1/admin/tenants/{good.tenant.id}", limits)).status == 200
        alone = await work(hub, good, lambda: True)
        filling = asyncio.create_task(fill(greedy))
        beside = await work(hub, good, filling.done)
        seen = await filling
        full = await work(hub, good, lambda: True)
        about = (await hub.admin("GET", f"/v1/admin/tenants/{greedy.tenant.id}/policy")).json
        waiting = [
            each
            for each in (await hub.hub.requests.list(greedy.tenant.id, 500))
            if (await hub.hub.snapshot(greedy.tenant, each)).state.interrupted
        ]
        return {
            "alone": alone,
            "beside": beside,
            "full": full,
            "statuses": dict(seen),
            "stored": about["stored"],
            "today": about["today"],
            "policy": about["policy"],
            "waiting": len(waiting),
        }


async def test_a_tenant_that_fills_everything_it_may_fill_leaves_others_unharmed(tmp_path: Any) -> None:
    found = await compare(tmp_path)
    stored, policy = (
        found["stored"],
        Policy(
            **{
                **found["policy"],
                **{
                    name: tuple(found["policy"][name])
                    for name in ("models", "remotes", "mcp_servers", "approve")
                },
            }
        ),
    )
    assert stored["agents"] == policy.max_agents and stored["conversations"] == policy.max_conversations
    assert stored["memories"] == policy.max_memories and stored["todos"] == policy.max_todos
    assert stored["schedules"] == policy.max_schedules
    assert stored["artifacts"] <= policy.max_artifacts
    assert stored["artifact_bytes"] <= policy.max_artifact_mb << 20
    assert stored["versions"] <= policy.max_versions * 20
    assert found["today"]["tokens"] <= policy.tokens_per_day + policy_overrun(policy)
    assert found["statuses"][413] > 0 and found["statuses"][429] > 0, "it reached its limits"
    assert set(found["statuses"]) <= {200, 201, *REFUSED}, "and was told so: nothing broke"
    assert len(found["alone"]) >= 10 and len(found["beside"]) >= 10 and len(found["full"]) >= 10


def policy_overrun(policy: Policy) -> int:
    """What may be on its way when a budget is used up: one call of each request that runs."""
    return WORK.total * CAPS["max_concurrent"]


def main() -> int:
    logging.getLogger("dragoman").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(compare(folder))
    for name in ("alone", "beside", "full"):
        times = sorted(found[name])
        ms = [1000 * statistics.median(times), 1000 * times[int(0.95 * (len(times) - 1))], 1000 * times[-1]]
        print(
            f"{name:7} {len(times):4} rounds: median {ms[0]:.0f} ms, 95 % {ms[1]:.0f} ms, longest {ms[2]:.0f} ms"
        )
    print("answers to the greedy tenant:", found["statuses"])
    print("it stores:", found["stored"], "and has", found["waiting"], "requests that wait")
    print("it used today:", found["today"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
