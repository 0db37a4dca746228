"""Dragoman, a2a-sdk 1.3.0 and fasta2a 2.1.1, side by side in one run: `make bench`.

All serve the same echo agent (`bench/target.py`) from one process on one core, with the load on another, over each
binding in turn. Rounds alternate between the servers and medians are reported, so that a machine that slows down slows
all of them. Dragoman is measured durable, on SQLite, and over JSON-RPC in memory, too; the others in memory. a2a-sdk is
measured as its documentation starts it and, as fasta2a, with the garbage collector that `agent.run()` sets ("equal
tuning"); uvloop and httptools are on all sides.
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
from pathlib import Path
from typing import Any

from bench import load, load_grpc
from bench.generator import Result
from bench.servers import (
    BASELINE,
    BINDINGS,
    DURABLE,
    FASTA2A,
    GRPC,
    JSONRPC,
    MEMORY,
    TUNED,
    Server,
    raise_file_limit,
    running,
)
from bench.target import Target

RESULTS = Path(__file__).parent / "results"
STREAMS = 2000


@dataclass(frozen=True)
class Workload:
    name: str
    run: str
    """The function of `load` and `load_grpc`."""
    value: str
    """The number of its result that counts."""
    paced: bool = False
    less_is_better: bool = False

    def measure(self, binding: str, target: Target, *, engine: str, **options: Any) -> Result:
        if self.paced:
            options["paced"] = True
        if binding == GRPC:
            run: Callable[..., Result] = getattr(load_grpc, self.run)
        else:
            run = getattr(load, self.run)
            if self.value == "rate":
                options["engine"] = engine
        return run(target, **options)


WORKLOADS = [
    Workload("blocking send /s", "send", "rate"),
    Workload("stream events /s (burst)", "stream", "events_per_s"),
    Workload("stream events /s (paced)", "stream", "events_per_s", paced=True),
    Workload("GetTask /s (10 messages)", "get", "rate"),
]
IDLE = Workload("KB per idle stream", "idle", "rss_per_stream_kb", less_is_better=True)
SERVERS = [BASELINE, TUNED, FASTA2A, DURABLE, MEMORY]

Measured = dict[str, dict[str, dict[str, list[Result]]]]
"""Binding -> workload name -> server name -> one result per round."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="per workload and round")
    parser.add_argument("--engine", choices=["wrk", "py"], default="", help="default: wrk if it is installed")
    parser.add_argument("--streams", type=int, default=STREAMS, help="idle streams; 0 leaves them out")
    parser.add_argument(
        "--per-cpu",
        action="store_true",
        help="per second of server CPU: what a busy machine still tells rightly",
    )
    parser.add_argument("--only", default="", help="only servers whose name contains this")
    parser.add_argument("--binding", choices=BINDINGS, help="only this one")
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
        "rounds": args.rounds,
        "seconds": args.seconds,
    }
    print(
        f"Python {about['python']}, server on core {server_core}, load on core {load_core} ({engine} for plain calls), "
        f"median of {args.rounds} rounds of {args.seconds:g} s"
    )
    if server_core == load_core:
        print("only one core: the load takes its share from the server, and absolute numbers mean little")

    measured: Measured = {}
    bindings = [args.binding] if args.binding else BINDINGS
    servers = [s for s in SERVERS if args.only in s.name]
    for number in range(args.rounds):
        for binding in bindings:
            for server in [s for s in servers if binding in s.bindings]:
                note(f"round {number + 1}: {binding}, {server.name}")
                with running(server, binding, core=server_core) as (target, pid):
                    for workload in WORKLOADS:
                        result = workload.measure(
                            binding, target, engine=engine, seconds=args.seconds, warmup=0.5, pid=pid
                        )
                        keep(measured, binding, workload, server, result)
    if not raise_file_limit(args.streams + 200):
        print(f"the system does not let a process open {args.streams} connections: no idle streams")
        args.streams = 0
    for server in servers if args.streams and JSONRPC in bindings else ():
        note(f"{args.streams} idle streams: {server.name}")
        with running(server, core=server_core) as (target, pid):
            keep(measured, JSONRPC, IDLE, server, load.idle(target, conns=args.streams, pid=pid))
    note("")
    if args.per_cpu:
        print(f"per second of server CPU; x: times {BASELINE.name}\n")
    else:
        print(f"per second; x: times {BASELINE.name}; (x): the same per second of server CPU\n")
    print(table(measured, [s.name for s in servers], per_cpu=args.per_cpu))
    print(
        "\nmicroseconds of server CPU for each call or event; x: times less than a2a-sdk with equal tuning\n"
    )
    print(cost_table(measured, [s.name for s in servers]))
    print()
    for problem in problems(measured):
        print(f"! {problem}")
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{about['when'].replace(':', '')}.json"
    file.write_text(json.dumps({"about": about, "measured": measured}, indent=1))
    print(f"all numbers: {file.relative_to(RESULTS.parent.parent)}")


