"""The workloads of `bench/load.py` over gRPC (A2A 1.0).

    python -m bench.load_grpc send   --address 127.0.0.1:50051 [--calls 64] [--seconds 5]
    python -m bench.load_grpc get    --address ... [--history 10]
    python -m bench.load_grpc stream --address ... [--calls 16] [--chunks 100] [--paced]

Closed loops again: so many calls at once, on one channel, as gRPC clients have it. Messages go out as ready-made bytes;
each answer is parsed and checked, and of a stream the last event. A Python gRPC client costs about as much as a server,
so `gen_cpu` is often near 1.0: then compare what a second of server CPU did, not what a second did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from grpc import aio

from bench.generator import PATIENCE, Result, now, quantiles, usage
from bench.target import Target
from dragoman.dialects.proto.messages import V1_0

SERVICE = "/lf.a2a.v1.A2AService/"
METADATA = (("a2a-version", "1.0"),)
USER, COMPLETED = 1, 3


def send(target: Target, *, seconds: float, warmup: float, calls: int = 64, pid: int = 0) -> Result:
    """Blocking sends: each answers with the finished task."""

    async def run(channel: aio.Channel) -> Result:
        method, requests = channel.unary_unary(SERVICE + "SendMessage"), _Requests("hello world")

        async def once(tally: _Tally) -> None:
            answer = await method(next(requests), metadata=METADATA)
            task = V1_0.SendMessageResponse.FromString(answer).task
            tally.check(task.status.state == COMPLETED and task.artifacts, answer)

        return await _measure(once, calls=calls, seconds=seconds, warmup=warmup, pid=pid)

    return _on(target, run)


def get(
    target: Target, *, seconds: float, warmup: float, calls: int = 64, history: int = 10, pid: int = 0
) -> Result:
    """Reads of one finished task that has `history` messages."""

    async def run(channel: aio.Channel) -> Result:
        method = channel.unary_unary(SERVICE + "GetTask")
        sent = await channel.unary_unary(SERVICE + "SendMessage")(
            next(_Requests(f"history:{history}")), metadata=METADATA
        )
        request = V1_0.GetTaskRequest(id=V1_0.SendMessageResponse.FromString(sent).task.id)
        request = request.SerializeToString()
        messages = 0

        async def once(tally: _Tally) -> None:
            nonlocal messages
            answer = await method(request, metadata=METADATA)
            task = V1_0.Task.FromString(answer)
            messages = len(task.history) + task.status.HasField("message")
            tally.check(task.status.state == COMPLETED, answer)

        result = await _measure(once, calls=calls, seconds=seconds, warmup=warmup, pid=pid)
        return {"history_messages": messages, **result}

    return _on(target, run)


def stream(
    target: Target,
    *,
    seconds: float,
    warmup: float,
    calls: int = 16,
    chunks: int = 100,
    paced: bool = False,
    pid: int = 0,
) -> Result:
    """Streams of `chunks` artifact chunks each, one after the other in every caller."""

    async def run(channel: aio.Channel) -> Result:
        method = channel.unary_stream(SERVICE + "SendStreamingMessage")
        requests = _Requests(f"{'paced' if paced else 'stream'}:{chunks}")

        async def once(tally: _Tally) -> None:
            events, last = 0, b""
            answers: AsyncIterator[bytes] = method(next(requests), metadata=METADATA)
            async for event in answers:
                last = event
                events += 1
                tally.events += 1
            status = V1_0.StreamResponse.FromString(last).status_update.status
            tally.check(events >= chunks and status.state == COMPLETED, last)

        result = await _measure(once, calls=calls, seconds=seconds, warmup=warmup, pid=pid)
        return {**result, "events_per_s": round(result["events"] / result["seconds"], 1)}

    return _on(target, run)


class _Requests:
    """Messages with this text, each with an id of its own."""

    def __init__(self, text: str) -> None:
        message = V1_0.Message(message_id="N" * 12, role=USER, parts=[V1_0.Part(text=text)])
        self._bytes = V1_0.SendMessageRequest(message=message).SerializeToString()
        self._sent = 0

    def __next__(self) -> bytes:
        self._sent += 1
        return self._bytes.replace(b"N" * 12, b"%012d" % self._sent)


class _Tally:
    def __init__(self) -> None:
        self.took: list[float] = []
        self.events = self.errors = self.size = 0
        self.sample = ""

    def check(self, good: Any, answer: bytes) -> None:
        if good:
            self.size = len(answer)
        else:
            self.failed(repr(answer[-300:]))

    def failed(self, why: str) -> None:
        self.errors += 1
        self.sample = self.sample or why
        if self.errors > 1000 + len(self.took):
            raise RuntimeError(f"too many errors: {why}")


def _on(target: Target, run: Callable[[aio.Channel], Awaitable[Result]]) -> Result:
    async def main() -> Result:
        async with aio.insecure_channel(target.host) as channel:
            return await run(channel)

    return asyncio.run(main())


async def _measure(
    once: Callable[[_Tally], Awaitable[None]], *, calls: int, seconds: float, warmup: float, pid: int
) -> Result:
    tally = _Tally()

    async def caller() -> None:
        while True:
            began = now()
            try:
                await once(tally)
            except aio.AioRpcError as error:
                tally.failed(f"{error.code().name} {error.details()}")
            tally.took.append(now() - began)

    callers = [asyncio.create_task(caller()) for _ in range(calls)]
    await _pass(warmup, callers, tally, answers=calls)
    tally.took, tally.events = [], 0
    cpu_before, _ = usage(pid)
    gen_before, began = time.process_time(), now()
    await _pass(seconds, callers, tally, answers=2 * calls)
    wall, generator = now() - began, time.process_time() - gen_before
    cpu, rss = usage(pid)
    took, events = tally.took[:], tally.events
    for each in callers:
        each.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return {
        "engine": "grpc.aio",
        "conns": calls,
        "seconds": round(wall, 3),
        "ok": len(took),
        "errors": tally.errors,
        "rate": round(len(took) / wall, 1),
        "events": events,
        "response_bytes": tally.size,
        "latency_ms": quantiles(took),
        "gen_cpu": round(generator / wall, 3),
        "server_cpu": round((cpu - cpu_before) / wall, 3),
        "server_rss_mb": round(rss / 2**20, 1),
        "error_sample": tally.sample,
    }


async def _pass(seconds: float, callers: list[asyncio.Task[None]], tally: _Tally, *, answers: int) -> None:
    """Wait so long, and then for a slow server to have given so many answers. A caller ends only because it gave up."""
    until = now() + seconds
    while (left := until - now()) > 0 or (len(tally.took) < answers and left > -PATIENCE):
        wait = left if left > 0 else 0.01
        done, _ = await asyncio.wait(callers, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()


WORKLOADS: dict[str, tuple[Callable[..., Result], tuple[str, ...]]] = {
    "send": (send, ("seconds", "warmup", "calls", "pid")),
    "get": (get, ("seconds", "warmup", "calls", "history", "pid")),
    "stream": (stream, ("seconds", "warmup", "calls", "chunks", "paced", "pid")),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--address", required=True, metavar="HOST:PORT")
    parser.add_argument("--calls", type=int, default=argparse.SUPPRESS, help="at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time")
    parser.add_argument("--warmup", type=float, default=1.0)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--history", type=int, default=10)
    parser.add_argument("--paced", action="store_true", help="the agent gives way after each chunk")
    parser.add_argument("--pid", type=int, default=0, help="the server, to report its CPU and memory")
    given = vars(parser.parse_args())
    run, takes = WORKLOADS[given["workload"]]
    target = Target(f"http://{given['address']}/")
    print(
        json.dumps(
            {"workload": given["workload"], **run(target, **{k: given[k] for k in takes if k in given})}
        )
    )


if __name__ == "__main__":
    main()
