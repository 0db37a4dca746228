"""Everything of a tenant in an archive, without secrets."""

from __future__ import annotations

import asyncio
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.cli import main
from dragoman.errors import Unauthenticated
from dragoman.hub.models import Image
from dragoman.hub.store import tenant_rows
from dragoman.hub.store.artifacts import StoredPictures
from dragoman.hub.store.tenant_rows import EXPORTED, Exports
from dragoman.hub.tenants.lifecycle import CHUNK_BYTES
from dragoman.server.routes import NotFound
from tests.hub.house import ON_POSTGRES, SCOUT, Caller, House, house, message
from tests.hub.test_tenant_deletion import MARK, fill

NOT_EXPORTED = ("idempotency_keys", "notifications", "unused_blobs", "workspace_leases")
"""Tables of tenants whose rows last for hours only."""


def read(body: bytes) -> tuple[zipfile.ZipFile, dict[str, Any]]:
    archive = zipfile.ZipFile(io.BytesIO(body))
    assert archive.testzip() is None
    return archive, json.loads(archive.read("manifest.json"))


def lines(archive: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in archive.read(name).splitlines()]


async def tables_of_tenants(hub: House) -> set[str]:
    if ON_POSTGRES:
        rows = await hub.hub.database.all(
            "select table_name as name from information_schema.columns where table_schema = 'hub' and column_name = 'tenant_id'"
        )
        return {row["name"] for row in rows}
    named = await hub.hub.database.all("select name from sqlite_master where type = 'table'")
    found = set()
    for row in named:
        columns = await hub.hub.database.all(f"select name from pragma_table_info('{row['name']}')")
        if "tenant_id" in {column["name"] for column in columns}:
            found.add(row["name"])
    return found


async def test_an_export_has_everything_of_the_tenant_and_nothing_of_others(tmp_path: Path) -> None:
    async with house(lambda prompt: f"{MARK} it is", folder=tmp_path, push=True) as hub:
        other = await hub.tenant("other")
        await other("POST", "/v1/todos", {"subject": "a secret of another"})
        await other.rpc("index", "message/send", message("a secret of another"))
        acme = await hub.tenant("acme")
        await fill(acme)
        await StoredPictures(hub.hub.database).put(
            acme.tenant.key, f"{acme.tenant.key}/index/t/1/x", Image(media_type="image/png", content=b"png")
        )
        folder = tmp_path / "workspaces" / f"t{acme.tenant.id}"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "notes").write_text(MARK)
        (folder / "link").symlink_to("/etc/passwd")
        own = await acme("GET", "/v1/export")
        assert own.status == 200 and own.headers["content-type"] == "application/zip"
        assert "attachment" in own.headers["content-disposition"]
        archive, manifest = read(own.body)
        assert manifest["format"] == "dragoman-tenant" and manifest["version"] == 1
        assert manifest["tenant"]["name"] == "acme"
        counts = manifest["counts"]
        for table in ("agents", "messages", "memories", "relations", "todos", "schedules", "requests"):
            assert counts[table] == len(lines(archive, f"tables/{table}.jsonl")) > 0, table
        small, large = sorted(lines(archive, "tables/artifacts.jsonl"), key=lambda each: each["path"])
        assert archive.read(f"files/{small['id']}") == MARK.encode()
        assert len(archive.read(f"files/{large['id']}")) == large["size"] > 90_000, (
            "also what is not in the tables"
        )
        tasks = [lines(archive, name) for name in archive.namelist() if name.startswith("tasks/")]
        assert len(tasks) == counts["tasks"] == counts["requests"]
        assert {"scout", "index"} == {task[0]["agent"] for task in tasks}
        assert all(task[1]["kind"] == "message" and task[0]["state"] for task in tasks)
        assert archive.read("workspace/deep/notes") == MARK.encode()
        assert archive.read("pictures/1") == b"png"
        assert "workspace/link" not in archive.namelist(), "links are not followed"
        whole = b"".join(archive.read(name) for name in archive.namelist())
        assert b"another" not in whole
        hashes = [row["hash"] for row in await hub.hub.database.all("select hash from tokens")]
        assert hashes and not any(each.encode() in whole for each in hashes)
        assert acme.token.encode() not in whole and b"atr_" not in whole
        by_operator = await hub.admin("GET", "/v1/admin/tenants/acme/export")
        assert set(read(by_operator.body)[0].namelist()) == set(archive.namelist())