def keep(measured: Measured, binding: str, workload: Workload, server: Server, result: Result) -> None:
    measured.setdefault(binding, {}).setdefault(workload.name, {}).setdefault(server.name, []).append(result)


def table(measured: Measured, servers: list[str], *, per_cpu: bool) -> str:
    """The medians, and how many times better than the baseline each is: in a second, and per second of server CPU."""
    rows = [["", *servers]]
    for binding, workloads in measured.items():
        rows.append([binding, *("" for _ in servers)])
        for workload in [*WORKLOADS, IDLE]:
            if workload.name in workloads:
                cells = _cells(workload, workloads[workload.name], servers, per_cpu=per_cpu)
                rows.append(["  " + workload.name, *cells])
    return _aligned(rows)


def cost_table(measured: Measured, servers: list[str]) -> str:
    """The CPU that each call or event costs its server, and how that compares with the peer that is tuned alike."""
    rows = [["", *servers]]
    for binding, workloads in measured.items():
        rows.append([binding, *("" for _ in servers)])
        for workload in [w for w in WORKLOADS if w.name in workloads]:
            costs = {
                name: statistics.median(
                    r["server_cpu"] / r[workload.value] for r in runs if r[workload.value]
                )
                for name, runs in workloads[workload.name].items()
                if any(r.get("server_cpu") and r[workload.value] for r in runs)
            }
            cells = []
            for name in servers:
                cell = f"{costs[name] * 1e6:,.1f}" if name in costs else ""
                if name in (DURABLE.name, MEMORY.name) and name in costs and TUNED.name in costs:
                    cell += f"{f'{costs[TUNED.name] / costs[name]:.1f}x':>8}"
                cells.append(cell)
            rows.append(["  " + workload.name.replace(" /s", ""), *cells])
    return _aligned(rows)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))
        ).rstrip()
        for r in rows
    ]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:]])


def _cells(
    workload: Workload, results: dict[str, list[Result]], servers: list[str], *, per_cpu: bool
) -> Iterator[str]:
    plain = {name: statistics.median(r[workload.value] for r in runs) for name, runs in results.items()}
    scaled = {
        name: statistics.median(r[workload.value] / r["server_cpu"] for r in runs if r.get("server_cpu"))
        for name, runs in results.items()
        if any(r.get("server_cpu") for r in runs)
    }
    for name in servers:
        if name not in plain:
            yield ""
            continue
        value = (per_cpu and scaled.get(name)) or plain[name]
        cell = f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
        if name != BASELINE.name and BASELINE.name in plain:
            ratios = [_ratio(workload, each, name) for each in (plain, scaled)]
            if per_cpu:
                ratios = ratios[1:]
            cell += f"{ratios[0]:>8}" + "".join(
                f"{f'({ratio})' if ratio else '':>10}" for ratio in ratios[1:]
            )
        yield cell


def _ratio(workload: Workload, medians: dict[str, float], name: str) -> str:
    ours, theirs = medians.get(name), medians.get(BASELINE.name)
    if not ours or not theirs:
        return ""
    return f"{theirs / ours if workload.less_is_better else ours / theirs:.1f}x"


def problems(measured: Measured) -> Iterator[str]:
    """What makes a number doubtful."""
    runs = [
        (binding, workload, server, results)
        for binding, workloads in measured.items()
        for workload, servers in workloads.items()
        for server, results in servers.items()
    ]
    shares = [
        r["server_cpu"]
        for _, _, server, results in runs
        for r in results
        if server == BASELINE.name and "server_cpu" in r
    ]
    if shares and (share := statistics.median(shares)) < 0.8:
        yield f"{BASELINE.name} had {share:.0%} of its core: something else runs on this machine (see --per-cpu)"
    for binding, workload, server, results in runs:
        where = f"{server}, {binding}, {workload}"
        if errors := sum(r.get("errors", 0) for r in results):
            sample = next(r["error_sample"] for r in results if r["errors"])
            yield f"{where}: {errors} wrong answers, such as {sample[:200]!r}"
        if (busy := max(r.get("gen_cpu", 0) for r in results)) > 0.9:
            yield f"{where}: the load generator was the limit ({busy:.0%} of its core); the server could do more"
        if any(r.get("finished", 0) != r.get("opened", 0) for r in results):
            lost = results[0]
            yield f"{where}: {lost['finished']} of {lost['opened']} streams finished"


def note(text: str) -> None:
    """Say what is happening, on a line that goes away."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
