"""The requirements of A2A 1.0, one after the other, put to a whole server over sockets.

`@requirement(143, 145)` names the rows of `requirements.md` that a test proves. What a test asks it asks over each binding,
with bytes made by hand (`speakers.py`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec.structs import replace

from dragoman import Agent, Turn
from dragoman.auth import Bearer, Holder, hashed
from dragoman.auth.keys import KeyRing, new_key
from dragoman.model.card import Extension, Skill
from dragoman.observe.limit import Quota
from dragoman.push.options import PushOptions
from dragoman.server.application import application
from dragoman.server.limits import Limits
from dragoman.server.runtime import running
from tests import raw
from tests.push.webhook import Receiver
from tests.requirements import older, requirement
from tests.spec.speakers import Document, Grpc, JsonRpc, Refusal, Rest, Speaker
from tests.waiting import until

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
EXTENSION = "https://ext.example/strict/v1"
DOMAIN = "a2a-protocol.org"
CODES = {
    "TASK_NOT_FOUND": (-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": (-32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": (-32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": (-32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": (-32005, 400, "INVALID_ARGUMENT"),
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": (-32007, 400, "FAILED_PRECONDITION"),
    "EXTENSION_SUPPORT_REQUIRED": (-32008, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": (-32009, 400, "FAILED_PRECONDITION"),
    "INVALID_PARAMS": (-32602, 400, "INVALID_ARGUMENT"),
    "UNAUTHENTICATED": (-32000, 401, "UNAUTHENTICATED"),
    "PERMISSION_DENIED": (-32000, 403, "PERMISSION_DENIED"),
}
"""Reasons, and the code of each over JSON-RPC, HTTP+JSON and gRPC."""


# --- the server, and what is said to it


def agent_of(**options: Any) -> Agent:
    agent = Agent("Conformer", "Does what the text says", **options)
    gate = asyncio.Event()

    @agent.skill(default=True, tags=["test"])
    async def do(turn: Turn) -> AsyncIterator[str]:
        """Does what the text says."""
        match turn.text.split():
            case ["ask"]:
                yield f"You said {await turn.ask('What is it?')}"
            case ["auth"]:
                await turn.need_auth("Sign in at https://login.example")
                yield "signed in"
            case ["wait"]:
                await turn.status("waiting")
                await gate.wait()
                gate.clear()
                yield "went on"
            case ["go"]:
                gate.set()
                yield "gone"
            case ["fail"]:
                raise RuntimeError("the password is hunter2")
            case ["reject"]:
                turn.reject("not that")
            case words:
                for word in words:
                    yield word

    @agent.skill(reply=True, tags=["test"])
    async def reply(turn: Turn) -> str:
        """Answers without a task."""
        return "hello"

    return agent


PUSH = PushOptions(allow_private=True, http=True, pause=0.01)


class House:
    """A server, and somebody who speaks to it over one binding."""

    def __init__(self, url: str, speaker: Speaker) -> None:
        self.url, self.speaker = url, speaker

    async def call(self, method: str, params: Document, **headers: str) -> Any:
        return await self.speaker.call(method, params, **headers)

    async def send(self, text: str, *, now: bool = False, **more: Any) -> Document:
        answer = await self.call("SendMessage", message(text, now=now, **more))
        assert set(answer) == {"task"}
        task: Document = answer["task"]
        return task

    async def get(self, task: Document, **more: Any) -> Document:
        got: Document = await self.call("GetTask", {"id": task["id"], **more})
        return got

    async def stream(self, method: str, params: Document, **headers: str) -> list[Document]:
        """All events, to the end of the stream."""
        return [event async for event in self.speaker.stream(method, params, **headers)]

    async def refusal(self, method: str, params: Document, reason: str, **headers: str) -> Refusal:
        """The refusal of an operation: with its reason, and the code that each binding has for it."""
        with pytest.raises(Refusal) as caught:
            if method in ("SendStreamingMessage", "SubscribeToTask"):
                await self.stream(method, params, **headers)
            else:
                await self.call(method, params, **headers)
        refusal = caught.value
        assert refusal.reason == reason, refusal
        rpc, http, grpc = CODES[reason]
        match self.speaker.binding:
            case "JSONRPC":
                assert refusal.code == rpc
            case "HTTP+JSON":
                assert refusal.status == http
            case _:
                assert refusal.status == grpc
        assert refusal.message
        assert all(each["@type"].startswith("type.googleapis.com/google.rpc.") for each in refusal.details)
        (info,) = [each for each in refusal.details if each["@type"].endswith("ErrorInfo")]
        assert info["domain"] == DOMAIN
        return refusal


def message(text: str, *, now: bool = False, skill: str = "", **members: Any) -> Document:
    said: Document = {
        "messageId": f"m-{text[:40]}",
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        **members,
    }
    if skill:
        said["metadata"] = {"skillId": skill}
    return {"message": said, **({"configuration": {"returnImmediately": True}} if now else {})}


def speaker_of(binding: str, url: str) -> JsonRpc | Rest | Grpc:
    kinds: dict[str, type[JsonRpc | Rest | Grpc]] = {"JSONRPC": JsonRpc, "HTTP+JSON": Rest, "GRPC": Grpc}
    return kinds[binding](url)


@asynccontextmanager
async def house_of(binding: str, agent: Agent, **options: Any) -> AsyncIterator[House]:
    options = {"store": "memory:", "push": PUSH, **options}
    if binding == "GRPC":
        options["grpc_port"] = 0
    app = application(agent, **{"drain": 0.0, **options})
    async with running(app) as url:
        if binding != "GRPC":
            yield House(url, speaker_of(binding, url))
            return
        card = await raw.get(url + "/.well-known/agent-card.json")
        (address,) = {
            each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"
        }
        async with aclosing_speaker(Grpc(address)) as speaker:
            yield House(url, speaker)


@asynccontextmanager
async def aclosing_speaker(speaker: Grpc) -> AsyncIterator[Grpc]:
    try:
        yield speaker
    finally:
        await speaker.close()


@pytest.fixture(params=["JSONRPC", "HTTP+JSON", "GRPC"])
def binding(request: pytest.FixtureRequest) -> str:
    named: str = request.param
    return named


@pytest.fixture
async def house(binding: str) -> AsyncIterator[House]:
    async with house_of(binding, agent_of()) as house:
        yield house


def state(task: Document) -> str:
    word: str = task["status"]["state"]
    return word


# --- A. discovery


async def fetch(
    url: str, verb: str = "GET", body: bytes = b"", /, **headers: str
) -> tuple[raw.Response, bytes]:
    async with raw.post(url, body, raw.spelled(headers), method=verb) as response:
        return response, await raw.read(response)


@requirement(1, 2, 3, 4, 5, 6, 7, 8)
async def test_the_card_declares_every_binding_that_is_served_and_lacks_nothing() -> None:
    async with running(application(agent_of(), store="memory:", grpc_port=0)) as url:
        response, body = await fetch(url + "/.well-known/agent-card.json")
        card = json.loads(body)
        assert response.headers["content-type"].startswith("application/json")
        for name in (
            "name", "description", "version", "capabilities", "defaultInputModes", "defaultOutputModes", "skills",
        ):  # fmt: skip
            assert card[name], name
        for skill in card["skills"]:
            assert all(skill[name] for name in ("id", "name", "description", "tags"))
        interfaces = card["supportedInterfaces"]
        assert all(each["url"] and each["protocolBinding"] and each["protocolVersion"] for each in interfaces)
        newest = [each for each in interfaces if each["protocolVersion"] == "1.0"]
        assert interfaces[: len(newest)] == newest
        assert {each["protocolBinding"] for each in newest} == {"JSONRPC", "HTTP+JSON", "GRPC"}
        for each in newest:
            if each["protocolBinding"] == "GRPC":
                assert "://" not in each["url"]
            speaker = speaker_of(each["protocolBinding"], each["url"])
            assert state((await speaker.call("SendMessage", message("hi")))["task"]) == "TASK_STATE_COMPLETED"
            if isinstance(speaker, Grpc):
                await speaker.close()


@requirement(7, 8, 96)
async def test_the_pure_card_of_1_0_has_only_what_1_0_knows_and_no_patch_numbers() -> None:
    async with running(application(agent_of(versions=("1.0",)), store="memory:")) as url:
        card = await raw.get(url + "/.well-known/agent-card.json")
        assert not {"url", "protocolVersion", "preferredTransport", "additionalInterfaces"} & set(card)
        assert {each["protocolVersion"] for each in card["supportedInterfaces"]} == {"1.0"}


@requirement(15, 16, 17)
async def test_the_card_can_be_cached_and_revalidated() -> None:
    async with running(application(agent_of(), store="memory:")) as url:
        address = url + "/.well-known/agent-card.json"
        response, _ = await fetch(address)
        assert re.search(r"max-age=\d+", response.headers["cache-control"])
        assert response.headers["etag"] and response.headers["last-modified"]
        again, body = await fetch(address, if_none_match=response.headers["etag"])
        assert again.status == 304 and body == b"" and again.headers["etag"] == response.headers["etag"]


@requirement(22)
async def test_each_of_several_agents_has_a_card_of_its_own() -> None:
    other = Agent("Other", "Another one")

    @other.skill(tags=["test"])
    async def nothing(turn: Turn) -> str:
        """Nothing."""
        return ""

    async with running(application(agent_of(), other, store="memory:")) as url:
        for name in ("conformer", "other"):
            card = await raw.get(f"{url}/{name}/.well-known/agent-card.json")
            assert card["name"].lower() == name
            assert {each["url"].rstrip("/") for each in card["supportedInterfaces"]} == {f"{url}/{name}"}


# --- C. extended card


TOKENS = {
    "alice": Holder(secret=hashed("alice-token-123456")),
    "bob": Holder(secret=hashed("bob-token-12345678")),
}
ALICE, BOB = "Bearer alice-token-123456", "Bearer bob-token-12345678"


@requirement(37, 38, 212, 230)
async def test_the_extended_card_is_for_those_who_say_who_they_are(binding: str) -> None:
    secret = [Skill(id="secret", name="Secret", description="More", tags=("secret",))]
    async with house_of(binding, agent_of(auth=[Bearer(TOKENS)], extended_card=secret)) as house:
        public = await raw.get(house.url + "/.well-known/agent-card.json")
        assert public["securitySchemes"] and public["capabilities"]["extendedAgentCard"] is True
        assert "secret" not in [skill["id"] for skill in public["skills"]]
        await house.refusal("GetExtendedAgentCard", {}, "UNAUTHENTICATED")
        await house.refusal("GetExtendedAgentCard", {}, "UNAUTHENTICATED", authorization="Bearer wrong")
        card = await house.call("GetExtendedAgentCard", {}, authorization=ALICE)
        assert "secret" in [skill["id"] for skill in card["skills"]]


@requirement(43)
@pytest.mark.parametrize("way", ["JSONRPC", "HTTP+JSON"])
async def test_an_extended_card_may_not_be_cached_by_others(way: str) -> None:
    async with running(
        application(agent_of(auth=[Bearer(TOKENS)], extended_card=[]), store="memory:")
    ) as url:
        if way == "JSONRPC":
            response, _ = await fetch(url, "POST", raw.rpc("GetExtendedAgentCard", {}), authorization=ALICE)
        else:
            response, _ = await fetch(url + "/extendedAgentCard", authorization=ALICE)
        assert response.status == 200 and "private" in response.headers["cache-control"]


@requirement(39, 237)
async def test_an_agent_that_declares_no_extended_card_does_not_know_the_operation(house: House) -> None:
    await house.refusal("GetExtendedAgentCard", {}, "UNSUPPORTED_OPERATION")


@requirement(37, 40)
async def test_without_authentication_there_is_no_extended_card(binding: str) -> None:
    with pytest.raises(ValueError, match="auth="):
        agent_of(extended_card=[])
    agent = agent_of()  # a program of another make may promise one all the same
    claims = replace(agent._about.capabilities, extended_agent_card=True)
    agent._about = replace(agent._about, capabilities=claims)
    async with house_of(binding, agent) as house:
        await house.refusal("GetExtendedAgentCard", {}, "EXTENDED_AGENT_CARD_NOT_CONFIGURED")


@requirement(213, 230)
@pytest.mark.parametrize("path", ["", "/tasks"])
async def test_a_401_names_the_schemes(path: str) -> None:
    async with running(application(agent_of(auth=[Bearer(TOKENS)]), store="memory:")) as url:
        verb, body = ("GET", b"") if path else ("POST", raw.rpc("ListTasks", {}))
        response, _ = await fetch(url + path, verb, body)
        assert response.status == 401 and response.headers["www-authenticate"].startswith("Bearer")


# --- D. bindings


@requirement(46, 47, 48)
async def test_every_operation_is_there(house: House) -> None:
    task = await house.send("ask")
    assert (await house.get(task))["id"] == task["id"]
    assert [each["id"] for each in (await house.call("ListTasks", {}))["tasks"]] == [task["id"]]
    config = await house.call(
        "CreateTaskPushNotificationConfig", {"taskId": task["id"], "url": "http://127.0.0.1:9/"}
    )
    named = {"taskId": task["id"], "id": config["id"]}
    assert (await house.call("GetTaskPushNotificationConfig", named))["url"] == "http://127.0.0.1:9/"
    listed = await house.call("ListTaskPushNotificationConfigs", {"taskId": task["id"]})
    assert [each["id"] for each in listed["configs"]] == [config["id"]]
    assert not await house.call("DeleteTaskPushNotificationConfig", named)
    async with aclosing(house.speaker.stream("SubscribeToTask", {"id": task["id"]})) as events:  # type: ignore[type-var]
        assert "task" in await anext(events)
    assert state(await house.call("CancelTask", {"id": task["id"]})) == "TASK_STATE_CANCELED"
    assert "task" in (await house.stream("SendStreamingMessage", message("hi")))[0]


@requirement(49, 50, 51, 52, 54, 55, 119, 120, 121, 127)
async def test_a_task_is_written_as_the_proto_says(house: House) -> None:
    task = await house.send("one two", messageId="mine")
    assert task["id"] and task["contextId"] and task["id"] != task["contextId"]
    assert state(task) == "TASK_STATE_COMPLETED" and TIMESTAMP.fullmatch(task["status"]["timestamp"])
    (artifact,) = task["artifacts"]
    assert artifact["artifactId"] and artifact["parts"]
    first = task["history"][0]
    assert first["role"] == "ROLE_USER" and first["messageId"] == "mine"
    assert first["taskId"] == task["id"] and first["contextId"] == task["contextId"]
    again = await house.send("one two", messageId="mine too")
    assert again["id"] != task["id"] and again["contextId"] != task["contextId"]


@requirement(56, 220, 229, 233, 236, 67, 83)
async def test_a_missing_required_member_is_refused_with_its_name(house: House) -> None:
    broken: list[tuple[Document, str]] = [
        ({"role": "ROLE_USER", "parts": [{"text": "hi"}]}, "messageId"),
        ({"messageId": "m", "parts": [{"text": "hi"}]}, "role"),
        ({"messageId": "m", "role": "ROLE_USER"}, "parts"),
        ({"messageId": "m", "role": "ROLE_USER", "parts": []}, "parts"),
        ({"messageId": "m", "role": "ROLE_USER", "parts": [{}]}, "parts"),
    ]
    for said, field in broken:
        refusal = await house.refusal("SendMessage", {"message": said}, "INVALID_PARAMS")
        (bad,) = [each for each in refusal.details if each["@type"].endswith("google.rpc.BadRequest")]
        assert any(field in violation["field"] for violation in bad["fieldViolations"])


@requirement(57, 58)
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"], indirect=False)
async def test_unknown_members_are_ignored(binding: str) -> None:
    async with house_of(binding, agent_of()) as house:
        odd = message("hi", colour="blue")
        odd["message"]["parts"][0]["shape"] = {"round": True}
        answer = await house.call("SendMessage", {**odd, "weather": "fine"})
        assert state(answer["task"]) == "TASK_STATE_COMPLETED"


@requirement(59, 72, 98)
async def test_headers_may_be_spelled_in_any_case() -> None:
    async with running(application(agent_of(), store="memory:")) as url:
        for name in ("a2a-version", "A2A-VERSION", "A2a-Version"):
            async with raw.post(url, raw.rpc("ListTasks", {}), {name: "1.0"}) as response:
                assert "result" in json.loads(await raw.read(response))
            async with raw.post(url, raw.rpc("ListTasks", {}), {name: "7.0"}) as response:
                assert json.loads(await raw.read(response))["error"]["code"] == -32009


@requirement(62, 65)
@older("X17")
@pytest.mark.parametrize(
    ("body", "code", "id"),
    [
        (b"{", -32700, None),
        (b"[]", -32600, None),
        (b"7", -32600, None),
        (b'{"jsonrpc":"1.0","id":7,"method":"ListTasks"}', -32600, 7),
        (b'{"jsonrpc":"2.0","id":"seven","method":"Nothing"}', -32601, "seven"),
        (b'{"jsonrpc":"2.0","id":7,"method":"GetTask","params":[1]}', -32602, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{}}', -32602, 7),
        (b'{"jsonrpc":"2.0","id":{},"method":"GetTask","params":{"id":"x"}}', -32600, None),
    ],
)
async def test_json_rpc_says_what_is_wrong_with_a_request(body: bytes, code: int, id: Any) -> None:
    async with running(application(agent_of(), store="memory:")) as url:
        response, said = await fetch(url, "POST", body)
        document = json.loads(said)
        assert response.headers["content-type"].startswith("application/json")
        assert document["jsonrpc"] == "2.0" and document["id"] == id and "result" not in document
        assert document["error"]["code"] == code and document["error"]["message"]
        assert document["error"]["data"] and all(each["@type"] for each in document["error"]["data"])


@requirement(75, 86)
@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({}, "application/json"),
        ({"accept": "*/*"}, "application/json"),
        ({"accept": "application/a2a+json, application/json"}, "application/a2a+json"),
        ({"accept": "application/json"}, "application/json"),
    ],
)
async def test_http_answers_in_the_media_type_of_a2a_for_those_who_ask_for_it(
    headers: dict[str, str], kind: str
) -> None:
    async with running(application(agent_of(), store="memory:")) as url:
        for path in ("/tasks", "/tasks/none"):
            response, body = await fetch(url + path, "GET", b"", **headers)
            assert response.headers["content-type"] == kind
            body.decode("utf-8")


@requirement(77, 78, 79)
async def test_a_query_has_booleans_numbers_enums_and_times_as_text() -> None:
    async with running(application(agent_of(), store="memory:")) as url:
        rest = Rest(url)
        task = (await rest.call("SendMessage", message("hi")))["task"]
        asked = {
            "status": "TASK_STATE_COMPLETED",
            "pageSize": 5,
            "includeArtifacts": True,
            "contextId": task["contextId"],
            "statusTimestampAfter": "2020-01-01T00:00:00.000Z",
        }
        (listed,) = (await rest.call("ListTasks", asked))["tasks"]
        assert listed["id"] == task["id"] and listed["artifacts"]
        assert (await rest.call("ListTasks", {**asked, "status": "TASK_STATE_FAILED"}))["tasks"] == []
        for name, value in {"status": "NONSENSE", "pageSize": "many", "includeArtifacts": "perhaps"}.items():
            with pytest.raises(Refusal) as caught:
                await rest.call("ListTasks", {name: value})
            assert caught.value.status == 400


# --- E. versions


@requirement(97, 100)
async def test_a_patch_number_makes_no_difference(house: House) -> None:
    for version in ("1.0", "1.0.7", "1"):
        answer = await house.call("SendMessage", message("hi"), a2a_version=version)
        assert state(answer["task"]) == "TASK_STATE_COMPLETED"


@requirement(73, 101)
async def test_an_unsupported_version_is_refused(house: House) -> None:
    for version in ("2.0", "1.7", "nonsense"):
        await house.refusal("SendMessage", message("hi"), "VERSION_NOT_SUPPORTED", a2a_version=version)


@requirement(98)
async def test_the_version_may_be_in_the_query() -> None:
    async with running(application(agent_of(), store="memory:")) as url:
        _, body = await fetch(url + "?A2A-Version=7.0", "POST", raw.rpc("ListTasks", {}), a2a_version="")
        assert json.loads(body)["error"]["code"] == -32009
        response, _ = await fetch(url + "/tasks?A2A-Version=1.0", a2a_version="")
        assert response.status == 200


@requirement(102)
async def test_without_a_version_the_method_decides_and_0_3_is_understood() -> None:
    async with running(application(agent_of(), store="memory:")) as url:
        said = {
            "message": {
                "kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}],
            }
        }  # fmt: skip
        document = await raw.call(url, "message/send", said, a2a_version="")
        assert document["result"]["kind"] == "task" and document["result"]["status"]["state"] == "completed"
        document = await raw.call(url, "SendMessage", message("hi"), a2a_version="")
        assert state(document["result"]["task"]) == "TASK_STATE_COMPLETED"


# --- F. SendMessage


@requirement(105, 109, 119, 121, 139)
async def test_an_answer_is_a_task_or_one_message(house: House) -> None:
    answer = await house.call("SendMessage", message("hi", skill="reply", now=True))
    assert set(answer) == {"message"}
    said = answer["message"]
    assert said["role"] == "ROLE_AGENT" and said["messageId"] and said["contextId"] and "taskId" not in said
    assert said["parts"] == [{"text": "hello"}] or said["parts"][0]["text"] == "hello"
    events = await house.stream("SendStreamingMessage", message("hi", skill="reply"))
    assert [set(event) for event in events] == [{"message"}]


@requirement(106, 107, 115, 116)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two", "TASK_STATE_COMPLETED"),
        ("ask", "TASK_STATE_INPUT_REQUIRED"),
        ("auth", "TASK_STATE_AUTH_REQUIRED"),
        ("fail", "TASK_STATE_FAILED"),
        ("reject", "TASK_STATE_REJECTED"),
    ],
)
async def test_a_send_waits_for_the_end_or_for_a_question(house: House, text: str, expected: str) -> None:
    task = await house.send(text)
    assert state(task) == expected
    if text == "one two":
        assert "".join(part["text"] for part in task["artifacts"][0]["parts"]) == "onetwo"
    if text == "fail":
        assert "hunter2" not in json.dumps(task)


@requirement(108)
async def test_a_send_with_return_immediately_does_not_wait(house: House) -> None:
    task = await house.send("wait", now=True)
    assert state(task) in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
    assert (await house.get(task))["id"] == task["id"]


@requirement(110, 111)
async def test_content_that_the_agent_cannot_read_or_write_is_refused(house: House) -> None:
    picture = message("hi", parts=[{"raw": "AAAA", "mediaType": "image/png"}])
    await house.refusal("SendMessage", picture, "CONTENT_TYPE_NOT_SUPPORTED")
    wanted = {**message("hi"), "configuration": {"acceptedOutputModes": ["video/mp4"]}}
    await house.refusal("SendMessage", wanted, "CONTENT_TYPE_NOT_SUPPORTED")


@requirement(112, 145, 153, 155)
async def test_a_task_that_has_ended_is_never_touched_again(house: House) -> None:
    task = await house.send("hi")
    before = await house.get(task)
    again = message("more", taskId=task["id"])
    await house.refusal("SendMessage", again, "UNSUPPORTED_OPERATION")
    await house.refusal("SendStreamingMessage", again, "UNSUPPORTED_OPERATION")
    await house.refusal("SubscribeToTask", {"id": task["id"]}, "UNSUPPORTED_OPERATION")
    await house.refusal("CancelTask", {"id": task["id"]}, "TASK_NOT_CANCELABLE")
    assert await house.get(task) == before
    refined = await house.send("more", contextId=task["contextId"])
    assert refined["contextId"] == task["contextId"] and refined["id"] != task["id"]


# --- G. turns, contexts, ids


@requirement(122, 123, 126)
async def test_a_context_id_of_the_client_is_stored_unchanged(house: House) -> None:
    assert (await house.send("hi", contextId="my-context"))["contextId"] == "my-context"
    assert (await house.send("ho", contextId="my-context"))["contextId"] == "my-context"
    assert len((await house.call("ListTasks", {"contextId": "my-context"}))["tasks"]) == 2


@requirement(129, 152, 169, 234, 66, 68, 74, 82, 84)
async def test_every_operation_on_an_unknown_task_is_not_found(house: House) -> None:
    unknown = {"taskId": "none", "id": "none"}
    for method, params in {
        "SendMessage": message("hi", taskId="none"),
        "SendStreamingMessage": message("hi", taskId="none"),
        "GetTask": {"id": "none"},
        "CancelTask": {"id": "none"},
        "SubscribeToTask": {"id": "none"},
        "CreateTaskPushNotificationConfig": {"taskId": "none", "url": "http://127.0.0.1:9/"},
        "GetTaskPushNotificationConfig": unknown,
        "ListTaskPushNotificationConfigs": {"taskId": "none"},
        "DeleteTaskPushNotificationConfig": unknown,
    }.items():
        await house.refusal(method, params, "TASK_NOT_FOUND")
    assert (await house.call("ListTasks", {}))["totalSize"] == 0


@requirement(130, 131)
async def test_a_task_knows_its_context_and_accepts_no_other(house: House) -> None:
    task = await house.send("ask")
    await house.refusal("SendMessage", message("x", taskId=task["id"], contextId="another"), "INVALID_PARAMS")
    answered = await house.send("a cat", taskId=task["id"])
    assert answered["id"] == task["id"] and answered["contextId"] == task["contextId"]
    assert state(answered) == "TASK_STATE_COMPLETED"
    assert {each["contextId"] for each in answered["history"]} == {task["contextId"]}
    assert {each["taskId"] for each in answered["history"]} == {task["id"]}


# --- H. history


@requirement(135, 136, 137)
async def test_history_is_as_long_as_asked_for_and_ends_with_the_newest(house: House) -> None:
    task = await house.send("ask")
    await house.send("a cat", taskId=task["id"])
    whole = (await house.get(task))["history"]
    assert len(whole) >= 2
    assert "history" not in await house.get(task, historyLength=0)
    assert (await house.get(task, historyLength=1))["history"] == whole[-1:]
    assert (await house.get(task, historyLength=99))["history"] == whole
    short = {**message("hi"), "configuration": {"historyLength": 0}}
    assert "history" not in (await house.call("SendMessage", short))["task"]
    (listed,) = (await house.call("ListTasks", {"historyLength": 1, "contextId": task["contextId"]}))["tasks"]
    assert listed["history"] == whole[-1:]
    await house.refusal("GetTask", {"id": task["id"], "historyLength": -1}, "INVALID_PARAMS")


# --- I. streams


@requirement(138, 140, 141, 146)
async def test_a_stream_begins_with_the_task_and_closes_when_it_ends(house: House) -> None:
    events = await house.stream("SendStreamingMessage", message("one two three"))
    assert all(len(event) == 1 for event in events)
    assert set(events[0]) == {"task"}
    id = events[0]["task"]["id"]
    updates = [next(iter(event.values())) for event in events[1:]]
    assert {"statusUpdate", "artifactUpdate"} == {next(iter(event)) for event in events[1:]}
    assert {each["taskId"] for each in updates} == {id} and all(each["contextId"] for each in updates)
    words = [each["artifact"]["parts"][0]["text"] for each in updates if "artifact" in each]
    assert "".join(words) == "onetwothree"
    states = [each["status"]["state"] for each in updates if "status" in each]
    assert states[-1] == "TASK_STATE_COMPLETED" and "statusUpdate" in events[-1]
    assert len([each for each in states if each == "TASK_STATE_COMPLETED"]) == 1
    assert not any("final" in each for each in updates)


@requirement(142, 143, 144, 146, 147, 148, 149, 150)
async def test_every_stream_of_a_task_gets_the_same_events_in_the_same_order(house: House) -> None:
    task = await house.send("wait", now=True)
    await until(lambda: house.get(task), lambda got: "waiting" in json.dumps(got))
    streams = [house.speaker.stream("SubscribeToTask", {"id": task["id"]}) for _ in range(3)]
    for each in streams:
        assert (await anext(each))["task"]["id"] == task["id"]
    await streams.pop().aclose()  # type: ignore[attr-defined]
    await house.send("go")
    first, second = [[event async for event in each] for each in streams]
    assert first == second
    assert first[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert any("artifactUpdate" in event for event in first)


@requirement(151, 237)
async def test_an_agent_that_does_not_stream_says_so(binding: str) -> None:
    async with house_of(binding, agent_of(streaming=False)) as house:
        card = await raw.get(house.url + "/.well-known/agent-card.json")
        assert not card["capabilities"].get("streaming")
        await house.refusal("SendStreamingMessage", message("hi"), "UNSUPPORTED_OPERATION")
        task = await house.send("ask")
        await house.refusal("SubscribeToTask", {"id": task["id"]}, "UNSUPPORTED_OPERATION")


@requirement(143, 190, 191)
async def test_streams_stay_open_during_auth_required(house: House) -> None:
    events = house.speaker.stream("SendStreamingMessage", message("auth"))
    task = (await anext(events))["task"]
    async for event in events:
        if "AUTH_REQUIRED" in json.dumps(event):
            break
    done = await house.send("done", taskId=task["id"])
    assert state(done) == "TASK_STATE_COMPLETED"
    rest = [event async for event in events]
    assert rest[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@requirement(186, 187, 188)
async def test_a_task_that_needs_authorisation_says_what_for(house: House) -> None:
    task = await house.send("auth")
    assert state(task) == "TASK_STATE_AUTH_REQUIRED"
    assert "login.example" in task["status"]["message"]["parts"][0]["text"]


# --- J. cancel


@requirement(153, 154)
async def test_canceling_twice_is_canceling_once(house: House) -> None:
    task = await house.send("ask")
    assert state(await house.call("CancelTask", {"id": task["id"]})) == "TASK_STATE_CANCELED"
    assert state(await house.call("CancelTask", {"id": task["id"]})) == "TASK_STATE_CANCELED"


# --- K. ListTasks


@requirement(157, 158, 161, 162)
async def test_pages_go_from_the_newest_to_the_oldest_and_the_last_has_no_token(house: House) -> None:
    tasks = [await house.send(f"number {n}") for n in range(5)]
    seen: list[Document] = []
    token = ""
    while True:
        page = await house.call("ListTasks", {"pageSize": 2, **({"pageToken": token} if token else {})})
        assert {"tasks", "nextPageToken", "pageSize", "totalSize"} <= set(page)
        assert page["pageSize"] == 2 and page["totalSize"] == 5 and len(page["tasks"]) <= 2
        seen += page["tasks"]
        token = page["nextPageToken"]
        if not token:
            break
    assert sorted(each["id"] for each in seen) == sorted(each["id"] for each in tasks)
    stamps = [each["status"]["timestamp"] for each in seen]
    assert stamps == sorted(stamps, reverse=True)
    await house.refusal("ListTasks", {"pageToken": "nonsense"}, "INVALID_PARAMS")


@requirement(161, 162, 163)
async def test_an_empty_list_is_whole_and_pages_have_limits(house: House) -> None:
    assert await house.call("ListTasks", {}) == {
        "tasks": [],
        "nextPageToken": "",
        "pageSize": 50,
        "totalSize": 0,
    }
    assert (await house.call("ListTasks", {"pageSize": 100}))["pageSize"] == 100
    for size in (0, 101, -1):
        await house.refusal("ListTasks", {"pageSize": size}, "INVALID_PARAMS")


@requirement(160)
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"], indirect=False)
async def test_artifacts_are_listed_only_when_asked_for(binding: str) -> None:
    async with house_of(binding, agent_of()) as house:
        done, waiting = await house.send("hi"), await house.send("ask")
        for asked in ({}, {"includeArtifacts": False}):
            assert not any("artifacts" in each for each in (await house.call("ListTasks", asked))["tasks"])
        listed = (await house.call("ListTasks", {"includeArtifacts": True}))["tasks"]
        by_id = {each["id"]: each["artifacts"] for each in listed}
        assert by_id == {done["id"]: done["artifacts"], waiting["id"]: []}


@requirement(164)
async def test_a_time_to_list_from_is_included(house: House) -> None:
    task = await house.send("hi")
    asked = {"statusTimestampAfter": task["status"]["timestamp"]}
    assert [each["id"] for each in (await house.call("ListTasks", asked))["tasks"]] == [task["id"]]
    later = {"statusTimestampAfter": "2999-01-01T00:00:00.000Z"}
    assert (await house.call("ListTasks", later))["tasks"] == []


# --- L. push


@requirement(166, 237)
async def test_an_agent_without_push_refuses_push_configs(binding: str) -> None:
    async with house_of(binding, agent_of(push=False)) as house:
        task = await house.send("ask")
        named = {"taskId": task["id"], "id": "c"}
        for method, params in {
            "CreateTaskPushNotificationConfig": {"taskId": task["id"], "url": "http://127.0.0.1:9/"},
            "GetTaskPushNotificationConfig": named,
            "ListTaskPushNotificationConfigs": {"taskId": task["id"]},
            "DeleteTaskPushNotificationConfig": named,
        }.items():
            await house.refusal(method, params, "PUSH_NOTIFICATION_NOT_SUPPORTED")
        inline = message("hi")
        inline["configuration"] = {"taskPushNotificationConfig": {"url": "http://127.0.0.1:9/"}}
        await house.refusal("SendMessage", inline, "PUSH_NOTIFICATION_NOT_SUPPORTED")


@requirement(113, 167, 172, 173, 174)
async def test_a_webhook_gets_every_event_with_its_credentials(house: House) -> None:
    async with Receiver() as hook:
        inline = message("one two")
        inline["configuration"] = {
            "taskPushNotificationConfig": {
                "url": hook.url,
                "token": "my-token",
                "authentication": {"scheme": "Bearer", "credentials": "my-secret"},
            }
        }
        task = (await house.call("SendMessage", inline))["task"]
        await hook.until(lambda: any("COMPLETED" in each.body.decode() for each in hook.notifications))
        for each in hook.notifications:
            assert each.method == "POST" and each.headers["content-type"] == "application/a2a+json"
            assert each.headers["authorization"] == "Bearer my-secret"
            assert each.headers["x-a2a-notification-token"] == "my-token"
            ((name, event),) = each.document.items()
            assert name in ("task", "message", "statusUpdate", "artifactUpdate")
            assert event.get("taskId", event.get("id")) == task["id"]


@requirement(168, 169, 170, 171)
async def test_push_configs_work_until_they_are_deleted(house: House) -> None:
    async with Receiver() as kept, Receiver() as gone:
        task = await house.send("ask")
        for hook, id in ((kept, "kept"), (gone, "gone")):
            made = await house.call(
                "CreateTaskPushNotificationConfig", {"taskId": task["id"], "id": id, "url": hook.url}
            )
            assert made["id"] == id and made["taskId"] == task["id"]
        listed = await house.call("ListTaskPushNotificationConfigs", {"taskId": task["id"]})
        assert {each["id"] for each in listed["configs"]} == {"kept", "gone"}
        named = {"taskId": task["id"], "id": "gone"}
        await house.call("DeleteTaskPushNotificationConfig", named)
        await house.call("DeleteTaskPushNotificationConfig", named)
        await house.refusal("GetTaskPushNotificationConfig", named, "TASK_NOT_FOUND")
        await house.send("a cat", taskId=task["id"])
        await kept.until(lambda: any("COMPLETED" in each.body.decode() for each in kept.notifications))
        assert not any("COMPLETED" in each.body.decode() for each in gone.notifications)


@requirement(177)
async def test_webhooks_within_are_refused(binding: str) -> None:
    async with house_of(binding, agent_of(), push=PushOptions()) as house:
        task = await house.send("ask")
        for url in (
            "http://127.0.0.1/",
            "https://localhost/",
            "https://10.0.0.1/",
            "https://169.254.169.254/latest",
            "https://[::1]/",
            "file:///etc/passwd",
        ):
            config = {"taskId": task["id"], "url": url}
            await house.refusal("CreateTaskPushNotificationConfig", config, "INVALID_PARAMS")


# --- N. extensions


@requirement(199)
async def test_a_required_extension_must_be_asked_for(binding: str) -> None:
    async with house_of(binding, agent_of(extensions=[Extension(uri=EXTENSION, required=True)])) as house:
        await house.refusal("SendMessage", message("hi"), "EXTENSION_SUPPORT_REQUIRED")
        await house.refusal("SendStreamingMessage", message("hi"), "EXTENSION_SUPPORT_REQUIRED")
        other = EXTENSION.replace("v1", "v2")
        await house.refusal("SendMessage", message("hi"), "EXTENSION_SUPPORT_REQUIRED", a2a_extensions=other)
        answer = await house.call(
            "SendMessage", message("hi"), a2a_extensions=f"https://x.example, {EXTENSION}"
        )
        assert state(answer["task"]) == "TASK_STATE_COMPLETED"


@requirement(202, 203, 204, 205)
@pytest.mark.parametrize("path", ["", "/message:send"])
async def test_the_answer_lists_what_was_activated_and_unknown_extensions_are_ignored(path: str) -> None:
    agent = agent_of(extensions=[Extension(uri=EXTENSION)])
    async with running(application(agent, store="memory:")) as url:
        body = json.dumps(message("hi")).encode() if path else raw.rpc("SendMessage", message("hi"))
        response, said = await fetch(
            url + path, "POST", body, a2a_extensions=f"https://unknown.example,{EXTENSION}"
        )
        assert response.headers["a2a-extensions"] == EXTENSION and b"TASK_STATE_COMPLETED" in said
        response, _ = await fetch(url + path, "POST", body)
        assert "a2a-extensions" not in response.headers


# --- O. who may see what


@requirement(156, 159, 214, 215, 216, 217, 232, 234, 240)
async def test_tasks_of_other_callers_are_not_found(binding: str) -> None:
    async with house_of(binding, agent_of(auth=[Bearer(TOKENS)])) as house:
        answer = await house.call("SendMessage", message("ask"), authorization=ALICE)
        task, unknown = answer["task"]["id"], "0" * len(answer["task"]["id"])
        hook = {"url": "http://127.0.0.1:9/"}
        requests: dict[str, Callable[[str], Document]] = {
            "GetTask": lambda id: {"id": id},
            "CancelTask": lambda id: {"id": id},
            "SubscribeToTask": lambda id: {"id": id},
            "SendMessage": lambda id: message("hi", taskId=id),
            "SendStreamingMessage": lambda id: message("hi", taskId=id),
            "CreateTaskPushNotificationConfig": lambda id: {"taskId": id, **hook},
            "GetTaskPushNotificationConfig": lambda id: {"taskId": id, "id": "c"},
            "ListTaskPushNotificationConfigs": lambda id: {"taskId": id},
            "DeleteTaskPushNotificationConfig": lambda id: {"taskId": id, "id": "c"},
        }
        for method, asked in requests.items():
            theirs = await house.refusal(method, asked(task), "TASK_NOT_FOUND", authorization=BOB)
            nobodys = await house.refusal(method, asked(unknown), "TASK_NOT_FOUND", authorization=BOB)
            assert theirs.message.replace(task, "") == nobodys.message.replace(unknown, "")
            await house.refusal(method, asked(task), "UNAUTHENTICATED")
        assert (await house.call("ListTasks", {}, authorization=BOB))["tasks"] == []
        mine = await house.call("ListTasks", {}, authorization=ALICE)
        assert [state(each) for each in mine["tasks"]] == ["TASK_STATE_INPUT_REQUIRED"]


@requirement(231)
async def test_a_caller_without_a_scope_gets_permission_denied(binding: str) -> None:
    agent = agent_of(auth=[Bearer(TOKENS)], authorize=lambda principal, request: principal.id != "bob")
    async with house_of(binding, agent) as house:
        await house.refusal("SendMessage", message("hi"), "PERMISSION_DENIED", authorization=BOB)
        assert await house.call("SendMessage", message("hi"), authorization=ALICE)


@requirement(221, 235)
async def test_a_body_that_is_too_large_is_refused() -> None:
    async with running(application(agent_of(), store="memory:", limits=Limits(max_body=1000))) as url:
        response, body = await fetch(url + "/message:send", "POST", json.dumps(message("x" * 2000)).encode())
        assert response.status == 413 and b"larger than 1000 bytes" in body


# --- Q. tenants


@requirement(239)
async def test_a_tenant_may_be_in_the_path_and_the_path_wins() -> None:
    async with running(application(agent_of(), store="memory:")) as url:
        acme = Rest(url + "/acme")
        task = (await acme.call("SendMessage", message("hi")))["task"]
        assert (await acme.call("GetTask", {"id": task["id"]}))["id"] == task["id"]
        with pytest.raises(Refusal) as caught:
            await acme.call("SendMessage", {**message("hi"), "tenant": "umbrella"})
        assert caught.value.status == 400


@requirement(239, 240)
async def test_a_tenant_is_that_of_its_caller_or_there_is_none(binding: str) -> None:
    tokens = {
        "alice": Holder(secret=hashed(ALICE.removeprefix("Bearer ")), tenant="acme"),
        "bob": Holder(secret=hashed(BOB.removeprefix("Bearer ")), tenant="umbrella"),
    }
    async with house_of(binding, agent_of(auth=[Bearer(tokens)])) as house:
        task = (await house.call("SendMessage", message("ask"), authorization=ALICE))["task"]["id"]
        mine = await house.call("GetTask", {"id": task, "tenant": "acme"}, authorization=ALICE)
        assert mine["id"] == task
        for tenant in ("acme", "nobody"):
            for method, params in (
                ("SendMessage", message("hi")),
                ("SendStreamingMessage", message("hi")),
                ("GetTask", {"id": task}),
                ("ListTasks", {}),
            ):
                asked = {**params, "tenant": tenant}
                refused = await house.refusal(method, asked, "TASK_NOT_FOUND", authorization=BOB)
                assert tenant not in refused.message
        assert (await house.call("ListTasks", {}, authorization=BOB))["tasks"] == []


# --- B. signed cards


def unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@requirement(23, 24, 26, 27, 28, 29, 30, 31)
async def test_a_signed_card_can_be_verified_with_nothing_but_its_text_and_the_published_key() -> None:
    app = application(
        agent_of(), store="memory:", keys=KeyRing([new_key("EdDSA")]), public_url="https://me.example"
    )
    async with running(app) as url:
        card = await raw.get(url + "/.well-known/agent-card.json")
        (key,) = (await raw.get(url + "/.well-known/jwks.json"))["keys"]
    (signature,) = card.pop("signatures")
    assert {"protected", "signature"} <= set(signature) <= {"protected", "signature", "header"}
    header = json.loads(unpadded(signature["protected"]))
    assert header["alg"] == "EdDSA" and header["typ"] == "JOSE" and header["kid"] == key["kid"]
    payload = base64.urlsafe_b64encode(rfc8785.dumps(card)).rstrip(b"=")
    public = Ed25519PublicKey.from_public_bytes(unpadded(key["x"]))
    public.verify(unpadded(signature["signature"]), signature["protected"].encode() + b"." + payload)
    assert card["supportedInterfaces"][0]["url"].startswith("https://me.example")
    assert not any(value in ("", [], {}) for name, value in card.items() if name != "description")


# --- O. limits


@requirement(226, 235)
@pytest.mark.parametrize("path", ["", "/tasks"])
async def test_a_rate_limited_caller_gets_retry_after(path: str) -> None:
    async with running(application(agent_of(), store="memory:", quota=Quota(rate=0.001, burst=1))) as url:
        verb, body = ("GET", b"") if path else ("POST", raw.rpc("ListTasks", {}))
        first, _ = await fetch(url + path, verb, body)
        second, said = await fetch(url + path, verb, body)
        assert (first.status, second.status) == (200, 429)
        assert int(second.headers["retry-after"]) > 0 and b"RATE_LIMITED" in said
