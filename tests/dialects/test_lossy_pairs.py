"""What one version of A2A can say and another cannot: one test for each row of `docs/lossy-pairs.md`.

The table in the document is read. A row without a test fails, and so does a test without a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from dragoman import Agent, Turn, connect
from dragoman.client.routes import AgentRoute, RoutedPeer
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.dialects import cards, errors, select
from dragoman.dialects.proto import v0_3 as grpc_0_3
from dragoman.dialects.proto import v1_0 as grpc_1_0
from dragoman.errors import (
    A2AError,
    ExtensionRequired,
    Forbidden,
    InvalidParams,
    MethodNotFound,
    PushNotSupported,
    RateLimited,
    Unauthenticated,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model import ops
from dragoman.model.card import (
    AgentCard,
    ApiKeyScheme,
    Capabilities,
    Extension,
    HttpAuthScheme,
    Interface,
    OAuth2Scheme,
    OAuthFlow,
    OAuthFlows,
    SecurityRequirement,
    SecurityScheme,
    Signature,
    Skill,
    StringList,
)
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ops import Call, StreamResponse
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

DOCUMENT = Path(__file__).parents[2] / "docs" / "lossy-pairs.md"
FIRST = ("draft", "0.1")
JSON_OLDER = ("0.3", "0.3-proto", "0.2", "0.2-type", "arbiter")
OLDER = (*FIRST, *JSON_OLDER)

T = TypeVar("T", bound=Callable[..., Any])

_tested: dict[str, str] = {}


def row(what: str) -> Callable[[T], T]:
    """The test is for the row of the table that begins so."""

    def mark(test: T) -> T:
        assert what not in _tested, f"two tests for {what!r}"
        _tested[what] = test.__name__
        return test

    return mark


class Row(NamedTuple):
    what: str
    versions: str
    instead: str
    end: str


def rows() -> list[Row]:
    """The rows of the table in the document."""
    text = DOCUMENT.read_text("utf-8")
    table = text.partition("<!-- lossy pairs: begin -->")[2].partition("<!-- lossy pairs: end -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [Row(*(cell.strip() for cell in line.strip("|").split(" | "))) for line in lines[2:]]


def test_every_row_of_the_table_has_a_test_and_every_test_a_row() -> None:
    assert sorted(_tested) == sorted(row.what for row in rows())


def test_every_row_says_how_it_ends() -> None:
    assert {row.end.rstrip(" |") for row in rows()} == {"kept", "nearest", "lost", "refused"}
    assert [row.what for row in rows() if not row.versions or not row.instead] == []


# --- what a value becomes in a version, and what the other side reads


class Wire(NamedTuple):
    """A version in one binding. `carry` writes an event in it and reads that again; `send` does it with a request."""

    name: str

    def carry(self, event: Event) -> Event:
        """The event that this becomes; for Arbiter, a stream begins with another one."""
        if codec := _CODECS.get(self.name):
            (body,) = codec.write_event(StreamResponse(event), last=False)
            return codec.read_event(body)
        read = select.DIALECTS[self.name].read_event(self.document(event))
        return read

    def document(self, event: Event) -> Any:
        """The JSON that this becomes."""
        *_, body = select.DIALECTS[self.name].writer().write(StreamResponse(event), last=False)
        return msgspec.json.decode(body)

    def send(self, op: ops.Op, request: ops.Request) -> Any:
        codec = _CODECS.get(self.name) or select.DIALECTS[self.name]
        return codec.read_request(op, codec.write_request(op, request))


_CODECS = {"grpc-0.3": grpc_0_3.CODEC, "grpc-1.0": grpc_1_0.CODEC}


def over(*names: str) -> Any:
    return pytest.mark.parametrize("wire", [Wire(name) for name in names], ids=lambda wire: wire.name)


every_older_wire = over(*OLDER, "grpc-0.3")
wires_of_protobuf_0_3 = over("0.3-proto", "grpc-0.3")
first_wires = over(*FIRST)


def artifact_of(*parts: Part, **more: Any) -> ArtifactUpdate:
    artifact = Artifact(artifact_id="artifact-0", parts=parts, **more)
    return ArtifactUpdate(task_id="t", context_id="c", artifact=artifact)


def carried(wire: Wire, part: Part) -> Part:
    event = wire.carry(artifact_of(part))
    assert isinstance(event, ArtifactUpdate)
    (read,) = event.artifact.parts
    return read


def written_part(wire: Wire, part: Part) -> Any:
    document = wire.document(artifact_of(part))
    return document.get("artifactUpdate", document)["artifact"]["parts"][0]


def status(state: TaskState, message: Message | None = None) -> StatusUpdate:
    return StatusUpdate(task_id="t", context_id="c", status=TaskStatus(state=state, message=message))


def send_request(message: Message, **configuration: Any) -> ops.SendMessage:
    return ops.SendMessage(message=message, configuration=ops.Configuration(**configuration))


# --- content


@row("data that is not an object")
@every_older_wire
@pytest.mark.parametrize("value", [[1, "two"], "text", 3.5, True, None])
def test_data_that_is_not_an_object_is_wrapped_and_unwrapped(wire: Wire, value: Any) -> None:
    part = Part(data=value, metadata={"own": 1})
    assert carried(wire, part) == part
    if wire.name == "grpc-0.3":
        return
    document = written_part(wire, part)
    data = document["data"]["data"] if wire.name == "0.3-proto" else document["data"]
    if wire.name in FIRST and isinstance(value, list):
        assert data == value
    else:
        assert data == {"value": value} and document["metadata"] == {"own": 1, "data_part_compat": True}


@row("media type and file name of texts and data")
@every_older_wire
@pytest.mark.parametrize("content", [{"text": "# hi"}, {"data": {"a": 1}}, {"data": [1]}])
def test_media_types_and_names_of_texts_and_data_are_in_the_metadata(
    wire: Wire, content: dict[str, Any]
) -> None:
    part = Part(media_type="text/markdown", filename="hi.md", metadata={"own": 1}, **content)
    assert carried(wire, part) == part
    if wire.name != "grpc-0.3":
        metadata = written_part(wire, part)["metadata"]
        assert metadata["a2a.mediaType"] == "text/markdown" and metadata["a2a.filename"] == "hi.md"
    plain = Part(metadata={"own": 1}, **content)
    assert carried(wire, plain) == plain


@row("file without bytes and without address")
@every_older_wire
def test_a_file_without_content_is_data_where_there_is_no_such_file(wire: Wire) -> None:
    file = {"name": "a.txt", "mimeType": "text/plain"}
    part = Part(data={"file": file}, metadata={"a2a.fileReference": True})
    assert carried(wire, part) == part
    if wire.name in FIRST:
        assert written_part(wire, part) == {"type": "file", "file": file}
    read = select.DIALECTS["0.3"].read_result(
        ops.SEND,
        {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "file", "file": file}]},
    )
    assert read.parts == (part,)


@row("file with bytes and an address")
@pytest.mark.parametrize("name", ["1.0", *OLDER])
def test_a_file_with_bytes_and_an_address_is_refused(name: str) -> None:
    one = {"file": {"bytes": "aGk=", "uri": "http://x/"}}
    if name == "1.0":
        one = {"raw": "aGk=", "url": "http://x/"}  # type: ignore[dict-item]
    elif name == "0.3-proto":
        one = {"file": {"fileWithBytes": "aGk=", "fileWithUri": "http://x/"}}
    role = "ROLE_USER" if name == "1.0" else "user"
    message = {"messageId": "m", "role": role, "parts": [one]}
    with pytest.raises(InvalidParams):
        select.DIALECTS[name].read_request(ops.SEND, msgspec.json.encode({"id": "t", "message": message}))


@row("file of `text/plain` whose bytes are not text")
def test_bytes_that_are_not_text_stay_what_they_are_for_arbiter() -> None:
    wire = Wire("arbiter")
    binary = Part(raw=b"\xff\x00", media_type="text/plain", filename="a.txt", metadata={"own": 1})
    text = Part(raw="grün".encode(), media_type="text/plain", filename="a.txt")
    assert carried(wire, binary) == binary and carried(wire, text) == text
    file = {"name": "a.txt", "mimeType": "application/octet-stream", "bytes": "/wA="}
    assert written_part(wire, binary)["file"] == file
    assert written_part(wire, text)["file"]["bytes"] == "grün"


@row("several texts of one artifact in a task")
def test_texts_that_follow_each_other_are_one_text_for_arbiter() -> None:
    parts = (
        Part(text="a"),
        Part(text="b"),
        Part(data={"n": 1}),
        Part(text="c"),
        Part(text="d", filename="d"),
    )
    status = TaskStatus(state=TaskState.WORKING)
    task = Task(id="t", context_id="c", status=status, artifacts=(Artifact(artifact_id="a", parts=parts),))
    dialect = select.DIALECTS["arbiter"]
    read = dialect.read_result(ops.GET, msgspec.json.decode(dialect.write_result(ops.GET, task)))
    assert read.artifacts[0].parts == (Part(text="ab"), *parts[2:])


@row("whole numbers beyond 2^53 in data and metadata")
@over("grpc-1.0", "grpc-0.3")
def test_a_whole_number_beyond_two_to_the_53_is_the_nearest_double_over_grpc(wire: Wire) -> None:
    exact, beyond = 2**53, 2**53 + 1
    assert carried(wire, Part(data={"n": exact})).data == {"n": exact}
    assert carried(wire, Part(data={"n": beyond})).data == {"n": exact}
    assert carried(Wire("1.0"), Part(data={"n": beyond})).data == {"n": beyond}


@row("data and metadata nested deeper than 30 levels")
@over("grpc-1.0", "grpc-0.3")
def test_data_that_is_nested_too_deep_for_grpc_is_text_in_an_answer_and_refused_in_a_request(
    wire: Wire,
) -> None:
    deep: Any = "bottom"
    for _ in range(40):
        deep = {"a": deep}
    inner = carried(wire, Part(data=deep)).data
    while isinstance(inner, dict):
        inner = inner["a"]
    assert isinstance(inner, str) and "bottom" in inner and inner != "bottom"
    with pytest.raises(InvalidParams):
        wire.send(ops.SEND, send_request(Message(parts=[Part(data=deep)])))


# --- messages and artifacts


@row("id of a message")
@first_wires
def test_a_message_without_an_id_gets_one_that_its_content_gives(wire: Wire) -> None:
    def read(text: str, message_id: str) -> str:
        said = Message(text, message_id=message_id, role=Role.AGENT)
        event = wire.carry(status(TaskState.WORKING, said))
        assert isinstance(event, StatusUpdate) and event.status.message is not None
        return event.status.message.message_id

    assert read("hi", "m1") == read("hi", "m2") != read("other", "m1")
    request = send_request(Message("hi", message_id="m1", task_id="t", context_id="c"))
    ids = {wire.send(ops.SEND, request).message.message_id for _ in range(2)}
    assert len(ids) == 2 and "m1" not in ids


@row("task and context of a message in a history or a status")
@first_wires
def test_a_message_does_not_say_its_task_and_its_context(wire: Wire) -> None:
    said = Message("hi", role=Role.AGENT, task_id="t", context_id="c")
    event = wire.carry(status(TaskState.WORKING, said))
    assert isinstance(event, StatusUpdate) and event.status.message is not None
    assert (event.status.message.task_id, event.status.message.context_id) == ("", "")
    assert event.task_id == "t"
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING), history=(said,))
    dialect = select.DIALECTS[wire.name]
    again = dialect.read_result(ops.GET, msgspec.json.decode(dialect.write_result(ops.GET, task)))
    assert (again.id, again.context_id) == ("t", "c")


@row("tasks that a message refers to")
@every_older_wire
def test_the_tasks_that_a_message_refers_to_are_read_in_every_version(wire: Wire) -> None:
    said = Message("hi", task_id="t", context_id="c", reference_task_ids=("t0", "t1"), metadata={"own": 1})
    request = wire.send(ops.SEND, send_request(said))
    assert request.message.reference_task_ids == ("t0", "t1")
    assert request.message.metadata == {"own": 1}
    if wire.name in (*FIRST, "0.3-proto"):
        document = wire.document(status(TaskState.WORKING, replace(said, role=Role.AGENT)))
        message = document.get("statusUpdate", document)["status"]["message"]
        assert message["metadata"] == {"own": 1, "a2a.referenceTaskIds": ["t0", "t1"]}


@row("extensions of a message or an artifact")
@every_older_wire
def test_the_extensions_of_a_message_and_an_artifact_are_read_in_every_version(wire: Wire) -> None:
    said = Message("hi", task_id="t", context_id="c", extensions=("x:1",), metadata={"own": 1})
    request = wire.send(ops.SEND, send_request(said))
    assert request.message.extensions == ("x:1",) and request.message.metadata == {"own": 1}
    event = wire.carry(artifact_of(Part(text="hi"), extensions=("x:1",), metadata={"own": 1}))
    assert isinstance(event, ArtifactUpdate)
    assert event.artifact.extensions == ("x:1",) and event.artifact.metadata == {"own": 1}
    if wire.name in FIRST:
        document = wire.document(artifact_of(Part(text="hi"), extensions=("x:1",)))
        assert document["artifact"]["metadata"] == {"a2a.extensions": ["x:1"]}


@row("id of an artifact")
@first_wires
def test_an_artifact_is_found_by_its_place(wire: Wire) -> None:
    dialect = select.DIALECTS[wire.name]
    writer = dialect.writer()
    read = []
    for name in ("report", "picture", "report"):
        update = ArtifactUpdate(
            task_id="t", context_id="c", artifact=Artifact(artifact_id=name, parts=(Part(text="x"),))
        )
        (body,) = writer.write(StreamResponse(update), last=False)
        event = dialect.read_event(msgspec.json.decode(body))
        assert isinstance(event, ArtifactUpdate)
        read.append(event.artifact.artifact_id)
    assert read == ["artifact-0", "artifact-1", "artifact-0"]


# --- tasks and streams


def check_state(wire: Wire, state: TaskState, nearest: str) -> None:
    event = replace(status(state), metadata={"own": 1})
    document = wire.document(event)
    assert document["status"]["state"] == nearest
    assert document["metadata"] == {"own": 1, "a2a.state": state.word}
    read = wire.carry(event)
    assert isinstance(read, StatusUpdate) and read.status.state is state and read.metadata == {"own": 1}
    task = Task(id="t", context_id="c", status=TaskStatus(state=state))
    dialect = select.DIALECTS[wire.name]
    written = msgspec.json.decode(dialect.write_result(ops.GET, task))
    assert written["status"]["state"] == nearest
    assert dialect.read_result(ops.GET, written).state is state


@row("the state `rejected`")
@first_wires
def test_a_rejected_task_is_failed_with_the_true_state_in_the_metadata(wire: Wire) -> None:
    check_state(wire, TaskState.REJECTED, "failed")


@row("the state `auth-required`")
@first_wires
def test_a_task_that_needs_authentication_needs_input_with_the_true_state_in_the_metadata(wire: Wire) -> None:
    check_state(wire, TaskState.AUTH_REQUIRED, "input-required")


@row("the state `unknown`")
@pytest.mark.parametrize("name", ["0.3", "0.2", "0.1", "draft"])
def test_an_unknown_state_is_the_unspecified_state_of_1_0(name: str) -> None:
    document = {"id": "t", "contextId": "c", "sessionId": "c", "kind": "task", "status": {"state": "unknown"}}
    task = select.DIALECTS[name].read_result(ops.GET, document)
    newest = msgspec.json.decode(select.DIALECTS["1.0"].write_result(ops.GET, task))
    assert newest["status"]["state"] == "TASK_STATE_UNSPECIFIED"
    again = msgspec.json.decode(select.DIALECTS[name].write_result(ops.GET, task))
    assert again["status"]["state"] == "unknown"


@row("answer without a task")
@over(*FIRST, "arbiter")
def test_an_answer_without_a_task_is_a_completed_task(wire: Wire) -> None:
    asked = send_request(Message("hi", task_id="t", context_id="c"))
    answer = Message("hello", role=Role.AGENT)
    dialect = select.DIALECTS[wire.name]
    written = msgspec.json.decode(dialect.write_result(ops.SEND, answer, asked))
    task = dialect.read_result(ops.SEND, written)
    assert isinstance(task, Task) and task.state is TaskState.COMPLETED
    assert (task.id, task.context_id) == ("t", "c")
    assert task.status.message is not None and task.status.message.text == "hello"


@row("task in a stream")
@over(*FIRST, "arbiter")
def test_a_task_in_a_stream_is_its_status_and_its_artifacts(wire: Wire) -> None:
    task = Task(
        id="t",
        context_id="c",
        status=TaskStatus(state=TaskState.WORKING),
        artifacts=(Artifact(artifact_id="a", parts=(Part(text="hi"),)),),
    )
    dialect = select.DIALECTS[wire.name]
    bodies = dialect.writer().write(StreamResponse(task), last=False)
    events = [dialect.read_event(msgspec.json.decode(body)) for body in bodies]
    assert [type(event) for event in events] == [StatusUpdate, ArtifactUpdate]
    assert isinstance(events[1], ArtifactUpdate) and events[1].artifact.parts == (Part(text="hi"),)


agent = Agent("Echo", description="Says it again")


@agent.skill(id="echo", tags=["echo"])
async def echo(text: str) -> str:
    """Says it again."""
    return text


@row("context of an event")
@pytest.mark.parametrize("version", FIRST)
async def test_a_client_knows_the_context_of_events_that_do_not_name_it(version: str) -> None:
    async with connect(agent, version=version) as client:
        assert client.version == version
        seen = set()
        async for batch in client.service.stream(Call(), send_request(Message("hi"))):
            seen |= {response.event.context_id for response in batch}
        (context,) = seen
        assert context
        seen = set()
        async for batch in client.service.stream(Call(), send_request(Message("hi", context_id="mine"))):
            seen |= {response.event.context_id for response in batch}
        assert seen == {"mine"}


# --- requests


class Answering:
    """A service over one binding: it answers with what it has, and notes what it was asked."""

    is_dragoman = False

    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.asked: list[ops.Request] = []

    async def call(self, call: Call, request: ops.Request) -> Any:
        self.asked.append(request)
        return self.result

    async def stream(self, call: Call, request: Any) -> AsyncIterator[ops.Batch]:
        self.asked.append(request)
        yield []


def peer_in(name: str, service: Answering, *, tenant: str = "") -> RoutedPeer:
    """A peer of a version; the service answers for it."""
    binding = "HTTP+JSON" if name == "0.3-proto" else "JSONRPC"
    route = AgentRoute("http://agent.example/", binding, select.DIALECTS[name], tenant)
    peer = RoutedPeer([route], AsgiTransport(agent.app(store="memory:")), silence=1)
    peer._peer = service
    return peer


@row("tenant")
@pytest.mark.parametrize("name", OLDER)
async def test_a_tenant_that_a_version_cannot_name_is_refused(name: str) -> None:
    asked = ops.GetTask(id="t", tenant="acme")
    older = Answering()
    with pytest.raises(UnsupportedOperation, match="has no tenants"):
        await peer_in(name, older).call(Call(), asked)
    assert older.asked == []
    await peer_in(name, older, tenant="acme").call(Call(), asked)
    newest = Answering()
    await peer_in("1.0", newest).call(Call(), asked)
    assert newest.asked == [asked]


@row("answer before the task stops")
@pytest.mark.parametrize("version", [*FIRST, "arbiter"])
async def test_a_client_does_not_wait_for_an_agent_that_cannot_be_asked_not_to(version: str) -> None:
    gate = asyncio.Event()
    slow = Agent("Slow", description="Waits for a gate")

    @slow.skill
    async def wait(turn: Turn) -> str:
        """Waits."""
        await turn.status("waiting")
        await gate.wait()
        return "done"

    async with connect(slow, version=version) as client:
        begun = await client.send("hi", wait=False)
        assert begun.state in (TaskState.SUBMITTED, TaskState.WORKING)
        gate.set()
        assert (await client.wait(begun.id)).text == "done"
    request = send_request(Message("hi", task_id="t", context_id="c"), return_immediately=True)
    written = msgspec.json.decode(select.DIALECTS[version].write_request(ops.SEND, request))
    assert select.DIALECTS[version].always_waits and (version == "arbiter" or "configuration" not in written)


@row("no history")
@pytest.mark.parametrize("name", ["0.3-proto", "arbiter", "0.1", "1.0"])
@pytest.mark.parametrize("length", [0, 1])
async def test_a_client_gets_no_more_history_than_it_asked_for(name: str, length: int) -> None:
    history = tuple(Message(text) for text in ("one", "two", "three"))
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.COMPLETED), history=history)
    peer = peer_in(name, Answering(task))
    for request in (
        ops.GetTask(id="t", history_length=length),
        send_request(Message("hi"), history_length=length),
    ):
        got = await peer.call(Call(), request)
        assert got.history == history[3 - length :]
    assert (await peer.call(Call(), ops.GetTask(id="t"))).history == history


@row("history without a number")
@first_wires
def test_a_request_of_the_first_versions_without_a_number_asks_for_no_history(wire: Wire) -> None:
    assert wire.send(ops.GET, ops.GetTask(id="t")).history_length == 0
    request = send_request(Message("hi", task_id="t", context_id="c"))
    assert wire.send(ops.SEND, request).configuration.history_length == 0


@row("metadata of a cancel")
@wires_of_protobuf_0_3
def test_a_cancel_has_no_metadata_in_the_protobuf_of_0_3(wire: Wire) -> None:
    asked = ops.CancelTask(id="t", metadata={"why": "late"})
    assert wire.send(ops.CANCEL, asked) == ops.CancelTask(id="t")
    assert Wire("0.3").send(ops.CANCEL, asked) == asked


@row("metadata of a request for a task or a subscription")
@pytest.mark.parametrize("name", ["0.3", "0.2", "arbiter", *FIRST])
def test_metadata_of_a_request_for_a_task_is_not_read(name: str) -> None:
    params = msgspec.json.encode({"id": "t", "historyLength": 1, "metadata": {"a": 1}})
    dialect = select.DIALECTS[name]
    assert dialect.read_request(ops.GET, params) == ops.GetTask(id="t", history_length=1)
    assert dialect.read_request(ops.SUBSCRIBE, params) == ops.SubscribeToTask(id="t")


@row("list of tasks, with its filters")
@pytest.mark.parametrize("version", ["0.3", "0.2", "0.1", "draft"])
async def test_tasks_cannot_be_listed_before_1_0(version: str) -> None:
    async with connect(agent, version=version) as client:
        with pytest.raises(UnsupportedOperation, match="has no ListTasks"):
            [task async for task in client.list(state="working")]
    for name in OLDER:
        dialect = select.DIALECTS[name]
        assert ops.LIST.name not in {dialect.method(op) for op in ops.OPS.values()}


# --- webhooks


def config(**more: Any) -> ops.PushConfig:
    return ops.PushConfig(url="https://hook.example/", task_id="t", **more)


@row("second webhook of a task")
@first_wires
def test_a_task_has_one_webhook_in_the_first_versions(wire: Wire) -> None:
    ids = {
        wire.send(ops.PUSH_CREATE, ops.CreatePushConfig(config=config(id=id))).config.id for id in ("a", "b")
    }
    assert ids == {"default"}
    dialect = select.DIALECTS[wire.name]
    written = msgspec.json.decode(dialect.write_result(ops.PUSH_CREATE, config(id="a")))
    assert dialect.read_result(ops.PUSH_CREATE, written).id == "default"


@row("list and removal of webhooks")
@pytest.mark.parametrize("version", FIRST)
async def test_webhooks_cannot_be_listed_in_the_first_versions_and_are_removed_with_null(
    version: str,
) -> None:
    async with connect(agent, version=version) as client:
        with pytest.raises(UnsupportedOperation, match="has no ListTaskPushNotificationConfigs"):
            await client.list_push("t")
        with pytest.raises(UnsupportedOperation, match="has no DeleteTaskPushNotificationConfig"):
            await client.delete_push("t", "default")
    removed = select.DIALECTS[version].read_request(
        ops.PUSH_CREATE, b'{"id":"t","pushNotificationConfig":null}'
    )
    assert removed == ops.DeletePushConfig(task_id="t", id="default")


@row("webhooks")
async def test_arbiter_has_no_webhooks() -> None:
    assert errors.code(PushNotSupported("no"), "arbiter") == -32004
    async with connect(agent, version="arbiter") as client:
        with pytest.raises(UnsupportedOperation):
            await client.create_push("t", "https://hook.example/")
    dialect = select.DIALECTS["arbiter"]
    assert [op.name for op in ops.OPS.values() if "Push" in op.name and dialect.method(op)] == []


@row("several authentication schemes of a webhook")
@pytest.mark.parametrize("name", ["0.3", "0.2", "0.1"])
def test_1_0_shows_the_first_authentication_scheme_and_older_versions_all(name: str) -> None:
    login = ops.AuthenticationInfo(scheme="Bearer", credentials="s", others=("Basic",))
    stored = config(id="default", authentication=login)
    newest, older = select.DIALECTS["1.0"], select.DIALECTS[name]
    shown = {"scheme": "Bearer", "credentials": "s"}
    assert msgspec.json.decode(newest.write_result(ops.PUSH_GET, stored))["authentication"] == shown
    asked = send_request(Message("hi"), task_push_notification_config=stored)
    written = msgspec.json.decode(newest.write_request(ops.SEND, asked))
    assert written["configuration"]["taskPushNotificationConfig"]["authentication"] == shown
    again = older.read_result(ops.PUSH_GET, msgspec.json.decode(older.write_result(ops.PUSH_GET, stored)))
    assert (again.authentication.scheme, again.authentication.others) == ("Bearer", ("Basic",))


@row("credentials of a webhook, shown again")
@first_wires
def test_the_first_versions_do_not_show_the_credentials_of_a_webhook(wire: Wire) -> None:
    stored = config(authentication=ops.AuthenticationInfo(scheme="Bearer", credentials="s3cret"))
    assert (
        wire.send(ops.PUSH_CREATE, ops.CreatePushConfig(config=stored)).config.authentication
        == stored.authentication
    )
    assert b"s3cret" not in select.DIALECTS[wire.name].write_result(ops.PUSH_GET, stored)


# --- the extended card, and errors


@row("extended card")
@pytest.mark.parametrize("version", [*FIRST, "arbiter"])
async def test_the_first_versions_and_arbiter_have_no_extended_card(version: str) -> None:
    async with connect(agent, version=version) as client:
        with pytest.raises(UnsupportedOperation, match="has no GetExtendedAgentCard"):
            await client.extended_card()


@row("extended card as an operation")
async def test_a_service_of_0_2_gets_the_extended_card_from_its_page() -> None:
    plain = {
        "name": "Old",
        "url": "http://agent.example/a2a",
        "version": "1",
        "skills": [],
        "capabilities": {},
    }

    async def app(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        pages = {"/.well-known/agent.json": "Old", "/agent/authenticatedExtendedCard": "More"}
        name = pages.get(scope["path"])
        body = msgspec.json.encode({**plain, "name": name, "protocolVersion": "0.2.6"})
        await send({"type": "http.response.start", "status": 200 if name else 404, "headers": []})
        await send({"type": "http.response.body", "body": body if name else b""})

    transport = AsgiTransport(app)
    async with connect("http://agent.example/", transport=transport) as client:
        card = await client.service.call(Call(), ops.GetExtendedCard())
        assert isinstance(card, AgentCard) and card.name == "More"


@row("errors that a version has no code for")
@pytest.mark.parametrize("name", OLDER)
@pytest.mark.parametrize(
    "kind", [ExtensionRequired, VersionNotSupported, Unauthenticated, Forbidden, RateLimited]
)
def test_an_error_without_a_code_of_its_own_says_its_reason(name: str, kind: type[A2AError]) -> None:
    written = errors.write_error(kind("no"), name)
    assert written["code"] < -31999 and written["message"] == "no"
    if name == "arbiter":
        assert "data" not in written
        return
    assert type(errors.read_error(written, name)) is kind
    known = errors.write_error(MethodNotFound("no"), name)
    assert known == {"code": -32601, "message": "no"}, "an error with a code of its own needs no more"


# --- cards

SECURED = (SecurityRequirement(schemes={"key": StringList(list=())}),)
CARD = AgentCard(
    name="Agent",
    description="Does things",
    version="1",
    icon_url="https://icon.example/i.png",
    supported_interfaces=(
        Interface(url="https://a.example/grpc", protocol_binding="GRPC", protocol_version="1.0"),
        Interface(
            url="https://a.example/rpc", protocol_binding="JSONRPC", protocol_version="1.0", tenant="acme"
        ),
        Interface(url="https://a.example/rest", protocol_binding="HTTP+JSON", protocol_version="1.0"),
    ),
    capabilities=Capabilities(streaming=True, extensions=(Extension(uri="x:1"),), extended_agent_card=True),
    security_schemes={
        "key": SecurityScheme(api_key_security_scheme=ApiKeyScheme(location="header", name="X-Own")),
        "token": SecurityScheme(http_auth_security_scheme=HttpAuthScheme(scheme="bearer")),
        "login": SecurityScheme(
            oauth2_security_scheme=OAuth2Scheme(
                flows=OAuthFlows(
                    authorization_code=OAuthFlow(
                        authorization_url="https://l.example/a",
                        token_url="https://l.example/t",
                        pkce_required=True,
                    )
                )
            )
        ),
        "tv": SecurityScheme(
            oauth2_security_scheme=OAuth2Scheme(
                flows=OAuthFlows(
                    device_code=OAuthFlow(
                        device_authorization_url="https://l.example/d", token_url="https://l.example/t"
                    )
                )
            )
        ),
    },
    security_requirements=SECURED,
    skills=(Skill(id="s", name="S", description="Does it", tags=("t",), security_requirements=SECURED),),
    signatures=(Signature(protected="p", signature="s"),),
)


def older_cards(*names: str) -> list[dict[str, Any]]:
    return [cards.write_card(CARD, name) for name in names]


@row("signatures of a card")
def test_cards_before_0_3_and_cards_for_all_versions_have_no_signatures() -> None:
    assert [c for c in older_cards(*FIRST, "0.2", "arbiter") if "signatures" in c] == []
    assert "signatures" not in cards.superset_card(CARD)
    assert [len(c["signatures"]) for c in older_cards("1.0", "0.3")] == [1, 1]


@row("icon, extensions and extended card in a card")
def test_the_first_cards_have_no_icon_no_extensions_and_no_extended_card() -> None:
    for card in older_cards(*FIRST):
        assert "iconUrl" not in card and card["capabilities"] == {"streaming": True}
        assert "supportsAuthenticatedExtendedCard" not in card
    (arbiter,) = older_cards("arbiter")
    assert arbiter["iconUrl"] == CARD.icon_url and "extensions" not in arbiter["capabilities"]
    for card in older_cards("0.2", "0.3"):
        assert card["capabilities"]["extensions"][0]["uri"] == "x:1"
        assert card["iconUrl"] == CARD.icon_url and card["supportsAuthenticatedExtendedCard"] is True


@row("security of a skill in a card")
def test_skills_say_nothing_of_security_before_0_3() -> None:
    assert [c for c in older_cards(*FIRST, "0.2", "arbiter") if "security" in c["skills"][0]] == []
    assert older_cards("0.3")[0]["skills"][0]["security"] == [{"key": []}]


@row("security schemes in a card")
@pytest.mark.parametrize("name", FIRST)
def test_security_schemes_are_words_in_the_first_cards(name: str) -> None:
    (card,) = older_cards(name)
    assert card["authentication"]["schemes"] == ["ApiKey", "Bearer", "OAuth2"]
    read, _ = cards.read_card(card)
    assert set(read.security_schemes) == {"apikey", "bearer", "oauth2"}


@row("device code flow and `pkceRequired` in a card")
@pytest.mark.parametrize("name", ["0.2", "0.3"])
def test_older_cards_have_neither_device_codes_nor_pkce(name: str) -> None:
    schemes = older_cards(name)[0]["securitySchemes"]
    assert schemes["tv"]["flows"] == {}
    assert "pkceRequired" not in schemes["login"]["flows"]["authorizationCode"]
    newest = older_cards("1.0")[0]["securitySchemes"]
    assert "deviceCode" in newest["tv"]["oauth2SecurityScheme"]["flows"]


@row("several OAuth flows of one scheme in a card")
def test_several_flows_of_one_scheme_become_one_scheme_each() -> None:
    flow = {"tokenUrl": "https://l.example/t", "scopes": {}}
    card, _ = cards.read_card(
        {
            "name": "Old",
            "protocolVersion": "0.3.0",
            "url": "https://a.example/",
            "securitySchemes": {
                "login": {"type": "oauth2", "flows": {"clientCredentials": flow, "password": flow}}
            },
            "security": [{"login": ["read"]}],
        }
    )
    assert list(card.security_schemes) == ["login", "login#2"]
    assert [list(each.schemes) for each in card.security_requirements] == [["login"], ["login#2"]]


@row("several interfaces in a card")
@pytest.mark.parametrize("name", [*FIRST, "arbiter"])
def test_a_card_with_one_address_has_the_first_endpoint_of_json_rpc(name: str) -> None:
    (card,) = older_cards(name)
    assert card["url"] == "https://a.example/rpc" and "additionalInterfaces" not in card


@row("`stateTransitionHistory` in a card")
def test_1_0_does_not_say_whether_an_agent_stores_state_transitions() -> None:
    stated = {"name": "Old", "url": "https://a.example/", "capabilities": {"stateTransitionHistory": True}}
    read, _ = cards.read_card(stated)
    assert "stateTransitionHistory" not in cards.write_card(read, "1.0")["capabilities"]


def test_nothing_is_lost_in_1_0() -> None:
    """All that rows above lose, in the version that has all of it."""
    wire = Wire("1.0")
    for part in (
        Part(data=[1]),
        Part(text="hi", media_type="text/markdown", filename="hi.md"),
        Part(raw=b"\xff", media_type="text/plain"),
        Part(data={"n": 2**53 + 1}),
    ):
        assert carried(wire, part) == part and (part.data is UNSET or part.text is None)
    said = Message("hi", task_id="t", context_id="c", reference_task_ids=("t0",), extensions=("x:1",))
    request = replace(send_request(said, history_length=0, return_immediately=True), tenant="acme")
    assert wire.send(ops.SEND, request) == request
    for state in (TaskState.REJECTED, TaskState.AUTH_REQUIRED):
        assert wire.carry(status(state, said)) == status(state, said)
