"""Closed loops against a `Target`: every connection has one request outstanding.

`plain` uses wrk where it is installed, else this process; `streams` is always this process. Every answer is checked:
the status, the expected text, no JSON-RPC error; for a stream, the number of events. `gen_cpu` is the share of its core
that the generator used: near 1.0 the generator was the limit, not the server.

A slow server answers many connections in one wave. The warm-up therefore lasts until each has had an answer, and the
measured time until each has had two more, so that whole waves are counted; `PATIENCE` bounds both.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from bench.target import UNIQUE, Target, complete

now = time.perf_counter
PATIENCE = 5.0
"""Seconds more than asked for that a slow server gets."""
Result = dict[str, Any]


def plain(
    target: Target,
    template: bytes,
    expect: str,
    *,
    conns: int = 64,
    seconds: float = 5,
    warmup: float = 1,
    pid: int = 0,
    engine: str = "",
) -> Result:
    """Requests per second for answers that come whole."""
    if (engine or ("wrk" if shutil.which("wrk") else "py")) == "wrk":
        return _wrk(target, template, expect, conns=conns, seconds=seconds, warmup=warmup, pid=pid)

    def good(c: Connection) -> bool:
        return c.data.startswith(b"HTTP/1.1 200") and expect.encode() in c.data and b'"error":' not in c.data

    return _measure(Loop(target, template), good, conns=conns, seconds=seconds, warmup=warmup, pid=pid)


def streams(
    target: Target,
    template: bytes,
    events: int,
    *,
    conns: int = 16,
    seconds: float = 5,
    warmup: float = 1,
    pid: int = 0,
) -> Result:
    """Events per second over SSE; each stream must bring at least `events` of them."""

    def good(c: Connection) -> bool:
        return c.data.startswith(b"HTTP/1.1 200") and c.events >= events

    loop = Loop(target, template, streaming=True)
    return _measure(loop, good, conns=conns, seconds=seconds, warmup=warmup, pid=pid)


class Connection:
    """One socket, and what came back on it for the request outstanding."""

    __slots__ = ("sock", "fd", "data", "began", "first", "events", "tail", "close")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.data, self.tail, self.events = b"", b"", 0
        self.first, self.began = 0.0, now()

    def attach(self, sock: socket.socket) -> None:
        self.sock, self.fd, self.close = sock, sock.fileno(), False

    def feed_plain(self, chunk: bytes) -> bool:
        self.data = self.data + chunk if self.data else chunk
        done, self.close = complete(self.data)
        return done

    def feed_stream(self, chunk: bytes) -> bool:
        buffer = self.tail + chunk
        if n := buffer.count(b"\ndata:"):
            self.first = self.first or now()
            self.events += n
        if not self.data:
            self.data = chunk[:512]
            self.close = b"connection: close" in self.data.lower()
        self.tail = buffer[-5:]  # too short to hold a marker, so none is counted twice
        return buffer.endswith(b"\n0\r\n\r\n") or buffer == b"0\r\n\r\n"


class Loop:
    """Many connections; `poll` reports each finished exchange."""

    def __init__(self, target: Target, template: bytes, *, streaming: bool = False) -> None:
        self.target, self.template, self.streaming = target, template, streaming
        self.feed = Connection.feed_stream if streaming else Connection.feed_plain
        self.connections: dict[int, Connection] = {}
        self._epoll = select.epoll()

    def attach(self, connection: Connection | None = None) -> Connection:
        connection = connection or Connection()
        connection.attach(self.target.connect())
        connection.sock.setblocking(False)
        self.connections[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)
        return connection

    def detach(self, connection: Connection) -> None:
        self._epoll.unregister(connection.fd)
        del self.connections[connection.fd]
        connection.sock.close()
        connection.fd = -1

    def fire(self, connection: Connection) -> None:
        connection.reset()
        connection.sock.sendall(self.target.render(self.template))

    def poll(self, timeout: float, finished: Callable[[Connection], object]) -> None:
        for fd, _ in self._epoll.poll(timeout):
            connection = self.connections[fd]
            try:
                chunk = connection.sock.recv(262144)
            except BlockingIOError:
                continue
            except OSError:
                chunk = b""
            if not chunk or self.feed(connection, chunk):
                if not chunk or connection.close:
                    self.detach(connection)
                finished(connection)

    def close(self) -> None:
        for connection in list(self.connections.values()):
            self.detach(connection)
        self._epoll.close()


def _measure(
    loop: Loop,
    good: Callable[[Connection], bool],
    *,
    conns: int,
    seconds: float,
    warmup: float,
    pid: int,
) -> Result:
    took: list[float] = []
    first: list[float] = []
    ended, errors, events, size, sample, measuring = 0, 0, 0, 0, "", False

    def finished(connection: Connection) -> None:
        nonlocal ended, errors, events, size, sample
        ended += 1
        if not good(connection):
            errors += 1
            sample = sample or f"events={connection.events} {connection.data[-300:].decode('latin1')}"
            if errors > 1000 + len(took):
                raise RuntimeError(f"too many errors: {sample}")
        elif measuring:
            took.append(now() - connection.began)
            first.append(connection.first - connection.began)
            size = len(connection.data)
        if measuring:
            events += connection.events
        if connection.fd < 0:
            loop.attach(connection)
        loop.fire(connection)

    for _ in range(conns):
        loop.fire(loop.attach())
    until = now() + warmup
    while now() < until or (ended < conns and now() < until + PATIENCE):
        loop.poll(0.05, finished)
    cpu_before, _ = usage(pid)
    # delivered events count, also those of streams that began before or end after
    events = -sum(c.events for c in loop.connections.values())
    gen_before, began, ended, measuring = time.process_time(), now(), 0, True
    until = began + seconds
    while now() < until or (ended < 2 * conns and now() < until + PATIENCE):
        loop.poll(0.05, finished)
    wall, generator = now() - began, time.process_time() - gen_before
    cpu, rss = usage(pid)
    events += sum(c.events for c in loop.connections.values())
    loop.close()
    result = {
        "engine": "py",
        "conns": conns,
        "seconds": round(wall, 3),
        "ok": len(took),
        "errors": errors,
        "rate": round(len(took) / wall, 1),
        "response_bytes": size,
        "latency_ms": quantiles(took),
        "gen_cpu": round(generator / wall, 3),
        "server_cpu": round((cpu - cpu_before) / wall, 3),
        "server_rss_mb": round(rss / 2**20, 1),
        "error_sample": sample,
    }
    if loop.streaming:
        result |= {"events_per_s": round(events / wall, 1), "first_event_ms": quantiles(first)}
    return result


_LUA = r"""
local raw, mark, expect, n, threads = ([==[%s]==]):gsub('\n', '\r\n'), '%s', [==[%s]==], 0, {}
bad, sample, size = 0, '', 0
function setup(t) table.insert(threads, t) end
function request() n = n + 1; return (raw:gsub(mark, string.format('%%012d', n))) end
function response(status, headers, body)
  size = #body
  if status ~= 200 or not body:find(expect, 1, true) or body:find('"error":', 1, true) then
    bad = bad + 1; sample = status .. ' ' .. body:sub(1, 300) end
