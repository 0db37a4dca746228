"""Starts the servers of other projects, and runs their clients."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.interop.environments import command, install
from tests.ports import free_port

SERVERS = {
    "a2a-sdk-1.3.0": "a2a_sdk_1_server.py",
    "a2a-sdk-0.3.26": "a2a_sdk_0_3_server.py",
    "a2a-sdk-0.2.16": "a2a_sdk_0_2_server.py",
    "fasta2a-2.1.1": "fasta2a_server.py",
    "a2a-js-1.3.0": "a2a_js_server.mjs",
}
CLIENTS = {
    "a2a-sdk-1.3.0": "a2a_sdk_1_client.py",
    "a2a-sdk-0.3.26": "a2a_sdk_0_3_client.py",
    "a2a-sdk-0.2.16": "a2a_sdk_0_2_client.py",
    "a2a-js-1.3.0": "a2a_js_client.mjs",
}
VERSIONS = {
    "a2a-sdk-1.3.0": ("1.0", "0.3"),
    "a2a-sdk-0.3.26": ("0.3",),
    "a2a-sdk-0.2.16": ("0.2",),
    "fasta2a-2.1.1": ("1.0",),
    "a2a-js-1.3.0": ("1.0", "0.3"),
}
"""What the library speaks, of what both sides can choose."""
BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")


@dataclass(frozen=True)
class Outcome:
    """What a client found. `ok` is None where it does not have the operation."""

    check: str
    ok: bool | None
    note: str


@contextmanager
def serving(name: str) -> Iterator[str]:
    """The URL of the agent in `peers/README.md`, served by the library `name` until the block ends."""
    install(name)
    port, grpc_port = free_port(), free_port()
    server = subprocess.Popen(
        command(name, SERVERS[name], str(port), str(grpc_port)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline().strip() != "READY":
            raise RuntimeError(f"the server on {name} did not start: exit code {server.wait()}")
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.kill()
        server.communicate()


def checks(
    name: str, url: str, binding: str = "JSONRPC", version: str = "", *, limit: float = 110
) -> list[Outcome]:
    """Every check of the client of `name` against the agent at `url`; in its newest version, unless another is said."""
    return checks_at(name, [url], binding, version, limit=limit)[url]


def checks_at(
    name: str, urls: Sequence[str], binding: str = "JSONRPC", version: str = "", *, limit: float = 110
) -> dict[str, list[Outcome]]:
    """The same against several agents, one after the other, in one process. `limit`: seconds for each."""
    install(name)
    arguments = (",".join(urls), binding, version or VERSIONS[name][0])
    run = subprocess.run(
        command(name, CLIENTS[name], *arguments), capture_output=True, text=True, timeout=limit * len(urls)
    )
    found: dict[str, list[Outcome]] = {url: [] for url in urls}
    for line in run.stdout.splitlines():
        outcome = json.loads(line)
        found[outcome.pop("url")].append(Outcome(**outcome))
    if not all(found.values()):
        raise RuntimeError(f"the client of {name} did not run:\n{run.stderr}")
    return found


def failures(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.check: outcome.note for outcome in outcomes if outcome.ok is False}
