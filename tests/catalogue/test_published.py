"""The catalogue as others read it: the documents and the search of the drafts, and who sees what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from dragoman import Agent, Turn
from dragoman.auth import ApiKey, Bearer, hashed
from dragoman.catalogue import AgentCatalogue
from dragoman.catalogue import catalogue as searching
from dragoman.model.card import Skill
from dragoman.server.app import App
from dragoman.server.application import application
from tests import postgres
from tests.catalogue.elsewhere import Elsewhere, elsewhere
from tests.server.wire import Answer, request

ADA, BOB = "token-of-ada-0123456789", "token-of-bob-0123456789"
REFUNDS = "urn:air:agents.example.com:agent:refunds"


def make_agents() -> list[Agent]:
    open_one = Agent("Refunds", "Returns money to customers.", version="1.4")

    @open_one.skill(tags=["orders"], examples=["Refund my order", "Where is my money?"])
    async def refund_order(turn: Turn) -> str:
        """Refunds an order."""
        return "done"

    secret = Agent("Payroll", "Pays salaries.", auth=Bearer({"ada": hashed(ADA)}), private_card=True)

    @secret.skill
    async def pay_salary(turn: Turn) -> str:
        """Pays a salary."""
        return "paid"

    extended = Agent(
        "Desk",
        "Answers questions.",
        auth=[
            Bearer({"ada": hashed(ADA), "bob": hashed(BOB)}),
            ApiKey({"key": hashed("key-0123456789abcdef")}, parameter="X-Desk"),
        ],
        extended_card=lambda principal: (
            [Skill(id="audit", name="Zeppelin audit", tags=("zeppelin",))] if principal.id == "ada" else []
        ),
    )

    @extended.skill
    async def answer(turn: Turn) -> str:
        """Answers a question."""
        return "yes"

    return [open_one, secret, extended]


@asynccontextmanager
async def serving(store: str = "memory:", **more: Any) -> AsyncIterator[App]:
    options = {"public_url": "https://agents.example.com", **more}
    catalogue = AgentCatalogue(allow_private=True, name="Example Inc.", agents=options.pop("listed", None))
    app = application(*make_agents(), store=store, catalogue=catalogue, **options)
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def app(request: Any, tmp_path: Any) -> AsyncIterator[App]:
    if request.param == "postgres" and not postgres.available():
        pytest.skip("no PostgreSQL here")
    store = {
        "memory": lambda: "memory:",
        "sqlite": lambda: f"sqlite:///{tmp_path}/tasks.db",
        "postgres": lambda: postgres.server().fresh(tmp_path),
    }[request.param]()
    async with serving(store) as app:
        yield app


def headers(token: str = "") -> dict[str, str]:
    return {"host": "agents.example.com", **({"authorization": f"Bearer {token}"} if token else {})}


async def get(app: App, path: str, token: str = "", **more: str) -> Answer:
    path, _, query = path.partition("?")
    return await request(app, "GET", path, headers={**headers(token), **more}, query=query)


async def search(app: App, text: str, token: str = "", **more: Any) -> Any:
    filter = more.pop("filter", None)
    body = {"query": {"text": text, **({"filter": filter} if filter else {})}, **more}
    answer = await request(
        app, "POST", "/catalogue/search", msgspec.json.encode(body), headers=headers(token)
    )
    assert answer.status == 200, answer.body
    return answer.json


def names(answer: Any) -> list[str]:
    return [each["metadata"]["name"] for each in answer.get("results", answer.get("items"))]


async def test_an_agent_is_found_by_what_it_does(app: App) -> None:
    found = await search(app, "refund an order")
    assert names(found) == ["refunds"]
    result = found["results"][0]
    assert result["identifier"] == REFUNDS
    assert result["type"] == "application/a2a-agent-card+json"
    assert result["url"] == "https://agents.example.com/refunds/.well-known/agent-card.json"
    assert result["version"] == "1.4"
    assert 0 < result["score"] <= 100
    assert result["source"] == "https://agents.example.com/catalogue"
    assert result["metadata"]["health"] == "up" and result["metadata"]["signature"] == "unsigned"
    assert "1.0 JSONRPC" in result["metadata"]["interfaces"]


async def test_a_private_card_is_found_only_by_callers_of_its_agent(app: App) -> None:
    assert names(await search(app, "salary payroll")) == []
    assert names(await search(app, "salary payroll", BOB)) == []
    assert names(await search(app, "salary payroll", "nonsense")) == []
    assert names(await search(app, "salary payroll", ADA)) == ["payroll"]


@pytest.mark.parametrize(
    "path", ["/.well-known/ai-catalog.json", "/.well-known/ard.json", "/catalogue/agents"]
)
async def test_no_document_names_a_private_agent_to_strangers(app: App, path: str) -> None:
    for token in ("", BOB, "nonsense"):
        answer = await get(app, path, token)
        assert answer.status == 200 and "payroll" not in answer.body.decode().lower()
    assert "payroll" in (await get(app, path, ADA)).body.decode().lower()


async def test_a_private_agent_looks_like_one_that_does_not_exist(app: App) -> None:
    private = await get(app, "/catalogue/agents/urn:air:agents.example.com:agent:payroll")
    missing = await get(app, "/catalogue/agents/urn:air:agents.example.com:agent:nobody")
    assert (private.status, private.body) == (missing.status, missing.body) == (404, private.body)
    assert private.json["errorCode"] == "NOT_FOUND"
    seen = await get(app, "/catalogue/agents/urn:air:agents.example.com:agent:payroll", ADA)
    assert seen.status == 200


async def test_what_an_extended_card_adds_is_found_by_those_it_is_made_for(app: App) -> None:
    assert names(await search(app, "zeppelin", ADA)) == ["desk"]
    assert names(await search(app, "zeppelin", BOB)) == []
    assert names(await search(app, "zeppelin")) == []


async def test_an_api_key_of_one_agent_shows_what_that_agent_shows() -> None:
    async with serving() as app:
        body = msgspec.json.encode({"query": {"text": "salary desk"}})
        answer = await request(
            app, "POST", "/catalogue/search", body, headers={**headers(), "x-desk": "key-0123456789abcdef"}
        )
        assert names(answer.json) == ["desk"]
        assert answer.headers["cache-control"] == "private, no-store"


async def test_a_stranger_without_credentials_is_not_refused_in_the_audit(tmp_path: Any) -> None:
    async with serving(f"sqlite:///{tmp_path}/tasks.db") as app:
        await search(app, "anything")
        await search(app, "anything", "wrong")
    from dragoman.stores import open_store

    store = open_store(f"sqlite:///{tmp_path}/tasks.db")
    await store.open()
    refused = [each for each in await store.audit.entries() if each.operation == "authenticate"]
    await store.close()
    assert sorted(each.agent for each in refused) == ["desk", "payroll"]  # of the wrong token, once each


async def test_the_ai_catalog_follows_its_draft() -> None:
    async with serving() as app:
        answer = await get(app, "/.well-known/ai-catalog.json")
        assert answer.headers["content-type"] == "application/ai-catalog+json"
        assert answer.headers["access-control-allow-origin"] == "*"
        document = answer.json
        assert document["specVersion"] == "1.0"
        assert document["host"] == {"displayName": "Example Inc.", "identifier": "agents.example.com"}
        for entry in document["entries"]:
            assert (
                {"identifier", "type", "url"}
                <= set(entry)
                <= {"identifier", "type", "url", "tags", "extensions"}
            )
        assert [each["identifier"] for each in document["entries"]] == [
            "urn:air:agents.example.com:agent:desk",
            REFUNDS,
        ]
        card = await get(app, "/refunds/.well-known/agent-card.json")
        assert card.json["name"] == "Refunds"


async def test_the_ard_manifest_follows_its_draft() -> None:
    async with serving() as app:
        document = (await get(app, "/.well-known/ard.json")).json
        registry, *entries = document["entries"]
        assert registry["type"] == "application/ai-registry+json"
        assert registry["url"] == "https://agents.example.com/catalogue"
        for entry in document["entries"]:
            assert {"identifier", "displayName", "type", "url"} <= set(entry)
        refunds = next(each for each in entries if each["identifier"] == REFUNDS)
        assert refunds["representativeQueries"] == ["Refund my order", "Where is my money?"]
        assert refunds["capabilities"] == ["refund_order"]
        assert (await get(app, f"/catalogue/agents/{REFUNDS}")).json == refunds


async def test_a_registered_agent_has_no_identifier_of_ours_in_the_ai_catalog_and_one_in_ard() -> None:
    async with elsewhere() as site, serving() as app:
        await published(app).registered.add(site.url, name="money")
        listed = (await get(app, "/.well-known/ai-catalog.json")).json["entries"]
        money = next(each for each in listed if each["url"].startswith(site.url))
        identifier = "urn:air:agents.example.com:catalogue:money"
        assert (
            money["identifier"] == f"https://agents.example.com/catalogue/agents/{quote(identifier, safe='')}"
        )
        found = await search(app, "currency")
        assert [each["identifier"] for each in found["results"]] == [identifier]
        assert found["results"][0]["url"] == f"{site.url}/.well-known/agent-card.json"


def published(app: App) -> searching.CatalogueSearch:
    handler: Any = app._catalogue
    catalogue: searching.CatalogueSearch = handler.catalogue
    return catalogue


async def test_results_come_in_pages() -> None:
    async with serving() as app:
        found: list[str] = []
        token = ""
        while True:
            page = await search(
                app, "answers refunds salary", ADA, pageSize=1, **({"pageToken": token} if token else {})
            )
            found += names(page)
            if not (token := page.get("pageToken", "")):
                break
        assert sorted(found) == ["desk", "payroll", "refunds"]
        first = (await get(app, "/catalogue/agents?pageSize=1")).json
        assert (names(first), first["total"], first["pageToken"]) == (["desk"], 2, "1")
        second = (await get(app, "/catalogue/agents?pageSize=1&pageToken=1")).json
        assert names(second) == ["refunds"] and "pageToken" not in second


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"tags": ["orders"]}, ["refunds"]),
        ({"tags": "orders"}, ["refunds"]),
        ({"tags": ["orders"], "type": ["application/mcp-server-card+json"]}, []),
        ({"publisher": ["agents.example.com", "other.example"]}, ["desk", "refunds"]),
        ({"capabilities": ["answer"]}, ["desk"]),
        ({"metadata.health": ["down"]}, []),
    ],
)
async def test_filters_narrow_a_search(filter: dict[str, Any], expected: list[str]) -> None:
    async with serving() as app:
        assert sorted(names(await search(app, "refunds answers", filter=filter))) == expected


async def test_a_list_is_filtered_by_an_expression() -> None:
    async with serving() as app:
        listed = await get(
            app, f"/catalogue/agents?filter={quote(chr(39).join(['displayName = ', 'REF', '']))}"
        )
        assert names(listed.json) == ["refunds"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"query": {}}',
        b'{"query": {"text": ""}}',
        b'{"query": {"text": 7}}',
        b'{"query": {"text": "x", "more": 1}}',
        b'{"query": {"text": "x"}, "pageSize": 0}',
        b'{"query": {"text": "x"}, "pageToken": "-1"}',
        b'{"query": {"text": "x"}, "federation": "all"}',
        b'{"query": {"text": "x", "filter": {"okf:taxonomy": ["a"]}}}',
        b'{"query": {"text": "x", "filter": {"tags": {"a": 1}}}}',
        b'{"query": {"text": "' + b"x" * 2000 + b'"}}',
        b"[" * 10_000,
        b"\xff",
    ],
)
async def test_a_search_that_makes_no_sense_is_an_invalid_argument(body: bytes) -> None:
    async with serving() as app:
        answer = await request(app, "POST", "/catalogue/search", body, headers=headers())
        assert (answer.status, answer.json["errorCode"]) == (400, "INVALID_ARGUMENT"), answer.body


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/catalogue/search", 405),
        ("POST", "/catalogue/explore", 400),
        ("GET", "/catalogue/explore", 405),
        ("POST", "/.well-known/ai-catalog.json", 405),
        ("DELETE", "/catalogue/agents", 405),
        ("GET", "/catalogue/agents/refunds", 400),
        ("GET", "/catalogue/agents/urn%3Aair%3Ax%3A%2F..%2F", 400),
        ("GET", "/catalogue/agents?orderBy=secret", 400),
        ("GET", "/catalogue/agents?pageSize=x", 400),
        ("GET", "/catalogue/agents?filter=type+LIKE+x", 400),
        ("GET", "/catalogue", 404),
        ("GET", "/catalogue/nothing", 404),
    ],
)
async def test_other_requests_are_refused(method: str, path: str, status: int) -> None:
    async with serving() as app:
        place, _, query = path.partition("?")
        answer = await request(app, method, place, b"{}", headers=headers(), query=query)
        assert answer.status == status, answer.body
        assert answer.json["errorCode"] and answer.json["message"]


async def test_a_document_that_did_not_change_is_not_sent_again() -> None:
    async with serving() as app:
        first = await get(app, "/.well-known/ard.json")
        again = await get(app, "/.well-known/ard.json", **{"if-none-match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")


async def test_too_many_searches_at_a_time_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MAX_SEARCHES", 0)
    async with serving() as app:
        body = msgspec.json.encode({"query": {"text": "x"}})
        answer = await request(app, "POST", "/catalogue/search", body, headers=headers())
        assert (answer.status, answer.json["errorCode"]) == (429, "RATE_LIMIT_EXCEEDED")
        assert answer.headers["retry-after"] == "1"


async def test_without_a_catalogue_there_is_nothing_at_its_paths() -> None:
    app = application(*make_agents(), store="memory:")
    await app.start()
    try:
        for path in ("/.well-known/ai-catalog.json", "/.well-known/ard.json", "/catalogue/agents"):
            assert (await get(app, path)).status == 404
    finally:
        await app.stop()


async def test_an_agent_cannot_have_the_path_of_the_catalogue() -> None:
    agent = Agent("Catalogue", "x")
    with pytest.raises(ValueError, match="catalogue"):
        application(agent, store="memory:", path="/catalogue", catalogue=AgentCatalogue())


async def test_registered_agents_outlive_the_server(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with elsewhere() as site:
        async with serving(store) as app:
            await published(app).registered.add(site.url, name="money")
        async with serving(store) as app:
            assert names(await search(app, "convert")) == ["money"]


async def test_settings_register_agents_when_the_server_starts() -> None:
    async with elsewhere() as site, serving(listed={"money": site.url}) as app:
        await site.come.wait()
        assert "money" in names((await get(app, "/catalogue/agents")).json)


async def test_a_hostile_card_does_not_change_the_answer_for_others(tmp_path: Any) -> None:
    site: Elsewhere
    async with elsewhere() as site, serving(f"sqlite:///{tmp_path}/t.db") as app:
        site.card = {
            "name": "refunds\u202e\x00",
            "skills": [{"id": "x" * 9000, "name": "<script>", "tags": ['"*', "name:refund"]}] * 900,
            "supportedInterfaces": [
                {"url": "http://169.254.169.254/", "protocolBinding": "X" * 999, "protocolVersion": "\n"}
            ],
        }
        await published(app).registered.add(site.url, name="evil")
        found = await search(app, "refund order")
        assert names(found)[0] == "refunds"
        assert "169.254" not in msgspec.json.encode(found).decode()
        assert len((await get(app, "/.well-known/ard.json")).body) < 100_000


async def explore(app: App, *facets: dict[str, Any], token: str = "", **query: Any) -> Any:
    body = {"query": query, "resultType": {"facets": facets}}
    answer = await request(
        app, "POST", "/catalogue/explore", msgspec.json.encode(body), headers=headers(token)
    )
    assert answer.status == 200, answer.body
    assert answer.json["resultType"] == "facets"
    return answer.json["facets"]


async def test_values_are_counted_over_what_the_caller_may_see(app: App) -> None:
    found = await explore(app, {"field": "type"}, {"field": "tags"})
    assert found["type"] == {"buckets": [{"value": "application/a2a-agent-card+json", "count": 2}]}
    assert {"value": "orders", "count": 1} in found["tags"]["buckets"]
    seen = await explore(app, {"field": "type"}, token=ADA)
    assert seen["type"]["buckets"][0]["count"] == 3
    narrowed = await explore(app, {"field": "metadata.name"}, text="refund", filter={"tags": ["orders"]})
    assert narrowed["metadata.name"]["buckets"] == [{"value": "refunds", "count": 1}]


async def test_buckets_beyond_the_limit_are_counted_together() -> None:
    async with serving() as app:
        found = await explore(app, {"field": "metadata.name", "limit": 1})
        assert found["metadata.name"] == {"buckets": [{"value": "desk", "count": 1}], "otherCount": 1}
        assert (await explore(app, {"field": "metadata.name", "minCount": 2}))["metadata.name"] == {
            "buckets": []
        }


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"resultType": {"facets": []}},
        {"resultType": {"facets": [{"field": "secret"}]}},
        {"resultType": {"facets": [{"field": "type", "limit": 0}]}},
        {"resultType": {"facets": [{"field": "type"}] * 99}},
    ],
)
async def test_an_exploration_that_makes_no_sense_is_an_invalid_argument(body: Any) -> None:
    async with serving() as app:
        answer = await request(
            app, "POST", "/catalogue/explore", msgspec.json.encode(body), headers=headers()
        )
        assert (answer.status, answer.json["errorCode"]) == (400, "INVALID_ARGUMENT")
