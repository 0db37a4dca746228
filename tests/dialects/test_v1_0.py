"""A2A 1.0: strict when writing, lenient in the manner of ProtoJSON when reading."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidAgentResponse, InvalidParams
from dragoman.model import ops
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ops import StreamResponse
from dragoman.model.task import StatusUpdate, Task, TaskState, TaskStatus
from tests.requirements import requirement

dialect = V1_0()
HELLO: dict[str, Any] = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}


def send(message: Any = HELLO, **more: Any) -> ops.SendMessage:
    request = dialect.read_request(ops.SEND, msgspec.json.encode({"message": message, **more}))
    assert isinstance(request, ops.SendMessage)
    return request


def read(op: ops.Op, params: Any) -> Any:
    return dialect.read_request(op, msgspec.json.encode(params))


def part(**members: Any) -> Part:
    return send({**HELLO, "parts": [members]}).message.parts[0]


def refused(op: ops.Op, params: Any) -> tuple[str, str]:
    """The path and the reason of a refusal."""
    with pytest.raises(InvalidParams) as caught:
        dialect.read_request(op, params if isinstance(params, bytes) else msgspec.json.encode(params))
    ((path, why),) = caught.value.fields
    assert caught.value.message == f"{path} {why}"
    return path, why


def test_a_plain_message_is_read() -> None:
    assert send() == ops.SendMessage(
        message=Message(message_id="m1", role=Role.USER, parts=(Part(text="hello"),))
    )


def test_snake_case_members_are_honoured_not_ignored() -> None:
    request = send(
        {
            "message_id": "m1",
            "context_id": "c1",
            "task_id": "t1",
            "role": "ROLE_USER",
            "parts": [{"text": "x"}],
        },
        configuration={"history_length": 3, "return_immediately": True, "accepted_output_modes": ["a/b"]},
    )
    assert (request.message.context_id, request.message.task_id) == ("c1", "t1")
    assert request.configuration.history_length == 3
    assert request.configuration.return_immediately
    assert request.configuration.accepted_output_modes == ("a/b",)
    assert read(ops.GET, {"id": "t1", "history_length": 0}).history_length == 0


def test_one_snake_case_member_among_good_ones_is_honoured() -> None:
    assert send({**HELLO, "context_id": "c1"}).message.context_id == "c1"


@requirement(104)
def test_the_proper_spelling_wins_over_the_other() -> None:
    assert send({**HELLO, "context_id": "old", "contextId": "new"}).message.context_id == "new"


def test_members_of_user_data_are_never_renamed() -> None:
    theirs = {"task_id": 1, "context_id": None, "role": 2, "state": 3, "timestamp": "2025-01-01"}
    request = send(
        {**HELLO, "message_id": "m1", "metadata": theirs, "parts": [{"data": theirs, "metadata": theirs}]},
        metadata=theirs,
    )
    assert request.metadata == theirs
    assert request.message.metadata == theirs
    assert request.message.parts[0].data == theirs
    assert request.message.parts[0].metadata == theirs


def test_enum_numbers_are_names() -> None:
    assert send({**HELLO, "role": 1}).message.role is Role.USER
    assert send({**HELLO, "role": "1"}).message.role is Role.USER
    assert read(ops.LIST, {"status": 5}).status is TaskState.CANCELED


def test_both_spellings_of_canceled_are_read() -> None:
    assert read(ops.LIST, {"status": "TASK_STATE_CANCELLED"}).status is TaskState.CANCELED


def test_numbers_may_come_as_strings_or_with_a_point() -> None:
    assert read(ops.GET, {"id": "t", "historyLength": "7"}).history_length == 7
    assert read(ops.GET, {"id": "t", "historyLength": 7.0}).history_length == 7


@pytest.mark.parametrize("spelling", ["+/8=", "-_8=", "+/8", "-_8", " -_\n8"])
def test_base64_is_read_in_any_spelling(spelling: str) -> None:
    assert part(raw=spelling).raw == b"\xfb\xff"


def test_null_members_are_absent() -> None:
    request = send({**HELLO, "contextId": None, "metadata": None, "extensions": None}, configuration=None)
    assert request == send()


def test_a_null_data_member_is_a_value() -> None:
    assert part(data=None).data is None
    assert part(data=None).contents == 1
    assert send({**HELLO, "contextId": None, "parts": [{"data": None}]}).message.parts[0].contents == 1


def test_unknown_members_are_ignored() -> None:
    assert send({**HELLO, "kind": "message", "flavour": 3}, jsonrpc=True) == send()


@pytest.mark.parametrize(
    "spelling",
    [
        "2025-10-28T10:30:00Z",
        "2025-10-28T10:30:00",
        "2025-10-28T12:30:00.000+02:00",
        "2025-10-28T10:30:00.000Z",
    ],
)
def test_a_moment_is_read_in_any_spelling(spelling: str) -> None:
    assert (
        read(ops.LIST, {"statusTimestampAfter": spelling}).status_timestamp_after
        == "2025-10-28T10:30:00.000Z"
    )


@pytest.mark.parametrize(
    ("message", "path", "why"),
    [
        ({**HELLO, "parts": []}, "message.parts", "must not be empty"),
        ({**HELLO, "messageId": ""}, "message.messageId", "must not be empty"),
        ({**HELLO, "contextId": "x" * 513}, "message.contextId", "is longer than 512 characters"),
        ({**HELLO, "taskId": "x" * 513}, "message.taskId", "is longer than 512 characters"),
        ({"role": "ROLE_USER", "parts": [{"text": "x"}]}, "message.messageId", "is missing"),
        ({**HELLO, "role": "ROLE_UNSPECIFIED"}, "message.role", "must be given"),
        ({**HELLO, "role": 0}, "message.role", "must be given"),
        ({**HELLO, "role": "robot"}, "message.role", "has the unknown value 'robot'"),
        ({**HELLO, "role": "r" * 70_000}, "message.role", f"has the unknown value '{'r' * 60}..."),
        ({**HELLO, "parts": [{"text": 3}]}, "message.parts[0].text", "must be a string, not a whole number"),
        ({**HELLO, "parts": [{"raw": "%%%"}]}, "message.parts[0].raw", "is not base64"),
        ({**HELLO, "parts": [{"raw": 3}]}, "message.parts[0].raw", "must be base64, not a whole number"),
        ([], "message", "must be an object, not a list"),
    ],
)
def test_a_bad_message_is_refused_with_the_path_of_what_is_wrong(message: Any, path: str, why: str) -> None:
    assert refused(ops.SEND, {"message": message}) == (path, why)


@pytest.mark.parametrize(
    "members", [{}, {"text": "a", "url": "b"}, {"text": "a", "data": None}, {"filename": "x"}]
)
def test_a_part_has_exactly_one_content(members: dict[str, Any]) -> None:
    path, why = refused(ops.SEND, {"message": {**HELLO, "parts": [{"text": "fine"}, members]}})
    assert path == "message.parts[1]"
    assert "exactly one" in why


@pytest.mark.parametrize(
    ("op", "params", "path"),
    [
        (ops.GET, {}, "id"),
        (ops.GET, {"id": ""}, "id"),
        (ops.GET, {"id": "t", "historyLength": -1}, "historyLength"),
        (ops.GET, {"id": "t", "historyLength": 1.5}, "historyLength"),
        (ops.SEND, {"message": HELLO, "configuration": {"historyLength": -1}}, "configuration.historyLength"),
        (ops.LIST, {"pageSize": 0}, "pageSize"),
        (ops.LIST, {"pageSize": 101}, "pageSize"),
        (ops.LIST, {"status": "TASK_STATE_BORED"}, "status"),
        (ops.LIST, {"statusTimestampAfter": "yesterday"}, "statusTimestampAfter"),
        (ops.LIST, {"historyLength": -3}, "historyLength"),
        (ops.PUSH_CREATE, {"taskId": "t"}, "url"),
        (ops.PUSH_CREATE, {"url": "https://x"}, "taskId"),
        (ops.PUSH_GET, {"taskId": "t"}, "id"),
        (ops.PUSH_DELETE, {"taskId": "t"}, "id"),
        (ops.GET, [], "params"),
        (ops.GET, "t", "params"),
    ],
)
def test_bad_parameters_are_refused_with_the_path_of_what_is_wrong(
    op: ops.Op, params: Any, path: str
) -> None:
    assert refused(op, params)[0] == path


@pytest.mark.parametrize(
    "params", [b"{", b'{"id": "\xff"}', b'{"id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"]
)
def test_parameters_that_are_not_json_are_refused(params: bytes) -> None:
    with pytest.raises(InvalidParams):
        dialect.read_request(ops.GET, params)


def test_parameters_may_be_absent_or_null() -> None:
    for params in (b"", b"null", b"{}"):
        assert dialect.read_request(ops.EXTENDED_CARD, params) == ops.GetExtendedCard()
        assert dialect.read_request(ops.LIST, params) == ops.ListTasks()


def test_the_flat_push_config_is_the_request() -> None:
    request = read(ops.PUSH_CREATE, {"taskId": "t", "url": "https://x", "tenant": "acme"})
    assert request == ops.CreatePushConfig(
        config=ops.PushConfig(task_id="t", url="https://x", tenant="acme"), tenant="acme"
    )


# --- results

DONE = TaskStatus(state=TaskState.COMPLETED)
EMPTY, FULL = (
    Task(id="1", status=DONE),
    Task(id="2", status=DONE, artifacts=(Artifact(artifact_id="a", parts=()),)),
)


def listed(page: ops.TaskPage, request: ops.ListTasks) -> list[dict[str, Any]]:
    document = msgspec.json.decode(dialect.write_result(ops.LIST, page, request))
    assert document.keys() == {"tasks", "nextPageToken", "pageSize", "totalSize"}
    tasks: list[dict[str, Any]] = document["tasks"]
    return tasks


def test_artifacts_that_were_asked_for_are_there_even_when_there_are_none() -> None:
    page = ops.TaskPage(tasks=(EMPTY, FULL), next_page_token="", page_size=2, total_size=2)
    assert [len(task["artifacts"]) for task in listed(page, ops.ListTasks(include_artifacts=True))] == [0, 1]


def test_artifacts_that_were_not_asked_for_are_absent() -> None:
    page = ops.TaskPage(tasks=(EMPTY,), next_page_token="", page_size=2, total_size=1)
    assert "artifacts" not in listed(page, ops.ListTasks())[0]


def test_a_sent_message_is_answered_in_a_wrapper_and_a_got_task_is_not() -> None:
    assert msgspec.json.decode(dialect.write_result(ops.SEND, EMPTY)).keys() == {"task"}
    assert msgspec.json.decode(dialect.write_result(ops.GET, EMPTY))["id"] == "1"
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="x"),))
    assert msgspec.json.decode(dialect.write_result(ops.SEND, message)).keys() == {"message"}


def test_deleting_a_push_config_is_answered_with_null_and_an_empty_object_is_read_too() -> None:
    assert dialect.write_result(ops.PUSH_DELETE, None) == b"null"
    assert dialect.read_result(ops.PUSH_DELETE, None) is None
    assert dialect.read_result(ops.PUSH_DELETE, {}) is None


@pytest.mark.parametrize(("word", "role"), [("user", Role.USER), ("agent", Role.AGENT)])
def test_a_role_in_the_words_of_older_versions_is_read_and_written_in_ours(word: str, role: Role) -> None:
    request = dialect.read_request(ops.SEND, msgspec.json.encode({"message": {**HELLO, "role": word}}))
    assert isinstance(request, ops.SendMessage) and request.message.role is role
    assert msgspec.json.decode(dialect.write_request(ops.SEND, request))["message"]["role"] == role.value


def test_an_event_is_encoded_once_for_all_its_readers() -> None:
    response = StreamResponse(StatusUpdate(task_id="t", context_id="c", status=DONE), 4, b"(shared)")
    assert dialect.writer().write(response, last=True) == [b'{"statusUpdate":(shared)}']
    fresh = StreamResponse(EMPTY)
    first = dialect.writer().write(fresh, last=False)
    assert fresh.raw is fresh.raw and fresh.raw in first[0]
    assert dialect.writer().write(fresh, last=True) == first


def test_a_result_is_read_leniently() -> None:
    task = dialect.read_result(
        ops.GET,
        {
            "id": "t",
            "context_id": "c",
            "status": {"state": 3, "timestamp": "2025-10-28T10:30:00Z"},
            "history": None,
        },
    )
    assert task == Task(
        id="t",
        context_id="c",
        status=TaskStatus(state=TaskState.COMPLETED, timestamp="2025-10-28T10:30:00.000Z"),
    )


@pytest.mark.parametrize("result", [None, [], {}, {"task": {}}, {"task": None}, {"tusk": {}}, "x"])
def test_nonsense_from_a_peer_is_an_invalid_response(result: Any) -> None:
    with pytest.raises(InvalidAgentResponse):
        dialect.read_result(ops.SEND, result)
    with pytest.raises(InvalidAgentResponse):
        dialect.read_event(result)


@pytest.mark.parametrize(
    "event",
    [
        {"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_WORKING"}}},
        {"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "a"}, "lastChunk": True}},
        {"task": {"id": "t", "status": {"state": "TASK_STATE_WORKING"}, "artifacts": [{"artifactId": "a"}]}},
    ],
)
def test_members_that_protobuf_omits_when_empty_are_optional(event: dict[str, Any]) -> None:
    read = dialect.read_event(event)
    assert read.context_id == ""


def test_an_empty_page_may_have_no_members_and_ours_have_all() -> None:
    assert dialect.read_result(ops.PUSH_LIST, {}) == ops.PushConfigPage()
    assert dialect.write_result(ops.PUSH_LIST, ops.PushConfigPage()) == b'{"configs":[]}'
    assert dialect.read_result(ops.LIST, {}) == ops.TaskPage()
    assert dialect.write_result(ops.LIST, ops.TaskPage()) == (
        b'{"tasks":[],"nextPageToken":"","pageSize":0,"totalSize":0}'
    )


def test_a_wrapper_in_snake_case_is_found() -> None:
    update = {"task_id": "t", "context_id": "c", "status": {"state": "TASK_STATE_COMPLETED"}}
    assert dialect.read_event({"status_update": update}) == StatusUpdate(
        task_id="t", context_id="c", status=DONE
    )


def test_an_answer_that_is_too_deep_is_an_invalid_response() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidAgentResponse):
        dialect.read_result(ops.SEND, {"task": {"id": "t", "status": deep}})
