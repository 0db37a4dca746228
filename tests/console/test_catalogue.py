"""The catalogue in the operator API: search, register, check, remove; what an operator sees."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dragoman.catalogue import AgentCatalogue
from dragoman.console import AgentConsole
from dragoman.server.application import application
from tests.catalogue.elsewhere import Elsewhere, elsewhere
from tests.catalogue.test_published import make_agents
from tests.console.conftest import TOKEN, Operator


@pytest.fixture
async def console() -> AsyncIterator[Operator]:
    app = application(
        *make_agents(),
        store="memory:",
        console=AgentConsole(TOKEN),
        catalogue=AgentCatalogue(allow_private=True),
    )
    await app.start()
    yield Operator(app)
    await app.stop()


@pytest.fixture
async def site() -> AsyncIterator[Elsewhere]:
    async with elsewhere() as site:
        yield site


async def names(console: Operator, text: str = "") -> list[str]:
    found = await console.get(f"/catalogue?text={text}")
    assert found["total"] == len(found["agents"])
    return [each["name"] for each in found["agents"]]


async def test_an_operator_sees_private_agents_too(console: Operator) -> None:
    assert await names(console) == ["desk", "payroll", "refunds"]
    assert await names(console, "salary") == ["payroll"]
    agent = (await console.get("/catalogue?text=refund"))["agents"][0]
    assert (agent["title"], agent["kind"], agent["health"], agent["signature"]) == (
        "Refunds",
        "agent",
        {"state": "up"},
        "unsigned",
    )
    assert agent["url"] == "http://127.0.0.1:8000/refunds"
    assert agent["description"]["version"] == "1.4" and 0 < agent["score"] <= 1


async def test_an_agent_is_registered_checked_and_removed(console: Operator, site: Elsewhere) -> None:
    added = await console("POST", "/catalogue", {"url": site.url, "name": "money"})
    assert (added.status, added.json["title"], added.json["health"]["state"]) == (201, "Currency desk", "up")
    assert await names(console, "currency") == ["money"]
    site.status = b"500 No"
    checked = await console("POST", "/catalogue/money/check")
    assert (checked.status, checked.json["health"]["state"]) == (200, "down")
    assert (await console("DELETE", "/catalogue/money")).status == 204
    assert (await console("DELETE", "/catalogue/money")).status == 404
    assert (await console("POST", "/catalogue/money/check")).status == 404
    assert await names(console, "currency") == []


async def test_what_operators_change_is_in_the_audit(console: Operator, site: Elsewhere) -> None:
    await console("POST", "/catalogue", {"url": site.url, "name": "money"})
    await console("POST", "/catalogue", {"url": site.url, "name": "money"})
    await console("DELETE", "/catalogue/money")
    entries = (await console.get("/audit"))["entries"]
    assert [(each["operation"], each["outcome"]) for each in entries] == [
        ("remove agent", "OK"),
        ("register agent", "CONFLICT"),
        ("register agent", "OK"),
    ]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"url": "nonsense"}, 400),
        ({"url": "http://u:p@x.example"}, 400),
        ({"url": "http://127.0.0.1:9", "name": "A B"}, 400),
        ({"url": "http://127.0.0.1:9", "more": 1}, 400),
        ({"url": "http://127.0.0.1:9", "tenant": "acme"}, 400),
    ],
)
async def test_what_cannot_be_registered_is_refused(
    console: Operator, body: dict[str, str], status: int
) -> None:
    answer = await console("POST", "/catalogue", body)
    assert answer.status == status, answer.body


async def test_strangers_neither_search_nor_register(console: Operator) -> None:
    console.token = "wrong" * 8
    for method, path in (
        ("GET", "/catalogue"),
        ("POST", "/catalogue"),
        ("DELETE", "/catalogue/x"),
        ("POST", "/catalogue/x/check"),
    ):
        assert (await console(method, path, {"url": "http://127.0.0.1:9"})).status == 401


async def test_the_operations_are_in_the_openapi_document_and_the_features(console: Operator) -> None:
    paths = (await console.get("/openapi.json"))["paths"]
    assert {"get", "post"} <= set(paths["/catalogue"])
    assert "delete" in paths["/catalogue/{name}"] and "post" in paths["/catalogue/{name}/check"]
    assert "catalogue" in (await console.get("/me"))["features"]


async def test_a_server_without_a_catalogue_has_no_such_operations() -> None:
    app = application(*make_agents(), store="memory:", console=AgentConsole(TOKEN))
    await app.start()
    console = Operator(app)
    assert (await console("GET", "/catalogue")).status == 404
    assert "catalogue" not in (await console.get("/me"))["features"]
    await app.stop()
