"""Rows of the list of requirements that `test_requirements.py` leaves: most of them say should, or not.

What has a place of its own (TLS, notifications, logs) is proven there.
"""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dragoman import Agent, Turn
from dragoman.auth import Bearer, Holder, Principal, hashed
from dragoman.auth.keys import KeyRing, new_key
from dragoman.model.card import Skill
from dragoman.push.options import PushOptions
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests import raw
from tests.push.webhook import Notification, Receiver
from tests.requirements import older, requirement
from tests.spec.speakers import JsonRpc
from tests.spec.test_requirements import (
    ALICE,
    BOB,
    PUSH,
    TOKENS,
    House,
    agent_of,
    binding,
    fetch,
    house,
    house_of,
    message,
    state,
)

__all__ = ["binding", "house"]  # fixtures

# --- cards


def bank() -> Agent:
    """Its extended card depends on who asks."""

    def more(principal: Principal) -> list[Skill]:
        skill = Skill(id="limits", name="Limits", description="Up to 1000", tags=("money",))
        return [skill] if "pay" in principal.scopes else []

    secret = ALICE.removeprefix("Bearer "), BOB.removeprefix("Bearer ")
    tokens = {
        "alice": Holder(secret=hashed(secret[0]), scopes=["pay"]),
        "bob": Holder(secret=hashed(secret[1])),
    }
    agent = Agent("Bank", "Pays", auth=[Bearer(tokens)], extended_card=more)

    @agent.skill(default=True, tags=["test"])
    async def balance(turn: Turn) -> str:
        """Says what you have."""
        await turn.need_auth("Log in at https://login.example")
        return f"{turn.principal} may {sorted(turn.mail.scopes)}"

    @agent.skill(scopes=["pay"], tags=["test"])
    async def pay(turn: Turn) -> str:
        """Pays."""
        return "paid"

    return agent


@requirement(41)
async def test_an_extended_card_shows_each_caller_what_that_caller_may_see(binding: str) -> None:
    async with house_of(binding, bank()) as house:
        for who, seen in ((ALICE, True), (BOB, False)):
            card = await house.call("GetExtendedAgentCard", {}, authorization=who)
            assert ("limits" in [skill["id"] for skill in card["skills"]]) is seen


@older("X10")
@requirement(20, 45)
async def test_no_card_has_a_secret_or_the_name_of_its_variable(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with running(application(bank(), store=store, push=PUSH)) as url:
        cards = [(await fetch(url + "/.well-known/agent-card.json"))[1]]
        for who in (ALICE, BOB):
            cards.append((await fetch(url + "/extendedAgentCard", authorization=who))[1])
        for card in cards:
            assert b"Bank" in card
            for secret in (ALICE, BOB):
                token = secret.removeprefix("Bearer ")
                assert token.encode() not in card and hashed(token).encode() not in card
            for inner in (str(tmp_path), "sqlite", __file__, "alice", "bob"):
                assert inner.encode() not in card


@requirement(25)
async def test_explicit_false_values_are_part_of_the_signed_card() -> None:
    agent = agent_of(streaming=False, push=False)
    ring = KeyRing([new_key("EdDSA")])
    async with running(
        application(agent, store="memory:", keys=ring, public_url="https://me.example")
    ) as url:
        card = await raw.get(url + "/.well-known/agent-card.json")
        (key,) = (await raw.get(url + "/.well-known/jwks.json"))["keys"]
    assert card["capabilities"] == {"streaming": False, "pushNotifications": False}
    (signature,) = card.pop("signatures")
    signed = f"{signature['protected']}.{_unpadded(rfc8785.dumps(card))}"
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "=="))
    public.verify(base64.urlsafe_b64decode(signature["signature"] + "=="), signed.encode())


def _unpadded(body: bytes) -> str:
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


# --- what is said


