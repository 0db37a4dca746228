"""Commands that agents run: confined, in time, within their folder; in a process or in a container."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.errors import InvalidParams, QuotaExceeded, Unavailable
from dragoman.hub import sandbox as sandboxes
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.sandbox import MAX_OUTPUT_BYTES, Sandbox, child_process, launch, process
from dragoman.hub.sandbox import folder_copy as copying
from dragoman.hub.sandbox.child_process import RunAsUser, start
from dragoman.hub.sandbox.container import ContainerIsolation
from dragoman.hub.sandbox.process import ProcessIsolation
from dragoman.hub.sandbox.workspace import Workspace
from dragoman.hub.settings import Settings
from dragoman.hub.store.database import Database
from dragoman.hub.tools.toolbox import open_services
from tests.hub.conftest import Begin, toolbox
from tests.hub.house import house as opened_hub
from tests.hub.scripted import ScriptedModel
from tests.hub.test_tools import database, fed
from tests.waiting import until

__all__ = ["database"]


class Bare(ProcessIsolation):
    """A process on a machine that has no namespaces, and whose operator says that commands may run all the same."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"unconfined": True, **options})

    async def _find_method(self, folder: Path) -> str:
        return process.BARE


PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else shutil.which("python3") or "python3"
NOBODY = RunAsUser(65534, 65534)
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
OWNERS = [None, pytest.param(NOBODY, marks=root)]
"""Whose commands are: of the user who runs the hub, or of nobody, because that is root."""


@pytest.fixture(params=OWNERS, ids=["own", "nobody"])
def whose(request: Any) -> RunAsUser | None:
    found: RunAsUser | None = request.param
    return found


@pytest.fixture(params=["apart", "bare"])
def sandbox(request: Any, tmp_path: Path, whose: RunAsUser | None) -> Sandbox:
    kind = ProcessIsolation if request.param == "apart" else Bare
    isolation = kind(hidden=[tmp_path], owner=whose)
    return Sandbox(tmp_path / "workspaces", isolation, seconds=5.0, disk=1 << 20, owner=whose)


async def test_a_command_runs_in_the_folder_of_its_tenant(sandbox: Sandbox) -> None:
    ran = await sandbox.run("1", "echo hi > a; cat a; echo oh >&2; exit 3")
    assert (ran.output, ran.code, ran.timed_out) == ("hi\noh\n", 3, False)
    assert (await sandbox.run("1", "cat a")).output == "hi\n"
    assert (await sandbox.run("2", "cat a")).code != 0


