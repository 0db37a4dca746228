"""What a refusal looks like on the wire, in every version, and that it comes before anything is read."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from dragoman import Agent, Turn
from dragoman.auth import JWT, ApiKey, Basic, Bearer, Holder, hashed
from dragoman.server.application import application
from tests.auth.issuer import AUDIENCE, ISSUER
from tests.auth.people import PUSH, People, secure_agent
from tests.server.wire import Answer, envelope, open_request, request, rpc

WHO = People()
REST = [
    "/message:send",
    "/message:stream",
    "/v1/message:send",
    "/tasks/t1:cancel",
    "/tasks/t1/pushNotificationConfigs",
]
GARBAGE = b"\xff{not json" + b"[" * 1000


def app(agent: Agent | None = None, **options: Any) -> Any:
    return application(agent or secure_agent(), store="memory:", push=PUSH, **options)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def checked(answer: Answer, status: int) -> Any:
    assert answer.status == status and answer.headers["content-type"].endswith("json")
    return answer.json


# --- before anything is read


@pytest.mark.parametrize("path", ["/", *REST])
async def test_a_request_without_credentials_is_refused_before_its_body_is_read(path: str) -> None:
    """The body never comes: who would wait for it, would wait forever."""
    answer = open_request(app(), "POST", path, b"", headers={"Content-Length": "1000000"})
    answer.unread = []  # nothing arrives, and nobody goes away
    await answer.end()
    assert answer.status == 401 and answer.headers["www-authenticate"] == 'Bearer realm="keeper"'


@pytest.mark.parametrize("token", [None, "wrong", WHO.dave])
@pytest.mark.parametrize("path", ["/", *REST])
async def test_the_body_of_a_refused_request_makes_no_difference(path: str, token: str | None) -> None:
    headers = bearer(token) if token else {}
    for body in (GARBAGE, b"", b"x" * (20 << 20)):
        answer = await request(app(), "POST", path, body, headers={**headers, "Content-Type": "text/plain"})
        assert answer.status == 401


async def test_no_path_but_the_card_is_open() -> None:
    served = app()
    for path in (
        "/tasks",
        "/tasks/t1",
        "/extendedAgentCard",
        "/v1/card",
        "/agent/authenticatedExtendedCard",
        "/v1/tasks/t1",
    ):
        assert (await request(served, "GET", path)).status == 401, path
    assert (await request(served, "DELETE", "/tasks/t1/pushNotificationConfigs/c1")).status == 401
    assert (await request(served, "GET", "/.well-known/agent-card.json")).status == 200


# --- in the words of each version


@pytest.mark.parametrize(
    ("version", "code"), [("1.0", -32000), ("0.3", -32000), ("0.2", -32000), ("0.1", -32007), ("", -32000)]
)
async def test_401_in_the_dialect_of_the_caller(version: str, code: int) -> None:
    headers = {"A2A-Version": version} if version else {}
    error = checked(await rpc(app(), "SendMessage", headers=headers), 401)
    assert error["id"] is None and error["error"]["code"] == code
    if version == "1.0":
        assert error["error"]["data"][0]["reason"] == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    ("method", "code"), [("tasks/send", -32007), ("tasks/sendSubscribe", -32007), ("message/send", -32000)]
)
async def test_the_version_of_a_refusal_is_taken_from_the_method(method: str, code: int) -> None:
    body = envelope(method, id="q")
    answer = await request(app(), "POST", "/", body, headers={"Content-Length": str(len(body))})
    error = checked(answer, 401)
    assert error["id"] == "q" and error["error"]["code"] == code


@pytest.mark.parametrize(
    ("pieces", "headers"),
    [
        pytest.param((), {"Content-Length": "100"}, id="does not come"),
        pytest.param((GARBAGE,), {"Content-Length": str(len(GARBAGE))}, id="is nothing"),
        pytest.param((), {"Content-Length": "100", "Expect": "100-continue"}, id="has to be asked for"),
        pytest.param((), {"Content-Length": str(1 << 20)}, id="is long"),
        pytest.param((), {"Transfer-Encoding": "chunked"}, id="has no length"),
        pytest.param((), {"Content-Length": "\u00b2"}, id="has none that is a number"),
    ],
)
async def test_a_refusal_does_not_wait_for_a_slow_body(
    pieces: tuple[bytes, ...], headers: dict[str, str]
) -> None:
    answer = open_request(app(), "POST", "/", *pieces, headers=headers)
    answer.unread = list(pieces)
    error = checked(await answer.end(), 401)
    assert error["id"] is None and error["error"]["code"] == -32000


async def test_an_agent_of_0_1_alone_needs_no_header_to_know_how_to_refuse() -> None:
    old = app(secure_agent(versions=("0.1",)))
    assert checked(await rpc(old, "tasks/send"), 401)["error"]["code"] == -32007


@pytest.mark.parametrize(("version", "code"), [("1.0", -32000), ("0.3", -32000), ("0.1", -32008)])
async def test_403_for_the_scope_of_the_agent(version: str, code: int) -> None:
    answer = await rpc(app(), "GetTask", headers={"A2A-Version": version, **bearer(WHO.carol)})
    error = checked(answer, 403)["error"]
    assert error["code"] == code and "use" in error["message"]
    assert answer.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="use"'
    if version == "1.0":
        [info] = error["data"]
        assert info["reason"] == "PERMISSION_DENIED" and info["metadata"] == {"scope": "use"}


SENDS: list[tuple[str, str, dict[str, Any], int]] = [
    ("1.0", "SendMessage", {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}, -32000),
    ("0.3", "message/send", {"message": {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x"}]}}, -32000),
    ("", "tasks/send", {"id": "t", "message": {"role": "user", "parts": [{"type": "text", "text": "x"}]}}, -32008),
]  # fmt: skip


@pytest.mark.parametrize(("version", "method", "params", "code"), SENDS)
async def test_403_for_the_scope_of_a_skill(version: str, method: str, params: Any, code: int) -> None:
    headers = {**bearer(WHO.alice_limited), **({"A2A-Version": version} if version else {})}
    answer = await rpc(app(), method, params, id="q", headers=headers)
    error = checked(answer, 403)
    assert error["id"] == "q" and error["error"]["code"] == code and "work" in error["error"]["message"]
    assert 'scope="work"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize(
    ("path", "status"), [("/message:send", "UNAUTHENTICATED"), ("/v1/message:send", None)]
)
async def test_401_over_http(path: str, status: str | None) -> None:
    error = checked(await request(app(), "POST", path, b"{}"), 401)
    if status:
        assert error["error"]["status"] == status and error["error"]["code"] == 401


async def test_a_challenge_names_every_scheme() -> None:
    agent = Agent(
        "Many", auth=[Bearer({}), JWT(ISSUER, AUDIENCE, jwks_url="https://x/keys"), ApiKey({}), Basic({})]
    )
    answer = await rpc(app(agent), "SendMessage")
    assert answer.headers["www-authenticate"] == (
        'Bearer realm="many", ApiKey realm="many", in="header", name="X-API-Key", Basic realm="many", charset="UTF-8"'
    )


async def test_a_credential_that_is_there_twice_is_refused() -> None:
    served = app()
    answer = open_request(served, "POST", "/", b"{}", headers=bearer(WHO.alice))
    answer.task.cancel()
    twice = [(b"authorization", f"Bearer {token}".encode()) for token in (WHO.alice, WHO.bob)]
    for headers in (twice, twice[::-1]):
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "headers": [(b"host", b"a"), *headers],
            "query_string": b"",
        }

        async def receive() -> Any:
            raise AssertionError("the body was read")

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await served(scope, receive, send)
        assert sent[0]["status"] == 401


@pytest.mark.parametrize("agent_id", ["a\r\nX-Evil: 1", 'a", evil="1', "ä"])
def test_an_agents_id_cannot_break_out_of_the_challenge(agent_id: str) -> None:
    with pytest.raises(ValueError, match="an id is part of a URL"):
        secure_agent(id=agent_id)


async def test_a_scope_cannot_break_out_of_a_refusal() -> None:
    scheme = Bearer({"a": hashed("t")}, scopes=['x"\r\nSet-Cookie: y'])
    answer = await rpc(app(Agent("A", auth=[scheme])), "GetTask", headers=bearer("t"))
    assert answer.status == 403
    assert answer.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="xSet-Cookie: y"'


async def test_a_check_that_raises_is_an_internal_error_without_details() -> None:
    def broken(presented: Any) -> None:
        raise RuntimeError("hunter2")

    answer = await rpc(app(Agent("A", auth=[broken])), "SendMessage", headers={"A2A-Version": "1.0"})
    assert b"hunter2" not in answer.body and answer.json["error"]["code"] == -32603


async def test_refusals_show_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    secret = "s3cr3t-" + "x" * 30
    answer = await request(app(), "POST", f"/?key={secret}", b"{}", headers=bearer(secret))
    assert answer.status in (401, 404) and secret.encode() not in answer.body
    assert secret not in caplog.text


NASTY = [
    "x\r\nSet-Cookie: a=b",
    "x\nx",
    "\x00",
    "../../etc/passwd",
    "a/b",
    "%0d%0aX: y",
    '"',
    "\u2028",
    "x" * 5000,
]


@pytest.mark.parametrize("id", NASTY)
async def test_ids_do_not_become_headers_or_paths(id: str) -> None:
    served, token = app(), bearer(WHO.alice)
    quoted = quote(id, safe="")
    answers = [
        await rpc(served, "GetTask", {"id": id}, id=id[:100], headers={"A2A-Version": "1.0", **token}),
        await rpc(served, "tasks/get", {"id": id}, headers=token),
        await request(served, "GET", f"/tasks/{quoted}", headers=token),
        await rpc(
            served,
            "SendMessage",
            SENDS[0][2],
            headers={"A2A-Version": "1.0", **token, "Idempotency-Key": "k"},
        ),
    ]
    for answer in answers:
        assert answer.status in (200, 404)
        for name, value in answer.headers.items():
            assert name != "set-cookie" and value.isprintable() and "passwd" not in value


# --- the card


async def test_the_card_says_what_is_asked_in_every_version() -> None:
    scheme = Bearer({"a": Holder(secret=hashed("t"))}, scopes=["use"])
    agent = Agent("A", auth=[scheme, ApiKey({}, parameter="X-Key")])

    @agent.skill(scopes=["book"])
    async def book(text: str) -> str:
        return text

    card = (await request(app(agent), "GET", "/.well-known/agent-card.json")).json
    assert card["securitySchemes"] == {
        "bearer": {"type": "http", "scheme": "bearer", "httpAuthSecurityScheme": {"scheme": "bearer"}},
        "apiKey": {
            "type": "apiKey",
            "in": "header",
            "name": "X-Key",
            "apiKeySecurityScheme": {"location": "header", "name": "X-Key"},
        },
    }
    assert card["security"] == [{"bearer": ["use"]}, {"apiKey": []}]
    assert card["securityRequirements"] == [
        {"schemes": {"bearer": {"list": ["use"]}}},
        {"schemes": {"apiKey": {"list": []}}},
    ]
    assert card["authentication"] == {"schemes": ["Bearer", "ApiKey"]}
    [skill] = card["skills"]
    assert skill["security"] == [{"bearer": ["use", "book"]}, {"apiKey": ["book"]}]
    assert skill["securityRequirements"][0] == {"schemes": {"bearer": {"list": ["use", "book"]}}}
    assert hashed("t") not in json.dumps(card)


PAGES = [
    "/.well-known/agent-card.json",
    "/.well-known/agent.json",
    "/agent-card.json",
    "/openapi.json",
    "/docs",
]


@pytest.mark.parametrize("path", PAGES)
async def test_a_private_card_needs_credentials(path: str) -> None:
    private = app(secure_agent(private_card=True))
    for method in ("GET", "HEAD"):
        for headers in ({}, bearer("wrong"), {"If-None-Match": "*"}):
            refused = await request(private, method, path, headers=headers)
            assert refused.status == 401 and b"Keeper" not in refused.body
            assert refused.headers["www-authenticate"]
    allowed = await request(private, "GET", path, headers=bearer(WHO.bob))
    assert allowed.status == 200 and b"Keeper" in allowed.body
    assert "public" not in allowed.headers.get("cache-control", "")
    assert "access-control-allow-origin" not in allowed.headers


def test_a_private_card_without_authentication_is_an_error() -> None:
    with pytest.raises(ValueError, match="give auth="):
        Agent("A", private_card=True)


# --- the extended card


async def extended(served: Any, **headers: str) -> Answer:
    return await rpc(served, "GetExtendedAgentCard", headers={"A2A-Version": "1.0", **headers})


async def test_the_extended_card_is_made_for_its_caller() -> None:
    served = app()
    for who, token in (("alice-0", WHO.alice), ("bob-0", WHO.bob)):
        card = (await extended(served, **bearer(token))).json["result"]
        assert [skill["name"] for skill in card["skills"]] == ["Keep", f"For {who}"]
        assert card["capabilities"]["extendedAgentCard"] is True
    public = (await request(served, "GET", "/.well-known/agent-card.json")).json
    assert [skill["id"] for skill in public["skills"]] == ["keep"]
    assert public["supportsAuthenticatedExtendedCard"] is True


async def test_without_an_extended_card_the_operation_is_not_supported() -> None:
    served = app(secure_agent(extended_card=None))
    assert (await extended(served, **bearer(WHO.alice))).json["error"]["code"] == -32004
    old = await rpc(served, "agent/getAuthenticatedExtendedCard", headers=bearer(WHO.alice))
    assert old.json["error"]["code"] == -32007


def test_an_extended_card_without_authentication_is_an_error() -> None:
    with pytest.raises(ValueError, match="auth="):
        secure_agent(auth=())


async def test_some_callers_may_have_no_extended_card() -> None:
    served = app(secure_agent(extended_card=lambda who: None if who.id.startswith("bob") else []))
    assert (await extended(served, **bearer(WHO.alice))).status == 200
    assert (await extended(served, **bearer(WHO.bob))).status == 403


# --- one's own decision


async def test_authorize_decides_about_every_operation() -> None:
    asked: list[tuple[str, str]] = []

    async def authorize(principal: Any, wanted: Any) -> bool:
        asked.append((principal.id, type(wanted).__name__))
        return type(wanted).__name__ != "CancelTask"

    served = app(secure_agent(authorize=authorize))
    headers = {"A2A-Version": "1.0", **bearer(WHO.alice)}
    sent = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "done"}]}}
    assert (await rpc(served, "SendMessage", sent, headers=headers)).status == 200
    assert (await rpc(served, "ListTasks", headers=headers)).status == 200
    refused = await rpc(served, "CancelTask", {"id": "x"}, headers=headers)
    assert refused.status == 403 and refused.json["error"]["data"][0]["reason"] == "PERMISSION_DENIED"
    await rpc(served, "SendStreamingMessage", sent, headers=headers)
    assert asked == [("alice-0", name) for name in ("SendMessage", "ListTasks", "CancelTask", "SendMessage")]


async def test_a_task_continues_only_for_callers_with_the_scope_of_its_skill() -> None:
    """Whichever skill a message names, or none: what runs is what its sender may run."""
    agent = Agent(
        "Two",
        auth=[Bearer({"ada": Holder(secret=hashed("all"), scopes=["pay"])}), Bearer({"ada": hashed("few")})],
    )

    @agent.skill(scopes=["pay"])
    async def pay(turn: Turn) -> str:
        return f"paid: {await turn.ask('Sure?')}"

    @agent.skill(default=True)
    async def chat(turn: Turn) -> str:
        return f"said: {await turn.ask('And?')}"

    async with agent.test(credentials="all") as ada:
        paying, chatting = (await ada.send("x", skill="pay")).id, (await ada.send("x")).id
        transport, url = ada.link.transport, ada.url

        async def few(task: str, skill: str = "") -> int:
            message: dict[str, Any] = {
                "messageId": "m",
                "role": "ROLE_USER",
                "parts": [{"text": "yes"}],
                "taskId": task,
            }
            if skill:
                message["metadata"] = {"skillId": skill}
            body = json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
            )
            response = await transport.without_credentials.request(
                "POST", url, {**bearer("few"), "A2A-Version": "1.0"}, body.encode()
            )
            await response.read()
            return response.status

        assert await few(paying) == await few(paying, "pay") == await few(chatting, "pay") == 403
        assert await few(chatting) == 200
        assert (await ada.get(paying)).state.word == "input-required"
