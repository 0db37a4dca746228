"""The catalogue of a hub: each tenant finds its own agents, and those that the operator registered for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest

from dragoman import Agent, Turn
from dragoman.console.hub import HubConsole
from dragoman.engine.protocols import RegisteredAgent
from dragoman.hub.assembly import application
from dragoman.hub.hub import Hub
from dragoman.hub.models.local import EchoModel
from dragoman.hub.settings import Settings
from dragoman.hub.tenants.lifecycle import rename_tenant
from dragoman.server.app import App
from dragoman.server.routes import Conflict
from tests.catalogue.elsewhere import elsewhere
from tests.console.conftest import Operator
from tests.hub.house import ADMIN, Caller


@asynccontextmanager
async def hub_app(**more: Any) -> AsyncIterator[tuple[Hub, App]]:
    agent = Agent("Echo", "Repeats everything.")

    @agent.skill
    async def echo(turn: Turn) -> str:
        return turn.text

    chosen = {"catalogue": True, "allow_private": True, **more}
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given = Settings(admin_token=ADMIN, drain=0.0, data=folder, **chosen)
        console = HubConsole(None)
        hub, app = application(given, model=EchoModel(), code=[agent], store="memory:", console=console.open)
        await app.start()
        try:
            yield hub, app
        finally:
            async with asyncio.timeout(10):
                await app.stop()


def scout(name: str, goal: str) -> dict[str, str]:
    return {"id": "scout", "name": name, "role": "analyst", "goal": goal}


async def tenant(hub: Hub, app: App, name: str, goal: str) -> Caller:
    made, token = await hub.tenants.add(name)
    await hub.catalogue.create(made.id, scout(f"Scout of {name}", goal))
    return Caller(app, token, made)


async def search(caller: Caller, text: str) -> list[str]:
    answer = await caller("POST", "/catalogue/search", {"query": {"text": text}})
    assert answer.status == 200, answer.body
    return [each["displayName"] for each in answer.json["results"]]


async def test_a_tenant_finds_its_own_agents_and_nobody_elses() -> None:
    async with hub_app() as (hub, app):
        ada = await tenant(hub, app, "ada", "predict harvests")
        bob = await tenant(hub, app, "bob", "count zeppelins")
        assert await search(ada, "harvests") == ["Scout of ada"]
        assert await search(ada, "zeppelins") == []
        assert await search(bob, "zeppelins") == ["Scout of bob"]
        assert await search(bob, "repeats") == ["Echo"]
        for path in ("/.well-known/ai-catalog.json", "/.well-known/ard.json", "/catalogue/agents"):
            own, theirs = (await ada("GET", path)).body, (await bob("GET", path)).body
            assert b":ada:" in own and b"bob" not in own and b":ada:" not in theirs


async def test_an_agent_of_another_tenant_looks_like_one_that_does_not_exist() -> None:
    async with hub_app() as (hub, app):
        ada = await tenant(hub, app, "ada", "predict harvests")
        await tenant(hub, app, "bob", "count zeppelins")
        own = await ada("GET", "/catalogue/agents/urn:air:agents.example:ada:scout")
        assert own.status == 200
        assert own.json["url"].endswith("/v1/a2a/agents/scout/.well-known/agent-card.json")
        others = await ada("GET", "/catalogue/agents/urn:air:agents.example:bob:scout")
        nobody = await ada("GET", "/catalogue/agents/urn:air:agents.example:bob:nobody")
        assert (others.status, others.body) == (nobody.status, nobody.body) == (404, others.body)


async def test_a_stranger_sees_no_agent() -> None:
    async with hub_app() as (hub, app):
        await tenant(hub, app, "ada", "predict harvests")
        for caller in (Caller(app, ""), Caller(app, "wrong")):
            assert await search(caller, "harvests echo scout") == []
            assert (await caller("GET", "/.well-known/ai-catalog.json")).json["entries"] == []


async def test_a_disabled_tenant_sees_no_agent() -> None:
    async with hub_app() as (hub, app):
        ada = await tenant(hub, app, "ada", "predict harvests")
        admin = Caller(app, ADMIN)
        assert (await admin("PATCH", f"/v1/admin/tenants/{ada.tenant.id}", {"disabled": True})).status == 200
        assert await search(ada, "harvests") == []


async def test_a_changed_agent_is_found_by_what_it_is_now() -> None:
    async with hub_app() as (hub, app):
        ada = await tenant(hub, app, "ada", "predict harvests")
        await hub.catalogue.replace(ada.tenant.id, "scout", scout("Scout", "paint boats"))
        assert await search(ada, "harvests") == []
        assert await search(ada, "boats") == ["Scout"]
        await hub.catalogue.delete(ada.tenant.id, "scout")
        assert await search(ada, "boats") == []


async def test_registered_agents_are_for_all_tenants_or_for_one() -> None:
    async with hub_app() as (hub, app), elsewhere() as site:
        ada, bob = await tenant(hub, app, "ada", "x"), await tenant(hub, app, "bob", "y")
        admin = Operator(app, ADMIN)
        for body in ({"name": "all"}, {"name": "one", "tenant": "ada"}, {"name": "shy", "private": True}):
            assert (await admin("POST", "/catalogue", {"url": site.url, **body})).status == 201

        async def names(caller: Caller) -> list[str]:
            answer = await caller("POST", "/catalogue/search", {"query": {"text": "currency"}})
            return sorted(each["metadata"]["name"] for each in answer.json["results"])

        assert await names(ada) == ["all", "one", "shy"]
        assert await names(bob) == ["all", "shy"]
        assert await names(Caller(app, "")) == ["all"]
        assert (await admin("DELETE", "/catalogue/one?tenant=ada")).status == 204
        assert await names(ada) == ["all", "shy"]


@pytest.mark.parametrize("meanwhile", ["taken", "deleted"])
async def test_a_rename_that_somebody_forestalls_gives_registered_agents_to_nobody(meanwhile: str) -> None:
    async with hub_app() as (hub, app):
        ada, bob = await tenant(hub, app, "ada", "x"), await tenant(hub, app, "bob", "y")
        agents = hub.store.catalogue
        await agents.register(RegisteredAgent(tenant="ada", name="one", url="https://one.example"), limit=9)

        class Forestalled:
            """The catalogue, at the moment after the name was free."""

            registered, unregister = agents.registered, agents.unregister

            async def register(self, agent: RegisteredAgent, *, limit: int) -> bool:
                if meanwhile == "taken":
                    await hub.tenants.rename(bob.tenant, "apex")
                else:
                    await hub.deletion.deletions.begin(ada.tenant, actor="admin")
                return await agents.register(agent, limit=limit)

        with suppress(Conflict):
            await rename_tenant(hub.tenants, cast(Any, Forestalled()), ada.tenant, "apex", actor="admin")
        left = {(each.tenant, each.name) for each in await agents.registered()}
        assert left <= {("ada", "one")}


async def test_the_console_shows_a_tenant_its_own_agents_and_the_operator_all() -> None:
    async with hub_app() as (hub, app):
        ada, bob = await tenant(hub, app, "ada", "x"), await tenant(hub, app, "bob", "y")

        async def list_agents(viewer: Operator) -> set[tuple[str, str]]:
            agents = (await viewer.get("/catalogue"))["agents"]
            return {(each["tenant"], each["name"]) for each in agents if each["name"] == "scout"}

        assert await list_agents(Operator(app, ada.token)) == {("ada", "scout")}
        assert await list_agents(Operator(app, bob.token)) == {("bob", "scout")}
        assert await list_agents(Operator(app, ADMIN)) == {("ada", "scout"), ("bob", "scout")}
        refused = await Operator(app, ada.token)("POST", "/catalogue", {"url": "https://x.example"})
        assert refused.status == 403


async def test_without_the_setting_there_is_no_catalogue() -> None:
    async with hub_app(catalogue=False) as (hub, app):
        ada = await tenant(hub, app, "ada", "x")
        assert (await ada("GET", "/catalogue/agents")).status == 404
        assert (await ada("GET", "/.well-known/ai-catalog.json")).status == 404


async def test_a_hub_reads_the_catalogue_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with elsewhere() as site:
        (tmp_path / "dragoman.toml").write_text(f'[catalogue.agents]\nmoney = "{site.url}"\n')
        monkeypatch.chdir(tmp_path)
        async with hub_app() as (hub, app):
            ada = await tenant(hub, app, "ada", "x")
            await site.come.wait()
            listed = (await ada("GET", "/catalogue/agents?pageSize=100")).json["items"]
            assert "money" in [each["metadata"]["name"] for each in listed]


async def test_what_a_tenant_looks_up_in_the_catalogue_counts_as_its_reads() -> None:
    async with hub_app(reads_per_min=3) as (hub, app):
        acme = await tenant(hub, app, "acme", "find things out")
        other = await tenant(hub, app, "other", "find things out")
        assert await search(acme, "find")
        for path in ("/catalogue/agents", "/.well-known/ai-catalog.json"):
            assert (await acme("GET", path)).status == 200
        for path in ("/catalogue/agents", "/.well-known/ai-catalog.json", "/v1/agents"):
            refused = await acme("GET", path)
            assert refused.status == 429 and int(refused.headers["retry-after"]) > 0, path
        assert (await Caller(app, "")("GET", "/catalogue/agents")).status == 200
        assert await search(other, "find")
