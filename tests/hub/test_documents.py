"""What the documents say of the hub is so."""

from __future__ import annotations

import re
from pathlib import Path

from dragoman.hub.models import ChatMessage, Delta, Prompt
from dragoman.hub.models.local import ScriptFileModel
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.settings import Settings
from dragoman.hub.site import Site
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.tools import mcp as mcp_servers
from dragoman.hub.tools import remote_agents as remotes
from dragoman.mcp.connection import McpServer
from tests.hub.house import house

DOCS = Path(__file__).parent.parent.parent / "docs"


async def test_every_route_is_in_the_reference_and_no_other() -> None:
    text = (DOCS / "hub-api.md").read_text()
    documented = set(re.findall(r"\| `([A-Z]+)` \| `(/[^`]+)` \|", text))
    async with house() as hub:
        routes = {
            (route.method, route.path)
            for route in Site(hub.hub, Scheduler(hub.hub, Schedules(hub.hub.database))).table.routes
        }
    assert documented == routes


def test_every_setting_is_in_the_guide() -> None:
    text = (DOCS / "hub.md").read_text()
    assert [name for name in Settings.__struct_fields__ if f"`{name}`" not in text] == []


async def test_the_files_that_the_guide_shows_are_read(tmp_path: Path) -> None:
    text = (DOCS / "hub.md").read_text()
    shown = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    agents, servers, script = [
        next(each for each in shown if word in each) for word in ('"agents"', '"servers"', '"pace"')
    ]
    file = tmp_path / "shown.json"
    file.write_text(agents)
    assert list(remotes.read_registry(file)) == ["weather"]
    file.write_text(servers)
    read = mcp_servers.read_registry(file)
    assert read["files"].command == "npx" and read["tickets"].headers
    members = set(
        re.findall(r"`(\w+)`", text[text.index("| `command`") : text.index("Each tenant has a process")])
    )
    assert members >= set(McpServer.__struct_fields__)
    file.write_text(script)
    prompt = Prompt(
        model="", system="NAME: Scout\n", messages=(ChatMessage(role="user", content="QUERY: x"),)
    )
    said = [event.text async for event in ScriptFileModel(file).respond(prompt) if isinstance(event, Delta)]
    assert "".join(said) == "hi"
