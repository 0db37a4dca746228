"""What a bridge costs: calls of an agent, direct and through `dragoman bridge`.

    python -m bench.bridge [--calls 2000] [--streams 20] [--events 500] [--rounds 3] [--durable]

Prints one JSON object: microseconds of CPU per call (`GetTask`, and a blocking `SendMessage`) and per event of a stream, of the process
that is called. `direct` is the agent itself. `pass 1.0` and `pass 0.3` are the process of a bridge in mode `pass` whose agent speaks this version;
the caller always speaks 1.0. What the agent behind it uses is not in these figures. `burst` events are ready together and `paced` ones
come one by one. Each figure is the minimum of the rounds, which alternate between the servers, with 8 connections at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.console import answer, read_to_end, rpc
from bench.idle_workers import processor_seconds

CONNECTIONS = 8
AGENT = (
    (Path(__file__).parent / "echo.py")
    .read_text()
    .replace('description="echo"', 'description="echo", versions=VERSIONS')
)


class Server:
    """A process that listens on a port of its own."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "dragoman.cli", *words, "--port", "0", "-q"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        found = re.search(r":(\d+)/", self.process.stdout.readline().decode())
        assert found is not None, words
        self.port = int(found[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu(self) -> float:
        return processor_seconds(self.process.pid)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def send(text: str, method: str = "SendMessage") -> bytes:
    return rpc(method, {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}})


async def calls(server: Server, request: bytes, count: int) -> float:
    """Microseconds of CPU per call."""

    async def some(n: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(n):
            found = await answer(reader, writer, request)
            assert "result" in found, found
        writer.close()

    before, each = server.cpu(), count // CONNECTIONS
    await asyncio.gather(*(some(each) for _ in range(CONNECTIONS)))
    return (server.cpu() - before) / (each * CONNECTIONS) * 1e6


async def events(server: Server, kind: str, streams: int, count: int) -> float:
    """Microseconds of CPU per event."""
    request = send(f"{kind}:{count}", "SendStreamingMessage")
    together = asyncio.Semaphore(CONNECTIONS)

    async def one() -> None:
        async with together:
            await read_to_end(server.port, request, b"STATE_COMPLETED")

    before = server.cpu()
    await asyncio.gather(*(one() for _ in range(streams)))
    return (server.cpu() - before) / (streams * count) * 1e6


async def measure(server: Server, args: argparse.Namespace) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    task = (await answer(reader, writer, send("hello")))["result"]["task"]["id"]
    writer.close()
    get = rpc("GetTask", {"id": task})
    work: dict[str, Callable[[], Awaitable[float]]] = {
        "GetTask": lambda: calls(server, get, args.calls),
        "SendMessage": lambda: calls(server, send("hello"), args.calls // 2),
        "event, burst": lambda: events(server, "stream", args.streams, args.events),
        "event, paced": lambda: events(server, "paced", args.streams, args.events),
    }
    return {name: await run() for name, run in work.items()}


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--events", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--durable", action="store_true", help="also a bridge in mode durable, on SQLite")
    args = parser.parse_args()
    servers: dict[str, Server] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            agents = {}
            for version in ("1.0", "0.3"):
                file = Path(folder, f"echo_{version.replace('.', '_')}.py")
                file.write_text(AGENT.replace("VERSIONS", repr((version,))))
                agents[version] = Server("serve", str(file), "--store", "memory:")
            servers["direct"] = agents["1.0"]
            for version, agent in agents.items():
                words = ("bridge", agent.url, "--mode", "pass", "--store", "memory:")
                servers[f"pass {version}"] = Server(*words)
            if args.durable:
                store = f"sqlite:///{folder}/bridge.db"
                servers["durable 1.0"] = Server("bridge", agents["1.0"].url, "--store", store)
            best: dict[str, dict[str, float]] = {}
            for _ in range(args.rounds):
                for name, server in servers.items():
                    for what, value in (await measure(server, args)).items():
                        known = best.setdefault(what, {})
                        known[name] = round(min(value, known.get(name, value)), 1)
            print(json.dumps({"microseconds of CPU": best}, indent=2))
        finally:
            for server in {*servers.values(), *agents.values()}:
                server.stop()


if __name__ == "__main__":
    asyncio.run(main())
