"""Receiving notifications: forged, changed, old and repeated ones are recognized."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from dragoman.auth import jose
from dragoman.auth.jwks import GivenKeys
from dragoman.auth.keys import KeyRing, OurKey, new_key
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.engine.push_configs import StoredPushConfig as Kept
from dragoman.errors import A2AError, InvalidParams, Unauthenticated
from dragoman.model.content import Message
from dragoman.model.ops import AuthenticationInfo, PushConfig
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState
from dragoman.push import receive
from dragoman.push.notification import build_auth_headers
from dragoman.push.receive import Received, Verifier, read_notification
from dragoman.push.webhook import Webhook
from tests.conformance.conftest import Clock, clock
from tests.requirements import requirement

__all__ = ["clock"]

URL = "https://us.example/webhook"
AGENT = "https://agent.example"
BODY = (
    b'{"statusUpdate":{"taskId":"t1","contextId":"c","status":{"state":"TASK_STATE_WORKING",'
    b'"timestamp":"2026-11-15T14:40:54.123Z"}}}'
)
KEY = new_key()
RING = KeyRing([KEY])
TOKEN, SECRET = "t0k", "a shared secret"


def stored(**config: Any) -> Kept:
    return Kept(config=PushConfig(url=URL, task_id="t1", **config), uid="u")


def signed(delivery: str = "u.1", body: bytes = BODY, **options: Any) -> dict[str, str]:
    """The headers of a notification with everything: token, HMAC and JWT."""
    login = AuthenticationInfo(scheme="HMAC", credentials=SECRET)
    given: dict[str, Any] = {"keys": RING, "issuer": AGENT, **options}
    return build_auth_headers(stored(token=TOKEN, authentication=login), delivery, "t1", body, **given)


def verifier(**options: Any) -> Verifier:
    return Verifier(
        **{
            "token": TOKEN,
            "secrets": (SECRET,),
            "keys": GivenKeys(RING.public()),
            "issuer": AGENT,
            "audience": URL,
            **options,
        }
    )


EACH: dict[str, dict[str, Any]] = {
    "all": {},
    "token": {"secrets": (), "keys": None},
    "hmac": {"token": "", "keys": None},
    "jwt": {"token": "", "secrets": ()},
}


@pytest.mark.parametrize("options", EACH.values(), ids=EACH)
async def test_the_verifier_accepts_what_the_sender_sends(options: dict[str, Any]) -> None:
    received = await verifier(**options).verify(signed(), BODY)
    assert isinstance(received.event, StatusUpdate) and received.event.status.state is TaskState.WORKING
    assert (received.task_id, received.delivery, received.duplicate) == ("t1", "u.1", False)


async def test_header_names_may_be_spelled_as_they_like() -> None:
    shouted = {name.upper(): value for name, value in signed().items()}
    assert not (await verifier().verify(shouted, BODY)).duplicate


def test_a_verifier_that_checks_nothing_must_be_asked_for() -> None:
    with pytest.raises(ValueError):
        Verifier()
    Verifier(insecure=True)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the notifications that were decoded."""
    sizes: list[int] = []
    read = receive.read_notification

    def noted(body: bytes) -> Any:
        sizes.append(len(body))
        return read(body)

    monkeypatch.setattr(receive, "read_notification", noted)
    return sizes


@pytest.mark.parametrize("token", [TOKEN, {"t1": TOKEN}.get], ids=["one token", "one for each task"])
async def test_nothing_is_decoded_without_the_right_token(token: Any, decoded: list[int]) -> None:
    checks = verifier(token=token, secrets=(), keys=None)
    head = {"X-A2A-Notification-Token": "guess"}
    for headers in ({}, head):
        with pytest.raises(Unauthenticated):
            await checks.verify(headers, BODY)
    if callable(token):
        other = BODY.replace(b"t1", b"t2")
        with pytest.raises(Unauthenticated):
            await checks.verify({"X-A2A-Notification-Token": TOKEN}, other)
    assert not decoded
    assert (await checks.verify({"X-A2A-Notification-Token": TOKEN}, BODY)).task_id == "t1"


@requirement(180)
async def test_a_token_of_one_task_is_not_good_for_another_that_is_named_beside_it() -> None:
    checks = verifier(token={"t1": TOKEN}.get, secrets=(), keys=None)
    body = BODY.replace(b"t1", b"t2").replace(b'{"status', b'{"id":"t1","taskId":"t1","status', 1)
    with pytest.raises(Unauthenticated):
        await checks.verify({"X-A2A-Notification-Token": TOKEN}, body)


