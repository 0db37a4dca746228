"""The short version of `python -m tests.hub.chaos`: each disruption once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import nats, postgres
from tests.hub.chaos import KINDS, LIMIT, Hubs

pytestmark = pytest.mark.skipif(
    not (postgres.available() and nats.available() and sys.platform == "linux"),
    reason="needs PostgreSQL, NATS and Linux",
)


@pytest.mark.timeout(300)  # about 30 s on two idle cores
async def test_three_hubs_lose_and_repeat_nothing_while_hubs_and_their_servers_die(tmp_path: Path) -> None:
    async with Hubs(tmp_path, postgres.server(), seed=1) as hubs:
        figures = await hubs.run(list(KINDS), talks=4, pause=(0.2, 0.6))
        assert figures.messages >= 8 and figures.schedules == 6 and figures.most_at_once == LIMIT
        assert figures.approved and figures.files and figures.sent and figures.spent >= figures.budget
        assert figures.stopped_after < 2
        assert not [node.said for node in hubs.nodes if b"Traceback" in node.said]