@requirement(53)
async def test_a_moment_is_the_same_moment_in_every_spelling(house: House) -> None:
    task = await house.send("hi")
    moment = task["status"]["timestamp"]
    exact = [moment]
    if house.speaker.binding != "GRPC":  # which has a type for it
        exact += [moment.removesuffix("Z"), moment.removesuffix("Z") + "+00:00", moment[:-1] + "000Z"]
    for since in exact:
        listed = await house.call("ListTasks", {"statusTimestampAfter": since})
        assert [each["id"] for each in listed["tasks"]] == [task["id"]], since
    later = await house.call("ListTasks", {"statusTimestampAfter": "2999-01-01T00:00:00Z"})
    assert later["tasks"] == []


@requirement(58)
async def test_missing_members_have_the_defaults_of_the_specification(house: House) -> None:
    task = await house.send("hi")  # it waited for the end
    assert state(task) == "TASK_STATE_COMPLETED" and len(task["history"]) == 1
    listed = await house.call("ListTasks", {})
    assert listed["pageSize"] == 50 and "artifacts" not in listed["tasks"][0]


@requirement(80)
async def test_operations_with_a_body_use_post() -> None:
    async with running(application(agent_of(), store="memory:")) as url:
        for path in ("/message:send", "/message:stream"):
            response, _ = await fetch(f"{url}{path}?message.parts=hi")
            assert response.status == 405 and response.headers["allow"] == "POST"
        assert (await JsonRpc(url).call("ListTasks", {}))["tasks"] == []


@requirement(85)
async def test_events_come_in_the_order_they_were_made_with_rising_numbers() -> None:
    words = [str(n) for n in range(50)]
    async with running(application(agent_of(), store="memory:")) as url:
        body = json.dumps(message(" ".join(words))).encode()
        _, said = await fetch(url + "/message:stream", "POST", body)
    numbers = [int(line[4:]) for line in said.splitlines() if line.startswith(b"id: ")]
    events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith(b"data: ")]
    assert numbers == sorted(set(numbers)) and len(numbers) == len(events)
    chunks = [
        each["artifactUpdate"]["artifact"]["parts"][0]["text"] for each in events if "artifactUpdate" in each
    ]
    assert [chunk for chunk in chunks if chunk] == words
    assert "task" in events[0] and state(events[-1]["statusUpdate"]) == "TASK_STATE_COMPLETED"


@requirement(87)
async def test_an_address_in_a_message_is_handed_to_the_agent_and_not_followed() -> None:
    agent = Agent("Reader", "Reads", input_modes=["*/*"])

    @agent.skill(tags=["test"])
    async def read(turn: Turn) -> str:
        """Says where the file is."""
        return turn.files[0].url or ""

    async with Receiver() as hook, running(application(agent, store="memory:")) as url:
        parts = [{"text": "read"}, {"url": hook.url, "mediaType": "text/plain"}]
        answer = await JsonRpc(url).call("SendMessage", message("read", parts=parts))
        assert answer["task"]["artifacts"][0]["parts"][0]["text"] == hook.url
        assert not hook.notifications and not hook.refused


@requirement(114)
async def test_only_a_send_with_an_idempotency_key_is_deduplicated() -> None:
    async with running(application(agent_of(), store="memory:")) as url:
        peer = JsonRpc(url)
        first, second = [await peer.call("SendMessage", message("hi")) for _ in range(2)]
        assert first["task"]["id"] != second["task"]["id"]
        third, again = [await peer.call("SendMessage", message("hi"), idempotency_key="k") for _ in range(2)]
        assert third == again


@requirement(117, 118)
async def test_status_messages_may_be_missing_later_and_results_are_not(house: House) -> None:
    task = await house.send("hi")
    assert "history" not in (bare := await house.get(task, historyLength=0))
    assert bare["artifacts"] == task["artifacts"] and "message" not in bare["status"]


@requirement(133, 134)
async def test_an_agent_sees_what_came_before_and_what_it_is_pointed_to(binding: str) -> None:
    agent = Agent("Rememberer", "Remembers")

    @agent.skill(tags=["test"])
    async def remember(turn: Turn) -> str:
        """Says what it knows."""
        before = [task.artifacts[0].text for task in await turn.earlier()]
        return f"{turn.text} after {before}, see {list(turn.message.reference_task_ids)}"

    async with house_of(binding, agent) as house:
        first = await house.send("one")
        second = await house.send("two", contextId=first["contextId"], referenceTaskIds=[first["id"]])
        said = "".join(part["text"] for part in second["artifacts"][0]["parts"])
        assert said == f"two after ['one after [], see []'], see ['{first['id']}']"
        elsewhere = await house.send("three")
        assert elsewhere["artifacts"][0]["parts"][0]["text"] == "three after [], see []"


