"""Peak memory of a server under requests that are few and large. Loopback only; it stops by itself.

    python -m bench.memory [--store sqlite|memory|URL] [--megabytes 200] [--only NAME ...]

| scenario | what happens |
|---|---|
| resume | ten clients resume the stream of a finished task of 200 MB from its beginning, and do not read |
| get | one client gets that task |
| bodies | 60 messages of 8 MB are sent at once; each answer repeats its message |
| list | one client lists the tasks that are now there, with artifacts, page by page |

Each runs on a fresh server process (in memory: on the one that made the tasks). `peak` is the highest resident memory in the
scenario above what there was before it, `after` what is left of that when the scenario is over, `waits` the longest that
another client waited for a card meanwhile, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from bench.servers import ROOT, answers, gives_card
from bench.target import Target, complete
from dragoman import Agent, Turn
from tests.ports import free_port

CHUNK = 64 << 10
MB = 1 << 20

agent = Agent("large", description="answers with as many megabytes as asked for, or with what it was sent")


@agent.skill
async def large(turn: Turn) -> str | None:
    """Writes `write:N` megabytes, or says again what it was told."""
    kind, _, count = turn.text[:40].partition(":")
    if kind != "write":
        return turn.text
    artifact = turn.artifact("large")
    chunks = int(count) * MB // CHUNK
    for i in range(1, chunks + 1):
        await artifact.write("x" * CHUNK, last=i == chunks)
        await asyncio.sleep(0)
    return None


class Server:
    def __init__(self, target: Target, pid: int) -> None:
        self.target, self.pid = target, pid

    def memory(self) -> tuple[int, int]:
        """Resident bytes: the peak since `forget`, and now."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        peak, now = (re.search(rf"{name}:\s+(\d+)", text) for name in ("VmHWM", "VmRSS"))
        assert peak and now
        return int(peak[1]) << 10, int(now[1]) << 10

    def forget(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def post(self, body: bytes, *headers: str) -> bytes:
        head = f"POST / HTTP/1.1\r\nHost: {self.target.host}\r\nA2A-Version: 1.0\r\nContent-Type: application/json\r\n"
        head += "".join(f"{header}\r\n" for header in headers) + f"Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def rpc(self, method: str, **params: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()

    def say(self, text: str, number: int = 0) -> bytes:
        message = {"messageId": f"m{number}", "role": "ROLE_USER", "parts": [{"text": text}]}
        return self.rpc("SendMessage", message=message, configuration={"historyLength": 0})

    def make(self, megabytes: int) -> str:
        """A finished task of that size."""
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": f"write:{megabytes}"}]}
        body = self.rpc("SendMessage", message=message, configuration={"returnImmediately": True})
        _, answer = self.target.exchange(self.post(body))
        task: str = json.loads(answer)["result"]["task"]["id"]
        while True:
            listed = self.rpc("ListTasks", status="TASK_STATE_COMPLETED", historyLength=0, pageSize=1)
            _, answer = self.target.exchange(self.post(listed), timeout=120)
            if task.encode() in answer:
                return task
            time.sleep(0.1)


def resume(server: Server, task: str) -> dict[str, Any]:
    request = server.post(
        server.rpc("SubscribeToTask", id=task), "Last-Event-ID: 1", "Accept: text/event-stream"
    )
    with ExitStack() as stack:
        for _ in range(10):
            client = stack.enter_context(socket.create_connection(server.target.address, timeout=60))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.sendall(request)
        time.sleep(5.0)  # they do not read: nothing tells us that the server has written what it will write
    return {}


def get(server: Server, task: str) -> dict[str, Any]:
    return {"answer_mb": _read(server, server.post(server.rpc("GetTask", id=task))) // MB}


def bodies(server: Server, _: str) -> dict[str, Any]:
    said = server.post(server.say("y" * (8 * MB - 4096)))
    got: list[int] = []
    threads = [Thread(target=lambda: got.append(_read(server, said))) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "answered": sum(size > 8 * MB - 4096 for size in got),
        "refused": sum(size < 4096 for size in got),
    }


def list_tasks(server: Server, _: str) -> dict[str, Any]:
    token, pages, largest, tasks = "", 0, 0, 0
    while True:
        request = server.rpc("ListTasks", includeArtifacts=True, pageSize=50, pageToken=token)
        data = _answer(server, server.post(request))
        found = json.loads(data)["result"]
        pages, largest, tasks = pages + 1, max(largest, len(data)), tasks + len(found["tasks"])
        token = found["nextPageToken"]
        if not token:
            return {"tasks": tasks, "pages": pages, "largest_mb": largest // MB}


def _read(server: Server, request: bytes) -> int:
    return len(_answer(server, request))


def _answer(server: Server, request: bytes) -> bytes:
    data = bytearray()
    length = -1
    with socket.create_connection(server.target.address, timeout=300) as client:
        client.sendall(request)
        while length < 0 or len(data) < length:
            chunk = client.recv(1 << 20)
            if not chunk:
                break
            data += chunk
            if length < 0 and b"\r\n\r\n" in data:
                end = data.find(b"\r\n\r\n") + 4
                said = re.search(rb"content-length: (\d+)", bytes(data[:end]).lower())
                length = end + int(said[1]) if said else 1 << 62
                start = end
            elif length == 1 << 62 and complete(bytes(data[-4096:]))[0]:
                break
    return bytes(data[start:])


SCENARIOS: dict[str, tuple[Callable[[Server, str], dict[str, Any]], str]] = {
    "resume": (resume, "task"),
    "get": (get, "task"),
    "bodies": (bodies, ""),
    "list": (list_tasks, "tasks"),
}


@contextmanager
def serving(store: str) -> Iterator[Server]:
    """A server on `store`, from when it answers until the block ends."""
    port = free_port()
    target = Target(f"http://127.0.0.1:{port}/")
    process = subprocess.Popen([sys.executable, "-m", "bench.memory", "--serve", store, str(port)], cwd=ROOT)
    try:
        if not answers(target, process, gives_card):
            sys.exit("the server did not start")
        yield Server(target, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measure(name: str, store: str, megabytes: int) -> dict[str, Any]:
    scenario, needs = SCENARIOS[name]
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        url = {"sqlite": f"sqlite:///{scratch}/large.db", "memory": "memory:"}.get(store, store)
        server = stack.enter_context(serving(url))
        task = server.make(megabytes) if needs == "task" else ""
        if needs == "tasks":
            for _ in range(12):
                server.make(8)
        if needs and url != "memory:":
            server = stack.enter_context(serving(url))  # one that has nothing in memory yet
        return {"scenario": name, **_observed(server, scenario, task)}


def _observed(server: Server, scenario: Callable[[Server, str], dict[str, Any]], task: str) -> dict[str, Any]:
    server.forget()
    _, before = server.memory()
    over, worst = Event(), [0.0]

    def probe() -> None:
        while not over.wait(0.02):
            began = time.perf_counter()
            try:
                server.target.exchange(server.target.card, timeout=60)
            finally:
                worst[0] = max(worst[0], time.perf_counter() - began)

    watcher = Thread(target=probe)
    watcher.start()
    began = time.perf_counter()
    try:
        found = scenario(server, task)
    finally:
        over.set()
        watcher.join()
    peak, now = server.memory()
    return {
        "peak_mb": (peak - before) // MB,
        "after_mb": (now - before) // MB,
        "waits_ms": round(worst[0] * 1000),
        "seconds": round(time.perf_counter() - began, 1),
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", default="sqlite", help="sqlite, memory, or a URL of an empty database")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--serve", nargs=2, metavar=("STORE", "PORT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        agent.run(store=given.serve[0], port=int(given.serve[1]), log_level="error")
        return
    for name in given.only:
        print(json.dumps(measure(name, given.store, given.megabytes)), flush=True)


if __name__ == "__main__":
    main()