@pytest.mark.parametrize("options", EACH.values(), ids=EACH)
async def test_the_body_is_not_read_without_credentials(options: dict[str, Any]) -> None:
    async def receive_nothing() -> Any:
        raise AssertionError("the body was asked for")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "headers": [(b"x-a2a-notification-token", b"guess")]}
    await Webhook(lambda received: None, verifier(**options))(scope, receive_nothing, send)
    assert sent[0]["status"] == 401


# What is not believed


def _without(*names: str) -> dict[str, str]:
    return {name: value for name, value in signed().items() if name.lower() not in names}


def _forged(
    key: OurKey | None = None, *, header: Mapping[str, Any] | None = None, **claims: Any
) -> dict[str, str]:
    """Headers with a token of one's own making."""
    good = signed()
    head, body, signature = good["Authorization"].removeprefix("Bearer ").split(".")
    document = {**json.loads(jose.decode(body)), **claims}
    shown = {**json.loads(jose.decode(head)), **(header or {})}
    text = f"{jose.encode(json.dumps(shown).encode())}.{jose.encode(json.dumps(document).encode())}"
    if key is not None:
        signature = jose.sign(key.key, key.algorithm, text.encode())
    return {**good, "Authorization": f"Bearer {text}.{signature}"}


def _none() -> dict[str, str]:
    headers = _forged(header={"alg": "none"})
    return {**headers, "Authorization": headers["Authorization"].rpartition(".")[0] + "."}


BAD: dict[str, Any] = {
    "no token": lambda: _without("x-a2a-notification-token"),
    "another token": lambda: {**signed(), "X-A2A-Notification-Token": "guess"},
    "no signature": lambda: _without("webhook-signature"),
    "an empty signature": lambda: {**signed(), "webhook-signature": "v1,"},
    "another signature": lambda: {**signed(), "webhook-signature": signed(body=b"{}")["webhook-signature"]},
    "the signature of another delivery": lambda: {**signed(), "webhook-id": "u.2"},
    "the signature of another time": lambda: {**signed(), "webhook-timestamp": str(int(time.time()) - 5)},
    "no time": lambda: _without("webhook-timestamp"),
    "a time that is none": lambda: {**signed(), "webhook-timestamp": "-1"},
    "no delivery": lambda: _without("webhook-id"),
    "no jwt": lambda: _without("authorization"),
    "a jwt that is none": lambda: {**signed(), "Authorization": "Bearer x.y.z"},
    "alg none": _none,
    "a public key as a secret": lambda: _forged(header={"alg": "HS256"}),
    "a strange key": lambda: _forged(new_key()),
    "a strange key by a known name": lambda: _forged(new_key(), header={"kid": KEY.kid}),
    "a kid that is a path": lambda: _forged(KEY, header={"kid": "../../etc/passwd"}),
    "another issuer": lambda: _forged(KEY, iss="https://evil.example"),
    "another audience": lambda: _forged(KEY, aud="https://other.example/webhook"),
    "another body": lambda: _forged(KEY, request_body_sha256="0" * 64),
    "no body": lambda: _forged(KEY, request_body_sha256=None),
    "another task": lambda: _forged(KEY, task_id="t2"),
    "expired": lambda: _forged(KEY, exp=time.time() - 120),
    "from long ago": lambda: _forged(KEY, iat=time.time() - 1000),
    "without a time": lambda: _forged(KEY, iat=None),
    "never expiring": lambda: _forged(KEY, exp=None),
    "claims changed afterwards": lambda: _forged(jti="u.9"),
}


@requirement(181)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_a_notification_with_a_wrong_credential_is_refused(bad: Any) -> None:
    checking = verifier()
    with pytest.raises(Unauthenticated):
        await checking.verify(bad(), BODY)
    assert not (await checking.verify(signed(), BODY)).duplicate  # and the right one is none the worse for it


@requirement(183)
async def test_a_changed_body_is_refused_by_each_signature() -> None:
    body = BODY.replace(b"WORKING", b"COMPLETED")
    for name in ("hmac", "jwt"):
        with pytest.raises(Unauthenticated):
            await verifier(**EACH[name]).verify(signed(), body)


@requirement(185)
@pytest.mark.parametrize("name", ["hmac", "jwt"])
async def test_an_old_notification_is_refused(name: str, clock: Clock) -> None:
    headers = signed()
    clock.forward(400)
    with pytest.raises(Unauthenticated):
        await verifier(**EACH[name]).verify(headers, BODY)
    clock.forward(-1000)
    with pytest.raises(Unauthenticated):
        await verifier(**EACH[name]).verify(headers, BODY)


