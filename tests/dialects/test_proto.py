"""A2A in protobuf: what is written is read back, and what peers write is read."""

from __future__ import annotations

import json
import math
import tracemalloc
from base64 import b64encode
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman import errors as e
from dragoman.dialects.proto import messages, v0_3, v1_0
from dragoman.dialects.proto.codec import Codec
from dragoman.dialects.proto.documents import document_writer
from dragoman.dialects.proto.messages import COMPILED, V0_3, V1_0, document_type
from dragoman.dialects.proto.status import CODES, read_status, status_message, write_status
from dragoman.dialects.proto.values import MANY_VALUES, has_many_values, write_moment
from dragoman.dialects.v0_3_proto import file_bytes
from dragoman.errors import A2AError, InvalidAgentResponse, InvalidParams
from dragoman.model import ops
from dragoman.model.card import AgentCard, Capabilities
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ops import GET, SEND, STREAM, StreamResponse
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus
from tests.dialects import strategies
from tests.requirements import older, requirement

CODECS = [v1_0.CODEC, v0_3.CODEC]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.version)
some = settings(max_examples=60)


def expressible(value: Any, codec: Codec) -> Any:
    """The value without what 0.3's protobuf has no field for."""
    if codec is v1_0.CODEC:
        return value
    match value:
        case ops.SendMessage():
            stated = replace(value.configuration, history_length=value.configuration.history_length or None)
            return replace(value, configuration=stated)
        case ops.GetTask():
            return replace(value, history_length=value.history_length or None)
        case ops.CancelTask():
            return replace(value, metadata={})
    return value


@some
@every_codec
@given(data=st.data())
def test_a_request_is_read_as_it_was_written(codec: Codec, data: st.DataObject) -> None:
    op, request = data.draw(strategies.requests(codec.version))
    if isinstance(request, ops.ListPushConfigs):
        request = replace(request, page_size=request.page_size or None)
    request = expressible(request, codec)
    assert codec.read_request(op, codec.write_request(op, request)) == request


@some
@every_codec
@given(data=st.data())
def test_a_result_is_read_as_it_was_written(codec: Codec, data: st.DataObject) -> None:
    op, result = data.draw(strategies.results(codec.version))
    result = expressible(result, codec)
    assert codec.read_result(op, codec.write_result(op, result)) == result


@some
@every_codec
@given(data=st.data())
def test_an_event_is_read_as_it_was_written(codec: Codec, data: st.DataObject) -> None:
    event = expressible(data.draw(strategies.events(codec.version)), codec)
    bodies = codec.write_event(StreamResponse(event), last=False)
    assert [codec.read_event(body) for body in bodies] == [event]


@some
@given(card=strategies.cards("1.0"))
def test_a_card_is_read_as_it_was_written(card: AgentCard) -> None:
    codec = v1_0.CODEC
    assert codec.read_result(ops.EXTENDED_CARD, codec.write_result(ops.EXTENDED_CARD, card)) == card


@some
@given(card=strategies.cards("0.3"))
def test_a_card_of_0_3_is_read_as_it_was_written(card: AgentCard) -> None:
    """What the card leaves open is false: 0.3's protobuf knows no third answer."""
    codec, stated = v0_3.CODEC, card.capabilities
    card = replace(
        card,
        capabilities=Capabilities(
            streaming=bool(stated.streaming),
            push_notifications=bool(stated.push_notifications),
            extensions=stated.extensions,
            extended_agent_card=bool(stated.extended_agent_card),
        ),
    )
    assert codec.read_result(ops.EXTENDED_CARD, codec.write_result(ops.EXTENDED_CARD, card)) == card


@every_codec
def test_every_method_of_the_service_has_an_operation_and_the_right_types(codec: Codec) -> None:
    service = messages.POOL.FindServiceByName(codec.service)
    assert {method.name for method in service.methods} == set(codec.methods.values())
    for op, name in codec.methods.items():
        method = service.FindMethodByName(name)
        assert method.input_type == codec.requests[op].DESCRIPTOR
        assert method.output_type == (codec.event if op.streams else codec.results[op]).DESCRIPTOR
        assert method.server_streaming is op.streams and not method.client_streaming


