"""Temporary folders: made at first use, removed in the end, and after a kill by the next process."""

from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.console import AgentConsole
from dragoman.console.hub import HubConsole
from dragoman.server.temporary import TemporaryFolder
from tests.serving import Server
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders have no locks on Windows")

USE = """
import sys
from dragoman.server.temporary import TemporaryFolder
folder = TemporaryFolder("x", sys.argv[1])
print(folder.make(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def another(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that uses a folder until its standard input ends; its output is the path."""
    command = [sys.executable, "-c", USE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def path_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_a_folder_is_made_at_first_use_for_this_user_alone(tmp_path: Path) -> None:
    folder = TemporaryFolder("x", str(tmp_path))
    assert not folder.path.exists()
    assert folder.make() == folder.make() == folder.path
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_folder_is_gone_with_its_object(tmp_path: Path) -> None:
    folder = TemporaryFolder("x", str(tmp_path))
    (folder.make() / "file").write_text("")
    del folder
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_removed_folder_can_be_made_again(tmp_path: Path) -> None:
    folder = TemporaryFolder("x", str(tmp_path))
    folder.make()
    folder.remove()
    assert list(tmp_path.iterdir()) == []
    assert folder.make().is_dir()


def test_a_process_that_ends_removes_its_folder(tmp_path: Path, another: subprocess.Popen[str]) -> None:
    assert path_of(another).is_dir()
    another.communicate()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(
    tmp_path: Path, another: subprocess.Popen[str]
) -> None:
    left = path_of(another)
    kept = TemporaryFolder("x", str(tmp_path)).make  # the object lives as long as its method
    assert kept().is_dir()
    assert left.is_dir()  # its process lives
    another.send_signal(signal.SIGKILL)
    another.wait()
    assert left.is_dir()
    TemporaryFolder("y", str(tmp_path)).make()
    assert left.is_dir()  # of another kind
    TemporaryFolder("x", str(tmp_path)).make()
    assert not left.exists()
    assert kept().is_dir()


def test_links_and_folders_of_other_programs_stay(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "dragoman-x.link").symlink_to(outside)
    (tmp_path / "dragoman-x-other").mkdir()
    (tmp_path / "dragoman-x.open").mkdir(mode=0o755)
    TemporaryFolder("x", str(tmp_path)).make()
    assert {each.name for each in tmp_path.iterdir()} >= {
        "outside", "dragoman-x.link", "dragoman-x-other", "dragoman-x.open",
    }  # fmt: skip


def test_a_folder_that_somebody_else_prepared_is_refused(tmp_path: Path) -> None:
    folder = TemporaryFolder("x", str(tmp_path))
    folder.path.mkdir(mode=0o777)
    folder.path.chmod(0o777)
    with pytest.raises(PermissionError):
        folder.make()


def test_a_forked_worker_uses_the_folder_and_does_not_remove_it(tmp_path: Path) -> None:
    folder = TemporaryFolder("x", str(tmp_path))
    worker = os.fork()
    if worker == 0:
        try:
            (folder.make() / "file").write_text("hello")
            folder.remove()
        finally:
            os._exit(0)
    os.waitpid(worker, 0)
    assert (folder.make() / "file").read_text() == "hello"


def test_a_console_without_test_receivers_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    HubConsole(None)
    AgentConsole().prepare(
        host="127.0.0.1", url="http://127.0.0.1", store="memory:", public_url="", tls=False
    )
    assert list(tmp_path.iterdir()) == []


async def test_a_server_with_grpc_leaves_no_folder_when_it_stops(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    agent = tmp_path / "agent.py"
    agent.write_text("from dragoman import Agent\nagent = Agent('A')\n")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # the name of a socket may not be long
        env = {"TMPDIR": short}
        async with Server(agent, options=("--grpc-port", "0"), env=env) as server:
            [killed] = await until(lambda: os.listdir(short))
            assert killed.startswith("dragoman-grpc.")
            await server.kill()
            await server.start()
            await until(lambda: os.listdir(short), lambda found: found and killed not in found)
            server.signal(signal.SIGTERM)
            await server.ended()
            assert os.listdir(short) == []
