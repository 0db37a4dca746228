"""A folder is for one hub at a time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.errors import Unavailable
from dragoman.hub.folder_lock import FolderLock
from tests.hub.house import ON_POSTGRES, house
from tests.hub.killing import ADMIN, Process, call

only_sqlite = pytest.mark.skipif(ON_POSTGRES, reason="hubs on PostgreSQL may share a folder")

HOLD = """
import sys
from pathlib import Path
from dragoman.hub.folder_lock import FolderLock
FolderLock(Path(sys.argv[1])).acquire()
print("taken", flush=True)
sys.stdin.read()
"""


def test_a_folder_that_a_hub_has_is_refused_with_who_has_it(tmp_path: Path) -> None:
    first = FolderLock(tmp_path / "hub")
    first.acquire()
    first.acquire()
    with pytest.raises(
        Unavailable, match=rf"hub is in use by another hub: process {os.getpid()} on \S+, since "
    ):
        FolderLock(tmp_path / "hub").acquire()
    first.release()
    FolderLock(tmp_path / "hub").acquire()


def test_a_hub_that_was_killed_has_nothing_any_more(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"taken\n"
        with pytest.raises(Unavailable, match=f"process {holder.pid} "):
            FolderLock(tmp_path).acquire()
    finally:
        holder.kill()
        holder.communicate()
    FolderLock(tmp_path).acquire()


def test_a_folder_whose_holder_did_not_say_who_it_is_is_refused_all_the_same(tmp_path: Path) -> None:
    holder = FolderLock(tmp_path)
    holder.acquire()
    (tmp_path / "hub.lock").write_bytes(b"\xff{")
    with pytest.raises(Unavailable, match="in use by another hub"):
        FolderLock(tmp_path).acquire()


@only_sqlite
async def test_a_hub_has_its_folder_from_its_start_to_its_stop(tmp_path: Path) -> None:
    async with house(folder=tmp_path):
        with pytest.raises(Unavailable, match="in use by another hub"):
            async with house(folder=tmp_path):
                pass
    async with house(folder=tmp_path):
        pass


@only_sqlite
@pytest.mark.timeout(60)
async def test_a_second_hub_says_who_has_the_folder_and_changes_nothing_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_ADMIN_TOKEN", "adm_" + "2" * 64)
    hub = Process(tmp_path)
    await hub.start()
    try:
        with pytest.raises(
            SystemExit, match=rf"dragoman: the folder {tmp_path} is in use by another hub: process \d+"
        ):
            main(["hub", "--data", str(tmp_path), "--port", "0", "--model", "echo", "--demo"])
        assert await asyncio.to_thread(main, ["tenant", "add", "acme", "--data", str(tmp_path)]) == 0
        found = await call(hub.url, ADMIN, "GET", "/v1/admin/tenants")
        assert [tenant["name"] for tenant in found["tenants"]] == ["acme"]
    finally:
        await hub.kill()
