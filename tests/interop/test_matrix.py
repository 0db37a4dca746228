"""Our client against the servers of others, their clients against our server, and ours against ours in every version.

What is not in `LACKS` has to pass. `pytest tests/interop -m interop` ends with the whole matrix.
"""

from __future__ import annotations

import asyncio

import pytest

from dragoman.serve import application, running
from tests.interop.agent import agent
from tests.interop.client import outcomes
from tests.interop.matrix import Matrix
from tests.interop.running import BINDINGS, CLIENTS, SERVERS, Outcome, checks, failures, serving

LACKS = {
    # Every message is a task of its own there, there is no answer without one, and a finished task starts again.
    "fasta2a-2.1.1": {"message", "multi_turn", "finished_task"},
}
VERSIONS = ("1.0", "0.3", "0.2", "0.1")
ELSEWHERE = [
    (name, binding)
    for name in SERVERS
    for binding in BINDINGS
    if binding == "JSONRPC" or name != "fasta2a-2.1.1"  # which has no other
]


@pytest.mark.interop
@pytest.mark.parametrize(("name", "binding"), ELSEWHERE)
async def test_our_client_passes_every_check_against_the_server_of(
    name: str, binding: str, matrix: Matrix
) -> None:
    with serving(name) as url:
        found = await outcomes(url, binding=binding)
    lacks = LACKS.get(name, set())
    matrix.add("dragoman", name, binding, [without(o) if o.check in lacks else o for o in found])
    assert set(failures(found)) == lacks, failures(found)


def without(outcome: Outcome) -> Outcome:
    """The peer does not offer it."""
    return Outcome(outcome.check, None, outcome.note)


@pytest.mark.interop
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("name", CLIENTS)
async def test_every_check_passes_against_our_server_with_the_client_of(
    name: str, binding: str, matrix: Matrix
) -> None:
    async with running(application(agent, store="memory:", grpc_port=0)) as url:
        found = await asyncio.to_thread(checks, name, url, binding)
    matrix.add(name, "dragoman", binding, found)
    assert failures(found) == {}


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_check_passes_between_our_client_and_our_server_in(version: str, matrix: Matrix) -> None:
    async with running(application(agent, store="memory:")) as url:
        found = await outcomes(url, version=version)
    matrix.add(f"dragoman {version}", "dragoman", "JSONRPC", found)
    assert failures(found) == {}
