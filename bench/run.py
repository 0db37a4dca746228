"""Dragoman and a2a-sdk 1.3.0, side by side in one run: `make bench`.

Both serve the same echo agent (`bench/target.py`) from one process on one core, with the load on another. Rounds
alternate between the servers and medians are reported, so that a machine that slows down slows all of them. Dragoman is
measured durable, on SQLite, and in memory; a2a-sdk in memory. Nothing is tuned: garbage collector, event loop and HTTP
parser are as each ships, with uvloop and httptools on both sides. `--gc tuned` gives both the same lazy collector.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench import load
from bench.generator import Result
from bench.servers import BASELINE, DURABLE, MEMORY, Server, raise_file_limit, running

RESULTS = Path(__file__).parent / "results"
STREAMS = 2000


@dataclass(frozen=True)
class Workload:
    name: str
    run: Callable[..., Result]
    value: str
    """The number of its result that counts."""
    less_is_better: bool = False


WORKLOADS = [
    Workload("blocking send /s", load.send, "rate"),
    Workload("stream events /s (burst)", load.stream, "events_per_s"),
    Workload("stream events /s (paced)", partial(load.stream, paced=True), "events_per_s"),
    Workload("GetTask /s (10 messages)", load.get, "rate"),
]
IDLE = Workload("KB per idle stream", load.idle, "rss_per_stream_kb", less_is_better=True)

Measured = dict[str, dict[str, list[Result]]]
"""Workload name -> server name -> one result per round."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="per workload and round")
    parser.add_argument("--engine", choices=["wrk", "py"], default="", help="default: wrk if it is installed")
    parser.add_argument("--gc", choices=["shipped", "tuned"], default="shipped")
    parser.add_argument("--streams", type=int, default=STREAMS, help="idle streams; 0 leaves them out")
    parser.add_argument(
        "--per-cpu",
        action="store_true",
        help="per second of server CPU: what a busy machine still tells rightly",
    )
    parser.add_argument("--only", default="", help="only servers whose name contains this")
    args = parser.parse_args()

    cores = sorted(os.sched_getaffinity(0))
    server_core, load_core = cores[0], cores[-1]
    os.sched_setaffinity(0, {load_core})
    engine = args.engine or ("wrk" if shutil.which("wrk") else "py")
    about = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": {"server": server_core, "load": load_core},
        "engine": engine,
        "gc": args.gc,
        "rounds": args.rounds,
        "seconds": args.seconds,
    }
    print(
        f"Python {about['python']}, server on core {server_core}, load on core {load_core} ({engine} for plain calls), "
        f"median of {args.rounds} rounds of {args.seconds:g} s, collector {args.gc}"
    )
    if server_core == load_core:
        print("only one core: the load takes its share from the server, and absolute numbers mean little")

    measured: Measured = {}
    servers = [s for s in (BASELINE, DURABLE, MEMORY) if args.only in s.name]
    for number in range(args.rounds):
        for server in servers:
            note(f"round {number + 1}: {server.name}")
            with running(server, core=server_core, tuned=args.gc == "tuned") as (target, pid):
                for workload in WORKLOADS:
                    extra = {} if "stream" in workload.name else {"engine": engine}
                    result = workload.run(target, seconds=args.seconds, warmup=1.0, pid=pid, **extra)
                    keep(measured, workload, server, result)
    if not raise_file_limit(args.streams + 200):
        print(f"the system does not let a process open {args.streams} connections: no idle streams")
        args.streams = 0
    for server in servers if args.streams else ():
        note(f"{args.streams} idle streams: {server.name}")
        with running(server, core=server_core, tuned=args.gc == "tuned") as (target, pid):
            keep(measured, IDLE, server, IDLE.run(target, conns=args.streams, pid=pid))
    note("")
    print(table(measured, [s.name for s in servers], per_cpu=args.per_cpu))
    for problem in problems(measured):
        print(f"! {problem}")
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{about['when'].replace(':', '')}.json"
    file.write_text(json.dumps({"about": about, "measured": measured}, indent=1))
    print(f"all numbers: {file.relative_to(RESULTS.parent.parent)}")


def keep(measured: Measured, workload: Workload, server: Server, result: Result) -> None:
    measured.setdefault(workload.name, {}).setdefault(server.name, []).append(result)


def table(measured: Measured, servers: list[str], *, per_cpu: bool) -> str:
    """The medians, and how many times better than the baseline each is."""
    rows = [["", *servers]]
    for workload in [*WORKLOADS, IDLE]:
        if workload.name not in measured:
            continue
        medians = {
            name: statistics.median(
                r[workload.value] / (r.get("server_cpu", 1.0) if per_cpu else 1.0) for r in results
            )
            for name, results in measured[workload.name].items()
        }
        base = medians.get(BASELINE.name)
        row = [workload.name]
        for name in servers:
            value = medians[name]
            cell = f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
            if base and value and name != BASELINE.name:
                cell += f"  {base / value if workload.less_is_better else value / base:6.1f}x"
            row.append(cell)
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))
        )
        for r in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def problems(measured: Measured) -> Iterator[str]:
    """What makes a number doubtful."""
    shares = [
        r["server_cpu"]
        for runs in measured.values()
        for r in runs.get(BASELINE.name, ())
        if "server_cpu" in r
    ]
    if shares and (share := statistics.median(shares)) < 0.8:
        yield f"{BASELINE.name} had {share:.0%} of its core: something else runs on this machine (see --per-cpu)"
    for workload, servers in measured.items():
        for server, results in servers.items():
            if errors := sum(r.get("errors", 0) for r in results):
                sample = next(r["error_sample"] for r in results if r["errors"])
                yield f"{server}, {workload}: {errors} wrong answers, such as {sample[:200]!r}"
            if results[0].get("gen_cpu", 0) > 0.95:
                yield f"{server}, {workload}: the load generator was the limit; the server could do more"
            if any(r.get("finished", 0) != r.get("opened", 0) for r in results):
                lost = results[0]
                yield f"{server}, {workload}: {lost['finished']} of {lost['opened']} streams finished"


def note(text: str) -> None:
    """Say what is happening, on a line that goes away."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
