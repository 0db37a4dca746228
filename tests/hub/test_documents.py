"""What the documents say of the hub is so."""

from __future__ import annotations

import re
from pathlib import Path

from dragoman.hub.scheduler import Scheduler
from dragoman.hub.schedules import Schedules
from dragoman.hub.settings import Settings
from dragoman.hub.site import Site
from tests.hub.house import house

DOCS = Path(__file__).parent.parent.parent / "docs"


async def test_every_route_is_in_the_reference_and_no_other() -> None:
    text = (DOCS / "hub-api.md").read_text()
    documented = set(re.findall(r"\| `([A-Z]+)` \| `(/[^`]+)` \|", text))
    async with house() as hub:
        routes = {
            (route.method, route.path)
            for route in Site(
                hub.hub, hub.model, Scheduler(hub.hub, Schedules(hub.hub.database))
            ).table.routes
        }
    assert documented == routes


def test_every_setting_is_in_the_guide() -> None:
    text = (DOCS / "hub.md").read_text()
    assert [name for name in Settings.__struct_fields__ if f"`{name}`" not in text] == []
