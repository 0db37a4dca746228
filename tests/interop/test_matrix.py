"""Our client against the servers of others, their clients against our server, and ours against ours in every version.

Every check has to pass, except what `LACKS` says and why: a cell that is worse fails, and so does a lack that is none.
`make interop` ends with the whole matrix, and writes it into `docs/interop.md`.
"""

from __future__ import annotations

import asyncio

import pytest

from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.interop.agent import agent
from tests.interop.client import outcomes
from tests.interop.matrix import FROM_THEM, TO_THEM, Lack, Matrix, Pair
from tests.interop.running import Outcome, checks, failures, serving

LACKS = (
    Lack(frozenset({"list"}), "This version does not have it.", version="0.3"),
    Lack(frozenset({"list"}), "This version does not have it.", version="0.2"),
    Lack(
        frozenset({"cancel", "resubscribe"}),
        "It answers a send only when the task stops. If nobody reads the stream of a task, the task stops for good.",
        peer="a2a-sdk-0.2.16",
        role="server",
    ),
    Lack(frozenset({"resubscribe"}), "It cannot subscribe.", peer="a2a-sdk-0.2.16", role="client"),
    Lack(
        frozenset({"message", "list", "multi_turn", "finished_task"}),
        "Every message is a task of its own, there is no answer without one, and a finished task starts again. "
        "Its tasks cannot be listed.",
        peer="fasta2a-2.1.1",
    ),
    Lack(
        frozenset({"parts"}),
        "Its files have no names there, and their bytes are not the base64 in base64 that the other SDKs have: between "
        "it and them, no file comes through.",
        peer="a2a-js-1.3.0",
        version="0.3",
        bindings=frozenset({"HTTP+JSON", "GRPC"}),
    ),
)
OUR_VERSIONS = ("1.0", "0.3", "0.2", "0.1")


def named(pair: Pair) -> str:
    return f"{pair.client}-to-{pair.server}-{pair.binding}-{pair.version}"


def hold(pair: Pair, found: list[Outcome], matrix: Matrix) -> None:
    lacks = [lack for lack in LACKS if lack.concerns(pair)]
    matrix.add(pair, found, lacks)
    lacked = {check for lack in lacks for check in lack.checks}
    assert {o.check: o.note for o in found if not o.ok and o.check not in lacked} == {}
    assert [o.check for o in found if o.ok and o.check in lacked] == [], "more works than LACKS says"


@pytest.mark.interop
@pytest.mark.parametrize("pair", TO_THEM, ids=named)
async def test_our_client_passes_every_check_against_the_server_of_others(pair: Pair, matrix: Matrix) -> None:
    with serving(pair.server) as url:
        found = await outcomes(url, version=pair.version, binding=pair.binding)
    hold(pair, found, matrix)


@pytest.mark.interop
@pytest.mark.parametrize("pair", FROM_THEM, ids=named)
async def test_every_check_passes_against_our_server_with_the_client_of_others(
    pair: Pair, matrix: Matrix
) -> None:
    async with running(application(agent, store="memory:", grpc_port=0)) as url:
        found = await asyncio.to_thread(checks, pair.client, url, pair.binding, pair.version)
    hold(pair, found, matrix)


@pytest.mark.parametrize("version", OUR_VERSIONS)
async def test_every_check_passes_between_our_client_and_our_server_in(version: str) -> None:
    async with running(application(agent, store="memory:")) as url:
        assert failures(await outcomes(url, version=version)) == {}
