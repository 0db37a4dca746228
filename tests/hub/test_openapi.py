"""The OpenAPI document of a hub: every operation says what it answers, and the answers are so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import response_schema_conformance, status_code_conformance

from dragoman.agent.agent import Agent
from dragoman.server.runtime import running
from tests.hub import openapi_check
from tests.hub.house import ADMIN, SCOUT, Caller, House, house
from tests.serving import in_thread


async def test_every_operation_says_what_it_answers() -> None:
    async with house() as hub:
        document = (await hub.nobody("GET", "/v1/openapi.json")).json
        table = hub.app._elsewhere.table
    silent = []
    for route in table.routes:
        responses = document["paths"][route.path][route.method.lower()]["responses"]
        assert responses["default"]["content"]["application/json"]["schema"] == {
            "$ref": "#/components/schemas/Error"
        }
        content = responses[str(route.status)].get("content", {})
        if route.status != 204 and not all(each["schema"] for each in content.values()):
            silent.append(f"{route.method} {route.path}")
        assert route.streams or route.status == 204 or route.returns is not None or silent
    assert not silent, "say what they return"


async def test_an_operation_that_takes_the_content_of_a_file_says_so() -> None:
    async with house() as hub:
        document = (await hub.nobody("GET", "/v1/openapi.json")).json
    body = document["paths"]["/v1/conversations/{id}/artifacts"]["put"]["requestBody"]
    assert body == {"required": True, "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}


async def everything(hub: House, acme: Caller) -> None:
    """Call every operation of the native API that does not stream, so that it succeeds."""
    admin = hub.admin
    await acme("GET", "/v1/export")
    for path in (
        "policy",
        "health",
        "models",
        "openapi.json",
        "constitution.schema.json",
        "usage",
        "requests",
        "runs",
    ):
        await acme("GET", f"/v1/{path}")
    await hub.nobody("GET", "/.well-known/agent-card.json")
    # agents
    await acme("POST", "/v1/agents", SCOUT)
    await acme("PUT", "/v1/agents/scout", {**SCOUT, "goal": "more"})
    await acme(
        "PUT", "/v1/agents/other", {**SCOUT, "id": "other", "advisor": {"model": "a/b", "mode": "gate"}}
    )
    await acme("PATCH", "/v1/agents/scout", {**SCOUT, "rules": ["one"], "event_types": ["a.*"]})
    for path in ("agents", "agents/scout", "agents/index", "agents/coder", "agents/scout/versions"):
        await acme("GET", f"/v1/{path}")
    (version, *_) = (await acme("GET", "/v1/agents/scout/versions")).json["versions"]
    await acme("GET", f"/v1/agents/scout/versions/{version['version']}")
    bodies: list[Any] = [SCOUT, {"id": 7}]
    for body in bodies:
        assert (await acme("POST", "/v1/constitutions/validate", body)).status == 200
    await acme("DELETE", "/v1/agents/other")
    # requests
    done = (await acme.ask("hi"))[-1][1]
    await acme("GET", f"/v1/requests/{done['request_id']}")
    check = {"advisor_model": "a/b", "original_task": "t", "terminating_text": "x"}
    assert (await acme("POST", "/v1/advise/gate", check)).status == 200
    stream = acme.open("POST", "/v1/orchestrate", {"message": "wait"})
    await stream.until(lambda: b"event: request_received" in stream.body)
    id = stream.headers["x-request-id"]
    canceled = await acme("POST", f"/v1/requests/{id}/cancel")
    await stream.end()
    assert canceled.status == 200
    # conversations and files
    bodies = [{"title": "t"}, {"agent_def": SCOUT}]
    for body in bodies:
        talk = (await acme("POST", "/v1/conversations", body)).json["id"]
    place = f"/v1/conversations/{talk}"
    await acme.ask("hi", f"{place}/messages")
    await acme("GET", "/v1/conversations")
    await acme("GET", place)
    await acme("PATCH", place, {"title": "u", "archived": True})
    await acme("GET", f"{place}/messages")
    for content in ("a", "b"):
        file = (await acme("POST", f"{place}/artifacts", {"path": "a.txt", "content": content})).json["id"]
    await acme("PUT", f"{place}/artifacts?path=b.bin", b"\x00\xff", content_type="application/octet-stream")
    for path in (f"{place}/artifacts", "/v1/artifacts", f"{place}/artifacts/{file}", f"/v1/artifacts/{file}"):
        await acme("GET", path)
    for path in (f"{place}/artifacts/{file}/raw", f"/v1/artifacts/{file}/raw"):
        etag = (await acme("GET", path)).headers["etag"]
        assert (await acme("GET", path, if_none_match=etag)).status == 304
    # memory
    entries = []
    for n in range(2):
        body = {
            "type": "project",
            "title": f"t{n}",
            "tags": ["x"],
            "artifact_id": file,
            "conversation_id": talk,
        }
        entries.append((await acme("POST", "/v1/memory/entries", body)).json["id"])
    first, second = entries
    ends = {"source_id": first, "target_id": second, "relation": "supports"}
    relation = (await acme("POST", "/v1/memory/relations", ends)).json["id"]
    for path in (
        "",
        "/*",
        "/scout",
        "/entries",
        "/entries?q=t0",
        f"/entries/{first}",
        "/relations",
        "/graph",
    ):
        await acme("GET", f"/v1/memory{path}")
    await acme("PATCH", f"/v1/memory/entries/{first}", {"title": "new"})
    await acme("POST", f"/v1/memory/entries/{second}/invalidate")
    await acme("DELETE", f"/v1/memory/relations/{relation}")
    await acme("DELETE", f"/v1/memory/entries/{first}")
    # todos and schedules
    todo = (await acme("POST", "/v1/todos", {"subject": "s"})).json["id"]
    await acme("GET", "/v1/todos")
    await acme("GET", f"/v1/todos/{todo}")
    await acme("PATCH", f"/v1/todos/{todo}", {"state": "completed"})
    await acme("DELETE", f"/v1/todos/{todo}")
    for phrase in ("in 2 hours", "0 9 * * mon in Asia/Tokyo"):
        made = (await acme("POST", "/v1/schedules", {"schedule": phrase, "message": "m"})).json
    task = made["scheduled_task"]["id"]
    await acme("GET", "/v1/schedules")
    await acme("GET", f"/v1/schedules/{task}")
    await acme("PATCH", f"/v1/schedules/{task}", {"status": "paused"})
    run = await hub.hub.database.one(
        "insert into runs (tenant_id, task_id, started_at) values (?, ?, 1) returning id",
        (acme.tenant.id, task),
    )
    await acme("GET", f"/v1/schedules/{task}/runs")
    await acme("GET", "/v1/runs")
    await acme("GET", f"/v1/runs/{run['id']}")
    await acme("DELETE", f"/v1/schedules/{task}")
    await acme("DELETE", f"{place}/artifacts/{file}")
    (other, *_) = (await acme("GET", "/v1/artifacts")).json["artifacts"]
    await acme("DELETE", f"/v1/artifacts/{other['id']}")
    await acme("DELETE", place)
    # tokens
    for who, place in ((acme, "/v1/tokens"), (admin, f"/v1/admin/tenants/{acme.tenant.id}/tokens")):
        made = (await who("POST", place, {"name": "ci", "scope": "run", "expires_in": 600})).json["token"][
            "id"
        ]
        made = (await who("POST", f"{place}/{made}/rotate", {"overlap_seconds": 5})).json["token"]["id"]
        await who("GET", place)
        await who("GET", f"{place}/{made}")
        await who("DELETE", f"{place}/{made}")
    await acme("GET", "/v1/whoami")
    # administration
    tenant = (await admin("POST", "/v1/admin/tenants", {"name": "beta"})).json["tenant"]["id"]
    for path in ("tenants", f"tenants/{tenant}", f"tenants/{tenant}/policy", "policy", "usage", "audit"):
        await admin("GET", f"/v1/admin/{path}")
    await admin("PATCH", f"/v1/admin/tenants/{tenant}/policy", {"max_agents": 3})
    await admin("PATCH", f"/v1/admin/tenants/{tenant}", {"disabled": True, "max_concurrent": 3})
    await admin("POST", f"/v1/admin/tenants/{tenant}/rotate-token")
    await admin("GET", f"/v1/admin/tenants/{tenant}/export")
    await admin("DELETE", f"/v1/admin/tenants/{tenant}")
    await admin("GET", "/v1/admin/deletions")


async def test_the_headers_that_an_operation_reads_are_in_the_document() -> None:
    async with house() as hub:
        paths = (await hub.nobody("GET", "/v1/openapi.json")).json["paths"]
    for path, header in (
        ("/v1/requests/{id}/events", "Last-Event-ID"),
        ("/v1/notifications/stream", "Last-Event-ID"),
        ("/v1/artifacts/{aid}/raw", "If-None-Match"),
        ("/v1/conversations/{id}/artifacts/{aid}/raw", "If-None-Match"),
    ):
        named = [each["name"] for each in paths[path]["get"]["parameters"] if each["in"] == "header"]
        assert named == [header], path


async def test_a_body_may_be_empty_where_the_document_says_so() -> None:
    async with house() as hub:
        acme, _ = await hub.tenant("acme"), await hub.tenant("scout")
        document = (await hub.nobody("GET", "/v1/openapi.json")).json
        await acme("POST", "/v1/agents", SCOUT)
        for path, operations in document["paths"].items():
            for method in operations.keys() - {"parameters"}:
                body = operations[method].get("requestBody", {"content": {}})
                if "application/json" not in body["content"]:
                    continue
                who = hub.admin if path.startswith("/v1/admin") else acme
                answer = await who(
                    method.upper(), path.replace("{tenant}", "scout").replace("{id}", "scout"), b""
                )
                empty = answer.status == 400 and answer.json["error"] == "the body is empty"
                assert empty == body["required"], (method, path, answer.body)
        assert (await acme("GET", "/v1/agents/scout")).json["goal"] == SCOUT["goal"]


async def test_every_answer_is_as_the_document_says() -> None:
    before = set(openapi_check.checked)
    openapi_check.checked.clear()
    code = Agent("Coder", id="coder", description="Codes")
    async with house(lambda prompt: "Fine. <signal>CONTINUE</signal>", code=[code]) as hub:
        await everything(hub, await hub.tenant("acme"))
        routes = hub.app._elsewhere.table.routes
    seen = set(openapi_check.checked)
    openapi_check.checked.update(before)
    skipped = {"GET /v1/metrics", "GET /.well-known/agent-card.json"}  # their paths are not checked
    skipped |= {"POST /v1/requests/{id}/answer"}  # there has to be a question
    skipped |= {"POST /v1/admin/rotate-token"}  # the token of this hub is a setting
    skipped |= {
        f"PATCH {path}/{{id}}" for path in ("/v1/tokens", "/v1/admin/tenants/{tenant}/tokens")
    }  # users of OIDC
    every = {f"{route.method} {route.path}" for route in routes if not route.streams and route.returns}
    assert every - seen - skipped == set(), "call them in `everything`"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/agents", b"{", 400),
        ("POST", "/v1/agents", {"id": "x", "capabilities": ["/serach"]}, 400),
        ("POST", "/v1/todos", {"subject": 7}, 400),
        ("GET", "/v1/requests?limit=x", None, 400),
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/v1/todos/99", None, 404),
        ("GET", "/v1/todos/x", None, 404),
        ("POST", "/v1/requests/x/cancel", None, 404),
        ("PUT", "/v1/todos", None, 405),
        ("POST", "/v1/agents", SCOUT, 409),
    ],
)
async def test_every_refusal_has_the_one_shape(method: str, path: str, body: Any, status: int) -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        answer = await acme(method, path, body)
        assert answer.status == status and answer.json["error"]
        for who in (hub.nobody, hub.admin):
            refused = await who("GET", "/v1/agents")
            assert refused.status == 401 and refused.json["error"]
        limited = await acme("GET", "/v1/admin/tenants")
        assert limited.status == 401 and set(limited.json) <= {"error", "reason", "fields"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/todos", {"subject": 7}, "subject"),
        ("/v1/memory/entries", {"type": "project", "title": "t", "tags": ["a", 1]}, "tags[1]"),
        ("/v1/tokens", {"name": "ci", "scope": "all"}, "scope"),
        ("/v1/todos", {}, "subject"),
    ],
)
async def test_a_refusal_names_the_member_that_is_wrong(path: str, body: Any, field: str) -> None:
    async with house() as hub:
        refused = await (await hub.tenant("acme"))("POST", path, body)
        assert refused.status == 400 and [each["field"] for each in refused.json["fields"]] == [field]
        assert refused.json["error"].startswith(f"{field} ") or refused.json["error"].startswith(f"{field}: ")


async def test_a_refusal_names_a_member_that_is_unknown() -> None:
    async with house() as hub:
        await hub.tenant("acme")
        refused = await hub.admin("PATCH", "/v1/admin/tenants/acme", {"disbaled": True})
        assert refused.status == 400
        assert refused.json == {
            "error": "disbaled is unknown",
            "fields": [{"field": "disbaled", "reason": "is unknown"}],
        }


async def test_a_refusal_of_a_value_without_a_name_names_the_body() -> None:
    async with house() as hub:
        refused = await (await hub.tenant("acme"))("POST", "/v1/agents", b'{"id": "x", "budget": 1e400}')
        assert refused.status == 400 and refused.json == {"error": "the body: number out of range"}


async def test_a_refusal_for_too_many_requests_has_the_one_shape() -> None:
    async with house(lambda prompt: "Fine.", rate_per_min=1, rate_burst=1) as hub:
        acme = await hub.tenant("acme")
        await acme.ask("hi")
        answer = await acme("POST", "/v1/orchestrate", {"message": "hi"})
        assert answer.status == 429
        assert set(answer.json) == {"error", "reason", "retry_after_seconds"}


EXAMPLES = 3
"""For each operation: made-up requests that the document allows."""


@asynccontextmanager
async def served_hub() -> AsyncIterator[tuple[str, str, Any]]:
    """A hub: its URL, the token of a tenant, and its document."""
    async with house(lambda prompt: "Fine.", rate_per_min=0) as hub, running(hub.app) as url:
        acme = await hub.tenant("acme")
        yield url, acme.token, (await hub.nobody("GET", "/v1/openapi.json")).json


def hold_to_document(operation: Any, url: str, bearer: str) -> None:
    """Send requests that the document allows, and compare the answers with it."""
    own = settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )

    @own
    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def hold(case: Any) -> None:
        response = case.call(base_url=url, headers={"Authorization": f"Bearer {bearer}"}, timeout=20)
        assert response.status_code < 500, (case.operation.label, response.text)
        case.validate_response(response, checks=[response_schema_conformance, status_code_conformance])

    hold()


@pytest.mark.timeout(300)
def test_answers_to_made_up_requests_are_as_the_document_says() -> None:
    with in_thread(served_hub()) as (url, token, document):
        schema = schemathesis.openapi.from_dict(document)
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            responses = operation.definition.raw["responses"]
            if "text/event-stream" not in responses.get("200", {}).get("content", {}):
                hold_to_document(operation, url, ADMIN if operation.path.startswith("/v1/admin") else token)