@pytest.mark.parametrize("name", EACH)
async def test_a_replayed_notification_is_a_duplicate(name: str) -> None:
    checking = verifier(**EACH[name])
    headers = signed()
    assert [(await checking.verify(headers, BODY)).duplicate for _ in range(3)] == [False, True, True]
    again = signed()  # an honest second attempt: signed anew, under the same id
    assert (await checking.verify(again, BODY)).duplicate
    assert not (await checking.verify(signed("u.2"), BODY)).duplicate


@requirement(184)
async def test_each_task_can_have_its_own_token() -> None:
    checking = verifier(token={"t1": TOKEN}.get, secrets=(), keys=None)
    await checking.verify(signed(), BODY)
    with pytest.raises(Unauthenticated):
        await checking.verify(signed("u.2"), BODY.replace(b"t1", b"t2"))


@requirement(184)
async def test_a_secret_can_be_replaced_and_both_are_accepted_meanwhile() -> None:
    checking = verifier(token="", keys=None, secrets=("the new one", SECRET))
    await checking.verify(signed(), BODY)


# What it says

TASK = {"id": "t1", "status": {"state": "completed"}}

SHAPES: dict[str, tuple[Any, type, str]] = {
    "1.0 task": (
        {"task": {"id": "t1", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}},
        Task,
        "t1",
    ),
    "1.0 message": (
        {"message": {"messageId": "m", "taskId": "t1", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}},
        Message,
        "t1",
    ),
    "1.0 artifact": (
        {
            "artifactUpdate": {
                "taskId": "t1",
                "contextId": "c",
                "artifact": {"artifactId": "a", "parts": [{"text": "x"}]},
            }
        },
        ArtifactUpdate,
        "t1",
    ),
    "1.0 in snake case": (
        {"status_update": {"task_id": "t1", "context_id": "c", "status": {"state": "TASK_STATE_WORKING"}}},
        StatusUpdate,
        "t1",
    ),
    "0.3 task": ({"kind": "task", "contextId": "c", **TASK}, Task, "t1"),
    "0.3 update": (
        {
            "kind": "status-update",
            "taskId": "t1",
            "contextId": "c",
            "status": {"state": "working"},
            "final": False,
        },
        StatusUpdate,
        "t1",
    ),
    "0.3 artifact": (
        {
            "kind": "artifact-update",
            "taskId": "t1",
            "contextId": "c",
            "artifact": {"artifactId": "a", "parts": [{"kind": "text", "text": "x"}]},
        },
        ArtifactUpdate,
        "t1",
    ),
    "0.3 in an envelope": (
        {"jsonrpc": "2.0", "result": {"kind": "task", "contextId": "c", **TASK}},
        Task,
        "t1",
    ),
    "0.2 with types": ({"type": "task", "contextId": "c", **TASK}, Task, "t1"),
    "0.1 task": ({"sessionId": "s", **TASK}, Task, "t1"),
    "0.1 task, named twice": ({"taskId": "t1", "sessionId": "s", **TASK}, Task, "t1"),
    "0.1 example": (
        {"eventType": "taskUpdate", "taskId": "t1", "status": {"state": "completed"}, "summary": "done"},
        StatusUpdate,
        "t1",
    ),
}


@pytest.mark.parametrize(("document", "kind", "task"), SHAPES.values(), ids=SHAPES)
async def test_notifications_of_every_version_are_understood(document: Any, kind: type, task: str) -> None:
    event = read_notification(json.dumps(document).encode())
    assert type(event) is kind
    assert (event.id if isinstance(event, Task) else event.task_id) == task


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b"1", b"{}", b'{"kind":"pigeon"}', b'{"task":{}}', b"\xff", b"[" * 100_000],
)
async def test_a_body_that_is_not_a_notification_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidParams):
        read_notification(body)


# The app


class Seat:
    """A webhook app, and what it was told."""

    def __init__(self, *, per_minute: int | None = None, **options: Any) -> None:
        self.events: list[Received] = []
        self.fails = 0
        self.app = Webhook(self._tell, verifier(**options), max_body=10_000, per_minute=per_minute)
        self.transport = AsgiTransport(self.app)

    async def _tell(self, received: Received) -> None:
        await asyncio.sleep(0)
        if self.fails:
            self.fails -= 1
            raise RuntimeError("not today")
        self.events.append(received)

    async def ask(
        self,
        method: str = "POST",
        path: str = "/webhook",
        headers: Mapping[str, str] | None = None,
        body: bytes = BODY,
    ) -> tuple[int, bytes]:
        response = await self.transport.request(method, f"http://us{path}", headers or {}, body)
        return response.status, await response.read()


