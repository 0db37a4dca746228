"""A neutral load generator for A2A servers (JSON-RPC and HTTP+JSON over HTTP/1.1).

    python -m bench.load send   --url http://127.0.0.1:8000/ [--dialect v1|v03|rest] [--conns 64] [--seconds 5]
    python -m bench.load get    --url ... [--history 10]                    # of a completed task
    python -m bench.load card   --url ...                                   # GET /.well-known/agent-card.json
    python -m bench.load stream --url ... [--conns 16] [--chunks 100] [--paced]
    python -m bench.load idle   --url ... [--conns 2000] --pid SERVER_PID   # open streams, memory of each, release

The server runs the echo agent that `bench/target.py` describes. One JSON object is printed. Pin the two apart:
`taskset -c 0` for the server, `taskset -c 1` for this.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable

from bench.generator import Connection, Loop, Result, now, plain, streams, usage
from bench.target import METHODS, Target


def send(
    target: Target, *, seconds: float, warmup: float, conns: int = 64, pid: int = 0, engine: str = ""
) -> Result:
    """Blocking sends: each answers with the finished task."""
    template = target.template("send", text="hello world")
    return plain(
        target, template, target.sent, conns=conns, seconds=seconds, warmup=warmup, pid=pid, engine=engine
    )


def get(
    target: Target,
    *,
    seconds: float,
    warmup: float,
    conns: int = 64,
    history: int = 10,
    pid: int = 0,
    engine: str = "",
) -> Result:
    """Reads of one finished task that has `history` messages."""
    _, answer = target.call("send", text=f"history:{history}")
    ids = [found.decode() for found in re.findall(rb'"id":\s*"([^"]+)"', answer)]
    task = next(found for found in ids if not found.startswith("req-"))
    while True:
        _, answer = target.call("get", task=task)
        if target.done.encode() in answer:
            break
        time.sleep(0.05)  # some servers answer a send before the work is done
    template = target.template("get", task=task)
    result = plain(
        target, template, target.done, conns=conns, seconds=seconds, warmup=warmup, pid=pid, engine=engine
    )
    return {"history_messages": answer.count(b'"messageId"'), **result}


def card(
    target: Target, *, seconds: float, warmup: float, conns: int = 64, pid: int = 0, engine: str = ""
) -> Result:
    return plain(
        target, target.card, '"name"', conns=conns, seconds=seconds, warmup=warmup, pid=pid, engine=engine
    )


def stream(
    target: Target,
    *,
    seconds: float,
    warmup: float,
    conns: int = 16,
    chunks: int = 100,
    paced: bool = False,
    pid: int = 0,
) -> Result:
    """Streams of `chunks` artifact chunks each, one after the other on every connection."""
    template = target.template("stream", text=f"{'paced' if paced else 'stream'}:{chunks}")
    return streams(target, template, chunks, conns=conns, seconds=seconds, warmup=warmup, pid=pid)


def idle(target: Target, *, conns: int = 2000, limit: float = 60, hold: float = 1.0, pid: int = 0) -> Result:
    """Open `conns` streams that wait, hold them, then let all of them finish.

    `limit` bounds the opening and the finishing, in seconds. A stream has finished when its events went on after the
    release and the server ended the response.
    """
    target.call("send", text="warm-up")
    loop = Loop(target, target.template("stream", text="wait"), streaming=True)
    ended: list[Connection] = []
    opened: list[Connection] = []
    _, rss_before = usage(pid)
    began, live, failed = now(), 0, ""
    while live < conns and now() < began + limit and not failed:
        try:
            while len(opened) < conns and len(opened) - live < 64:
                opened.append(loop.attach())
                loop.fire(opened[-1])
        except OSError as error:
            failed = str(error)
        loop.poll(0.02, ended.append)
        live = sum(1 for c in opened if c.events or c.fd < 0)
    open_seconds, early = now() - began, len(ended)
    until = now() + hold
    while now() < until:
        loop.poll(0.1, ended.append)
    got_first = sum(1 for c in opened if c.events)
    before = {id(c): c.events for c in opened}
    _, rss_open = usage(pid)
    began = now()
    status, _ = target.call("send", text="release")
    while len(ended) < len(opened) and now() < began + limit:
        loop.poll(0.1, ended.append)
    loop.close()
    return {
        "conns": conns,
        "opened": len(opened),
        "got_first_event": got_first,
        "ended_early": early,
        "finished": sum(1 for c in ended if c.events > before[id(c)]),
        "open_s": round(open_seconds, 3),
        "finish_s": round(now() - began, 3),
        "release_status": status,
        "connect_error": failed,
        "rss_before_mb": round(rss_before / 2**20, 1),
        "rss_open_mb": round(rss_open / 2**20, 1),
        "rss_per_stream_kb": round((rss_open - rss_before) / 1024 / max(1, got_first), 1),
    }


WORKLOADS: dict[str, tuple[Callable[..., Result], tuple[str, ...]]] = {
    "send": (send, ("seconds", "warmup", "conns", "pid", "engine")),
    "get": (get, ("seconds", "warmup", "conns", "history", "pid", "engine")),
    "card": (card, ("seconds", "warmup", "conns", "pid", "engine")),
    "stream": (stream, ("seconds", "warmup", "conns", "chunks", "paced", "pid")),
    "idle": (idle, ("conns", "limit", "hold", "pid")),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--url", required=True)
    parser.add_argument("--dialect", choices=list(METHODS), default="v1")
    parser.add_argument("--engine", choices=["wrk", "py"], default="", help="default: wrk if it is installed")
    parser.add_argument("--conns", type=int, default=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time")
    parser.add_argument("--warmup", type=float, default=1.0)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--history", type=int, default=10)
    parser.add_argument("--paced", action="store_true", help="the agent gives way after each chunk")
    parser.add_argument("--limit", type=float, default=60.0, help="idle: for opening, and for finishing")
    parser.add_argument("--hold", type=float, default=1.0, help="idle: how long the streams stay open")
    parser.add_argument("--pid", type=int, default=0, help="the server, to report its CPU and memory")
    given = vars(parser.parse_args())
    run, takes = WORKLOADS[given["workload"]]
    result = run(Target(given["url"], given["dialect"]), **{key: given[key] for key in takes if key in given})
    print(json.dumps({"workload": given["workload"], "dialect": given["dialect"], **result}))


if __name__ == "__main__":
    main()
