"""Whatever comes in, the operator API answers with a clear JSON error and never with an internal one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dragoman.console.keys import key_of
from dragoman.model.ops import Scope
from dragoman.observe.redact import is_secret_name, redact, redact_text, redact_url
from tests.console.conftest import Operator
from tests.server.wire import request

WORDS = [
    "", "0", "-1", "1", "999999999999999999999", "NaN", "null", "true", "'; drop table tasks; --", "\x00", "%00", "../../etc/passwd",
    "A" * 5000, "é" * 50, "W10", "e30", "bnVsbA", "WyIiLCIiLCIiLDFd", "<script>alert(1)</script>", "\u202e", "*", "2026-13-45",
]  # fmt: skip
OUTSIDE = {"talk", "inspect", "login", "receive", "dev"}
"""First words of paths of other modules, which call out or have tests of their own."""


def routes(app: Any) -> list[Any]:
    return [route for route in app._console.table.routes if route.path.split("/")[1] not in OUTSIDE]


async def test_no_path_query_or_body_is_an_internal_error(operator: Operator) -> None:
    await operator.send("tea")
    dice = random.Random(14)
    (row,) = (await operator.get("/tasks"))["tasks"]
    for route in routes(operator.app):
        if route.streams or route.path == "/session":
            continue
        for word in WORDS:
            value = row["key"] if dice.random() < 0.3 else word
            path = route.path
            for name in ("key", "n", "id", "handle"):
                path = path.replace(f"{{{name}}}", value.replace("/", "%2F") or "x")
            chosen = [name for name in route.query if dice.random() < 0.5]
            query = "&".join(f"{name}={dice.choice(WORDS)}" for name in chosen).replace(" ", "+")
            bodies: list[Any] = [
                None,
                b"",
                b"{",
                b"[]",
                b"null",
                b'{"record": 1e999}',
                b"\xff",
                b'"' + b"x" * 70_000,
            ]
            answer = await operator(
                route.method,
                f"{path}?{query}" if query else path,
                dice.choice(bodies) if route.body is not None else None,
            )
            assert answer.status < 500, (route.method, path, query, answer.body)
            if answer.status >= 400:
                assert set(answer.json["error"]) >= {"code", "message"}, answer.body


async def test_keys_of_tasks_that_do_not_exist_are_not_found_in_every_store(operator: Operator) -> None:
    for words in (
        ("", "hello", "", "x"),
        ("a\0", "b", "c", "d"),
        ("", "", "", ""),
        ("x" * 3000, "y" * 3000, "", "z"),
    ):
        key = key_of(Scope(*words[:3]), words[3])
        for path in ("", "/records", "/events", "/at/1", "/records/1/as"):
            assert (await operator("GET", f"/tasks/{key}{path}")).status == 404, words
        assert (await operator("POST", f"/tasks/{key}/cancel")).status == 404


async def test_a_huge_body_or_query_is_refused(operator: Operator) -> None:
    big = b'{"token": "' + b"x" * (20 << 20) + b'"}'
    assert (await operator("POST", "/session", big)).status == 413
    deep = b'{"token": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert (await operator("POST", "/session", deep)).status == 400
    assert (await operator("GET", "/tasks?text=" + "x" * 100_000)).status == 200


async def test_methods_that_a_path_does_not_have_are_405_and_head_is_get(operator: Operator) -> None:
    answer = await operator("PATCH", "/tasks")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    head = await operator("HEAD", "/me")
    assert head.status == 200 and head.body == b""
    assert (await operator("HEAD", "/tasks/stream")).status == 200


async def test_odd_cookies_and_authorization_headers_are_401(operator: Operator) -> None:
    operator.token = ""
    for cookie in (
        "dragoman_console_8000=",
        "dragoman_console_8000=a.b",
        "dragoman_console_8000=%%%",
        "=;=;",
        "x" * 20_000,
        "é",
    ):
        assert (await operator("GET", "/me", cookie=cookie)).status == 401, cookie
    for header in ("Bearer", "Bearer ", "Basic abc", "Bearer a b c", "é", "Bearer é"):
        assert (await operator("GET", "/me", authorization=header)).status == 401, header


async def test_paths_beside_the_console_belong_to_the_agents(operator: Operator) -> None:
    for path in ("/consolex", "/console.html", "/x/console/api/me"):
        answer = await request(operator.app, "GET", path, headers={"host": "127.0.0.1:8000"})
        assert b"content-security-policy" not in str(answer.headers).encode(), path


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("Authorization", True),
        ("x-api-key", True),
        ("apiKey", True),
        ("client_secret", True),
        ("accessToken", True),
        ("refresh_token", True),
        ("X-A2A-Notification-Token", True),
        ("password", True),
        ("Set-Cookie", True),
        ("credentials", True),
        ("inputTokens", False),
        ("max_tokens", False),
        ("author", False),
        ("monkey", False),
        ("key", False),
        ("text", False),
    ],
)
def test_names_of_secrets_are_known(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer ***"),
        ("basic dXNlcjpwYXNzd29yZA==", "basic dXNlcjpwYXNzd29yZA=="),
        ("Basic dXNlcjpwYXNzd29yZA==", "Basic ***"),
        ("see https://ada:pw@example.com/x", "see https://***@example.com/x"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl here", "*** here"),
        ("sk-abcdefghijklmnopqrstuv", "***"),
        ("a bearer of good news came on a basic bicycle", "a bearer of good news came on a basic bicycle"),
        (
            "mail ada@example.com about task-0123456789abcdef0123",
            "mail ada@example.com about task-0123456789abcdef0123",
        ),
    ],
)
def test_secrets_in_texts_are_masked_by_their_shape(text: str, shown: str) -> None:
    assert redact_text(text) == shown


def test_a_secret_is_masked_however_deep_it_is() -> None:
    value: Any = {
        "a": [{"token": "s3cret", "n": 1}],
        "credentials": {"user": "ada", "more": ["x"]},
        "plain": "text",
    }
    assert redact(value) == {
        "a": [{"token": "***", "n": 1}],
        "credentials": {"user": "***", "more": ["***"]},
        "plain": "text",
    }
    assert redact_url("https://u:p@h.example/path?key=1#f") == "https://***@h.example/path?***"
