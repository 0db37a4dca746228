"""The admin token is never lost, and one that was replaced is never accepted again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dragoman.cli import main
from dragoman.errors import InvalidParams
from dragoman.hub.store.database import Database, open_database
from dragoman.hub.store.tenants import Tenants
from tests import postgres
from tests.hub.house import Caller, house


@pytest.fixture(params=["sqlite", "postgresql"])
async def databases(request: Any, tmp_path: Path) -> Any:
    """Opens the same database again and again."""
    opened: list[Database] = []
    if request.param == "postgresql" and not postgres.available():
        pytest.skip("PostgreSQL is not installed")
    url = (
        postgres.server().database(f"hub_{uuid4().hex}")
        if request.param == "postgresql"
        else tmp_path / "hub.db"
    )

    async def open_again() -> Tenants:
        opened.append(await open_database(url).open())
        return Tenants(opened[-1])

    yield open_again
    for each in opened:
        await each.close()


async def test_a_start_that_dies_before_its_token_is_stored_shows_another_one_next_time(
    databases: Any,
) -> None:
    shown: list[str] = []

    def die(token: str) -> None:
        shown.append(token)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await (await databases()).ensure_admin_token(show=die)
    tenants = await databases()
    assert not await tenants.has_admin() and not await tenants.is_admin(shown[0])
    await tenants.ensure_admin_token(show=shown.append)
    assert await tenants.is_admin(shown[1]) and not await tenants.is_admin(shown[0])
    assert await tenants.ensure_admin_token(show=shown.append) == "" and len(shown) == 2, (
        "it is there, and was shown"
    )


async def test_every_token_that_hubs_show_when_they_start_at_the_same_moment_is_valid(
    databases: Any,
) -> None:
    hubs = [await databases() for _ in range(4)]
    shown: list[str] = []
    await asyncio.gather(*(hub.ensure_admin_token(show=shown.append) for hub in hubs))
    assert shown
    for token in shown:
        assert all([await hub.is_admin(token) for hub in hubs])
    await hubs[0].rotate_admin_token(show=shown.append)
    assert await hubs[1].is_admin(shown[-1])
    assert not any([await hubs[2].is_admin(token) for token in shown[:-1]])


async def test_the_token_of_the_settings_replaces_others_and_none_of_those_comes_back(databases: Any) -> None:
    tenants, shown = await databases(), list[str]()
    await tenants.ensure_admin_token(show=shown.append)
    await tenants.ensure_admin_token("mine")
    await tenants.ensure_admin_token("mine")
    assert await tenants.is_admin("mine") and not await tenants.is_admin(shown[0])
    await tenants.ensure_admin_token("newer")
    assert await tenants.is_admin("newer") and not await tenants.is_admin("mine")
    with pytest.raises(InvalidParams, match="was replaced by another one"):
        await tenants.ensure_admin_token("mine")
    assert await tenants.is_admin("newer"), "a hub with an old setting changes nothing"
    assert await tenants.ensure_admin_token() == "", "without the setting, the last one stays"
    await tenants.rotate_admin_token(show=shown.append)
    with pytest.raises(InvalidParams):
        await tenants.ensure_admin_token("newer")


async def test_the_old_admin_token_is_valid_during_the_overlap(databases: Any) -> None:
    tenants, shown = await databases(), list[str]()
    await tenants.ensure_admin_token(show=shown.append)
    await tenants.rotate_admin_token(show=shown.append, overlap=3600)
    assert await tenants.is_admin(shown[0]) and await tenants.is_admin(shown[1])
    await tenants._db.change("update admin_tokens set expires_at = 1 where expires_at is not null")
    assert not await tenants.is_admin(shown[0]) and await tenants.is_admin(shown[1])
    await tenants.rotate_admin_token(show=shown.append, overlap=3600)
    await tenants.rotate_admin_token(show=shown.append)
    states = [await tenants.is_admin(token) for token in shown]
    assert states == [False, False, False, True], "a rotation without an overlap ends all"


async def test_the_admin_token_is_rotated_over_the_api(tmp_path: Path) -> None:
    async with house(folder=tmp_path, admin_token="") as hub:
        shown: list[str] = []
        await hub.hub.tenants.ensure_admin_token(show=shown.append)
        admin = Caller(hub.app, shown[0])
        made = await admin("POST", "/v1/admin/rotate-token", {"overlap_seconds": 60})
        second = Caller(hub.app, made.json["token"])
        for caller in (admin, second):
            assert (await caller("GET", "/v1/admin/tenants")).status == 200
        third = Caller(hub.app, (await second("POST", "/v1/admin/rotate-token")).json["token"])
        assert [(await each("GET", "/v1/admin/tenants")).status for each in (admin, second, third)] == [
            401,
            401,
            200,
        ]
        assert await asyncio.to_thread(main, ["tenant", "rotate-admin", "--data", str(tmp_path)]) == 0
        assert (await third("GET", "/v1/admin/tenants")).status == 401


async def test_after_rotations_at_the_same_moment_one_admin_token_is_valid(databases: Any) -> None:
    hubs = [await databases() for _ in range(6)]
    shown: list[str] = []
    await hubs[0].ensure_admin_token(show=shown.append)
    await asyncio.gather(*(hub.rotate_admin_token(show=shown.append) for hub in hubs))
    assert [await hubs[0].is_admin(token) for token in shown].count(True) == 1


async def test_of_two_rotations_with_one_admin_token_at_the_same_moment_one_is_refused(
    tmp_path: Path,
) -> None:
    async with house(folder=tmp_path, admin_token="") as hub:
        shown: list[str] = []
        await hub.hub.tenants.ensure_admin_token(show=shown.append)
        admin = Caller(hub.app, shown[0])
        answers = await asyncio.gather(*(admin("POST", "/v1/admin/rotate-token", {}) for _ in range(4)))
        assert sorted(answer.status for answer in answers) == [200, 401, 401, 401]
        (made,) = [answer.json["token"] for answer in answers if answer.status == 200]
        assert (await Caller(hub.app, made)("GET", "/v1/admin/tenants")).status == 200


async def test_an_admin_token_of_the_settings_is_not_rotated_over_the_api() -> None:
    async with house() as hub:
        refused = await hub.admin("POST", "/v1/admin/rotate-token", {})
        assert refused.status == 409 and "the setting admin_token" in refused.json["error"]
        assert (await hub.admin("GET", "/v1/admin/tenants")).status == 200


def test_a_hub_does_not_start_with_an_admin_token_that_was_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_ADMIN_TOKEN", "adm_" + "1" * 64)
    assert main(["init", "--data", "d"]) == 0
    monkeypatch.delenv("DRAGOMAN_ADMIN_TOKEN")
    assert main(["tenant", "rotate-admin", "--data", "d"]) == 0
    monkeypatch.setenv("DRAGOMAN_ADMIN_TOKEN", "adm_" + "1" * 64)
    with pytest.raises(SystemExit, match="was replaced by another one"):
        main(["hub", "--data", "d", "--model", "echo", "--port", "0"])
    capsys.readouterr()
