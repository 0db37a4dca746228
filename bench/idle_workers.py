"""What idle streams cost a server with several workers on one SQLite file.

    python -m bench.idle_workers [--streams 5000] [--workers 2] [--rate 5] [--seconds 15]

Opens streams of tasks on which nothing happens, sends messages to another skill at a steady rate meanwhile, and prints one
JSON object: the CPU of all workers in percent of one core, without sends and with them, and how long the sends took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

AGENT = """
import asyncio
from dragoman import Agent, Turn

agent = Agent("Idle")

@agent.skill(default=True)
async def echo(text: str) -> str:
    return text

@agent.skill
async def wait(turn: Turn) -> str:
    await turn.status("waiting")
    await asyncio.Event().wait()
    return ""
"""
_TICKS = os.sysconf("SC_CLK_TCK")


def request(method: str, skill: str) -> bytes:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
    params = {"message": message, "metadata": {"skillId": skill}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    head = f"POST / HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nA2A-Version: 1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def processor_seconds(supervisor: int) -> float:
    """Of the supervisor's workers, since they began."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    total = 0
    for pid in [supervisor, *map(int, children)]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


async def open_stream(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream whose task says that it waits."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("SendStreamingMessage", "wait"))
    while b"waiting" not in await reader.readuntil(b"\n\n"):
        pass
    return reader, writer


async def send(port: int) -> float:
    """Seconds until a message is answered, on a connection of its own."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("SendMessage", "echo"))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    await reader.read(1)
    took = time.perf_counter() - began
    writer.close()
    return took


async def measure(port: int, supervisor: int, streams: int, rate: float, seconds: float) -> dict[str, Any]:
    opened = []
    for start in range(0, streams, 100):
        group = (open_stream(port) for _ in range(start, min(start + 100, streams)))
        opened += await asyncio.gather(*group)
    await asyncio.sleep(2)
    before, since = processor_seconds(supervisor), time.perf_counter()
    await asyncio.sleep(seconds)
    idle = (processor_seconds(supervisor) - before) / (time.perf_counter() - since)
    before, since = processor_seconds(supervisor), time.perf_counter()
    sends = []
    for n in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, since + n / rate - time.perf_counter()))
        sends.append(asyncio.create_task(send(port)))
    took = sorted(await asyncio.gather(*sends))
    busy = (processor_seconds(supervisor) - before) / (time.perf_counter() - since)
    for _, writer in opened:
        writer.close()
    return {
        "streams": streams,
        "cpu_percent_idle": round(100 * idle, 1),
        "cpu_percent_with_sends": round(100 * busy, 1),
        "send_ms_p50": round(1000 * took[len(took) // 2], 1),
        "send_ms_p99": round(1000 * took[int(len(took) * 0.99)], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=5, help="sends per second")
    parser.add_argument("--seconds", type=float, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "agent.py")
        file.write_text(AGENT)
        command = [sys.executable, "-m", "dragoman.cli", "serve", str(file), "--port", "0"]
        options = [
            "--store",
            f"sqlite:///{folder}/tasks.db",
            "--workers",
            str(args.workers),
            "--drain",
            "0",
            "--log-level",
            "warning",
        ]
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline().rstrip().rstrip(b"/").rpartition(b":")[2])
            try:
                result = measure(port, server.pid, args.streams, args.rate, args.seconds)
                print(json.dumps({"workers": args.workers, **asyncio.run(result)}))
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