async def test_a_command_sees_nothing_of_the_hubs_environment(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    ran = await sandbox.run("1", "env")
    assert ran.code == 0 and "PATH=" in ran.output
    assert "sk-secret" not in ran.output and "PYTEST" not in ran.output


@pytest.mark.parametrize("kind", [ProcessIsolation, Bare], ids=["apart", "bare"])
async def test_a_command_whose_hub_is_gone_ends_when_its_time_is_over(
    tmp_path: Path, kind: type[ProcessIsolation]
) -> None:
    arguments, environment = await kind(seconds=0.0).prepare(
        "1", tmp_path, "sleep 600 & sleep 600; echo late"
    )
    alone = await asyncio.create_subprocess_exec(
        *arguments, cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    said, _ = await asyncio.wait_for(alone.communicate(), 30)
    assert alone.returncode and said == b"", "and so does all it began: nobody holds its output any more"


async def test_a_command_is_killed_when_its_time_is_over_with_all_it_began(tmp_path: Path) -> None:
    metrics = HubMetrics()
    sandbox = Sandbox(tmp_path, Bare(), seconds=0.3, count=metrics.count_sandbox)
    ran = await sandbox.run("1", "sleep 60 & setsid sleep 2 & echo begun; sleep 60")
    assert ran.timed_out and ran.output == "begun\n"
    assert b"dragoman_hub_sandbox_exec_total 1\n" in metrics.render({})
    assert b"dragoman_hub_sandbox_exec_timeout_total 1\n" in metrics.render({})


async def test_a_command_that_is_canceled_is_killed(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run("1", "echo $$ > pid; exec sleep 60"))
    folder: Path = sandbox._folder / "t1"
    async with asyncio.timeout(10):
        await until(lambda: not (not (folder / "pid").is_file() or not (folder / "pid").read_text()))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert (await sandbox.run("1", "cat pid")).code == 0, "the next one does not wait for it"


async def test_a_long_output_is_cut_at_the_end(sandbox: Sandbox) -> None:
    ran = await sandbox.run("1", "yes | head -c 100000")
    assert ran.output.endswith("\n[output cut]") and len(ran.output) == MAX_OUTPUT_BYTES + len(
        "\n[output cut]"
    )


async def test_a_command_that_writes_without_end_does_not_keep_the_hub_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, loop = 0, asyncio.get_running_loop()

    class Counted(asyncio.StreamReader):
        def feed_data(self, data: Any) -> None:
            nonlocal fed
            fed += 1
            super().feed_data(data)

    monkeypatch.setattr(asyncio, "StreamReader", Counted)
    began = loop.time()
    ran = await Sandbox(tmp_path, Bare(), seconds=1.0).run("1", "yes & yes & yes")
    pauses = (loop.time() - began) / child_process._READ_SECONDS
    assert ran.timed_out and len(ran.output) > MAX_OUTPUT_BYTES
    assert 0 < fed < 1.1 * pauses + 5, "one of its many writes is read at a time, and then none for a while"


async def test_a_command_that_fills_its_folder_is_undone(sandbox: Sandbox) -> None:
    await sandbox.write("1", "kept.txt", b"mine")
    await sandbox.run("1", "mkdir -p deep/er; ln -s /nowhere link; echo old > deep/er/file; mkfifo pipe")
    for spoil in (
        "echo new > kept.txt; rm -r deep; head -c 3000000 /dev/zero > big; mkdir no; chmod 0 no",
        "echo new > kept.txt; head -c 3000000 /dev/zero > big; sleep 60",
    ):
        ran = await sandbox.run("1", spoil)
        assert "[undone: the workspace may have at most 1048576 bytes" in ran.output
        assert ran.code != 0 and not ran.timed_out
        assert await sandbox.read("1", "kept.txt") == b"mine"
        assert await sandbox.list("1") == [("deep/er/file", 4), ("kept.txt", 4)]


async def test_a_folder_that_is_too_full_already_can_still_be_emptied(tmp_path: Path) -> None:
    roomy = Sandbox(tmp_path, Bare(), disk=1 << 20)
    await roomy.run("1", "head -c 500000 /dev/zero > a; head -c 200000 /dev/zero > b")
    tight = Sandbox(tmp_path, Bare(), disk=100_000)
    assert (await tight.run("1", "rm a")).code == 0
    assert [path for path, _ in await tight.list("1")] == ["b"]
    with pytest.raises(QuotaExceeded):
        await tight.write("1", "c", b"more")


@pytest.mark.parametrize("short_of", ["inodes", "bytes"])
async def test_a_command_leaves_room_on_the_disk_for_the_copy_of_its_folder_and_for_others(
    tmp_path: Path, short_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk of 2 MB or 500 inodes, of which the folder takes what it has."""

    def usage(path: Path) -> SimpleNamespace:
        files = sum(1 for _ in tmp_path.rglob("*"))
        size = sum(each.stat().st_size for each in tmp_path.rglob("*") if each.is_file())
        bytes, inodes = (1 << 40, 500) if short_of == "inodes" else (2 << 20, 1 << 40)
        return SimpleNamespace(
            f_bavail=bytes - size, f_frsize=1, f_favail=inodes - files, f_files=inodes, f_ffree=inodes - files
        )

    monkeypatch.setattr(os, "statvfs", usage)
    sandbox = Sandbox(tmp_path, Bare(), seconds=30.0, disk=1 << 30)
    take = "for n in $(seq {}); do : > f$n; done" if short_of == "inodes" else "head -c {}000 /dev/zero > f"
    ran = await sandbox.run("1", "echo mine > mine; " + take.format(200 if short_of == "inodes" else 800))
    assert "undone" in ran.output, "a copy would take the rest, or most of it"
    assert [path for path, _ in await sandbox.list("1")] == []
    ran = await sandbox.run("1", take.format(20) + "; echo fine")
    assert ran.output == "fine\n"


async def test_a_command_that_adds_nothing_is_not_undone_because_others_fill_the_disk(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "t1", tmp_path / "before", limit=1 << 20)
    workspace.write("a", b"x" * 9000)
    free = iter([1 << 20, 100, 100])
    workspace.free = lambda: next(free)  # type: ignore[method-assign]
    room = workspace.save()
    (tmp_path / "t1" / "a").write_bytes(b"y")
    assert not workspace.keep_or_restore(room) and workspace.read("a") == b"y"
    assert workspace.crowds_disk()


async def test_a_command_that_is_too_long_for_the_kernel_is_refused_in_a_sentence(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, Bare(), seconds=5.0)
    for command in ("echo " + "é" * 60_000, "echo a\0b"):
        with pytest.raises(InvalidParams, match="at most 100000 bytes"):
            await sandbox.run("1", command)


async def test_a_folder_that_cannot_be_copied_is_left_alone_and_the_agent_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = Sandbox(tmp_path, Bare(), seconds=5.0)
    await sandbox.write("1", "mine", b"mine")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sandboxes.workspace, "copy", full)
    with pytest.raises(Unavailable, match="the workspace cannot be copied"):
        await sandbox.run("1", "rm mine")
    assert "No space left" in caplog.text and await sandbox.read("1", "mine") == b"mine"


@pytest.mark.parametrize("isolation", [ProcessIsolation, Bare], ids=["apart", "bare"])
async def test_the_processes_of_a_command_share_one_limit_of_memory(
    tmp_path: Path, isolation: type[ProcessIsolation]
) -> None:
    sandbox = Sandbox(tmp_path, isolation(), seconds=60.0, memory=100 << 20)
    fill = f"{PYTHON} -c 'x = bytearray(60 << 20); input()'"
    ran = await sandbox.run("1", f"mkfifo p; for n in 1 2 3; do {fill} < p & done; exec 5> p; wait")
    assert "[killed: a command may use 100 MB of memory]" in ran.output and not ran.timed_out
    assert (await sandbox.run("1", f"{fill} < /dev/null 2>&1 | tail -1")).output.startswith("EOFError")


async def test_a_command_is_watched_also_while_the_threads_of_its_hub_are_busy(tmp_path: Path) -> None:
    over, begun = threading.Event(), []
    others = [asyncio.create_task(asyncio.to_thread(lambda: begun.append(over.wait()))) for _ in range(99)]
    try:
        sandbox = Sandbox(tmp_path, Bare(), seconds=30.0, memory=100 << 20)
        fill = f"{PYTHON} -c 'x = bytearray(60 << 20); import signal; signal.pause()'"
        ran = await sandbox.run("1", f"for n in 1 2 3; do {fill} & done; wait")
        assert "[killed: a command may use 100 MB of memory]" in ran.output and not ran.timed_out
        assert not begun, "they are busy all the time"
    finally:
        over.set()
        await asyncio.gather(*others)


async def test_a_command_has_a_filter_of_system_calls_and_dies_before_the_hub(sandbox: Sandbox) -> None:
    ran = await sandbox.run(
        "1", "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; cat /proc/self/oom_score_adj"
    )
    assert launch.program("pdp11") == b"", "a machine without a table"
    if launch.program(os.uname().machine):
        assert ran.output.split() == ["NoNewPrivs:", "1", "Seccomp:", "2", "1000"]


@root
@pytest.mark.parametrize("way", [process.BUBBLEWRAP, process.NAMESPACES])
async def test_the_processes_of_a_tenant_leave_room_for_those_of_others_at_a_hub_of_root(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not await _works(way, tmp_path):
        pytest.skip(f"there is no {way} here")
    monkeypatch.setattr(process, "CONFINED", (way,))
    sandbox = Sandbox(
        tmp_path, ProcessIsolation(owner=NOBODY, seconds=60), seconds=60, processes=256, owner=NOBODY
    )
    many = "n=0; while [ $n -lt 200 ]; do sleep 60 & n=$((n+1)); done; touch full; wait"
    running = [asyncio.create_task(sandbox.run(tenant, many)) for tenant in ("1", "2")]
    await until(lambda: all((tmp_path / f"t{tenant}" / "full").exists() for tenant in "12"), seconds=40)
    assert (await sandbox.run("3", "echo $(echo fine)")).output == "fine\n"
    for each in running:
        each.cancel()
    await asyncio.wait(running)
    ran = await sandbox.run("1", many.replace("200", "400"))
    assert ran.output.endswith("[killed: a command may have 256 processes]") and ran.code != 0


async def test_a_command_ends_when_the_machine_is_short_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([4 << 30, 3 << 30])
    monkeypatch.setattr(sandboxes, "available_memory", lambda: next(free, 100 << 20))
    sandbox = Sandbox(tmp_path, Bare(), seconds=30.0, memory=1 << 30)
    ran = await sandbox.run("1", "sleep 60")
    assert ran.output.endswith("[killed: the machine is short of memory]") and not ran.timed_out


async def test_doctor_says_which_confinement_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = [way for way in process.CONFINED if await _works(way, tmp_path)]
    for way in there:
        monkeypatch.setattr(process, "CONFINED", (way,))
        assert f"commands run in {way}:" in await ProcessIsolation().describe(tmp_path)
    monkeypatch.setattr(process, "CONFINED", ())
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    assert "so /exec is refused" in await ProcessIsolation().describe(tmp_path)
    assert "limits alone" in await ProcessIsolation(unconfined=True).describe(tmp_path)


async def _works(way: str, folder: Path) -> bool:
    return bool(
        shutil.which("bwrap" if way == process.BUBBLEWRAP else "unshare")
    ) and await ProcessIsolation()._works(way, folder)


namespaces = pytest.mark.skipif(
    os.system("unshare -r -n -m -p -f true >/dev/null 2>&1") != 0 or shutil.which("setpriv") is None,
    reason="users have no namespaces here",
)


@namespaces
async def test_a_command_sees_no_network_no_other_process_and_none_of_the_hubs_files(
    tmp_path: Path, whose: RunAsUser | None
) -> None:
    (tmp_path / "hub.db").write_text("secret")
    isolation = ProcessIsolation(hidden=[tmp_path], owner=whose)
    sandbox = Sandbox(tmp_path / "workspaces", isolation, seconds=10.0, owner=whose)
    ran = await sandbox.run(
        "1",
        f"cat {tmp_path}/hub.db; ls ~/.. ; cat /proc/net/route | wc -l; ls -d /proc/[0-9]* | wc -l; pwd; "
        "umount /tmp; touch /etc/made-by-a-command; grep CapEff /proc/self/status",
    )
    assert "secret" not in ran.output and "/mnt/workspace" in ran.output
    assert "CapEff:\t0000000000000000" in ran.output
    assert not Path("/etc/made-by-a-command").exists()
    routes, processes = [line for line in ran.output.splitlines() if line.isdigit()]
    assert int(routes) <= 1 and int(processes) < 8


@pytest.mark.parametrize("way", [process.BUBBLEWRAP, process.NAMESPACES])
@namespaces
async def test_a_command_sees_none_of_the_files_that_the_settings_name(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where programs are: an application in a container is often in /usr/src."""
    if not shutil.which("bwrap") and way == process.BUBBLEWRAP:
        pytest.skip("THERE IS NO BUBBLEWRAP HERE")
    with tempfile.TemporaryDirectory(dir="/opt" if os.geteuid() == 0 else "/var/tmp") as made:
        seen = Path(made, "seen")
        app = seen / "app"
        app.mkdir(parents=True)
        for at in (made, seen, app):
            Path(at).chmod(0o755)
        named = {name: app / name for name in ("cert.pem", "key.pem", "agents.py")}
        for place in named.values():
            place.write_text("secret")
        named["agents.py"].write_text("secret = 'secret'\n")
        (app / "program").write_text("seen\n")
        settings = Settings(
            data=str(app / "data"),
            blobs=str(app / "files"),
            tls_cert=str(named["cert.pem"]),
            tls_key=str(named["key.pem"]),
            agents=(str(named["agents.py"]),),
            allow_exec=True,
        )
        monkeypatch.setattr(process, "CONFINED", (way,))
        monkeypatch.setattr(process, "_PROGRAMS", (*process._PROGRAMS, str(seen)))
        async with opened_hub(folder=app / "data") as hub:
            sandbox = open_services(settings, hub.hub.metrics, hub.hub.policies).sandbox
            assert sandbox is not None
            (app / "files").mkdir()  # with the first file, after the start
            (app / "files" / "1").write_text("secret")
            (app / "data" / "a2a_agents.json").write_text("secret")
            ran = await sandbox.run("1", f"cat {app}/program; cat {app}/* {app}/*/*")
        assert ran.output.startswith("seen\n") and "secret" not in ran.output


@namespaces
async def test_a_command_reaches_no_device_and_writes_to_no_other_mount(
    tmp_path: Path, whose: RunAsUser | None
) -> None:
    sandbox = Sandbox(
        tmp_path, ProcessIsolation(hidden=[Path(__file__)], owner=whose), seconds=10.0, owner=whose
    )
    ran = await sandbox.run(
        "1",
        f"cat {__file__} 2>/dev/null; ls /dev; for at in $(cut -d' ' -f2 /proc/self/mounts); do "
        "mkdir $at/.made 2>/dev/null && rmdir $at/.made && echo wrote:$at; done; "
        "echo heard > /dev/null; head -c 4 /dev/zero | wc -c",
    )
    *lines, zeros = ran.output.splitlines()
    written = {line for line in lines if line.startswith("wrote:")}
    devices = {"fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero"}
    assert set(lines) - written == devices, "and nothing of a hidden file"
    ours = {f"wrote:{at}" for at in ("/mnt", "/mnt/workspace", "/tmp", "/dev", "/dev/shm")}
    assert "wrote:/mnt/workspace" in written and written <= ours and zeros.strip() == "4"


@namespaces
@pytest.mark.skipif(shutil.which("ipcmk") is None, reason="there is no ipcmk")
async def test_a_command_has_no_shared_memory_that_outlives_its_processes(
    tmp_path: Path, whose: RunAsUser | None
) -> None:
    sandbox = Sandbox(tmp_path, ProcessIsolation(owner=whose), seconds=10.0, owner=whose)
    ran = await sandbox.run("1", "ipcmk -M 64; tail -n +2 /proc/sysvipc/shm | wc -l")
    assert "not permitted" in ran.output and ran.output.split()[-1] == "0"


@namespaces
async def test_a_command_that_leaves_others_behind_takes_them_along(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, ProcessIsolation(), seconds=10.0)
    ran = await sandbox.run("1", "(setsid sleep 4321 &) ; echo gone")
    assert (ran.output, ran.code) == ("gone\n", 0)
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"sleep\x004321" in _bytes(p)]
    assert left == []


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@root
@pytest.mark.parametrize("kind", [ProcessIsolation, Bare])
async def test_a_command_of_a_hub_that_is_roots_is_nobodys(
    kind: type[ProcessIsolation], tmp_path: Path
) -> None:
    sandbox = Sandbox(tmp_path, kind(owner=NOBODY), seconds=5.0, owner=NOBODY)
    with tempfile.TemporaryDirectory(dir="/opt") as folder:  # not hidden: only its owner keeps others out
        os.chmod(folder, 0o755)
        secret = Path(folder, "secret")
        secret.write_text("for root alone")
        secret.chmod(0o600)
        ran = await sandbox.run("1", f"id -u; id -G; cat {secret}; echo x > {folder}/made; touch mine")
        assert ran.output.splitlines()[:2] == ["65534", "65534"]
        assert "for root alone" not in ran.output and os.listdir(folder) == ["secret"]
    assert await sandbox.list("1") == [("mine", 0)]


@root
async def test_files_of_write_belong_to_the_user_of_commands(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, Bare(owner=NOBODY), seconds=5.0, disk=100_000, owner=NOBODY)
    await sandbox.write("1", "a/b/c.txt", b"one")
    ran = await sandbox.run(
        "1", "cat a/b/c.txt; echo two >> a/b/c.txt; touch a/d a/b/e; rm a/b/e; echo $HOME > ~/h"
    )
    assert (ran.output, ran.code) == ("one", 0)
    assert await sandbox.read("1", "a/b/c.txt") == b"onetwo\n"
    undone = await sandbox.run("1", "head -c 200000 /dev/zero > big")
    assert "[undone:" in undone.output
    assert (await sandbox.run("1", "echo three >> a/b/c.txt; cat a/b/c.txt")).output == "onetwo\nthree\n"


@root
async def test_a_folder_of_root_is_given_to_the_user_of_commands(tmp_path: Path) -> None:
    before = Sandbox(tmp_path, Bare(), seconds=5.0)
    await before.run("1", "mkdir d; echo old > d/f; ln -s /etc/passwd l")
    after = Sandbox(tmp_path, Bare(owner=NOBODY), seconds=5.0, owner=NOBODY)
    assert (await after.run("1", "echo new >> d/f; cat d/f")).output == "old\nnew\n"
    assert Path("/etc/passwd").stat().st_uid == 0


@root
def test_root_opens_nothing_that_a_command_may_have_replaced_by_a_link(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "t1", tmp_path / "before", limit=1 << 20, owner=NOBODY)
    workspace.write("d/f", b"x")
    (workspace.root / "d").chmod(0o077)
    workspace.used()
    workspace.save()
    assert stat.S_IMODE((workspace.root / "d").stat().st_mode) == 0o077
    assert not workspace.keep_or_restore(1 << 20)


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_workspace_follows_no_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    workspace = Workspace(tmp_path / "t1", tmp_path / "before", limit=1 << 20)
    workspace.open()
    (workspace.root / "file").symlink_to(outside / "secret")
    (workspace.root / "folder").symlink_to(outside)
    os.mkfifo(workspace.root / "pipe")
    assert workspace.read("file") is workspace.read("folder/secret") is workspace.read("pipe") is None
    assert workspace.read("../outside/secret") is None and workspace.list() == []
    with pytest.raises(InvalidParams):
        workspace.write("folder/secret", b"changed")
    workspace.write("file", b"mine")
    assert (outside / "secret").read_text() == "secret" and workspace.read("file") == b"mine"
    workspace.save()
    assert not stat.S_ISFIFO((tmp_path / "before").stat().st_mode) and not (tmp_path / "before/pipe").exists()


@pytest.fixture
def commoner() -> Iterator[Path]:
    """A folder of somebody whom permissions bind, as whom the test runs."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
            os.system(f"chmod -R u+rwX {folder}")
    finally:
        if root:
            os.seteuid(0)


def test_locked_folders_of_a_command_are_counted_and_saved(commoner: Path) -> None:
    workspace = Workspace(commoner / "t1", commoner / "before", limit=1 << 20)
    workspace.write("locked/file", b"x" * 100_000)
    (workspace.root / "locked/file").chmod(0)
    (workspace.root / "locked").chmod(0o300)
    assert workspace.used() > 100_000
    (workspace.root / "locked").chmod(0)
    workspace.save()
    (workspace.root / "more").write_bytes(b"x" * 50_000)
    (workspace.root / "locked").chmod(0)
    assert workspace.keep_or_restore(150_000), "and put back"
    assert workspace.list() == [("locked/file", 100_000)]
    assert workspace.read("locked/file") == b"x" * 100_000


def test_a_folder_that_becomes_a_link_during_the_copy_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("secret")
    workspace = Workspace(tmp_path / "t1", tmp_path / "before", limit=1 << 20)
    for name in ("a", "file", "folder/key", "z"):
        workspace.write(name, b"mine")
    looked = os.lstat

    def swapped(name: Any, *, dir_fd: int | None = None) -> os.stat_result:
        about = looked(name, dir_fd=dir_fd)
        if name == "file":
            (workspace.root / "file").unlink()
            (workspace.root / "file").symlink_to(tmp_path / "secrets" / "key")
            shutil.rmtree(workspace.root / "folder")
            (workspace.root / "folder").symlink_to(tmp_path / "secrets")
        return about

    with monkeypatch.context() as patch:
        patch.setattr("dragoman.hub.sandbox.folder_copy.os.lstat", swapped)
        copying.copy(workspace.root, tmp_path / "before")
    saved = {str(p.relative_to(tmp_path / "before")): p for p in (tmp_path / "before").rglob("*")}
    assert {"a", "z"} <= saved.keys() <= {"a", "z", "folder"}
    assert not any(path.is_file() and path.read_text() == "secret" for path in saved.values())


def test_a_copy_has_modes_and_links_and_leaves_pipes_out(tmp_path: Path) -> None:
    source = tmp_path / "a"
    (source / "d").mkdir(parents=True)
    (source / "d" / "run").write_text("x")
    (source / "d" / "run").chmod(0o750)
    (source / "l").symlink_to("d/run")
    (source / "dl").symlink_to("d")
    os.mkfifo(source / "p")
    (source / "d").chmod(0o710)
    copying.copy(source, tmp_path / "b")
    made = tmp_path / "b"
    assert sorted(os.listdir(made)) == ["d", "dl", "l"] and os.readlink(made / "l") == "d/run"
    assert (made / "dl").is_symlink() and (made / "d/run").read_text() == "x"
    assert [stat.S_IMODE((made / name).stat().st_mode) for name in ("d", "d/run")] == [0o710, 0o750]


def test_a_file_with_holes_counts_in_full_because_a_copy_of_it_has_none(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "t1", tmp_path / "before", limit=1 << 20)
    workspace.open()
    with (workspace.root / "holes").open("wb") as file:
        file.truncate(5_000_000)
    assert workspace.used() >= 5_000_000


async def test_a_command_that_is_canceled_while_its_folder_is_saved_leaves_it_to_the_next_one_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, saving, go = Sandbox(tmp_path, Bare()), threading.Event(), threading.Event()
    save = Workspace.save

    def slow(workspace: Workspace) -> int:
        saving.set()
        go.wait(10)
        return save(workspace)

    monkeypatch.setattr(Workspace, "save", slow)
    first = asyncio.create_task(sandbox.run("1", "echo one"))
    await asyncio.to_thread(saving.wait, 10)
    first.cancel()
    second = asyncio.create_task(sandbox.run("1", "echo two"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not first.done(), "nobody else may have the folder yet"
    go.set()
    assert (await second).output == "two\n"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_files_of_agents_and_of_commands_are_in_one_workspace(
    shed: Begin, database: Database, tmp_path: Path
) -> None:
    sandbox = Sandbox(tmp_path, Bare(), disk=100_000)
    tools = toolbox(database, model=ScriptedModel([]), sandbox=sandbox)
    home = await shed(ScriptedModel([]), tools=tools)
    said = await fed(
        home,
        "/write in/a.txt\nhello\n/endwrite\n/exec tr a-z A-Z < in/a.txt > b.txt; cat b.txt\n/read b.txt\n/list\n/read no",
    )
    assert said.count("HELLO") == 2 and "[exit 0]" in said
    assert "[sandbox workspace]\n| b.txt  (5 bytes)\n| in/a.txt  (5 bytes)" in said
    assert "ERR: there is no file 'no' in the workspace (try /list)" in said
    said = await fed(
        home, "/list\n/read b.txt\n/write big\n" + "x" * 200_000 + "\n/endwrite", conversation_id=10
    )
    assert "(no files)\n| [sandbox workspace]\n| b.txt" in said and "HELLO" in said
    assert "ERR: big was not written: no room for big" in said


async def test_a_picture_that_a_command_made_is_shown_whole_or_not_at_all(
    shed: Begin, database: Database, tmp_path: Path
) -> None:
    sandbox = Sandbox(tmp_path, Bare(), disk=4 << 20)
    made = "/exec head -c 1048577 /dev/zero > big.png; head -c 9 /dev/zero > small.png\n/read big.png\n/read small.png"
    model = ScriptedModel([made, "Seen."], sees=True)
    tools = toolbox(database, model=model, sandbox=sandbox)
    home = await shed(model, tools=tools, database=database)
    await home.ask("look")
    said = model.prompts[1].messages[-1]
    assert "ERR: a picture may have 1048576 bytes here" in said.content
    assert [len(image.content) for image in said.images] == [9]


async def test_a_hub_runs_commands_only_if_its_operator_says_so(tmp_path: Path) -> None:
    for allowed, answer in ((False, "ERR: commands are disabled"), (True, "4\n| [exit 0]")):
        replies = ["/exec echo $((2 + 2))", "Done."]
        async with opened_hub(replies, folder=tmp_path, allow_exec=allowed) as hub:
            acme = await hub.tenant(f"acme-{allowed}")
            await acme.ask("go")
            assert answer in hub.model.prompts[1].messages[-1].content
            metrics = (await acme("GET", "/v1/metrics")).body.decode()
            assert ("dragoman_hub_sandbox_exec_total 1" in metrics) is allowed


# -- containers ----------------------------------------------------------------------------------------------------

DOCKER = """\
#!/bin/sh
echo "$@" >> "{log}"
case "$1" in
  inspect) test -f "{running}" && echo true ;;
  run) touch "{running}" ;;
  rm) rm -f "{running}" ;;
  top) echo PID; echo 1; echo 7; test ! -f "{running}.more" || echo 8 ;;
  exec) shift 3; exec "$@" ;;
