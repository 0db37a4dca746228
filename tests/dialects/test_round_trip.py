"""What a dialect writes, it reads back as the same thing: for everything the dialect can express."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.dialects import cards, select
from dragoman.model.content import Artifact, Message, Part
from dragoman.model.fold import Fold
from dragoman.model.ops import SEND, PushConfig, StreamResponse
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus
from tests.dialects import strategies
from tests.requirements import requirement

NAMES = list(select.DIALECTS)
every_dialect = pytest.mark.parametrize("name", NAMES)
some = settings(max_examples=30)


def nameless(value: Any) -> Any:
    """Without message ids: 0.1 has none, and one is made up when it is read."""
    match value:
        case Message():
            return replace(value, message_id="")
        case Task():
            status = replace(value.status, message=value.status.message and nameless(value.status.message))
            return replace(value, status=status, history=tuple(map(nameless, value.history)))
        case StatusUpdate() if value.status.message is not None:
            return replace(value, status=replace(value.status, message=nameless(value.status.message)))
        case msgspec.Struct() if hasattr(value, "message"):
            return replace(value, message=nameless(value.message))
    return value


def compared(name: str, value: Any) -> Any:
    return nameless(value) if name in ("0.1", "draft") else value


def without_hidden(name: str, result: Any) -> Any:
    """The first versions do not show the credentials of a push config again."""
    if name in ("0.1", "draft") and isinstance(result, PushConfig) and result.authentication:
        return replace(result, authentication=replace(result.authentication, credentials=""))
    return result


@requirement("58a")
@every_dialect
@some
@given(data=st.data())
def test_a_request_survives(name: str, data: st.DataObject) -> None:
    dialect = select.DIALECTS[name]
    op, request = data.draw(strategies.requests(name))
    again = dialect.read_request(op, dialect.write_request(op, request))
    assert compared(name, again) == compared(name, request)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "0.3-proto"])  # never over JSON-RPC
@some
@given(data=st.data())
def test_a_request_is_recognized_as_what_it_is(name: str, data: st.DataObject) -> None:
    dialect = select.DIALECTS[name]
    op, request = data.draw(strategies.requests(name))
    params = dialect.write_request(op, request)
    for mount in (name, ""):
        chosen = select.choose_for_rpc(dialect.version, dialect.method(op), params, mount=mount)
        assert chosen.op is op
        if mount:
            assert chosen.dialect is dialect
    if op is SEND and dialect.version:
        assert chosen.dialect is dialect


@every_dialect
@some
@given(data=st.data())
def test_a_result_survives(name: str, data: st.DataObject) -> None:
    dialect = select.DIALECTS[name]
    op, result = data.draw(strategies.results(name))
    again = dialect.read_result(op, msgspec.json.decode(dialect.write_result(op, result)))
    assert compared(name, again) == compared(name, without_hidden(name, result))


@every_dialect
@some
@given(data=st.data())
def test_an_update_survives_a_stream(name: str, data: st.DataObject) -> None:
    dialect = select.DIALECTS[name]
    update = data.draw(strategies.updates(name))
    last = data.draw(st.booleans())
    documents = dialect.writer().write(StreamResponse(update), last=last)
    events: list[Any] = [dialect.read_event(msgspec.json.decode(each)) for each in documents]
    if name == "arbiter":  # it may say `working` first, and leave out an update that says nothing more
        events = [event for event in events if type(event) is type(update)][-1:]
        if isinstance(update, StatusUpdate) and not update.status.state.terminal and not last:
            return
    assert [compared(name, event) for event in events] == [compared(name, update)]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("0.1", "draft", "arbiter")])
@some
@given(data=st.data())
def test_a_task_or_a_message_survives_a_stream(name: str, data: st.DataObject) -> None:
    dialect = select.DIALECTS[name]
    event = data.draw(strategies.events(name))
    (document,) = dialect.writer().write(StreamResponse(event), last=False)
    assert dialect.read_event(msgspec.json.decode(document)) == event


@pytest.mark.parametrize("name", ["0.1", "draft"])
@some
@given(data=st.data())
def test_a_task_becomes_its_status_and_its_artifacts_in_a_stream_of_0_1(
    name: str, data: st.DataObject
) -> None:
    dialect = select.DIALECTS[name]
    task = data.draw(strategies.tasks(name))
    documents = dialect.writer().write(StreamResponse(task), last=False)
    first, *rest = [dialect.read_event(msgspec.json.decode(each)) for each in documents]
    assert isinstance(first, StatusUpdate)
    assert nameless(first).status == nameless(task).status
    assert tuple(update.artifact for update in rest if isinstance(update, ArtifactUpdate)) == task.artifacts


@every_dialect
@some
@given(data=st.data())
def test_a_card_survives(name: str, data: st.DataObject) -> None:
    card = data.draw(strategies.cards(name))
    document = msgspec.json.decode(msgspec.json.encode(cards.write_card(card, name)))
    found_at = "https://example.com/.well-known/agent.json"
    again, _ = cards.read_card(document, found_at=found_at)
    if name in ("0.1", "draft"):  # nothing in such a card says which version it is
        interfaces = tuple(replace(each, protocol_version="0.1") for each in again.supported_interfaces)
        again = replace(again, supported_interfaces=interfaces)
    assert again == card


@some
@given(card=strategies.cards("1.0"))
def test_a_superset_card_is_read_as_the_card_by_a_1_0_peer(card: Any) -> None:
    again, era = cards.read_card(msgspec.json.decode(msgspec.json.encode(cards.superset_card(card))))
    assert era == "1.0"
    assert again == replace(card, signatures=())


@every_dialect
def test_replaced_and_appended_output_of_an_artifact_differ_on_the_wire(name: str) -> None:
    """As after a crash, when the function that runs again says something else: in every version readers can tell."""

    def chunk(text: str, *, append: bool) -> ArtifactUpdate:
        artifact = Artifact(artifact_id="a", parts=(Part(text=text),))
        return ArtifactUpdate(task_id="t", context_id="c", artifact=artifact, append=append)

    begun = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING))
    events: list[Any] = [begun, chunk("half ", append=False), chunk("an answer", append=True), chunk("another", append=False),
              chunk(" one", append=True)]  # fmt: skip
    dialect = select.DIALECTS[name]
    writer, fold = dialect.writer(), Fold()
    read: list[Any] = []
    for event in events:
        for document in writer.write(StreamResponse(event), last=False):
            read.append(dialect.read_event(msgspec.json.decode(document)))
    chunks = [event for event in read if isinstance(event, ArtifactUpdate)]
    assert [each.append for each in chunks] == [False, True, False, True]
    assert len({each.artifact.artifact_id for each in chunks}) == 1
    fold.apply(begun)
    for each in chunks:
        fold.apply(each)
    assert fold.task is not None and fold.task.text == "another one"