# --- notifications


@requirement(175, 176)
async def test_a_failed_notification_is_retried_after_the_requested_delay() -> None:
    assert 10 <= PushOptions().timeout <= 30
    answers = [503, 500]

    async def stumbling(received: Notification) -> int:
        return answers.pop(0) if answers else 200

    async with (
        Receiver(stumbling) as hook,
        running(application(agent_of(), store="memory:", push=PUSH)) as url,
    ):
        config = {"taskPushNotificationConfig": {"url": hook.url}}
        await JsonRpc(url).call("SendMessage", {**message("hi"), "configuration": config})
        await hook.until(
            lambda: any(b"TASK_STATE_COMPLETED" in received.body for received in hook.notifications)
        )
        assert [received.delivery for received in hook.refused] == [hook.notifications[0].delivery] * 2


# --- authorisation within a task


@requirement(189, 195, 196, 197, 198)
async def test_an_authorization_in_a_task_grants_no_other_rights(binding: str) -> None:
    async with house_of(binding, bank()) as house:
        waits = (await house.call("SendMessage", message("go"), authorization=BOB))["task"]
        assert state(waits) == "TASK_STATE_AUTH_REQUIRED"
        await house.refusal(
            "SendMessage", message("ok", taskId=waits["id"]), "TASK_NOT_FOUND", authorization=ALICE
        )
        done = (await house.call("SendMessage", message("ok", taskId=waits["id"]), authorization=BOB))["task"]
        assert done["artifacts"][0]["parts"][0]["text"] == "bob may []"
        assert BOB.removeprefix("Bearer ") not in json.dumps(done)
        pay = message("pay", skill="pay", contextId=waits["contextId"])
        await house.refusal("SendMessage", pay, "PERMISSION_DENIED", authorization=BOB)


@older("X27")
@requirement(207)
async def test_methods_of_extensions_need_authentication() -> None:
    async with running(application(agent_of(auth=[Bearer(TOKENS)]), store="memory:")) as url:
        for method in ("ext/doIt", "DoIt", "tasks/doIt"):
            response, _ = await fetch(url, "POST", raw.rpc(method, {}))
            assert response.status == 401
            _, said = await fetch(url, "POST", raw.rpc(method, {}), authorization=ALICE)
            assert json.loads(said)["error"]["code"] == -32601


# --- what is seen from outside


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


@requirement(223, 225)
async def test_a_wrong_token_is_noted_and_no_token_is(lines: pytest.LogCaptureFixture) -> None:
    wrong = "Bearer wrong-token-123456"
    async with running(application(agent_of(auth=[Bearer(TOKENS)]), store="memory:")) as url:
        assert (await fetch(url, "POST", raw.rpc("ListTasks", {}), authorization=wrong))[0].status == 401
        assert (await fetch(url, "POST", raw.rpc("ListTasks", {}), authorization=ALICE))[0].status == 200
        _, numbers = await fetch(url + "/metrics")
    assert b'dragoman_refused_total{agent="conformer",reason="UNAUTHENTICATED"} 1' in numbers
    for token in (wrong, ALICE):
        assert token.removeprefix("Bearer ") not in lines.text


@requirement(228)
async def test_a_trace_reaches_the_agent_and_what_was_asked_is_counted(binding: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    agent = Agent("Traced", "Traces")

    @agent.skill(tags=["test"])
    async def trace_of(turn: Turn) -> str:
        """Says to which trace it belongs."""
        return turn.trace["traceparent"]

    async with house_of(binding, agent) as house:
        answer = await house.call("SendMessage", message("hi"), traceparent=trace)
        assert answer["task"]["artifacts"][0]["parts"][0]["text"].split("-")[1] == trace.split("-")[1]
        if binding != "GRPC":
            _, numbers = await fetch(house.url + "/metrics")
            assert b"dragoman_requests_total{" in numbers
