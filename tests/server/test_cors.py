"""Web pages of other origins: who may call, what a browser hears before, and what it never hears."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from dragoman import Agent
from dragoman.auth import Bearer
from dragoman.model.task import TaskState
from dragoman.server.application import application
from dragoman.server.cors import Cors
from tests.server.wire import HELLO, Scripted, app_of, request, rpc, status, task

PAGE = "https://console.example"
OTHER = "https://evil.example"
ALLOWED: dict[str, Any] = {"cors_origins": [PAGE]}
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "a2a-version,authorization,content-type,x-my-key",
}
PATHS = ["/", "/message:send", "/tasks/t1", "/tasks/t1:subscribe", "/v1/message:send", "/agent-card.json"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_preflight_of_an_allowed_origin_is_answered(path: str) -> None:
    answer = await request(app_of(**ALLOWED), "OPTIONS", path, headers=PREFLIGHT)
    assert answer.status == 204 and not answer.body
    assert answer.headers["access-control-allow-origin"] == PAGE and answer.headers["vary"] == "Origin"
    assert "POST" in answer.headers["access-control-allow-methods"]
    asked = PREFLIGHT["Access-Control-Request-Headers"]
    assert answer.headers["access-control-allow-headers"] == asked
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("path", PATHS[:-1])
@pytest.mark.parametrize("origins", [[], [OTHER]], ids=["nobody", "others"])
async def test_pages_of_other_origins_get_no_cors_headers(path: str, origins: list[str]) -> None:
    app = app_of(cors_origins=origins)
    asked = await request(app, "OPTIONS", path, headers=PREFLIGHT)
    assert asked.status == 405 and not any(name.startswith("access-control") for name in asked.headers)
    sent = await rpc(app, "SendMessage", HELLO, headers={"Origin": PAGE, "Content-Type": "application/json"})
    assert sent.status == 200 and not any(name.startswith("access-control") for name in sent.headers)


async def test_answers_refusals_and_streams_may_be_read_by_the_page() -> None:
    app = app_of(Scripted([status(TaskState.COMPLETED, 1)], result=task()), **ALLOWED)
    headers = {"Origin": PAGE, "Content-Type": "application/json"}
    for answer in (
        await rpc(app, "SendMessage", HELLO, headers=headers),
        await rpc(app, "NoSuchMethod", headers=headers),
        await rpc(app, "SendStreamingMessage", HELLO, headers=headers),
        await request(app, "GET", "/tasks/t1", headers=headers),
        await request(app, "GET", "/tasks/t1:subscribe", headers=headers),
        await request(app, "GET", "/nothing/here", headers=headers),
        await request(app, "PUT", "/", headers=headers),
    ):
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["vary"] == "Origin"
        assert "A2A-Extensions" in answer.headers["access-control-expose-headers"]


async def test_a_page_is_asked_who_it_is_only_when_it_calls() -> None:
    agent = Agent("Keeper", auth=[Bearer({"bob": sha256(b"token").hexdigest()})], private_card=True)
    app = application(agent, store="memory:", **ALLOWED)
    for path in ("/", "/tasks", "/.well-known/agent-card.json"):
        assert (await request(app, "OPTIONS", path, headers=PREFLIGHT)).status == 204
    refused = await request(app, "GET", "/tasks", headers={"Origin": PAGE})
    assert refused.status == 401 and refused.headers["access-control-allow-origin"] == PAGE
    assert "WWW-Authenticate" in refused.headers["access-control-expose-headers"]
    card = await request(
        app, "GET", "/agent-card.json", headers={"Origin": PAGE, "Authorization": "Bearer token"}
    )
    assert card.status == 200 and card.headers["access-control-allow-origin"] == PAGE


async def test_any_origin_may_read_a_public_card() -> None:
    for origin in (PAGE, OTHER):
        card = await request(app_of(**ALLOWED), "GET", "/agent-card.json", headers={"Origin": origin})
        assert card.headers["access-control-allow-origin"] == "*"
    asked = await request(app_of(**ALLOWED), "OPTIONS", "/agent-card.json", headers={"Origin": OTHER})
    assert asked.status == 204 and asked.headers["access-control-allow-origin"] == "*"


async def test_a_star_is_for_all_and_never_with_credentials() -> None:
    app = app_of(cors_origins=["*"])
    for headers in (PREFLIGHT, {"Origin": "null"}):
        answer = await request(app, "OPTIONS", "/", headers=headers)
        assert answer.status == 204 and answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


async def test_preflight_repeats_requested_headers_only_if_they_are_a_list() -> None:
    odd = {**PREFLIGHT, "Access-Control-Request-Headers": "a b; c"}
    answer = await request(app_of(**ALLOWED), "OPTIONS", "/", headers=odd)
    assert "A2A-Version" in answer.headers["access-control-allow-headers"]
    assert "a b" not in answer.headers["access-control-allow-headers"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_numbers_of_the_server_are_not_for_pages(path: str) -> None:
    app = app_of(metrics=lambda: b"secret 1", cors_origins=["*"])
    for method in ("GET", "OPTIONS"):
        answer = await request(app, method, path, headers=PREFLIGHT)
        assert answer.status == (200 if method == "GET" else 405)
        assert "access-control-allow-origin" not in answer.headers


async def test_an_origin_is_written_as_people_write_it() -> None:
    app = app_of(cors_origins=["https://Console.Example/"])
    answer = await request(app, "GET", "/tasks/t1", headers={"Origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("origin", ["console.example", "null", "", "https://a.example/app", "https://a b"])
def test_invalid_cors_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="no origin"):
        Cors([origin])


async def test_vary_says_all_that_an_answer_depends_on() -> None:
    sent: list[Any] = []
    app = app_of(**ALLOWED)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/agent-card.json",
        "headers": [(b"origin", PAGE.encode())],
    }
    await app(scope, receive, send)
    varies = [value for name, value in sent[0]["headers"] if name == b"vary"]
    assert varies == [b"A2A-Version", b"Origin"]