@requirement(60)
def test_the_compiled_messages_are_those_of_the_proto_files(tmp_path: Path) -> None:
    sources = sorted(COMPILED.parent.glob("*.proto"))
    compiled = tmp_path / "messages.binpb"
    well_known = files("grpc_tools") / "_proto"
    where = [f"-I{COMPILED.parents[3]}", f"-I{well_known}", f"--descriptor_set_out={compiled}"]
    assert protoc.main(["protoc", *where, "--include_imports", *map(str, sources)]) == 0
    assert _files(compiled) == _files(COMPILED), "run `make proto`"


def test_our_messages_leave_the_names_free_for_others() -> None:
    """The official SDK defines the same ones, and may be in the same process."""
    for name in ("lf.a2a.v1.Task", "a2a.v1.Task"):
        assert messages.POOL.FindMessageTypeByName(name)
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName(name)


def _files(compiled: Path) -> dict[str, Any]:
    files = FileDescriptorSet.FromString(compiled.read_bytes()).file
    return {file.name: file for file in files if not file.package.startswith("google.protobuf")}


@every_codec
def test_readers_of_one_event_share_its_bytes(codec: Codec) -> None:
    update = StatusUpdate(task_id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING))
    response = StreamResponse(update)
    assert codec.write_event(response, last=False)[0] is codec.write_event(response, last=False)[0]


# --- numbers, moments and other values


def body(data: Any, **more: Any) -> bytes:
    message = Message(message_id="m", role=Role.USER, parts=(Part(data=data),), **more)
    return v1_0.CODEC.write_request(SEND, ops.SendMessage(message=message))


def data_of(body: bytes) -> Any:
    request = v1_0.CODEC.read_request(SEND, body)
    assert isinstance(request, ops.SendMessage)
    return request.message.data


def test_whole_numbers_stay_whole_as_far_as_a_double_goes() -> None:
    numbers = [0, -7, 2**53, -(2**53), 0.5]
    assert msgspec.json.encode(data_of(body(numbers))) == msgspec.json.encode(numbers)
    assert type(data_of(body([10**300]))[0]) is float


@pytest.mark.parametrize("value", [None, {}, [], [[]], {"a": {}}, "", False])
def test_empty_values_are_not_absent(value: Any) -> None:
    assert data_of(body(value)) == value and type(data_of(body(value))) is type(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks_are_refused(value: float) -> None:
    with pytest.raises(InvalidParams, match="infinity"):
        v1_0.CODEC.read_request(SEND, body([value]))


def nested(levels: int) -> Any:
    value: Any = 1
    for n in range(levels):
        value = {"deep": value} if n % 2 else [value]
    return value


@pytest.mark.parametrize("value", [10**400, nested(32)])
def test_a_request_that_protobuf_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParams, match="protobuf cannot carry"):
        body(value)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.version)
@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), [{"a": 10**309}], nested(32), nested(60)],
    ids=["n", "-n", "in", "32", "60"],
)
def test_an_answer_has_it_as_text(codec: Any, value: Any) -> None:
    """Else one task that somebody made over JSON would keep all others of a list from those who read protobuf."""
    part = Part(data=value, metadata={"value": value})
    message = Message(message_id="m", role=Role.USER, parts=(part,), metadata={"value": value})
    task = Task(
        id="t",
        status=TaskStatus(state=TaskState.WORKING),
        history=(message,),
        metadata={"fine": 1, "value": value},
    )
    heard = codec.read_result(GET, codec.write_result(GET, task))
    assert heard.metadata["fine"] == 1 and restored(heard.metadata["value"]) == value
    assert restored(heard.history[0].parts[0].data) == value
    (body, *_) = codec.write_event(StreamResponse(task), last=True)
    assert codec.read_event(body) == heard


