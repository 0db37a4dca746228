"""How far one request walks: the files and functions of this package that run for it. `python -m bench.trace`

One call over JSON-RPC 1.0 to an agent on SQLite, without authentication, after one like it has warmed the process up. The
shortest of three is printed: in the others a timer may have run, too. The second figure is without our HTTP server, for a comparison
with projects that use another's.
`--list` names every function in the order of its first call.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import dragoman
from dragoman import Agent

PACKAGE = Path(dragoman.__file__).parent
SETTLE_SECONDS = 0.1
"""How long the server may still work after its answer: a stream's connection, an audit entry."""

RUNS = 3
HTTP_SERVER = "server/http1/"

Function = tuple[str, str]
"""A file of the package and the qualified name of a function in it."""


class Tracer:
    """A profile function that notes the calls of our functions while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.calls: list[Function] = []
        self._ours = str(PACKAGE) + os.sep

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(self._ours):
            code = frame.f_code
            self.calls.append((code.co_filename.removeprefix(self._ours), code.co_qualname))


def post(port: int, method: str, params: dict[str, Any]) -> bytes:
    """The body of the response. Head and body are one write, so that the server always reads them together."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\nA2A-Version: 1.0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return answer.partition(b"\r\n\r\n")[2]


def message(text: str) -> dict[str, Any]:
    number = time.monotonic_ns()
    return {"message": {"messageId": f"m{number}", "role": "ROLE_USER", "parts": [{"text": text}]}}


def measure(port: int, tracer: Tracer, report: Callable[[str, list[Function]], None]) -> None:
    task = json.loads(post(port, "SendMessage", message("hello")))["result"]["task"]["id"]
    requests = {
        "SendStreamingMessage": lambda: post(port, "SendStreamingMessage", message("hello")),
        "SendMessage": lambda: post(port, "SendMessage", message("hello")),
        "GetTask": lambda: post(port, "GetTask", {"id": task}),
    }
    for name, request in requests.items():
        request()
        traces: list[list[Function]] = []
        for _ in range(RUNS):
            time.sleep(SETTLE_SECONDS)
            tracer.calls.clear()
            tracer.on = True
            answer = request()
            time.sleep(SETTLE_SECONDS)
            tracer.on = False
            assert b'"error"' not in answer, answer
            traces.append(list(tracer.calls))
        report(name, min(traces, key=len))


def summarize(name: str, calls: list[Function], *, listed: bool) -> None:
    functions = list(dict.fromkeys(calls))
    files = list(dict.fromkeys(file for file, _ in calls))
    packages = [file.partition("/")[0] for file, _ in calls]
    changes = sum(1 for before, after in pairwise(packages) if before != after)
    print(
        f"{name}: {len(files)} files, {len(functions)} functions, {changes} package changes, {len(calls)} calls"
        f" (without {HTTP_SERVER}: {sum(not file.startswith(HTTP_SERVER) for file in files)} files,"
        f" {sum(not file.startswith(HTTP_SERVER) for file, _ in functions)} functions)"
    )
    if listed:
        for file in files:
            print(f"  {file}: " + ", ".join(function for f, function in functions if f == file))


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.trace", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name every file and its functions")
    args = parser.parse_args()

    agent = Agent("echo", description="echo")

    @agent.skill
    async def echo(text: str) -> str:
        """Echoes."""
        return text

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)

    def client(url: str) -> None:
        def work() -> None:
            try:
                measure(port, tracer, lambda name, calls: summarize(name, calls, listed=args.list))
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=work).start()

    with tempfile.TemporaryDirectory() as folder:
        agent.run(port=port, store=f"sqlite:///{folder}/trace.db", log_level="error", announce=client)


if __name__ == "__main__":
    main()
