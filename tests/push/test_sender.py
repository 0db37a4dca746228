"""The push sender: webhooks get every notification, in order, in their dialect, and can verify it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from base64 import b64decode, b64encode
from typing import Any

import pytest

from dragoman.auth.jose import VerifyingKey, check, decode
from dragoman.auth.keys import KeyRing, new_key
from dragoman.model.ops import AuthenticationInfo, Call, DeletePushConfig
from tests.push.conftest import SCOPE, TRACE, Open, brief
from tests.push.webhook import Answer, Notification, Receiver
from tests.waiting import forever, until


def states(received: list[Notification]) -> list[str]:
    """What each notification of 1.0 speaks of."""
    out = []
    for each in received:
        ((member, event),) = each.document.items()
        out.append(event["status"]["state"][11:].lower() if member == "statusUpdate" else member)
    return out


# What is told


async def test_1_0_gets_every_update_as_it_is(setup: Open, webhook: Receiver) -> None:
    here = await setup()
    task = await here.send("say:3", webhook=webhook)
    received = await webhook.wait_for(5)
    assert states(received) == ["working", "artifactUpdate", "artifactUpdate", "artifactUpdate", "completed"]
    chunks = [each.document["artifactUpdate"] for each in received[1:4]]
    assert [chunk["artifact"]["parts"][0]["text"] for chunk in chunks] == ["1,", "2,", "3,"]
    assert {each.headers["content-type"] for each in received} == {"application/a2a+json"}
    assert {each.headers["a2a-version"] for each in received} == {"1.0"}
    for each in received:
        (event,) = each.document.values()
        assert event["taskId"] == task.id
    assert [each.method for each in received] == ["POST"] * 5


@pytest.mark.parametrize("dialect", ["0.3", "0.3-proto", "0.2", "0.2-type"])
async def test_older_versions_get_the_task_when_it_is_interrupted_and_when_it_ends(
    setup: Open, webhook: Receiver, dialect: str
) -> None:
    here = await setup()
    task = await here.send("ask", webhook=webhook, dialect=dialect)
    await here.send("so", task=task.id, dialect=dialect)
    asked, ended = [each.document for each in await webhook.wait_for(2)]
    assert asked["id"] == ended["id"] == task.id
    assert [asked["status"]["state"], ended["status"]["state"]] == ["input-required", "completed"]
    assert asked["type" if dialect == "0.2-type" else "kind"] == "task"
    assert ended["artifacts"][0]["parts"][0]["text"] == "so it is so" and "artifacts" not in asked
    assert {each.headers["content-type"] for each in webhook.notifications} == {"application/json"}


@pytest.mark.parametrize("dialect", ["0.1", "draft"])
async def test_the_first_versions_get_the_task_with_task_id_and_without_history(
    setup: Open, webhook: Receiver, dialect: str
) -> None:
    here = await setup()
    await here.send("say:2", webhook=webhook, dialect=dialect, task="t1")
    (received,) = await webhook.wait_for(1)
    document = received.document
    assert (document["taskId"], document["id"], document["status"]["state"]) == ("t1", "t1", "completed")
    assert document["sessionId"] and "history" not in document
    assert [part["text"] for part in document["artifacts"][0]["parts"]] == ["1,", "2,"]


async def test_older_versions_can_get_every_status(setup: Open, webhook: Receiver) -> None:
    here = await setup(every_status=True)
    await here.send("say", webhook=webhook, dialect="0.3")
    received = await webhook.wait_for(2)
    assert [each.document["status"]["state"] for each in received] == ["working", "completed"]


async def test_the_dialect_is_that_of_the_config_not_of_the_task(setup: Open, webhook: Receiver) -> None:
    here = await setup()
    task = await here.send("ask", dialect="0.3")
    await here.register(task.id, webhook, dialect="1.0", id="new")
    async with Receiver() as other:
        await here.register(task.id, other, dialect="0.2", id="old")
        await here.send("so", task=task.id, dialect="0.1")
        await webhook.until(lambda: "completed" in states(webhook.notifications))
        await other.until(
            lambda: "completed" in [received.document["status"]["state"] for received in other.notifications]
        )
        assert other.notifications[-1].document["kind"] == "task"


async def test_a_late_notification_has_the_task_as_it_was_then(setup: Open, webhook: Receiver) -> None:
    open_again = asyncio.Event()

    async def answer(received: Notification) -> Answer:
        return 204 if open_again.is_set() else 503

    webhook.answer = answer
    here = await setup()
    task = await here.send("ask", webhook=webhook, dialect="0.3")
    await webhook.until(lambda: len(webhook.refused) > 0)
    await here.send("so", task=task.id)
    open_again.set()
    received = await webhook.wait_for(2)
    assert [each.document["status"]["state"] for each in received] == ["input-required", "completed"]


@pytest.mark.parametrize(
    ("dialect", "where"),
    [
        ("1.0", lambda document: document["message"]),
        ("0.3", lambda document: document),
        ("0.1", lambda document: document["artifacts"][0]),
    ],
)
async def test_a_message_without_a_task_is_sent(
    setup: Open, webhook: Receiver, dialect: str, where: Any
) -> None:
    here = await setup(brief())
    await here.send("hi", webhook=webhook, dialect=dialect, task="t1" if dialect == "0.1" else "")
    (received,) = await webhook.wait_for(1)
    assert where(received.document)["parts"][0]["text"] == "hello"


async def test_a_webhook_that_is_registered_late_gets_the_end_of_the_task(
    setup: Open, webhook: Receiver
) -> None:
    here = await setup()
    task = await here.send("say:3")
    await here.register(task.id, webhook)
    assert states(await webhook.wait_for(1)) == ["completed"]


async def test_a_failed_task_is_sent(setup: Open, webhook: Receiver) -> None:
    here = await setup()
    await here.send("fail", webhook=webhook)
    await webhook.until(lambda: "failed" in states(webhook.notifications))


async def test_a_slow_webhook_of_a_task_does_not_delay_the_others(setup: Open, webhook: Receiver) -> None:
    here = await setup()
    task = await here.send("ask", webhook=webhook)
    slow = asyncio.Event()

    async def answer(received: Notification) -> Answer:
        await slow.wait()
        return 200

    async with Receiver(answer) as other:
        await here.register(task.id, other)
        await here.send("so", task=task.id)
        await webhook.until(lambda: "completed" in states(webhook.notifications))
        assert other.notifications == []
        slow.set()
        await other.until(lambda: "completed" in states(other.notifications))


async def test_a_deleted_config_gets_nothing_more(setup: Open, webhook: Receiver) -> None:
    here = await setup()
    task = await here.send("ask", webhook=webhook, id="one")
    await webhook.until(lambda: "input_required" in states(webhook.notifications))
    await here.engine.call(Call(scope=SCOPE), DeletePushConfig(task_id=task.id, id="one"))
    before = len(webhook.notifications)
    async with Receiver() as other:
        await here.register(task.id, other)
        await here.send("so", task=task.id)
        await other.until(lambda: "completed" in states(other.notifications))
    assert len(webhook.notifications) == before


# How they know that it is us


async def test_the_token_and_the_trace_are_headers(setup: Open, webhook: Receiver) -> None:
    here = await setup()
    await here.send("say", webhook=webhook, token="t0k")
    received = await webhook.wait_for(3)
    assert {each.headers["x-a2a-notification-token"] for each in received} == {"t0k"}
    assert {each.headers["traceparent"] for each in received} == set(TRACE.values())
    assert "authorization" not in received[0].headers and "webhook-signature" not in received[0].headers


async def test_the_log_of_a_message_without_a_trace_is_not_read_for_each_notification(
    setup: Open, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await setup()
    log = here.store.scope(SCOPE)
    load, loads = type(log).load, []

    async def count(self: Any, task: str, **options: Any) -> Any:
        loads.append(task)
        return await load(self, task, **options)

    monkeypatch.setattr(type(log), "load", count)
    await here.send("say:3", webhook=webhook, trace={})
    received = await webhook.wait_for(5)
    assert all("traceparent" not in each.headers for each in received)
    assert loads == []


@pytest.mark.parametrize(
    ("scheme", "credentials", "header", "value"),
    [
        ("Bearer", "abc", "authorization", "Bearer abc"),
        ("bearer", "abc", "authorization", "bearer abc"),
        ("Basic", "user:pass", "authorization", "Basic " + b64encode(b"user:pass").decode()),
        ("Basic", "dXNlcjpwYXNz", "authorization", "Basic dXNlcjpwYXNz"),
        ("Custom", "x=1, y=2", "authorization", "Custom x=1, y=2"),
        ("ApiKey", "k", "x-api-key", "k"),
        ("apiKey", '{"in":"header","name":"X-Hook-Key","value":"k"}', "x-hook-key", "k"),
    ],
)
async def test_the_credentials_of_the_config_are_sent(
    setup: Open, webhook: Receiver, scheme: str, credentials: str, header: str, value: str
) -> None:
    here = await setup()
    login = AuthenticationInfo(scheme=scheme, credentials=credentials)
    await here.send("say", webhook=webhook, authentication=login)
    assert (await webhook.wait_for(1))[0].headers[header] == value


@pytest.mark.parametrize("secret", ["shared secret", "whsec_" + b64encode(b"0123456789abcdef").decode()])
async def test_a_shared_secret_signs_the_id_the_time_and_the_body(
    setup: Open, webhook: Receiver, secret: str
) -> None:
    here = await setup()
    await here.send(
        "say", webhook=webhook, authentication=AuthenticationInfo(scheme="HMAC", credentials=secret)
    )
    received = (await webhook.wait_for(1))[0]
    assert "authorization" not in received.headers and secret not in str(received.headers)
    stamp = received.headers["webhook-timestamp"]
    assert abs(int(stamp) - time.time()) < 60
    key = b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
    signed = f"{received.delivery}.{stamp}.".encode() + received.body
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    assert received.headers["webhook-signature"] == f"v1,{b64encode(digest).decode()}"


async def test_the_servers_secret_signs_as_well(setup: Open, webhook: Receiver) -> None:
    here = await setup(secret="ours")
    await here.send(
        "say", webhook=webhook, authentication=AuthenticationInfo(scheme="HMAC", credentials="theirs")
    )
    received = (await webhook.wait_for(1))[0]
    assert len(received.headers["webhook-signature"].split(" ")) == 2


@pytest.mark.parametrize(
    ("login", "header"),
    [
        (None, "authorization"),
        (AuthenticationInfo(scheme="Bearer"), "authorization"),
        (AuthenticationInfo(scheme="Bearer", credentials="abc"), "dragoman-token"),
    ],
)
@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA"])
async def test_our_key_signs_a_token_for_this_body_and_this_webhook(
    setup: Open, webhook: Receiver, login: AuthenticationInfo | None, header: str, algorithm: str
) -> None:
    key = new_key(algorithm)
    here = await setup(keys=KeyRing([key]), issuer="https://agent.example")
    task = await here.send("say", webhook=webhook, authentication=login)
    received = (await webhook.wait_for(1))[0]
    token = received.headers[header].removeprefix("Bearer ")
    head, body, signature = token.split(".")
    check(VerifyingKey(key.kid, key.key, (algorithm,)), algorithm, f"{head}.{body}".encode(), signature)
    assert json.loads(decode(head)) == {"alg": algorithm, "kid": key.kid, "typ": "JWT"}
    claims = json.loads(decode(body))
    assert claims.pop("exp") == claims["iat"] + 300 and abs(claims.pop("iat") - time.time()) < 60
    assert claims == {
        "iss": "https://agent.example",
        "aud": webhook.url,
        "jti": received.delivery,
        "task_id": task.id,
        "request_body_sha256": hashlib.sha256(received.body).hexdigest(),
    }


async def test_a_delivery_has_one_id_however_often_it_is_tried(setup: Open, webhook: Receiver) -> None:
    tries = 0

    async def answer(received: Notification) -> Answer:
        nonlocal tries
        tries += 1
        return 500 if tries % 3 else 200

    webhook.answer = answer
    here = await setup()
    await here.send("say:2", webhook=webhook)
    received = await webhook.wait_for(4)
    assert len({each.delivery for each in received}) == 4
    assert [each.delivery for each in webhook.refused[::2]] == [each.delivery for each in received]


# When it does not get through


async def test_retry_after_of_a_webhook_is_obeyed(setup: Open, webhook: Receiver) -> None:
    async def answer(received: Notification) -> Answer:
        return b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"

    webhook.answer = answer
    here = await setup(longest_pause=600.0)
    await here.send("say", webhook=webhook)
    await webhook.until(lambda: len(webhook.refused) == 1)
    (waiting,) = await _waiting(here, lambda found: found[0].attempt == 1)
    assert waiting.error == "it answered HTTP 503" and 5 < waiting.at - time.time() <= 7


async def test_a_redirect_is_a_failure(setup: Open, webhook: Receiver) -> None:
    async def answer(received: Notification) -> Answer:
        return b"HTTP/1.1 307 X\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"

    webhook.answer = answer
    here = await setup(max_attempts=1)
    await here.send("say", webhook=webhook)
    (dead,) = await _waiting(here, lambda found: found[0].dead)
    assert "redirects are not followed" in dead.error and len(webhook.refused) == 1


async def test_an_endless_answer_is_not_read_to_its_end(setup: Open, webhook: Receiver) -> None:
    async def answer(received: Notification) -> Answer:
        return b"HTTP/1.1 200 X\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 200_000

    webhook.answer = answer
    here = await setup()
    await here.send("say", webhook=webhook)
    assert states(await webhook.wait_for(3)) == ["working", "artifactUpdate", "completed"]


async def test_a_webhook_that_does_not_answer_times_out(setup: Open, webhook: Receiver) -> None:
    silence = asyncio.Event()

    async def answer(received: Notification) -> Answer:
        if not silence.is_set():
            silence.set()
            await forever()
        return 200

    webhook.answer = answer
    here = await setup(timeout=0.1)
    await here.send("say", webhook=webhook)
    assert states(await webhook.wait_for(3)) == ["working", "artifactUpdate", "completed"]


async def test_after_too_many_attempts_a_webhook_is_given_up_and_can_be_redelivered(
    setup: Open, webhook: Receiver
) -> None:
    broken = True

    async def answer(received: Notification) -> Answer:
        return 500 if broken else 200

    webhook.answer = answer
    here = await setup(max_attempts=3)
    task = await here.send("ask", webhook=webhook)
    (dead,) = await _waiting(here, lambda found: found[0].dead)
    assert (dead.attempt, dead.error, len(webhook.refused)) == (3, "it answered HTTP 500", 3)
    await here.send("so", task=task.id)
    assert len(webhook.refused) == 3
    broken = False
    assert await here.store.push_queue.redeliver(dead.key)
    await webhook.until(lambda: "completed" in states(webhook.notifications))
    assert states(webhook.notifications) == [
        "working",
        "input_required",
        "working",
        "artifactUpdate",
        "completed",
    ]
    assert here.sender.outcomes["given up"] == 1


async def test_after_too_long_a_webhook_is_given_up(setup: Open, webhook: Receiver) -> None:
    async def answer(received: Notification) -> Answer:
        return 500

    webhook.answer = answer
    here = await setup(give_up_after=0.0)
    await here.send("say", webhook=webhook)
    (dead,) = await _waiting(here, lambda found: found[0].dead)
    assert dead.attempt == 2


async def test_a_webhook_that_is_gone_is_given_up_at_once(setup: Open, webhook: Receiver) -> None:
    async def answer(received: Notification) -> Answer:
        return 410

    webhook.answer = answer
    here = await setup()
    await here.send("say", webhook=webhook)
    (dead,) = await _waiting(here, lambda found: found[0].dead)
    assert dead.attempt == 1


async def test_a_dead_webhook_delays_no_other(setup: Open, webhook: Receiver) -> None:
    async def answer(received: Notification) -> Answer:
        await forever()
        return 200

    async with Receiver(answer) as tarpit:
        here = await setup(concurrency=8, per_origin=2)
        tasks = [await here.send("ask", webhook=tarpit) for _ in range(12)]
        await here.register(tasks[0].id, webhook)
        assert states(await webhook.wait_for(1)) == ["input_required"]


async def _waiting(here: Any, so: Any) -> Any:
    """What was not told, once it is `so`."""
    return await until(lambda: here.store.push_queue.find(limit=10), lambda found: found and so(found))
