"""What nobody should send to a hub: it is refused with a reason, and never with a 500."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from dragoman.hub.api import ADMIN
from dragoman.hub.tenants.policy import matches_glob
from dragoman.server.runtime import running
from tests.hub.house import ON_POSTGRES, Caller, House, house, message

HUGE = 2**70


@pytest.fixture
async def home() -> AsyncIterator[House]:
    async with house(lambda prompt: "Well.") as opened:
        yield opened


@pytest.fixture
async def ada(home: House) -> Caller:
    return await home.tenant("ada")


@pytest.mark.parametrize("id", ["scout\n", "scout\r", "\nscout", "a b", "é", "a/b", "..", "x" * 65, ["a"], 5])
async def test_an_id_that_is_no_name_is_refused(ada: Caller, id: object) -> None:
    answer = await ada("POST", "/v1/agents", {"id": id})
    assert answer.status == 400
    assert answer.json["fields"][0]["field"] == "id"


@pytest.mark.parametrize("id", [["a"], {"a": 1}, 5, True])
async def test_an_inline_agent_whose_id_is_no_text_is_refused(ada: Caller, id: object) -> None:
    body = {"message": "hi", "agent_def": {"id": id}}
    assert (await ada("POST", "/v1/orchestrate", body)).status == 400
    assert (await ada("POST", "/v1/agents/scout/chat", body)).status == 400


@pytest.mark.parametrize("member", ["messageId", "contextId", "taskId"])
async def test_an_id_in_a_message_is_a_string(ada: Caller, member: str) -> None:
    for method in ("message/send", "message/stream"):
        params = message("hi")
        params["message"][member] = 5
        assert (await ada.rpc("index", method, params)).json["error"]["code"] == -32602


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/resubscribe"])
async def test_the_id_of_a_task_is_a_string(ada: Caller, method: str) -> None:
    assert (await ada.rpc("index", method, {"id": 5})).json["error"]["code"] == -32602


async def test_a_file_that_is_no_base64_is_refused(ada: Caller) -> None:
    await ada("POST", "/v1/conversations", {})
    for content in ("é", "!!", "YQ"):
        body = {"path": "a", "content_base64": content}
        assert (await ada("POST", "/v1/conversations/1/artifacts", body)).status == 400


@pytest.mark.parametrize(
    "more",
    [
        {"created_at": 10**30},
        {"created_at": -1},
        {"artifact_id": HUGE},
        {"artifact_id": -1},
        {"conversation_id": HUGE},
        {"conversation_id": -1},
        {"supersedes_ids": [HUGE]},
    ],
    ids=str,
)
async def test_an_entry_with_a_number_beyond_all_bounds_is_refused(
    ada: Caller, more: dict[str, object]
) -> None:
    answer = await ada("POST", "/v1/memory/entries", {"type": "user", "title": "t", **more})
    assert answer.status == 400


async def test_numbers_beyond_all_bounds_name_nothing_anywhere(home: House, ada: Caller) -> None:
    await ada("POST", "/v1/memory/entries", {"type": "user", "title": "t"})
    for method, path, body in (
        ("PATCH", "/v1/memory/entries/1", {"artifact_id": HUGE}),
        ("POST", "/v1/memory/relations", {"source_id": HUGE, "target_id": 1, "relation": "refines"}),
        ("POST", "/v1/todos", {"subject": "x", "conversation_id": HUGE}),
    ):
        assert (await ada(method, path, body)).status == 400, path
    for limits in ({"max_concurrent": HUGE}, {"max_concurrent": -1}, {"rate_per_min": -1}):
        assert (await home.admin("PATCH", "/v1/admin/tenants/1", limits)).status == 400, limits


async def test_a_number_that_is_too_large_in_a_command_is_an_error_result() -> None:
    replies = [
        f"/todo done {10**30}\n/mem entry {10**30}\n/mem add entry user t --artifact #{10**30}\nb\n/endmem",
        "So.",
    ]
    async with house(replies) as home:
        ada = await home.tenant("ada")
        events = await ada.ask("go")
        assert [payload["ok"] for kind, payload in events if kind == "tool_call"] == [False] * 3
        fed = home.model.prompts[1].messages[-1].content
        assert "internal error" not in fed


@pytest.mark.parametrize("tag", ["%25", "_", "%00"])
async def test_a_tag_is_a_word_and_no_pattern(ada: Caller, tag: str) -> None:
    await ada("POST", "/v1/memory/entries", {"type": "user", "title": "t", "tags": ["x"]})
    assert (await ada("GET", f"/v1/memory/entries?tag={tag}")).json["count"] == 0
    assert (await ada("GET", "/v1/memory/entries?tag=X")).json["count"] == 1


@pytest.mark.parametrize(
    "path",
    [
        "a\u0085b",
        "a\u2028b",
        "a\u202eb",
        "\ufeffa",
        "．．/x",
        "․․/x",
        "a/ ..",
        "a/ .git",
        "a／b",
        "a＼b",
        "c：x",
        "ＣＯＮ",
        "COM¹",
    ],
    ids=ascii,
)
async def test_a_path_that_only_looks_harmless_is_refused(ada: Caller, path: str) -> None:
    await ada("POST", "/v1/conversations", {})
    answer = await ada("POST", "/v1/conversations/1/artifacts", {"path": path, "content": "x"})
    assert answer.status == 400, answer.json


async def test_a_path_in_any_script_is_a_path(ada: Caller) -> None:
    await ada("POST", "/v1/conversations", {})
    for path in ("отчёт/été.txt", "日本語.md", "a b.txt", "ﬁnal.txt"):
        answer = await ada("POST", "/v1/conversations/1/artifacts", {"path": path, "content": "x"})
        assert (answer.status, answer.json["path"]) == (201, path)


@pytest.mark.parametrize(
    ("document", "field", "reason"),
    [
        ({"id": "x", "channel": "fax"}, "channel", "is one of '', 'text', 'voice'"),
        ({"id": "x", "brevity": "short"}, "brevity", "is one of 'lite', 'full', 'ultra'"),
        (
            {"id": "x", "advisor": {"model": "m", "mode": "boss"}},
            "advisor.mode",
            "is one of 'consult', 'gate'",
        ),
        (
            {"id": "x", "intent": {"mode": "?"}},
            "intent.mode",
            "is one of 'off', 'heuristic', 'hybrid', 'llm'",
        ),
        ({"id": "x y"}, "id", "has 1 to 64 letters, digits, _ and -"),
        ({"name": "x"}, "id", "is missing"),
    ],
    ids=["channel", "brevity", "advisor", "intent", "id", "no id"],
)
async def test_a_wrong_word_in_a_constitution_is_answered_with_the_right_ones(
    ada: Caller, document: dict[str, object], field: str, reason: str
) -> None:
    answer = await ada("POST", "/v1/agents", document)
    assert answer.json["fields"] == [{"field": field, "reason": reason}]


async def test_the_type_of_an_event_has_a_length(ada: Caller) -> None:
    await ada("POST", "/v1/agents", {"id": "scout", "event_types": ["*" + "a" * 198 + "b"] * 64})
    answer = await ada("POST", "/v1/events", {"type": "a" * 1_000_000})
    assert answer.status == 400
    assert answer.json["fields"] == [{"field": "type", "reason": "has more than 256 characters"}]


@pytest.mark.parametrize(
    ("type", "pattern", "fits"),
    [
        ("sensor.door", "sensor.*", True),
        ("sensor.", "sensor.*", True),
        ("Sensor.door", "sensor.*", False),
        ("a.b.c", "*.b.*", True),
        ("abcabd", "*abd", True),
        ("abcab", "*abd", False),
        ("disk7", "disk?", True),
        ("disk", "disk?", False),
        ("disk7", "disk[0-9]", True),
        ("diskx", "disk[!0-9]", True),
        ("disk7", "disk[!0-9]", False),
        ("a]b", "a[]]b", True),
        ("a[b", "a[b", True),
        ("", "*", True),
        ("", "", True),
        ("x", "", False),
        ("a" * 256, "*a" * 100 + "b", False),
    ],
)
def test_events_find_their_agents_by_patterns(type: str, pattern: str, fits: bool) -> None:
    assert matches_glob(type, pattern) is fits


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/events", b'{"type": "x", "payload": [' + b"{}," * 300_000 + b"{}]}"),
        ("/v1/orchestrate", b'{"message": [' + b"{}," * 300_000 + b"{}]}"),
        ("/v1/agents", b'{"id": "a", "extra": ' + b"[" * 1000 + b"]" * 1000 + b"}"),
        ("/v1/memory/entries", b'{"type": "user", "title": "t", "x": ' + b'{"a":' * 70 + b"1" + b"}" * 71),
        ("/v1/admin/tenants", b'{"name": "x", "more": ' + b"[" * 100 + b"]" * 100 + b"}"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
async def test_a_body_has_as_many_values_as_over_a2a_and_nests_no_deeper(
    home: House, ada: Caller, path: str, body: bytes
) -> None:
    answer = await (home.admin if "admin" in path else ada)("POST", path, body)
    assert answer.status == 400
    assert "objects and arrays" in answer.json["error"] or "nests deeper" in answer.json["error"]


ODD = [
    "a\0b",
    "\0",
    "a\r\nset-cookie: x=y",
    "\ttab",
    "é\u2028",
    " ",
    "a b",
    "100%",
    "%3A",
    "a:b/c",
    '"',
    "\x7f",
]
"""Ids that callers of A2A 0.1 may choose."""
STRANGE = [
    *map(quote, ("\0", "1\0", "\r\nx: y", "²", "9" * 30, "-1", "1e5", "'", 'a AND ( OR " NOT *', "x" * 4000)),
    *("%FF%FE", "%ED%A0%80", "9223372036854775807", "9007199254740993", "0"),
]
"""What parameters may be, percent-encoded."""


async def exchanged(url: str, token: str, method: str, target: str) -> bytes:
    """The whole answer of a server over a real connection, or its beginning, if it is a stream that goes on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
    said = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    if "notifications" not in target:
        said += await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return said


