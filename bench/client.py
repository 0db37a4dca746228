"""Our client and that of a2a-sdk 1.3.0, side by side against a server that does nothing: `python -m bench.client`.

Each runs in a process of its own on one core, the server on another, rounds in turn, medians. Both use plain asyncio
and their ordinary face: `await agent.send("hello")` and `agent.stream("hello")` here, `client.send_message` there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.calls import measure, report
from bench.servers import A2A_SDK, ROOT
from tests.ports import free_port

OURS, THEIRS = "dragoman", "a2a-sdk 1.3.0"


async def load(url: str, seconds: float) -> None:
    from dragoman import connect

    async with connect(url) as agent:

        async def call() -> None:
            assert await agent.send("hello") == "hello"

        async def stream() -> int:
            events = 0
            async for _ in agent.stream("hello"):
                events += 1
            assert events > 1000
            return events

        report(await measure(call, stream, seconds=seconds))


@contextmanager
def canned(core: int) -> Iterator[str]:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "bench" / "canned.py"), str(port)],
        stdout=subprocess.PIPE,
        preexec_fn=partial(os.sched_setaffinity, 0, {core}),
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == b"READY\n"
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.kill()
        server.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="per workload and round")
    parser.add_argument("--load", metavar="URL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        asyncio.run(load(args.load, args.seconds))
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    seconds = str(args.seconds)
    commands = {
        THEIRS: [str(A2A_SDK), str(Path(__file__).parent / "peers" / "a2a_sdk_client.py"), "URL", seconds],
        OURS: [sys.executable, "-m", "bench.client", "--load", "URL", "--seconds", seconds],
    }
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(args.rounds):
        for name, command in commands.items():
            with canned(cores[0]) as url:
                filled = [url if word == "URL" else word for word in command]
                done = subprocess.run(filled, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name} failed:\n{done.stderr}")
            measured[name].append(json.loads(done.stdout))
    print(table(measured))


def table(measured: dict[str, list[dict[str, float]]]) -> str:
    lines = [f"{'the client alone':<28}{THEIRS:>16}{OURS:>16}"]
    for what in measured[OURS][0]:
        theirs, ours = (statistics.median(run[what] for run in measured[name]) for name in (THEIRS, OURS))
        lines.append(f"{what:<28}{theirs:>16,.0f}{ours:>16,.0f}  {ours / theirs:5.1f}x")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