esac
"""


class Docker:
    """A command that does as if it were docker, and writes down what it is told."""

    def __init__(self, folder: Path) -> None:
        self.program, self._log = folder / "docker", folder / "log"
        self.running = folder / "running"
        self.program.write_text(DOCKER.format(log=self._log, running=self.running))
        self.program.chmod(0o755)
        self.metrics, self.now = HubMetrics(), 0.0
        self.isolation = ContainerIsolation(
            "img", program=str(self.program), clock=lambda: self.now, count=self.metrics.count_sandbox
        )

    @property
    def calls(self) -> list[str]:
        return self._log.read_text().splitlines()

    def counted(self, what: str) -> bool:
        return f"dragoman_hub_sandbox_{what}\n".encode() in self.metrics.render({})


@pytest.fixture
def docker(tmp_path: Path) -> Docker:
    return Docker(tmp_path)


async def test_a_tenant_has_a_container_with_nothing_but_its_folder(docker: Docker, tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "w", docker.isolation, seconds=10.0)
    assert (await sandbox.run("1", "echo $((1 + 1)) > x; cat x")).output == "2\n"
    assert (await sandbox.run("1", "cat x")).output == "2\n"
    (started,) = [line for line in docker.calls if line.startswith("run ")]
    for option in (
        "--network=none",
        "--read-only",
        "--memory=512m",
        "--cpus=1",
        "--pids-limit=256",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--user={os.getuid()}:{os.getgid()}",
        f"--mount=type=bind,source={tmp_path}/w/t1,target=/workspace img sleep infinity",
    ):
        assert option in started
    assert docker.counted("container_started_total 1") and docker.counted("containers_running 1")
    await sandbox.close()
    assert docker.calls[-1].startswith("rm --force dragoman-") and docker.counted("containers_running 0")


async def test_a_command_in_a_container_ends_also_if_the_hub_stands_still(tmp_path: Path) -> None:
    isolation = ContainerIsolation("img", seconds=0.0, program=str(Docker(tmp_path).program))
    arguments, environment = await isolation.prepare("1", tmp_path, "sleep 600; echo late")
    command = await start(arguments, environment=environment)  # nobody watches it
    assert await command.wait() != 0
    assert command.output is not None and b"late" not in await command.output.read()
    await isolation.close()


async def test_a_container_goes_when_it_is_idle_or_a_command_was_killed_in_it(
    docker: Docker, tmp_path: Path
) -> None:
    sandbox = Sandbox(tmp_path / "w", docker.isolation)
    await sandbox.run("1", "true")
    docker.now = 1799.0
    await docker.isolation.remove_idle()
    assert docker.running.exists()
    docker.now = 1801.0
    await docker.isolation.remove_idle()
    assert not docker.running.exists() and docker.counted("container_reaped_total 1")
    impatient = Sandbox(tmp_path / "w", docker.isolation, seconds=0.3)
    assert (await impatient.run("1", "sleep 60")).timed_out
    assert not docker.running.exists() and docker.counted("container_started_total 2")
    await impatient.close()


async def test_a_container_goes_if_a_command_leaves_something_running_in_it(
    docker: Docker, tmp_path: Path
) -> None:
    """It would fill the disk while nobody looks, or take the processes of the next command."""
    sandbox = Sandbox(tmp_path / "w", docker.isolation, seconds=10.0)
    await sandbox.run("1", "true")
    assert docker.running.exists()
    left = docker.running.with_name("running.more")
    assert (await sandbox.run("1", f"touch {left}; echo begun")).output == "begun\n"
    assert not docker.running.exists()
    left.unlink()
    await sandbox.run("1", "true")
    assert docker.running.exists() and docker.counted("container_started_total 2")
    await sandbox.close()


async def test_a_container_that_a_hub_left_behind_goes_with_what_runs_in_it(
    docker: Docker, tmp_path: Path
) -> None:
    docker.running.touch()
    sandbox = Sandbox(tmp_path / "w", docker.isolation, seconds=10.0)
    await sandbox.run("1", "true")
    await sandbox.run("1", "true")
    assert [line.split()[0] for line in docker.calls] == [
        "rm", "run", "exec", "top", "inspect", "exec", "top",
    ]  # fmt: skip
    assert docker.counted("containers_running 1")
    await sandbox.close()


@root
async def test_a_container_of_a_hub_that_is_roots_is_nobodys(tmp_path: Path) -> None:
    given = Docker(tmp_path)
    isolation = ContainerIsolation("img", program=str(given.program), owner=NOBODY)
    sandbox = Sandbox(tmp_path / "w", isolation, seconds=10.0, owner=NOBODY)
    await sandbox.run("1", "true")
    assert any("--user=65534:65534" in line for line in given.calls)
    assert (tmp_path / "w" / "t1").stat().st_uid == 65534
    await sandbox.close()


@root
def test_root_without_setuid_runs_commands_and_warns(tmp_path: Path) -> None:
    code = "from dragoman.hub.sandbox.child_process import command_user, root_warning; print(command_user(), root_warning())"
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", code]
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv")
    ran = subprocess.run(drop, capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert ran.stdout.startswith("None this hub runs as root: commands can read what root can"), ran


@root
async def test_a_hub_that_is_roots_says_so_when_it_runs_commands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_hub(["/exec id -u", "Fine."], folder=tmp_path, allow_exec=True) as hub:
        acme = await hub.tenant("acme")
        await acme.ask("go")
        assert "65534\n| [exit 0]" in hub.model.prompts[-1].messages[-1].content
    assert any("runs as root" in record.getMessage() for record in caplog.records)


async def test_without_docker_a_command_is_refused_in_a_sentence(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, ContainerIsolation("img", program=str(tmp_path / "nothing")))
    with pytest.raises(Unavailable, match="the container does not start"):
        await sandbox.run("1", "true")
    await sandbox.close()


@pytest.mark.skipif(sys.platform != "linux", reason="names of open files are in /proc")
def test_a_file_of_write_is_on_disk_before_it_has_its_name_and_its_folders_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says that the command has run: after a power cut the file must be there, whole."""
    root, synced, sync, replace = tmp_path / "t1", list[str](), os.fsync, os.replace

    def sync_noticed(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(tmp_path)))
        sync(descriptor)

    def replace_noticed(*what: Any, **where: Any) -> None:
        synced.append("named")
        replace(*what, **where)

    monkeypatch.setattr(os, "fsync", sync_noticed)
    monkeypatch.setattr(os, "replace", replace_noticed)
    Workspace(root, tmp_path / "saved", limit=1 << 20).write("a/b/file", b"x")
    named = synced.index("named")
    assert [bool(re.fullmatch(r"/t1/a/b/\.[\w-]+", name)) for name in synced[:named]].count(True) == 1
    assert {"", "/t1", "/t1/a"} <= set(synced[:named]) and synced[named + 1 :] == ["/t1/a/b"]
