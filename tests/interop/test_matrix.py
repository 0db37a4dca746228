"""Our client against the servers of others, their clients against our server, and ours against ours in every version.

What is not in `KNOWN` has to pass. `pytest tests/interop -m interop` ends with the whole matrix.
"""

from __future__ import annotations

import asyncio

import pytest

from dragoman.serve import application, running
from tests.interop.agent import agent
from tests.interop.client import outcomes
from tests.interop.matrix import Matrix
from tests.interop.running import CLIENTS, SERVERS, checks, failures, serving

KNOWN = {
    # Every message is a task of its own there; there is no answer without one; a finished task starts again.
    "fasta2a-2.1.1": {"message", "multi_turn", "finished_task"},
}
VERSIONS = ("1.0", "0.3", "0.2", "0.1")


@pytest.mark.interop
@pytest.mark.parametrize("name", SERVERS)
async def test_our_client_passes_every_check_against_the_server_of(name: str, matrix: Matrix) -> None:
    with serving(name) as url:
        found = await outcomes(url)
    matrix.add("dragoman", name, found)
    assert set(failures(found)) == KNOWN.get(name, set()), failures(found)


@pytest.mark.interop
@pytest.mark.parametrize("name", CLIENTS)
async def test_every_check_passes_against_our_server_with_the_client_of(name: str, matrix: Matrix) -> None:
    async with running(application(agent, store="memory:")) as url:
        found = await asyncio.to_thread(checks, name, url)
    matrix.add(name, "dragoman", found)
    assert failures(found) == {}


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_check_passes_between_our_client_and_our_server_in(version: str, matrix: Matrix) -> None:
    async with running(application(agent, store="memory:")) as url:
        found = await outcomes(url, version=version)
    matrix.add(f"dragoman {version}", "dragoman", found)
    assert failures(found) == {}
