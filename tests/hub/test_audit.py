"""Who did what to which task, in a hub: it is on record, whichever way it came in."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dragoman.client import connect
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import Unauthenticated
from tests.hub.house import Caller, House, house, message
from tests.waiting import until


async def recorded(hub: House) -> list[tuple[str, str, str, str]]:
    """Oldest first: whose, what, with which agent, and how it ended."""
    entries = await hub.hub.store.audit.entries()
    return [(entry.principal, entry.operation, entry.agent, entry.outcome) for entry in reversed(entries)]


async def test_messages_of_a_tenant_are_audited_for_both_apis() -> None:
    async with house(["one", "two", "three"]) as hub:
        acme = await hub.tenant("acme")
        key = f"{acme.tenant.key}/default"
        await acme.rpc("index", "message/send", message("hello"))
        await acme.ask("hello")
        await acme.rpc("index", "tasks/cancel", {"id": "nobody's"})
        wanted = [
            (key, "SendMessage", "index", "OK"),
            (key, "SendMessage", "index", "OK"),
            (key, "CancelTask", "index", "TASK_NOT_FOUND"),
        ]
        await until(lambda: recorded(hub), lambda entries: entries == wanted)
        tasks = [entry.task for entry in await hub.hub.store.audit.entries(operation="SendMessage")]
        assert len(set(tasks)) == 2 and all(tasks)


async def test_tasks_that_an_administrator_stops_are_audited_with_the_administrator() -> None:
    hold = asyncio.Event()
    async with house([("one", hold)]) as hub:
        acme = await hub.tenant("acme")
        asking = asyncio.create_task(acme.ask("hello"))
        await until(lambda: hub.model.prompts)  # before its run begins, there is nothing to cancel
        await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}", {"disabled": True})
        await until(lambda: recorded(hub), lambda entries: ("admin", "CancelTask", "index", "OK") in entries)
        await asking


async def test_failed_authentications_are_audited_with_a_limit() -> None:
    async with house([]) as hub:
        stranger = Caller(hub.app, "atr_wrong")
        for _ in range(100):
            assert (await stranger("GET", "/v1/agents")).status == 401
        assert (await stranger("GET", "/v1/admin/tenants")).status == 401
        entries = await until(lambda: recorded(hub), lambda entries: len(entries) >= 61)
        assert entries[0] == ("", "authenticate", "", "UNAUTHENTICATED")
        assert entries[-1] == ("", "authenticate", "admin", "UNAUTHENTICATED")
        assert len(entries) == 61
        assert "wrong" not in str(await hub.hub.store.audit.entries())


async def test_the_log_says_which_path_was_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dragoman.requests")
    async with house([]) as hub:
        where = "http://hub/v1/a2a/agents/index"
        with pytest.raises(Unauthenticated, match="needs credentials"):
            await connect(where, transport=AsgiTransport(hub.app), credentials="wrong").open()
        lines = await until(
            lambda: [line for line in caplog.messages if line.startswith("authenticate") and "path=" in line],
            lambda lines: len(lines) >= 2,
        )  # a server of another test may write lines, too
    assert lines == ["authenticate UNAUTHENTICATED path=/v1/a2a/agents/index/.well-known/agent-card.json"] * 2
