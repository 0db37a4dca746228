"""The versions before 1.0: what their peers really send is read, what we send is exact."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.dialects import select
from dragoman.errors import InvalidAgentResponse, InvalidParams
from dragoman.model import ops
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ops import StreamResponse
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus
from tests.requirements import older

KIND_FAMILY = ["0.3", "0.2", "0.2-type", "arbiter"]
ALL = [*KIND_FAMILY, "0.1", "draft"]
every_version = pytest.mark.parametrize("name", ALL)
kind_family = pytest.mark.parametrize("name", KIND_FAMILY)
first_family = pytest.mark.parametrize("name", ["0.1", "draft"])

HI = {"type": "text", "text": "hi"}


def params(name: str, message: Any, **more: Any) -> bytes:
    own = {"id": "t1"} if name in ("0.1", "draft") else {}
    if name not in ("0.1", "draft") and isinstance(message, dict):
        message = {"messageId": "m1", **message}
    return msgspec.json.encode({**own, "message": message, **more})


def send(name: str, message: Any, **more: Any) -> ops.SendMessage:
    request = select.DIALECTS[name].read_request(ops.SEND, params(name, message, **more))
    assert isinstance(request, ops.SendMessage)
    return request


def part(name: str, document: Any) -> Part:
    return send(name, {"role": "user", "parts": [document]}).message.parts[0]


def refused(name: str, message: Any) -> str:
    with pytest.raises(InvalidParams) as caught:
        send(name, message)
    ((path, _),) = caught.value.fields
    return path


def written(name: str, op: ops.Op, result: Any, request: Any = None) -> Any:
    return msgspec.json.decode(select.DIALECTS[name].write_result(op, result, request))


def streamed(name: str, *events: Any, request: Any = None, last: bool = True) -> list[Any]:
    writer = select.DIALECTS[name].writer(request)
    return [
        msgspec.json.decode(document)
        for n, event in enumerate(events)
        for document in writer.write(StreamResponse(event), last=last and n == len(events) - 1)
    ]


# --- parts


@every_version
@pytest.mark.parametrize(
    "document", [{"kind": "text", "text": "hi"}, {"type": "text", "text": "hi"}, {"text": "hi"}]
)
def test_kind_type_or_neither_is_the_same_part(name: str, document: Any) -> None:
    assert part(name, document) == Part(text="hi")


@every_version
@pytest.mark.parametrize("member", ["bytes", "data", "fileWithBytes", "file_with_bytes"])
@pytest.mark.parametrize("spelling", ["+/8=", "-_8"])
def test_file_bytes_are_found_under_all_their_names_in_any_base64(
    name: str, member: str, spelling: str
) -> None:
    document = {"type": "file", "file": {"name": "x.png", "mimeType": "image/png", member: spelling}}
    assert part(name, document) == Part(raw=b"\xfb\xff", filename="x.png", media_type="image/png")


@every_version
@pytest.mark.parametrize("member", ["uri", "fileWithUri"])
def test_a_file_by_address_is_read(name: str, member: str) -> None:
    file = {member: "https://x/y", "mimeType": "image/png", "bytes": None}
    assert part(name, {"kind": "file", "file": file}) == Part(url="https://x/y", media_type="image/png")


@every_version
def test_a_part_that_does_not_say_what_it_is_has_one_content_that_is_there(name: str) -> None:
    assert part(name, {"text": "hi", "file": None, "data": None}) == Part(text="hi")
    assert part(name, {"data": None}) == Part(data=None)


PROTO = {
    "text": ({"kind": "text", "text": "hi"}, Part(text="hi")),
    "data": ({"kind": "data", "data": {"a": 1}}, Part(data={"a": 1})),
    "bytes": ({"kind": "file", "file": {"bytes": "aGk="}}, Part(raw=b"hi")),
    "uri": ({"type": "file", "file": {"uri": "https://x"}}, Part(url="https://x")),
}


@pytest.mark.parametrize(("document", "meant"), PROTO.values(), ids=PROTO)
def test_http_of_0_3_also_takes_the_parts_of_json_rpc(document: Any, meant: Part) -> None:
    assert part("0.3-proto", document) == meant


def test_http_of_0_3_says_nothing_that_its_protobuf_does_not_know() -> None:
    said = Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),), reference_task_ids=("t0",))
    task = Task(id="t1", context_id="c", status=TaskStatus(state=TaskState.WORKING), history=(said,))
    (message,) = written("0.3-proto", ops.GET, task)["history"]
    assert message == {
        "messageId": "m",
        "role": "ROLE_USER",
        "content": [{"text": "hi"}],
        "metadata": {"a2a.referenceTaskIds": ["t0"]},
    }


@pytest.mark.parametrize(
    ("name", "document", "path"),
    [
        ("0.1", {"id": "t", "historyLength": -1}, "historyLength"),
        ("0.1", {"id": "t" * 600}, "id"),
        ("0.1", {"id": "t", "sessionId": "s" * 600}, "sessionId"),
        ("0.3-proto", {"message": {"messageId": "m", "role": "ROLE_USER", "content": []}}, "message.content"),
        ("0.3", {"message": {"messageId": "m", "role": "user", "parts": []}}, "message.parts"),
    ],
    ids=["history", "id", "session", "content", "parts"],
)
def test_an_error_names_the_member_as_the_version_spells_it(name: str, document: Any, path: str) -> None:
    given = {"message": {"role": "user", "parts": [HI]}, **document}
    with pytest.raises(InvalidParams, match=f"^{path} ") as caught:
        select.DIALECTS[name].read_request(ops.SEND, msgspec.json.encode(given))
    assert [field for field, _ in caught.value.fields] == [path]


@pytest.mark.parametrize("authentication", [{}, {"schemes": []}, {"schemes": [], "credentials": ""}, None])
@pytest.mark.parametrize("name", ["0.3", "0.2", "0.3-proto", "0.1"])
def test_a_webhook_without_credentials_can_be_written_in_every_form(name: str, authentication: Any) -> None:
    config = {"url": "https://hook.example", "authentication": authentication}
    document = {"id": "t1", "parent": "tasks/t1", "pushNotificationConfig": config}
    request = select.DIALECTS[name].read_request(ops.PUSH_CREATE, msgspec.json.encode(document))
    assert isinstance(request, ops.CreatePushConfig) and request.config.authentication is None


@older("X12")
def test_a_file_of_http_of_0_3_is_not_in_two_places() -> None:
    file = {"fileWithBytes": "aGk=", "fileWithUri": "https://x"}
    assert refused("0.3-proto", {"role": "ROLE_USER", "content": [{"file": file}]}).endswith("[0].file")
    sent = send("0.3-proto", {"role": "ROLE_USER", "content": [{"file": {**file, "fileWithUri": ""}}]})
    assert sent.message.parts == (Part(raw=b"hi"),)


@every_version
@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"kind": "text"}, ".text"),
        ({"kind": "text", "text": 3}, ".text"),
        ({"kind": "file"}, ".file"),
        ({"kind": "file", "file": {"bytes": "YQ==", "uri": "https://x"}}, ".file"),
        ({"kind": "file", "file": {"bytes": "%%%%"}}, ".file.bytes"),
        ({"kind": "data"}, ".data"),
        ({"kind": "video", "video": 1}, ".kind"),
        ({"text": "hi", "file": {"uri": "https://x"}}, ""),
        ({"text": "hi", "data": {}}, ""),
        ({}, ""),
        ("text", ""),
    ],
)
def test_a_bad_part_is_refused_with_its_path(name: str, document: Any, where: str) -> None:
    assert refused(name, {"role": "user", "parts": [HI, document]}) == f"message.parts[1]{where}"


@first_family
def test_a_file_that_is_only_a_name_goes_in_and_out(name: str) -> None:
    document = {"type": "file", "file": {"name": "report.pdf", "mimeType": "application/pdf"}}
    read = part(name, document)
    assert read.data == {"file": {"name": "report.pdf", "mimeType": "application/pdf"}}
    assert read.metadata == {"a2a.fileReference": True}
    message = Message(message_id="m", role=Role.AGENT, parts=(read,))
    task = Task(id="t", status=TaskStatus(state=TaskState.COMPLETED, message=message))
    assert written(name, ops.GET, task)["status"]["message"]["parts"] == [document]


@kind_family
@pytest.mark.parametrize("value", [None, 7, "text", [1, 2], True])
def test_data_that_is_not_an_object_is_wrapped_as_in_the_official_sdk(name: str, value: Any) -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(data=value, metadata={"a": 1}),))
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING, message=message))
    document = written(name, ops.GET, task)
    (box,) = document["status"]["message"]["parts"]
    assert box["data"] == {"value": value}
    assert box["metadata"] == {"a": 1, "data_part_compat": True}
    assert select.DIALECTS[name].read_result(ops.GET, document) == task


@first_family
def test_0_1_knows_arrays_as_data(name: str) -> None:
    artifact = Artifact(artifact_id="artifact-0", parts=(Part(data=[1, 2]),))
    task = Task(id="t", status=TaskStatus(state=TaskState.COMPLETED), artifacts=(artifact,))
    assert written(name, ops.GET, task)["artifacts"][0]["parts"] == [{"type": "data", "data": [1, 2]}]


def test_arbiter_puts_text_into_bytes_as_it_is() -> None:
    file = {"bytes": "# notes, plain", "name": "notes.md", "mimeType": "text/plain"}
    update = {
        "kind": "artifact-update",
        "taskId": "t",
        "contextId": "c",
        "artifact": {"artifactId": "t-file-1", "parts": [{"kind": "file", "file": file}]},
    }
    event = select.DIALECTS["arbiter"].read_event(update)
    assert isinstance(event, ArtifactUpdate)
    assert event.artifact.parts[0].raw == b"# notes, plain"
    assert streamed("arbiter", event, last=False)[-1]["artifact"]["parts"][0]["file"] == file


# --- messages and tasks


@every_version
@pytest.mark.parametrize("role", ["user", "ROLE_USER", 1])
def test_a_role_is_a_word_a_name_or_a_number(name: str, role: Any) -> None:
    assert send(name, {"role": role, "parts": [HI]}).message.role is Role.USER


@every_version
@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"parts": [HI]}, "message.role"),
        ({"role": "robot", "parts": [HI]}, "message.role"),
        ({"role": "user", "parts": []}, "message.parts"),
        ({"role": "user"}, "message.parts"),
        ({"role": "user", "parts": [HI], "metadata": 3}, "message.metadata"),
        ("hi", "message"),
    ],
)
def test_a_bad_message_is_refused_with_its_path(name: str, message: Any, path: str) -> None:
    assert refused(name, message) == path


@kind_family
def test_a_message_needs_an_id_from_0_2_on(name: str) -> None:
    with pytest.raises(InvalidParams, match="messageId"):
        select.DIALECTS[name].read_request(
            ops.SEND, msgspec.json.encode({"message": {"role": "user", "parts": [HI]}})
        )


@every_version
def test_snake_case_and_nulls_are_put_right(name: str) -> None:
    own = {"history_length": 4} if name in ("0.1", "draft") else {"configuration": {"history_length": 4}}
    request = send(
        name, {"role": "user", "parts": [HI], "metadata": None, "message_id": "m7", "messageId": None}, **own
    )
    assert request.configuration.history_length == 4
    assert request.message.message_id == "m7"
    assert request.message.metadata == {}


@every_version
@pytest.mark.parametrize("state", ["canceled", "cancelled", "TASK_STATE_CANCELLED", "TASK_STATE_CANCELED", 5])
def test_a_state_is_read_in_any_spelling(name: str, state: Any) -> None:
    task = select.DIALECTS[name].read_result(ops.GET, {"id": "t", "status": {"state": state}})
    assert task.state is TaskState.CANCELED


@older("X20")
@every_version
def test_unknown_comes_in_and_goes_out_as_unknown(name: str) -> None:
    task = select.DIALECTS[name].read_result(ops.GET, {"id": "t", "status": {"state": "unknown"}})
    assert task.state is TaskState.UNSPECIFIED
    assert written(name, ops.GET, task)["status"]["state"] == "unknown"


@every_version
def test_a_moment_without_a_zone_is_utc(name: str) -> None:
    status = {"state": "working", "timestamp": "2025-04-02T16:59:25.331844"}
    task = select.DIALECTS[name].read_result(ops.GET, {"id": "t", "status": status})
    assert task.status.timestamp == "2025-04-02T16:59:25.331Z"


@every_version
def test_an_answer_without_ids_roles_or_kinds_is_read_all_the_same(name: str) -> None:
    document = {
        "id": 1,
        "status": {"state": "input-required", "message": {"parts": [HI]}},
        "artifacts": [{"parts": [HI]}, {"parts": [HI]}],
        "history": None,
    }
    task = select.DIALECTS[name].read_result(ops.SEND, document)
    assert task.id == "1"
    assert task.status.message.role is Role.AGENT
    assert task.status.message.message_id
    assert [artifact.artifact_id for artifact in task.artifacts] == ["artifact-0", "artifact-1"]
    again = select.DIALECTS[name].read_result(ops.SEND, document)
    assert again == task  # the ids we make up are the same every time


@every_version
@pytest.mark.parametrize(
    "result", [None, [], "x", {}, {"id": "t"}, {"id": "t", "status": {"state": "bored"}}]
)
def test_nonsense_from_a_peer_is_an_invalid_response(name: str, result: Any) -> None:
    with pytest.raises(InvalidAgentResponse):
        select.DIALECTS[name].read_result(ops.GET, result)
    with pytest.raises(InvalidAgentResponse):
        select.DIALECTS[name].read_event(result)


@every_version
@pytest.mark.parametrize("bad", [b"{", b"[]", b'"x"', b"[" * 100_000])
def test_parameters_that_are_no_object_are_refused(name: str, bad: bytes) -> None:
    with pytest.raises(InvalidParams):
        select.DIALECTS[name].read_request(ops.SEND, bad)


# --- requests


@kind_family
@pytest.mark.parametrize(
    ("configuration", "returns"), [({}, False), ({"blocking": True}, False), ({"blocking": False}, True)]
)
def test_only_blocking_false_means_return_immediately(name: str, configuration: Any, returns: bool) -> None:
    request = send(name, {"role": "user", "parts": [HI]}, configuration=configuration)
    assert request.configuration.return_immediately is returns


def test_a_message_id_beside_the_message_is_found() -> None:
    document = {"message": {"role": "user", "parts": [HI]}, "messageId": "m9"}
    request = select.DIALECTS["0.2"].read_request(ops.SEND, msgspec.json.encode(document))
    assert isinstance(request, ops.SendMessage)
    assert request.message.message_id == "m9"


def test_until_0_2_5_a_configuration_says_what_it_accepts() -> None:
    message = Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),))
    for name in ("0.2", "0.2-type"):
        document = msgspec.json.decode(
            select.DIALECTS[name].write_request(ops.SEND, ops.SendMessage(message=message))
        )
        assert document["configuration"] == {"acceptedOutputModes": [], "blocking": True}


@kind_family
def test_of_several_authentication_schemes_the_first_is_used_and_all_are_shown(name: str) -> None:
    push = {"url": "https://x", "authentication": {"schemes": ["Bearer", "Basic"], "credentials": "c"}}
    request = send(name, {"role": "user", "parts": [HI]}, configuration={"pushNotificationConfig": push})
    config = request.configuration.task_push_notification_config
    assert config is not None
    assert config.authentication == ops.AuthenticationInfo(
        scheme="Bearer", credentials="c", others=("Basic",)
    )
    assert written(name, ops.PUSH_GET, config)["pushNotificationConfig"] == push
    newest = [
        msgspec.json.decode(select.DIALECTS["1.0"].write_result(ops.PUSH_GET, config)),
        msgspec.json.decode(
            select.DIALECTS["1.0"].write_result(ops.PUSH_LIST, ops.PushConfigPage(configs=(config,)))
        )["configs"][0],
    ]
    assert [each["authentication"] for each in newest] == [{"scheme": "Bearer", "credentials": "c"}] * 2


@first_family
def test_the_client_of_0_1_chooses_the_task_and_the_session(name: str) -> None:
    request = send(name, {"role": "user", "parts": [HI]}, sessionId="s1", acceptedOutputModes=["text/plain"])
    assert (request.message.task_id, request.message.context_id) == ("t1", "s1")
    assert request.message.message_id
    assert request.configuration.accepted_output_modes == ("text/plain",)
    assert select.DIALECTS[name].names_tasks


@first_family
def test_0_1_gets_no_history_unless_it_asks(name: str) -> None:
    assert send(name, {"role": "user", "parts": [HI]}).configuration.history_length == 0
    read = select.DIALECTS[name].read_request
    assert read(ops.GET, b'{"id":"t"}') == ops.GetTask(id="t", history_length=0)
    assert read(ops.GET, b'{"id":"t","historyLength":"10"}') == ops.GetTask(id="t", history_length=10)


@first_family
def test_0_1_has_one_push_config_per_task(name: str) -> None:
    dialect = select.DIALECTS[name]
    request = dialect.read_request(
        ops.PUSH_CREATE, b'{"id":"t","pushNotificationConfig":{"url":"https://x","id":"mine"}}'
    )
    assert request == ops.CreatePushConfig(config=ops.PushConfig(id="default", task_id="t", url="https://x"))
    assert isinstance(request, ops.CreatePushConfig)
    assert written(name, ops.PUSH_CREATE, request.config) == {
        "id": "t",
        "pushNotificationConfig": {"url": "https://x"},
    }


# --- streams

WORKING = StatusUpdate(task_id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING))
COMPLETED = StatusUpdate(task_id="t", context_id="c", status=TaskStatus(state=TaskState.COMPLETED))
REPLY = Message(message_id="r", role=Role.AGENT, parts=(Part(text="hello"),), context_id="c")
ASKED = ops.SendMessage(
    message=Message(message_id="q", role=Role.USER, parts=(Part(text="hi"),), task_id="mine", context_id="s")
)


def chunk(text: str, artifact: str = "a", *, append: bool = False, last: bool = False) -> ArtifactUpdate:
    return ArtifactUpdate(
        task_id="t",
        context_id="c",
        artifact=Artifact(artifact_id=artifact, parts=(Part(text=text),)),
        append=append,
        last_chunk=last,
    )


def snapshot(state: TaskState, *artifacts: str) -> Task:
    made = tuple(Artifact(artifact_id=each, parts=(Part(text=each),)) for each in artifacts)
    return Task(id="t", context_id="c", status=TaskStatus(state=state), artifacts=made)


@every_version
def test_only_the_last_status_is_final(name: str) -> None:
    documents = streamed(name, snapshot(TaskState.WORKING), chunk("x", last=True), COMPLETED)
    finals = [document["final"] for document in documents if "final" in document]
    assert finals[-1] is True
    assert not any(finals[:-1])
    assert documents[-1]["status"]["state"] == "completed"


@pytest.mark.parametrize("name", ["0.3", "0.2", "0.2-type"])
def test_a_stream_that_ends_with_a_task_still_says_that_it_ends(name: str) -> None:
    task, status = streamed(name, snapshot(TaskState.COMPLETED, "a"))
    tag = "type" if name == "0.2-type" else "kind"
    assert task[tag] == "task"
    assert (status[tag], status["final"]) == ("status-update", True)


def test_a_stream_is_encoded_once_for_readers_at_the_same_place() -> None:
    dialect, response = select.DIALECTS["0.3"], StreamResponse(COMPLETED)
    (first,) = dialect.writer().write(response, last=True)
    assert dialect.writer().write(response, last=True)[0] is first
    assert dialect.writer().write(response, last=False) != [first]


def test_the_transitional_form_says_type_everywhere_and_final_on_messages() -> None:
    (document,) = streamed("0.2-type", REPLY)
    assert document["type"] == "message"
    assert document["final"] is True
    assert document["parts"] == [{"type": "text", "text": "hello"}]


@first_family
def test_0_1_numbers_artifacts_by_their_place_and_marks_chunks_on_them(name: str) -> None:
    documents = streamed(
        name,
        snapshot(TaskState.WORKING, "a"),
        chunk("x", "b"),
        chunk("y", "a", append=True, last=True),
        COMPLETED,
    )
    assert [d["status"]["state"] for d in documents if "status" in d] == ["working", "completed"]
    artifacts = [d["artifact"] for d in documents if "artifact" in d]
    assert [artifact["index"] for artifact in artifacts] == [0, 1, 0]
    assert [(artifact["append"], artifact["lastChunk"]) for artifact in artifacts] == [
        (False, False),
        (False, False),
        (True, True),
    ]
    assert not any(d.keys() & {"kind", "type", "artifacts", "contextId", "taskId"} for d in documents)


@first_family
def test_a_finished_task_is_its_artifacts_and_then_the_final_status_in_0_1(name: str) -> None:
    *artifacts, status = streamed(name, snapshot(TaskState.COMPLETED, "a", "b"))
    assert [document["artifact"]["index"] for document in artifacts] == [0, 1]
    assert status["final"] is True


@first_family
def test_a_bare_message_is_a_completed_task_in_0_1(name: str) -> None:
    document = written(name, ops.SEND, REPLY, ASKED)
    assert (document["id"], document["sessionId"]) == ("mine", "c")
    assert document["status"]["state"] == "completed"
    assert document["status"]["message"] == {"role": "agent", "parts": [{"type": "text", "text": "hello"}]}
    (event,) = streamed(name, REPLY, request=ASKED)
    assert (event["id"], event["final"]) == ("mine", True)


@older("X9")
@first_family
@pytest.mark.parametrize(
    ("state", "word"), [(TaskState.REJECTED, "failed"), (TaskState.AUTH_REQUIRED, "input-required")]
)
def test_states_that_0_1_lacks_are_the_nearest_one_with_a_note(
    name: str, state: TaskState, word: str
) -> None:
    task = snapshot(state)
    document = written(name, ops.GET, task)
    assert document["status"]["state"] == word
    assert document["metadata"] == {"a2a.state": state.word}
    assert select.DIALECTS[name].read_result(ops.GET, document).state is state
    (event,) = streamed(name, task)
    assert (event["status"]["state"], event["metadata"]) == (word, {"a2a.state": state.word})


@first_family
def test_a_status_event_of_0_1_needs_no_final(name: str) -> None:
    event = select.DIALECTS[name].read_event({"id": "t", "status": {"state": "working"}})
    assert event == StatusUpdate(task_id="t", context_id="", status=TaskStatus(state=TaskState.WORKING))


# --- Arbiter


def test_arbiter_begins_with_working_and_shows_no_task() -> None:
    documents = streamed("arbiter", snapshot(TaskState.SUBMITTED), WORKING, chunk("x"), COMPLETED)
    assert [d["kind"] for d in documents] == [
        "status-update",
        "artifact-update",
        "artifact-update",
        "status-update",
    ]
    first, _, closing, last = documents
    assert first["status"]["state"] == "working"
    assert (closing["append"], closing["lastChunk"]) == (True, True)
    assert closing["artifact"]["parts"] == [{"kind": "text", "text": ""}]
    assert last["final"] is True


def test_for_arbiter_the_text_of_artifacts_is_the_status_message() -> None:
    stream = streamed(
        "arbiter", snapshot(TaskState.WORKING), chunk("hello "), chunk("you", append=True), COMPLETED
    )
    assert stream[-1]["status"]["message"]["parts"] == [{"kind": "text", "text": "hello you"}]
    document = written("arbiter", ops.SEND, snapshot(TaskState.COMPLETED, "hello"))
    assert document["status"]["message"]["messageId"] == "t-r"
    assert document["status"]["message"]["parts"] == [{"kind": "text", "text": "hello"}]


@older("X34")
def test_arbiter_replays_artifacts_to_a_late_reader_and_one_status_of_a_finished_task() -> None:
    documents = streamed("arbiter", snapshot(TaskState.WORKING, "a"), last=False)
    assert [d["kind"] for d in documents] == ["status-update", "artifact-update"]
    (only,) = streamed("arbiter", snapshot(TaskState.FAILED, "a"))
    assert (only["status"]["state"], only["final"]) == ("failed", True)


def test_a_bare_message_is_a_task_to_arbiter() -> None:
    document = written("arbiter", ops.SEND, REPLY, ASKED)
    assert (document["kind"], document["status"]["state"]) == ("task", "completed")
    assert [d["status"]["state"] for d in streamed("arbiter", REPLY, request=ASKED)][-1] == "completed"


def test_a_broken_stream_ends_with_a_failed_status_for_arbiter() -> None:
    from dragoman.dialects.arbiter import ArbiterWriter
    from dragoman.errors import Unavailable

    writer = select.DIALECTS["arbiter"].writer()
    assert isinstance(writer, ArbiterWriter)
    writer.write(StreamResponse(WORKING), last=False)
    (document,) = map(msgspec.json.decode, writer.fail(Unavailable("try later")))
    assert (document["taskId"], document["status"]["state"], document["final"]) == ("t", "failed", True)
    assert document["status"]["message"]["parts"] == [{"kind": "text", "text": "try later"}]


@kind_family
def test_the_kind_of_an_object_is_its_first_member(name: str) -> None:
    tag = "type" if name == "0.2-type" else "kind"
    said = Message(message_id="m", role=Role.AGENT, parts=(Part(text="hi"), Part(raw=b"x"), Part(data={})))
    status = TaskStatus(state=TaskState.COMPLETED, message=said)
    made = Artifact(artifact_id="a", parts=said.parts)
    events = (
        Task(id="t", context_id="c", status=status, artifacts=(made,), history=(said,)),
        ArtifactUpdate(task_id="t", context_id="c", artifact=made),
        StatusUpdate(task_id="t", context_id="c", status=status),
    )
    documents = [*streamed(name, *events), written(name, ops.SEND, said)]
    tagged = [each for each in _objects(documents) if tag in each]
    assert len(tagged) > 10 and all(next(iter(each)) == tag for each in tagged)


def _objects(value: Any) -> list[Any]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] * isinstance(value, dict) + [found for each in inside for found in _objects(each)]


@first_family
@pytest.mark.parametrize(
    "op", [ops.SEND, ops.STREAM, ops.GET, ops.CANCEL, ops.SUBSCRIBE, ops.PUSH_CREATE, ops.PUSH_GET]
)
@pytest.mark.parametrize("params", [b"null", b"{}", b""])
def test_a_call_without_params_is_refused_with_what_is_missing(name: str, op: ops.Op, params: bytes) -> None:
    with pytest.raises(InvalidParams, match="is missing"):
        select.DIALECTS[name].read_request(op, params)