async def test_events_of_a_task_with_an_odd_id_are_read_and_its_headers_are_sound() -> None:
    async with house(lambda prompt: "Well.") as home, running(home.app) as url:
        ada = await home.tenant("ada")
        for id in ODD if not ON_POSTGRES else [id for id in ODD if "\0" not in id]:  # PostgreSQL has no NUL
            said = {"id": id, "message": {"role": "user", "parts": [{"type": "text", "text": "go"}]}}
            assert (await ada.rpc("index", "tasks/send", said)).json["result"]["id"] == id
            for end, has in (
                ("/events", b"event: done"),
                ("", b"completed"),
                ("/cancel", b'"cancelled":false'),
            ):
                method = "POST" if end == "/cancel" else "GET"
                answer = await exchanged(url, ada.token, method, f"/v1/requests/{quote(id, safe='')}{end}")
                head, _, body = answer.partition(b"\r\n\r\n")
                assert answer.split()[1] in (b"200", b"404") and has in body, (id, end, answer)
                assert b"set-cookie" not in re.sub(rb"x-request-id: .*", b"", head)
                assert all(32 <= byte < 127 for byte in head.replace(b"\r\n", b""))


async def test_no_parameter_of_the_native_api_makes_it_fail() -> None:
    async with house(lambda prompt: "Well.") as home, running(home.app) as url:
        ada = await home.tenant("ada")
        for route in home.app._elsewhere.table.routes:
            token = home.admin.token if route.access == ADMIN else ada.token
            for value in STRANGE:
                asked = "&".join(f"{name}={value}" for name in route.query)
                paths = {re.sub(r"\{\w+\}", value, route.path), re.sub(r"\{\w+\}", "1", route.path)}
                for path in sorted(paths) if "{" in route.path or asked else []:
                    answer = await exchanged(url, token, route.method, f"{path}?{asked}")
                    assert int(answer.split()[1]) < 500, (route.method, path, asked, answer)