def restored(value: Any) -> Any:
    if isinstance(value, str):
        return json.loads(value)
    if isinstance(value, dict):
        return {name: restored(each) for name, each in value.items()}
    return [restored(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("value", ["\ud800", object()], ids=["half a character", "an object"])
def test_values_that_are_not_json_are_refused(value: Any) -> None:
    with pytest.raises(InvalidParams, match="protobuf cannot carry"):
        body(value)
    task = Task(id="t", status=TaskStatus(state=TaskState.WORKING), metadata={"value": value})
    with pytest.raises(InvalidAgentResponse, match="protobuf cannot carry"):
        v1_0.CODEC.write_result(GET, task)


def test_values_may_nest_up_to_the_limit_of_protobuf_readers() -> None:
    part = Part(data=nested(30), metadata=nested(30))
    update = ArtifactUpdate(task_id="t", context_id="c", artifact=Artifact(artifact_id="a", parts=(part,)))
    for codec in CODECS:
        (body,) = codec.write_event(StreamResponse(update), last=False)
        assert codec.read_event(body) == update


@pytest.mark.parametrize("moment", ["2026-11-15T14:40:54.029Z", "1970-01-01T00:00:00.000Z", ""])
def test_moments_keep_their_milliseconds(moment: str) -> None:
    task = Task(id="t", status=TaskStatus(state=TaskState.WORKING, timestamp=moment))
    assert v1_0.CODEC.read_result(GET, v1_0.CODEC.write_result(GET, task)) == task


def test_a_moment_no_calendar_has_is_refused() -> None:
    message = V1_0.ListTasksRequest()
    message.status_timestamp_after.seconds = 2**62
    with pytest.raises(InvalidParams, match="statusTimestampAfter is not a moment"):
        v1_0.CODEC.read_request(ops.LIST, message.SerializeToString())


@every_codec
@pytest.mark.parametrize("junk", [b"\xff\xff\xff", b"\x0a\x7fshort"])
def test_bytes_that_are_no_message_are_refused(codec: Codec, junk: bytes) -> None:
    for op in codec.methods:
        with pytest.raises(InvalidParams):
            codec.read_request(op, junk)
    with pytest.raises(InvalidAgentResponse):
        codec.read_event(junk)


@every_codec
def test_an_empty_request_says_what_is_missing(codec: Codec) -> None:
    for op in set(codec.methods) - {ops.LIST, ops.EXTENDED_CARD}:
        with pytest.raises(InvalidParams) as refused:
            codec.read_request(op, b"")
        assert refused.value.fields


@every_codec
@given(junk=st.binary(max_size=60))
def test_no_bytes_upset_the_reader(codec: Codec, junk: bytes) -> None:
    for op in codec.methods:
        try:
            codec.read_request(op, junk)
        except InvalidParams:
            pass
    try:
        codec.read_event(junk)
    except InvalidAgentResponse:
        pass


def test_an_unknown_state_is_refused_and_not_taken_for_another() -> None:
    message = V1_0.StreamResponse()
    message.status_update.status.state = 99
    with pytest.raises(InvalidAgentResponse, match="unknown value 99"):
        v1_0.CODEC.read_event(message.SerializeToString())


# --- 0.3


def send_0_3(**more: Any) -> Any:
    message = V0_3.SendMessageRequest(**more)
    message.request.message_id, message.request.role = "m", 1
    message.request.content.add(text="hi")
    return message


def test_0_3_waits_if_nothing_is_configured_and_not_if_blocking_is_left_out() -> None:
    for message, at_once in (
        (send_0_3(), False),
        (send_0_3(configuration=V0_3.SendMessageConfiguration()), True),
        (send_0_3(configuration=V0_3.SendMessageConfiguration(blocking=True)), False),
    ):
        request = v0_3.CODEC.read_request(SEND, message.SerializeToString())
        assert isinstance(request, ops.SendMessage)
        assert request.configuration.return_immediately is at_once
        assert request.configuration.history_length is None


@pytest.mark.parametrize("name", ["tasks/t/1", "t/1"])
def test_0_3_names_resources(name: str) -> None:
    request = v0_3.CODEC.read_request(GET, V0_3.GetTaskRequest(name=name).SerializeToString())
    assert request == ops.GetTask(id="t/1")
    body = v0_3.CODEC.write_request(ops.PUSH_DELETE, ops.DeletePushConfig(task_id="t/1", id="c"))
    named = V0_3.DeleteTaskPushNotificationConfigRequest.FromString(body)
    assert named.name == "tasks/t/1/pushNotificationConfigs/c"


@pytest.mark.parametrize("place", ["config_id", "inner", "name"])
def test_0_3_takes_the_id_of_a_push_configuration_from_wherever_it_is(place: str) -> None:
    message = V0_3.CreateTaskPushNotificationConfigRequest(parent="tasks/t")
    message.config.push_notification_config.url = "https://hook.example"
    if place == "config_id":
        message.config_id = "c"
    elif place == "inner":
        message.config.push_notification_config.id = "c"
    else:
        message.parent, message.config.name = "", "tasks/t/pushNotificationConfigs/c"
    request = v0_3.CODEC.read_request(ops.PUSH_CREATE, message.SerializeToString())
    assert isinstance(request, ops.CreatePushConfig)
    assert (request.config.task_id, request.config.id) == ("t", "c")


def test_0_3_marks_the_last_status_and_follows_a_last_task_with_one() -> None:
    done = TaskStatus(state=TaskState.COMPLETED)
    update = StreamResponse(StatusUpdate(task_id="t", context_id="c", status=done))
    for last in (True, False):
        (body,) = v0_3.CODEC.write_event(update, last=last)
        assert V0_3.StreamResponse.FromString(body).status_update.final is last
    task, final = v0_3.CODEC.write_event(StreamResponse(Task(id="t", status=done)), last=True)
    assert V0_3.StreamResponse.FromString(task).task.id == "t"
    assert V0_3.StreamResponse.FromString(final).status_update.final


@pytest.mark.parametrize(
    ("content", "media_type", "meant"),
    [
        (b64encode(b"\x89PNG"), "image/png", b"\x89PNG"),  # Python and Go
        (b"\x89PNG", "image/png", b"\x89PNG"),  # JavaScript
        (b64encode(b"plain words"), "text/plain", b"plain words"),
        (b"abcd", "text/plain", b"abcd"),
        (b"plain words", "text/plain", b"plain words"),
        (b"", "", b""),
    ],
)
def test_file_bytes_of_0_3_are_decoded_if_they_are_base64(
    content: bytes, media_type: str, meant: bytes
) -> None:
    assert file_bytes(content, media_type) == meant


def test_0_3_files_are_base64_on_the_wire() -> None:
    message = Message(message_id="m", role=Role.USER, parts=(Part(raw=b"\x89PNG", media_type="image/png"),))
    body = v0_3.CODEC.write_request(STREAM, ops.SendMessage(message=message))
    file = V0_3.SendMessageRequest.FromString(body).request.content[0].file
    assert file.file_with_bytes == b64encode(b"\x89PNG") and file.mime_type == "image/png"


# --- errors


def kinds(kind: type[A2AError] = A2AError) -> list[type[A2AError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in kinds(child))]


@older("X29")
@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind.__module__ == e.__name__])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
def test_an_error_comes_back_as_what_it_was(kind: type[A2AError], version: str) -> None:
    error = kind(
        message="no such luck", metadata={"a": "b"}, fields=(("message.parts", "is empty"),), retry_after=1.5
    )
    again = read_status(kind.grpc, status_message(error, version), write_status(error, version))
    assert again.reason == error.reason
    assert (again.message, again.metadata, again.fields) == (error.message, error.metadata, error.fields)
    assert again.retry_after == 1.5


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("UNIMPLEMENTED", "TaskNotCancelableError: it is done", e.TaskNotCancelable),
        ("UNIMPLEMENTED", "Method not found!", e.MethodNotFound),
        ("NOT_FOUND", "what?", e.TaskNotFound),
        ("UNAVAILABLE", "Socket closed", e.Unreachable),
        ("UNKNOWN", "oh: no", A2AError),
    ],
)
def test_an_error_without_details_is_read_by_its_name_and_then_by_its_code(
    code: str, message: str, kind: type[A2AError]
) -> None:
    assert type(read_status(code, message)) is kind
    assert type(read_status(code, message, b"\xffjunk")) is kind


