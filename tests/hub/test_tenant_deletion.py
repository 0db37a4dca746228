"""A tenant is deleted with everything it has, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from dragoman.errors import Unavailable
from dragoman.hub.store.tenant_rows import Deletions
from dragoman.hub.store.tenants import Tenants
from dragoman.hub.tenants.lifecycle import TenantDeletion
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Call, Scope, SendMessage
from tests import postgres
from tests.hub.house import SCOUT, Caller, House, house, message, place_of, rows_of
from tests.hub.killing import ADMIN, Process, call
from tests.hub.test_several_hubs import at, hubs
from tests.waiting import until

MARK = "xylophone"
"""A word that only the tenant that is deleted uses."""


LARGE_BYTES = 100_000
"""More than a table has of a file."""


async def fill(acme: Caller) -> None:
    """Let a tenant have something of everything."""
    await acme("POST", "/v1/agents", {**SCOUT, "goal": MARK})
    await acme.rpc("scout", "message/send", message(MARK))
    talk = (await acme("POST", "/v1/conversations", {"title": MARK})).json["id"]
    await acme.ask(MARK, f"/v1/conversations/{talk}/messages")
    await acme("POST", f"/v1/conversations/{talk}/artifacts", {"path": "a.txt", "content": MARK})
    large = MARK.encode() * (LARGE_BYTES // len(MARK))
    await acme("PUT", f"/v1/conversations/{talk}/artifacts?path=big.txt", large, content_type="text/plain")
    for title in ("one", "two"):
        await acme(
            "POST", "/v1/memory/entries", {"type": "user", "title": f"{MARK} {title}", "content": MARK}
        )
    await acme("POST", "/v1/memory/relations", {"source_id": 1, "target_id": 2, "relation": "supports"})
    await acme("POST", "/v1/todos", {"subject": MARK})
    await acme("POST", "/v1/schedules", {"schedule": "every day at 09:00", "message": MARK})
    await acme("POST", "/v1/orchestrate", {"message": MARK}, idempotency_key=MARK)
    await acme("POST", "/v1/tokens", {"name": MARK, "scope": "read"})


async def traces(folder: Path) -> list[str]:
    """Where the word is in the tables and files of a hub, but for the audit."""
    tables = (await rows_of(folder)).items()
    found = [name for name, rows in tables if "audit" not in name and any(MARK in row for row in rows)]
    return found + contents(folder)


def contents(folder: Path) -> list[str]:
    """The contents of large files."""
    return [path.name for path in (folder / "blobs").rglob("*") if path.is_file()]


async def deletions_done(hub: House) -> bool:
    listed = (await hub.admin("GET", "/v1/admin/deletions")).json["deletions"]
    return bool(listed) and all(each["done_at"] for each in listed)


async def test_nothing_of_a_deleted_tenant_is_left_and_others_keep_what_they_have(tmp_path: Path) -> None:
    async with house(lambda prompt: f"{MARK} it is", folder=tmp_path) as hub:
        other = await hub.tenant("other")
        await other("POST", "/v1/todos", {"subject": "mine"})
        acme = await hub.tenant("acme")
        await fill(acme)
        workspace = tmp_path / "workspaces" / f"t{acme.tenant.id}"
        (workspace / "deep").mkdir(parents=True)
        (workspace / "deep" / "file").write_text(MARK)
        (workspace / "deep").chmod(0)
        assert len(await traces(tmp_path)) > 8
        answer = await hub.admin("DELETE", "/v1/admin/tenants/acme")
        assert answer.status == 202 and answer.json == {"tenant": acme.tenant.id, "deleting": True}
        assert (await acme("GET", "/v1/agents")).status == 401
        assert (await hub.admin("GET", f"/v1/admin/tenants/{acme.tenant.id}")).status == 404
        await until(lambda: deletions_done(hub))
        assert not workspace.exists() and contents(tmp_path) == []
        assert await traces(tmp_path) == []
        scope = Scope(acme.tenant.key, "scout", acme.tenant.key)
        assert (await hub.hub.store.scope(scope).count_unfinished()) == 0
        assert [t["name"] for t in (await hub.admin("GET", "/v1/admin/tenants")).json["tenants"]] == ["other"]
        assert [t["subject"] for t in (await other("GET", "/v1/todos")).json["todos"]] == ["mine"]
        actions = [e["action"] for e in (await hub.admin("GET", "/v1/admin/audit")).json["entries"]]
        assert actions[:2] == ["tenant.deleted", "tenant.delete"]
        assert any(entry.task for entry in await hub.hub.store.audit.entries(tenant=acme.tenant.key))


async def test_a_new_tenant_of_the_same_name_is_another_one() -> None:
    async with house(lambda prompt: MARK) as hub:
        acme = await hub.tenant("acme")
        await fill(acme)
        await hub.admin("DELETE", "/v1/admin/tenants/acme")
        again = await hub.tenant("acme")
        assert again.tenant.id > acme.tenant.id
        await until(lambda: deletions_done(hub))
        for path in ("/v1/requests", "/v1/conversations", "/v1/memory/entries", "/v1/todos", "/v1/artifacts"):
            assert MARK not in (await again("GET", path)).body.decode()
        assert (await acme("GET", "/v1/agents")).status == 401
        assert (await hub.admin("DELETE", "/v1/admin/tenants/nobody")).status == 404


async def test_running_work_is_stopped_before_it_is_deleted() -> None:
    async with house([("word", asyncio.Event())]) as hub:
        acme = await hub.tenant("acme")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        await hub.admin("DELETE", "/v1/admin/tenants/acme")
        await live.end()
        await until(lambda: deletions_done(hub))
        assert hub.hub.quotas.counts() == {} and len(hub.model.prompts) == 1


async def test_a_deletion_goes_on_after_a_kill_at_any_point(tmp_path: Path) -> None:
    hub = Process(tmp_path)
    await hub.start()
    try:
        made = await call(hub.url, ADMIN, "POST", "/v1/admin/tenants", {"name": "acme"})
        for n in range(30):
            await call(hub.url, made["token"], "POST", "/v1/todos", {"subject": f"{MARK} {n}"})
            note = {"type": "user", "title": f"{MARK} {n}", "content": MARK}
            await call(hub.url, made["token"], "POST", "/v1/memory/entries", note)
        await call(hub.url, ADMIN, "DELETE", f"/v1/admin/tenants/{made['tenant']['id']}")
        await hub.kill()
        for _ in range(3):  # in the middle of it, perhaps
            await hub.start()
            await hub.kill()
        await hub.start()

        async def done() -> bool:
            listed = (await call(hub.url, ADMIN, "GET", "/v1/admin/deletions"))["deletions"]
            return [bool(each["done_at"]) for each in listed] == [True]

        await until(done, seconds=30)
    finally:
        await hub.kill()
    assert await traces(tmp_path) == []


async def test_a_deletion_that_ended_in_the_middle_goes_on_at_the_next_start(tmp_path: Path) -> None:
    async with house(lambda prompt: MARK, folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        await fill(acme)
        await hub.hub.deletion.periodic.stop()
        await hub.hub.deletion.begin(acme.tenant, actor="admin")
        await hub.hub.store.purge_tenant(acme.tenant.key, limit=1)
        assert await hub.hub.deletion.deletions.delete_rows(acme.tenant.id)
        assert not await deletions_done(hub)
    async with house(folder=tmp_path) as hub:
        await until(lambda: deletions_done(hub))
    assert await traces(tmp_path) == []


async def test_a_tenant_whose_files_cannot_be_deleted_does_not_hold_up_the_deletion_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(lambda prompt: f"{MARK} it is", folder=tmp_path) as hub:
        first, second = await hub.tenant("first"), await hub.tenant("second")
        await fill(first)
        deletion = hub.hub.deletion
        await deletion.periodic.stop()
        for tenant in (first, second):
            await hub.admin("DELETE", f"/v1/admin/tenants/{tenant.tenant.id}")

        async def refuse(key: str) -> None:
            raise Unavailable("the bucket of files cannot be used right now")

        with monkeypatch.context() as patched:
            patched.setattr(hub.hub.artifacts._blobs, "delete", refuse)
            with pytest.raises(Unavailable, match="the bucket"):
                await deletion.continue_deletions()
            assert [each.id for each in await deletion.deletions.pending()] == [first.tenant.id]
        assert await deletion.continue_deletions()
        assert await traces(tmp_path) == []


async def test_a_task_that_comes_after_the_deletion_is_swept(tmp_path: Path) -> None:
    async with house(lambda prompt: MARK) as hub:
        acme = await hub.tenant("acme")
        await hub.hub.deletion.periodic.stop()
        await hub.hub.deletion.begin(acme.tenant, actor="admin")
        assert await hub.hub.deletion.continue_deletions()
        said = Message(message_id="m", role=Role.USER, parts=(Part(text="late"),))
        late = Call(scope=Scope(acme.tenant.key, "index", acme.tenant.key), principal=acme.tenant.principal)
        await hub.hub.engine.deliver(late, SendMessage(message=said))

        async def swept() -> bool:
            await hub.hub.deletion.sweep(0)
            return not (await hub.hub.store.purge_tenant(acme.tenant.key, limit=1))[1]

        await until(swept)
        assert hub.model.prompts == []


@pytest.mark.skipif(not postgres.available(), reason="PostgreSQL is not installed")
async def test_a_tenant_that_one_hub_deletes_is_gone_at_the_others(tmp_path: Path) -> None:
    async with hubs([("word\n", asyncio.Event())], folder=tmp_path) as (one, two):
        acme = await one.tenant("acme")
        live = at(two, acme).open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        await one.admin("DELETE", "/v1/admin/tenants/acme")
        assert b"cancel" in (await live.end()).body
        for each in (one, two):
            assert (await at(each, acme)("GET", "/v1/requests")).status == 401
        await until(lambda: deletions_done(two))
        rows: Any = await two.hub.database.all("select name from tenants")
        assert list(rows) == []
        actions = [e["action"] for e in (await two.admin("GET", "/v1/admin/audit")).json["entries"]]
        assert actions.count("tenant.deleted") == 1


async def test_a_tenant_is_deleted_from_the_shell_while_no_hub_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(lambda prompt: MARK, folder=tmp_path) as hub:
        await fill(await hub.tenant("acme"))

    class Answer:
        def readline(self) -> str:
            return "another\n"

    monkeypatch.setattr("sys.stdin", Answer())
    command = ["tenant", "delete", "acme", *place_of(tmp_path)]
    assert await asyncio.to_thread(main, command) == 1
    assert "nothing is deleted" in capsys.readouterr().err
    assert await asyncio.to_thread(main, [*command, "--yes"]) == 0
    assert "is deleted" in capsys.readouterr().err
    assert await traces(tmp_path) == []


async def test_a_tenant_that_is_deleted_cannot_be_enabled_or_renamed_meanwhile() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        tenants, deletions = Tenants(hub.hub.database), Deletions(hub.hub.database)
        await hub.hub.deletion.periodic.stop()
        await deletions.begin(acme.tenant, actor="admin")
        assert (await tenants.disable(acme.tenant, False)).disabled
        assert (await tenants.rename(acme.tenant, "apex")).name.startswith("deleted/")
        assert await tenants.find_active(acme.tenant.id, None) is None
        assert isinstance(hub.hub.deletion, TenantDeletion)