end
function done(s, l, r)
  local t, e = threads[1], s.errors
  io.stderr:write(table.concat({s.requests, s.duration, l:percentile(50), l:percentile(90), l:percentile(99), l.max,
    t:get('bad'), e.connect + e.read + e.write + e.timeout, t:get('size'), t:get('sample')}, ' '))
end
"""


def _wrk(
    target: Target, template: bytes, expect: str, *, conns: int, seconds: float, warmup: float, pid: int
) -> Result:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_LUA % (template.decode().replace("\r\n", "\n"), UNIQUE, expect))
        script.flush()
        wrk = ["wrk", "-t1", f"-c{conns}", "-s", script.name, "--timeout", "30s", f"http://{target.host}/"]
        subprocess.run([*wrk, f"-d{max(1, round(warmup))}"], capture_output=True, check=True)
        cpu_before, _ = usage(pid)
        gen_before, began = _children(), now()
        run = subprocess.run(
            [*wrk, f"-d{max(1, round(seconds))}"], capture_output=True, check=True, text=True
        )
        wall, generator = now() - began, _children() - gen_before
        cpu, rss = usage(pid)
    total, micros, p50, p90, p99, top, bad, broken, size, *sample = run.stderr.split(" ", 9)
    ok = int(total) - int(bad)
    return {
        "engine": "wrk",
        "conns": conns,
        "seconds": int(micros) / 1e6,
        "ok": ok,
        "errors": int(bad) + int(broken),
        "rate": round(ok / (int(micros) / 1e6), 1),
        "response_bytes": int(size),
        "latency_ms": {
            name: int(v) / 1e3 for name, v in (("p50", p50), ("p90", p90), ("p99", p99), ("max", top))
        },
        "gen_cpu": round(generator / wall, 3),
        "server_cpu": round((cpu - cpu_before) / wall, 3),
        "server_rss_mb": round(rss / 2**20, 1),
        "error_sample": " ".join(sample),
    }


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def usage(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of a process and its descendants; zeros for no process."""
    stats: dict[int, list[str]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc") if pid else ()):
        try:
            with open(f"/proc/{entry}/stat") as file:
                stats[int(entry)] = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it ended while we looked
    cpu, rss, todo = 0.0, 0, [pid] if pid in stats else []
    while todo:
        one = todo.pop()
        todo += [child for child, fields in stats.items() if int(fields[1]) == one]
        cpu += (int(stats[one][11]) + int(stats[one][12])) / os.sysconf("SC_CLK_TCK")
        rss += int(stats[one][21]) * os.sysconf("SC_PAGE_SIZE")
    return cpu, rss


def quantiles(seconds: Iterable[float]) -> dict[str, float]:
    values = sorted(seconds)
    if not values:
        return {}
    return {
        name: round(values[min(len(values) - 1, int(q * len(values)))] * 1e3, 3)
        for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1))
    }