def test_0_3_puts_the_name_of_an_error_before_the_sentence() -> None:
    assert status_message(e.TaskNotFound("t1"), "0.3") == "TaskNotFoundError: task 't1' was not found"
    assert status_message(e.TaskClosed("it is over"), "0.3") == "UnsupportedOperationError: it is over"
    assert status_message(A2AError("oh no"), "0.3") == "InternalError: oh no"
    assert status_message(e.RateLimited("slowly"), "0.3") == "slowly"


def test_an_error_fits_into_a_trailer() -> None:
    error = InvalidParams(
        "x" * 9999, metadata={"a": "b" * 9999}, fields=[("y" * 9999, "z" * 9999) for _ in range(99)]
    )
    assert len(write_status(error)) < 6000
    assert CODES["UNAUTHENTICATED"] == 16


@every_codec
@pytest.mark.parametrize("append", [True, False])
def test_output_that_replaces_an_artifact_is_marked_over_grpc(codec: Codec, append: bool) -> None:
    artifact = Artifact(artifact_id="a", parts=(Part(text="x"),))
    update = ArtifactUpdate(task_id="t", context_id="c", artifact=artifact, append=append)
    [body] = codec.write_event(StreamResponse(update), last=False)
    read = codec.read_event(body)
    assert isinstance(read, ArtifactUpdate) and read.append is append