async def test_strings_of_a_body_and_parts_of_a_message_are_limited(ada: Caller) -> None:
    many = b'{"message": "x", "more": [' + b'"",' * 500_001 + b'""]}'
    answer = await ada("POST", "/v1/orchestrate", many)
    assert answer.status == 400 and answer.json["error"] == "the body has more than 500000 strings"
    quoted = {"message": 'say "yes" ' * 300_000}
    assert (await ada("POST", "/v1/orchestrate", quoted)).status == 200, "it is one string"
    pieces = [{"text": "x"}] * 1001
    answer = await ada("POST", "/v1/orchestrate", {"message": pieces})
    assert answer.status == 400 and answer.json["fields"] == [
        {"field": "message", "reason": "has more than 1000 parts"}
    ]
    assert (await ada("POST", "/v1/orchestrate", {"message": pieces[1:]})).status == 200


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/v1/schedules?status=foo", "it is one of active, paused, completed, failed, canceled"),
        ("/v1/schedules?state=active", "there is no parameter 'state' here: did you mean 'status'?"),
        ("/v1/todos?state=foo", "it is one of pending"),
        ("/v1/memory/entries?type=foo", "it is one of"),
        ("/v1/memory/relations?relation=foo", "it is one of"),
        ("/v1/memory/graph?type=foo", "it is one of"),
        ("/v1/memory/entries?q=x&decay=perhaps", "decay is one of on, true, yes, 1, off, false, no, 0"),
        ("/v1/tokens?revoked=maybe", "revoked is one of"),
        ("/v1/usage?days=0", "days must be at least 1"),
        ("/v1/usage?day=3", "did you mean 'days'?"),
        *(
            (f"{path}?{query}", why)
            for path in (
                "/v1/requests",
                "/v1/todos",
                "/v1/memory/entries",
                "/v1/conversations",
                "/v1/artifacts",
            )
            for query, why in (
                ("limit=0", "limit must be at least 1"),
                ("limit=-1", "limit must be a whole number that is not negative"),
                ("limit=many", "limit must be a whole number that is not negative"),
                ("limits=3", "did you mean 'limit'?"),
                ("colour=red", "there is no parameter 'colour' here"),
                ("limits=", "did you mean 'limit'?"),
                ("colour", "there is no parameter 'colour' here"),
            )
        ),
        ("/v1/conversations?before_updated_at=yesterday", "before_updated_at must be a whole number"),
        ("/v1/requests/x/events?since=3", "did you mean 'since_seq'?"),
        ("/v1/requests?limit=1&limit=2", "limit is there more than once"),
    ],
)
async def test_a_query_that_would_be_ignored_is_refused(ada: Caller, path: str, why: str) -> None:
    refused = await ada("GET", path)
    assert refused.status == 400 and why in refused.json["error"], refused.body


@pytest.mark.parametrize(
    "path",
    [
        "/v1/conversations/bridges",
        "/v1/schedules/-1",
        "/v1/runs/1.5",
        "/v1/memory/entries/x",
        "/v1/artifacts/x",
    ],
)
async def test_an_id_that_is_no_number_is_not_found_and_named(ada: Caller, path: str) -> None:
    missing = await ada("GET", path)
    assert missing.status == 404, missing.body
    assert missing.json["error"].startswith(f"there is nothing with the id '{path.rpartition('/')[2]}'")


@pytest.mark.parametrize(
    "body", [{"channel": "c" * 70_000}, {"agent": "a" * 70_000, "agent_def": {"id": "x"}}]
)
async def test_a_refusal_does_not_repeat_a_long_value(ada: Caller, body: dict[str, str]) -> None:
    refused = await ada("POST", "/v1/orchestrate", {"message": "hello", **body})
    assert refused.status == 400 and len(refused.body) < 1000
