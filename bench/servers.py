"""The servers that are measured, each in a process of its own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.target import Target
from tests.ports import free_port

ROOT = Path(__file__).parent.parent
JSONRPC, REST, GRPC = BINDINGS = ("JSON-RPC", "HTTP+JSON", "gRPC")
A2A_SDK = ROOT / ".peers" / "a2a-sdk-1.3.0" / "bin" / "python"
FASTA2A_PYTHON = ROOT / ".peers" / "fasta2a-2.1.1" / "bin" / "python"


@dataclass(frozen=True)
class Server:
    name: str
    python: str
    arguments: Callable[[str, int, Path], list[str]]
    """From a binding, the port it shall be on and an empty directory to what follows `python`."""
    tuned: bool = False
    """Started with the garbage collector that `agent.run()` sets."""
    dialect: str = "v1"
    """What it speaks over JSON-RPC."""
    bindings: tuple[str, ...] = BINDINGS
    state_after_send: str = ""
    """What the answer to a send contains where that is not a finished task."""


def _dragoman(store: str, binding: str, port: int, scratch: Path) -> list[str]:
    ports = [free_port(), port] if binding == GRPC else [port]
    where = store.format(scratch=scratch)
    return [str(ROOT / "bench" / "echo.py"), where, *map(str, ports)]


def _a2a_sdk(binding: str, port: int, scratch: Path) -> list[str]:
    return [str(ROOT / "bench" / "peers" / "a2a_sdk.py"), binding, str(port)]


def _fasta2a(binding: str, port: int, scratch: Path) -> list[str]:
    return [str(ROOT / "bench" / "peers" / "fasta2a.py"), str(port)]


BASELINE = Server("a2a-sdk 1.3.0", str(A2A_SDK), _a2a_sdk)
TUNED = Server("a2a-sdk, equal tuning", str(A2A_SDK), _a2a_sdk, tuned=True)
FASTA2A = Server(
    "fasta2a 2.1.1, equal tuning",
    str(FASTA2A_PYTHON),
    _fasta2a,
    tuned=True,
    dialect="v03",
    bindings=(JSONRPC,),
    state_after_send='"submitted"',
)
DURABLE = Server("dragoman, SQLite", sys.executable, partial(_dragoman, "sqlite:///{scratch}/echo.db"))
# What a store costs is the same whatever the binding.
MEMORY = Server("dragoman, memory", sys.executable, partial(_dragoman, "memory:"), bindings=(JSONRPC,))


@contextmanager
def running(
    server: Server, binding: str = JSONRPC, *, core: int | None = None
) -> Iterator[tuple[Target, int]]:
    """A fresh process of `server`, from when it answers until the block ends: where it is, and its id.

    `core`: the one it is pinned to.
    """
    port = free_port()
    dialect = "rest" if binding == REST else server.dialect
    target = Target(f"http://127.0.0.1:{port}/", dialect, state_after_send=server.state_after_send)
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as output:
        arguments = server.arguments(binding, port, Path(scratch))
        command = [server.python, *([str(ROOT / "bench" / "tuned.py")] if server.tuned else []), *arguments]
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=scratch)
        try:
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            if not answers(target, process, listens if binding == GRPC else gives_card):
                output.seek(0)
                sys.exit(f"{server.name} did not start:\n{output.read().decode(errors='replace')}")
            yield target, process.pid
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def answers(
    target: Target,
    process: subprocess.Popen[bytes],
    ready: Callable[[Target], bool],
    *,
    limit: float = 30,
) -> bool:
    until = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < until:
        try:
            if ready(target):
                return True
        except OSError:
            time.sleep(0.02)
    return False


def gives_card(target: Target) -> bool:
    return target.exchange(target.card, timeout=5)[0] == 200


def listens(target: Target) -> bool:
    target.connect().close()
    return True


def raise_file_limit(wanted: int) -> bool:
    """Let this process and its children open `wanted` files; False if the system does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return False
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return True
