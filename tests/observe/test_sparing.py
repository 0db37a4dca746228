"""An audit that is asked to write down very many strangers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dragoman import Agent
from dragoman.auth import Bearer, hashed
from dragoman.engine.protocols import AuditEntry
from dragoman.observe.sparing import Sparing
from dragoman.server.application import application
from dragoman.server.runtime import running
from dragoman.stores import open_store
from dragoman.stores.memory_audit import MemoryAudit
from tests import raw


def stranger(n: int = 0, **more: Any) -> AuditEntry:
    return AuditEntry(
        **{"at": f"{n:03}", "operation": "authenticate", "outcome": "UNAUTHENTICATED", "agent": "a", **more}
    )


async def outcomes(audit: Sparing, **asked: Any) -> list[str]:
    return [entry.outcome for entry in reversed(await audit.entries(limit=1000, **asked))]


async def test_the_first_strangers_are_written_down_and_the_rest_are_counted() -> None:
    audit = Sparing(MemoryAudit(), most=2)
    for n in range(7):
        audit.record(stranger(n))
    assert await outcomes(audit) == ["UNAUTHENTICATED"] * 2
    audit.close()
    assert await outcomes(audit) == ["UNAUTHENTICATED"] * 2 + ["UNAUTHENTICATED, 5 more"]
    audit.record(stranger())
    assert (await outcomes(audit))[-1] == "UNAUTHENTICATED"


async def test_the_count_is_written_down_when_the_minute_is_over_also_if_nobody_comes_any_more() -> None:
    audit = Sparing(MemoryAudit(), most=1, seconds=0.01)
    for n in range(3):
        audit.record(stranger(n))
    async with asyncio.timeout(10):
        while "UNAUTHENTICATED, 2 more" not in await outcomes(audit):
            await asyncio.sleep(0.005)


async def test_strangers_of_one_agent_do_not_hide_those_of_another_nor_what_others_do() -> None:
    audit = Sparing(MemoryAudit(), most=1)
    for n in range(5):
        audit.record(stranger(n))
    audit.record(stranger(agent="b"))
    audit.record(stranger(outcome="PERMISSION_DENIED"))
    for _ in range(5):
        audit.record(AuditEntry(at="", operation="SendMessage", outcome="OK", principal="ada"))
    assert await outcomes(audit) == ["UNAUTHENTICATED"] * 2 + ["PERMISSION_DENIED"] + ["OK"] * 5


async def test_a_server_writes_down_how_many_there_were_before_it_goes(tmp_path: Path) -> None:
    agent = Agent("A", auth=[Bearer({"ada": hashed("token")})])
    url = f"sqlite:///{tmp_path / 't.db'}"
    async with running(application(agent, store=url)) as here:
        for _ in range(65):
            async with raw.post(here, b"{}", {}) as response:
                assert response.status == 401
    store = open_store(url)
    await store.open()
    entries = await store.audit.entries(operation="authenticate", limit=1000)
    await store.close()
    assert len(entries) == 61 and entries[0].outcome == "UNAUTHENTICATED, 5 more"
