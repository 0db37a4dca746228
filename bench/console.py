"""What the console costs a server.

    python -m bench.console [--viewers 10] [--chunks 2000] [--sends 3000] [--rounds 3]

Prints one JSON object. `viewers`: seconds of server CPU while one task streams, watched by nobody, by so many plain subscribers
(`SubscribeToTask`, A2A 1.0) and by so many viewers of the console; what they add is the difference. `sends`: microseconds of server
CPU per blocking send without and with the console, nobody watching. Each is the minimum of the rounds, which alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.idle_workers import processor_seconds

AGENT = """
import asyncio
from dragoman import Agent, Turn

agent = Agent("Busy")
PACE = 0.002

@agent.skill(default=True)
async def echo(text: str) -> str:
    return text

@agent.skill
async def stream(turn: Turn):
    n = int(turn.text)
    await asyncio.sleep(1.5)
    for i in range(n):
        yield f"this is word number {i} of a long answer "
        await asyncio.sleep(PACE)
"""
TOKEN = "op_bench_0123456789abcdef"


class Server:
    def __init__(self, folder: str, name: str, *, console: bool) -> None:
        agent = Path(folder, "agent.py")
        agent.write_text(AGENT)
        store = f"sqlite:///{folder}/{name}.db"
        command = [
            sys.executable,
            "-m",
            "dragoman.cli",
            "serve",
            str(agent),
            "--port",
            "0",
            "--store",
            store,
            "-q",
        ]
        self.process = subprocess.Popen(
            command + (["--console"] if console else []),
            stdout=subprocess.PIPE,
            env={**os.environ, "DRAGOMAN_CONSOLE_TOKEN": TOKEN},
        )
        assert self.process.stdout is not None
        found = re.search(r":(\d+)/", self.process.stdout.readline().decode())
        assert found is not None
        self.port = int(found[1])

    def cpu(self) -> float:
        return processor_seconds(self.process.pid)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def rpc(method: str, params: Any) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nA2A-Version: 1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def get(path: str) -> bytes:
    head = f"GET /console/api{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    return head.encode()


def send(text: str, skill: str, **configuration: Any) -> bytes:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    params = {"message": message, "metadata": {"skillId": skill}, "configuration": configuration}
    return rpc("SendMessage", params)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> Any:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None, head
    return json.loads(await reader.readexactly(int(length[1])))


async def read_to_end(port: int, request: bytes, last: bytes) -> int:
    """Read a stream until it has said `last`: the bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(request)
    size, tail = 0, b""
    while chunk := await reader.read(1 << 18):
        size += len(chunk)
        tail = (tail + chunk)[-4000:]
        if last in tail:
            break
    writer.close()
    return size


async def watch(server: Server, how: str, viewers: int, chunks: int) -> tuple[float, int]:
    """Seconds of server CPU for one streaming task with so many readers, and the bytes that one of them got."""
    before = server.cpu()
    started = await ask(server, send(str(chunks), "stream", returnImmediately=True))
    task = started["result"]["task"]["id"]
    readers: list[asyncio.Task[int]] = []
    if how != "nobody":
        rows = await ask(server, get("/tasks?limit=1"))
        request = get(f"/tasks/{rows['tasks'][0]['key']}/events")
        if how == "subscribers":
            request = rpc("SubscribeToTask", {"id": task})
        readers = [
            asyncio.create_task(read_to_end(server.port, request, b"STATE_COMPLETED")) for _ in range(viewers)
        ]
    sizes = await asyncio.gather(*readers)
    while True:
        rows = await ask(server, get("/tasks?limit=1"))
        if rows["tasks"][0]["state"] == "TASK_STATE_COMPLETED":
            break
        await asyncio.sleep(0.5)
    return server.cpu() - before, sizes[0] if sizes else 0


async def ask(server: Server, request: bytes) -> Any:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        return await answer(reader, writer, request)
    finally:
        writer.close()


async def sends(server: Server, count: int) -> float:
    """Microseconds of server CPU per blocking send, 16 at a time."""

    async def one(n: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(n):
            await answer(reader, writer, send("hello", "echo"))
        writer.close()

    before = server.cpu()
    await asyncio.gather(*(one(count // 16) for _ in range(16)))
    return (server.cpu() - before) / (count // 16 * 16) * 1e6


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--chunks", type=int, default=2_000)
    parser.add_argument("--sends", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    costs: dict[str, list[tuple[float, int]]] = {"nobody": [], "subscribers": [], "viewers": []}
    calls: dict[str, list[float]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory() as folder:
        watched = Server(folder, "watched", console=True)
        servers = {name: Server(folder, name, console=name == "on") for name in calls}
        try:
            for _ in range(args.rounds):
                for how, found in costs.items():
                    found.append(await watch(watched, how, args.viewers, args.chunks))
                for name, server in servers.items():
                    calls[name].append(await sends(server, args.sends))
        finally:
            for server in (watched, *servers.values()):
                server.stop()
    least = {how: min(found)[0] for how, found in costs.items()}
    sizes = {f"bytes_of_{how}": found[0][1] for how, found in costs.items() if how != "nobody"}
    print(
        json.dumps(
            {
                "viewers": {
                    **{how: round(value, 2) for how, value in least.items()},
                    "added_by_subscribers": round(least["subscribers"] - least["nobody"], 2),
                    "added_by_viewers": round(least["viewers"] - least["nobody"], 2),
                    **sizes,
                },
                "sends": {name: round(min(found), 1) for name, found in calls.items()},
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