def test_long_texts_in_place_of_timestamps_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for n in range(50):
            assert write_moment(f"{n}" + "x" * 100_000) is None
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


_MANY = {"rows": [{"n": [1]}] * MANY_VALUES}


def _events(part: Part, metadata: dict[str, Any]) -> list[Any]:
    """Every place of an event that has parts and their metadata."""
    said = Message(message_id="m", role=Role.AGENT, parts=(part,), metadata=metadata)
    made = Artifact(artifact_id="a", parts=(part,), metadata=metadata)
    silent, status = TaskStatus(state=TaskState.WORKING), TaskStatus(state=TaskState.WORKING, message=said)
    return [
        said,
        ArtifactUpdate(task_id="t", context_id="c", artifact=made),
        StatusUpdate(task_id="t", context_id="c", status=status),
        Task(id="t", status=status),
        Task(id="t", status=silent, artifacts=(made,)),
        Task(id="t", status=silent, history=(said,)),
    ]


def test_many_values_are_found_wherever_an_event_has_them() -> None:
    few = _events(Part(text="x"), {"few": [1, 2]})
    assert not any(map(has_many_values, few))
    assert all(has_many_values(replace(event, metadata=_MANY)) for event in few)
    assert all(map(has_many_values, _events(Part(text="x"), _MANY)))
    assert all(map(has_many_values, _events(Part(data=_MANY), {})))
    assert all(map(has_many_values, _events(Part(text="x", metadata=_MANY), {})))
    many_parts = (Part(text="x"),) * (MANY_VALUES + 1)
    assert has_many_values(Message(message_id="m", role=Role.AGENT, parts=many_parts))


@every_codec
def test_writing_changes_no_document(codec: Codec) -> None:
    document = codec.event_to(_events(Part(data={"n": 1}), {"k": ["v"]})[3], last=True)
    before = msgspec.json.encode(document)
    write = document_writer(document_type(codec.event).DESCRIPTOR)
    assert write(document) is not document
    assert msgspec.json.encode(document) == before