async def test_a_file_with_an_odd_name_is_exported_under_one_that_leads_nowhere_else(tmp_path: Path) -> None:
    """Some programs take a backslash for a slash, and two names that are no text would become one."""
    odd = {
        b"..\\..\\evil": "..%5C..%5Cevil",
        b"a\nb": "a%0Ab",
        b"\xff": "%FF",
        b"\xfe": "%FE",
        b"\x1b[2J": "%1B[2J",
        "e\u202egpj".encode(): "e%E2%80%AEgpj",
        b"100%": "100%25",
        "\u00fcb er".encode(): "\u00fcb er",
    }
    async with house(folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        folder = os.fsencode(tmp_path / "workspaces" / f"t{acme.tenant.id}")
        os.makedirs(folder)
        for name in odd:
            Path(os.fsdecode(folder + b"/" + name)).write_bytes(name)
        archive, manifest = read((await acme("GET", "/v1/export")).body)
        assert manifest["counts"]["workspace"] == len(odd)
        for name, exported in odd.items():
            assert archive.read(f"workspace/{exported}") == name


async def test_every_table_of_tenants_is_exported_or_listed_as_not_exported() -> None:
    async with house() as hub:
        known = {*EXPORTED, *NOT_EXPORTED} - {"messages"}
        assert await tables_of_tenants(hub) | {"workspace_leases"} == known


async def test_an_export_without_secrets_of_webhooks() -> None:
    async with house(lambda prompt: "ok", push=True, allow_private=True) as hub:
        acme = await hub.tenant("acme")
        task = (await acme.rpc("index", "message/send", message("hi"))).json["result"]["id"]
        config = {
            "url": "http://127.0.0.1:9/hook?key=hidden1",
            "token": "hidden2",
            "authentication": {"schemes": ["Bearer"], "credentials": "hidden3"},
        }
        made = await acme.rpc(
            "index",
            "tasks/pushNotificationConfig/set",
            {"taskId": task, "pushNotificationConfig": config},
        )
        assert "result" in made.json, made.body
        archive, _ = read((await acme("GET", "/v1/export")).body)
        (about, *_) = lines(archive, "tasks/1.jsonl")
        assert about["webhooks"][0]["url"] == "http://127.0.0.1:9/hook"
        assert b"hidden" not in b"".join(archive.read(name) for name in archive.namelist())


async def test_many_rows_and_a_long_log_are_exported_in_pieces() -> None:
    async with house(lambda prompt: "word " * 2000) as hub:
        acme = await hub.tenant("acme")
        for n in range(450):
            await acme("POST", "/v1/todos", {"subject": f"todo {n}"})
        await acme.rpc("index", "message/send", message("hi"))
        pieces = [piece async for piece in hub.hub.export_tenant(acme.tenant)]
        archive, manifest = read(b"".join(pieces))
        assert manifest["counts"]["todos"] == 450
        subjects = [row["subject"] for row in lines(archive, "tables/todos.jsonl")]
        assert subjects == [f"todo {n}" for n in range(450)]
        records = lines(archive, "tasks/1.jsonl")[1:]
        assert [record["seq"] for record in records] == list(range(1, len(records) + 1))


async def test_rows_that_stay_are_exported_though_others_are_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenant_rows, "PAGE_ROWS", 2)
    async with house() as hub:
        acme = await hub.tenant("acme")
        for n in range(6):
            assert (await acme("POST", "/v1/agents", {**SCOUT, "id": f"scout-{n}"})).status == 201
        read_rows, found = Exports(hub.hub.database).rows("agents", acme.tenant.id), list[str]()
        async for row in read_rows:
            found.append(row["agent_id"])
            if row["agent_id"] == "scout-1":
                await acme("DELETE", "/v1/agents/scout-0")
        assert found == [f"scout-{n}" for n in range(6)]


async def with_large_files(hub: House) -> Caller:
    acme = await hub.tenant("acme")
    talk = (await acme("POST", "/v1/conversations", {})).json["id"]
    for n in range(4):
        path = f"/v1/conversations/{talk}/artifacts?path={n}"
        assert (await acme("PUT", path, os.urandom(4 * CHUNK_BYTES))).status == 201
    return acme


async def test_an_export_of_a_tenant_that_is_deleted_meanwhile_is_not_whole() -> None:
    async with house() as hub:
        acme = await with_large_files(hub)
        chunks = hub.hub.export_tenant(replace(acme.tenant, token=None))
        await anext(chunks)
        assert (await hub.admin("DELETE", "/v1/admin/tenants/acme")).status == 202
        with pytest.raises(NotFound, match="was deleted"):
            async for _ in chunks:
                pass


async def test_an_export_ends_when_the_token_that_asked_for_it_is_revoked() -> None:
    async with house() as hub:
        acme = await with_large_files(hub)
        tenant = await hub.hub.tenants.by_token(acme.token)
        assert tenant is not None and tenant.token is not None
        chunks = hub.hub.export_tenant(tenant)
        await anext(chunks)
        await hub.hub.tenants.tokens.revoke(tenant.id, tenant.token.id, actor="admin")
        hub.hub.admission.check_readers_again()
        with pytest.raises(Unauthenticated):
            async for _ in chunks:
                pass


async def test_the_log_says_why_an_export_ended(caplog: pytest.LogCaptureFixture) -> None:
    async with house() as hub:
        acme = await with_large_files(hub)
        answer = acme.open("GET", "/v1/export")
        await answer.until(lambda: bool(answer.status))
        answer.blocked = asyncio.Event()
        tenant = await hub.hub.tenants.by_token(acme.token)
        assert tenant is not None and tenant.token is not None
        await hub.hub.tenants.tokens.revoke(tenant.id, tenant.token.id, actor="admin")
        hub.hub.admission.check_readers_again()
        answer.blocked.set()
        await answer.end()
        assert not answer.finished
    assert "a response could not be finished: the token is not valid any more" in caplog.text


async def test_an_export_needs_the_scope_admin() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        made = await acme("POST", "/v1/tokens", {"name": "r", "scope": "run"})
        assert (await Caller(hub.app, made.json["secret"])("GET", "/v1/export")).status == 403
        assert (await hub.admin("GET", "/v1/admin/tenants/nobody/export")).status == 404


async def test_a_tenant_is_exported_from_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with house(lambda prompt: MARK, folder=tmp_path / "hub") as hub:
        await fill(await hub.tenant("acme"))
        target = tmp_path / "acme.zip"
        command = ["tenant", "export", "acme", "-o", str(target), "--data", str(tmp_path / "hub")]
        assert await asyncio.to_thread(main, command) == 0
        assert target.stat().st_mode & 0o777 == 0o600
        _, manifest = read(target.read_bytes())
        assert manifest["counts"]["todos"] == 1 and manifest["counts"]["tasks"] == 3
        assert await asyncio.to_thread(main, command) == 1
        assert "there is a file" in capsys.readouterr().err