@pytest.fixture
async def seat() -> AsyncIterator[Seat]:
    seat = Seat()
    yield seat
    await seat.transport.close()


@requirement(179, 182)
async def test_the_app_passes_on_a_valid_notification_once(seat: Seat) -> None:
    for _ in range(2):
        assert await seat.ask(headers=signed()) == (204, b"")
    assert [received.delivery for received in seat.events] == ["u.1"]


async def test_a_body_that_breaks_off_is_refused(seat: Seat) -> None:
    came: list[dict[str, Any]] = [
        {"type": "http.request", "body": BODY, "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return came.pop(0)

    async def send(message: Any) -> None:
        pass

    headers = [(name.lower().encode(), value.encode()) for name, value in signed().items()]
    await seat.app({"type": "http", "method": "POST", "headers": headers}, receive, send)
    assert seat.events == []
    assert (await seat.ask(headers=signed()))[0] == 204 and len(seat.events) == 1


async def test_the_app_refuses_an_invalid_notification(seat: Seat) -> None:
    assert (await seat.ask(headers={}))[0] == 401
    assert (await seat.ask(headers=signed(body=b"x" * 20_000), body=b"x" * 20_000))[0] == 413
    assert (await seat.ask(headers=signed(body=b"{}"), body=b"{}"))[0] == 400
    assert (await seat.ask("PUT", headers=signed()))[0] == 405
    assert seat.events == []


async def test_a_notification_whose_handler_fails_is_not_acknowledged_and_may_come_again(seat: Seat) -> None:
    seat.fails = 1
    assert (await seat.ask(headers=signed()))[0] == 500
    assert (await seat.ask(headers=signed()))[0] == 204
    assert len(seat.events) == 1


async def test_a_duplicate_is_not_acknowledged_while_the_first_is_being_handled() -> None:
    going, go = asyncio.Event(), asyncio.Event()

    async def tell(received: Received) -> None:
        going.set()
        await go.wait()

    transport = AsgiTransport(Webhook(tell, verifier()))
    first = asyncio.create_task(transport.request("POST", "http://us/webhook", signed(), BODY))
    await going.wait()
    second = await transport.request("POST", "http://us/webhook", signed(), BODY)
    go.set()
    assert (second.status, (await first).status) == (503, 204)
    await transport.close()


async def test_a_notification_whose_handler_was_cancelled_may_come_again() -> None:
    going, handed_on = asyncio.Event(), 0

    async def tell(received: Received) -> None:
        nonlocal handed_on
        handed_on += 1
        if handed_on == 1:
            going.set()
            await asyncio.Event().wait()

    app = Webhook(tell, verifier())
    transport = AsgiTransport(app)
    first = asyncio.create_task(transport.request("POST", "http://us/webhook", signed(), BODY))
    await going.wait()
    await transport.close()  # as a server does that stops
    with pytest.raises(A2AError):
        await first
    again = AsgiTransport(app)
    assert (await again.request("POST", "http://us/webhook", signed(), BODY)).status == 204
    await again.close()
    assert handed_on == 2


@requirement(184)
async def test_the_app_takes_a_limited_number_of_requests_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    seat = Seat(per_minute=2)
    answers = [(await seat.ask(headers=headers))[0] for headers in ({}, signed(), signed("u.2"), {})]
    assert answers == [401, 204, 429, 429]
    now += 30
    assert (await seat.ask(headers=signed("u.2")))[0] == 204, "half a minute later it takes one more"
    assert (await seat.ask(headers=signed("u.3")))[0] == 429
    assert [received.delivery for received in seat.events] == ["u.1", "u.2"]
    await seat.transport.close()


async def test_the_app_answers_the_challenge(seat: Seat) -> None:
    assert await seat.ask("GET", "/webhook?validationToken=abc-123", body=b"") == (200, b"abc-123")
    for query in (
        "",
        "?validationToken=",
        "?validationToken=%0d%0aSet-Cookie:x",
        "?validationToken=" + "x" * 600,
    ):
        assert (await seat.ask("GET", "/webhook" + query, body=b""))[0] == 404
    assert seat.events == []
