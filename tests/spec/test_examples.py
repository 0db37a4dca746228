"""Every example of the specifications: its request is understood, its answer is read, and ours looks like it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.dialects import cards, select
from dragoman.model import ops
from dragoman.model.content import Message
from dragoman.model.ops import StreamResponse
from dragoman.model.task import Task
from tests.spec.examples import CARDS, EXAMPLES, NOTIFICATIONS, Example
from tests.spec.shapes import shape_errors

every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.dialect}-{e.name}")


def chosen(example: Example) -> select.ChosenDialect:
    params = msgspec.json.encode(example.request["params"])
    return select.choose_for_rpc(example.version, example.request["method"], params)


def same_family(a: str, b: str) -> bool:
    """0.2 and 0.3 cannot be told apart by a request, nor can most of the draft and 0.1."""
    families = [{"0.2", "0.3"}, {"draft", "0.1"}]
    return a == b or any({a, b} <= family for family in families)


@every_example
def test_the_request_of_an_example_is_accepted(example: Example) -> None:
    dialect, op, certain = chosen(example)
    assert same_family(dialect.name, example.dialect) or not certain
    dialect = select.DIALECTS[example.dialect]
    request = dialect.read_request(op, msgspec.json.encode(example.request["params"]))
    assert isinstance(request, op.request)


@every_example
def test_the_answer_of_an_example_is_read_and_ours_has_its_shape(example: Example) -> None:
    _, op, _ = chosen(example)
    dialect = select.DIALECTS[example.dialect]
    request = dialect.read_request(op, msgspec.json.encode(example.request["params"]))
    results = [response["result"] for response in example.responses]
    if op.streams:
        writer = dialect.writer(request)
        written: list[Any] = []
        for n, result in enumerate(results):
            event, last = dialect.read_event(result), n == len(results) - 1
            documents = writer.write(StreamResponse(event), last=last)
            written += [msgspec.json.decode(each) for each in documents]
    else:
        (result,) = results
        model = dialect.read_result(op, result)
        written = [msgspec.json.decode(dialect.write_result(op, model, request))]
    assert shape_errors(written, results) == []


@every_example
def test_the_request_of_an_example_is_what_we_would_send(example: Example) -> None:
    _, op, _ = chosen(example)
    dialect = select.DIALECTS[example.dialect]
    params = msgspec.json.encode(example.request["params"])
    request = dialect.read_request(op, params)
    again = dialect.read_request(op, dialect.write_request(op, request))
    assert without_made_ids(again) == without_made_ids(request)


def without_made_ids(request: Any) -> Any:
    """0.1 has no message ids; we make one each time we read."""
    if isinstance(request, ops.SendMessage) and len(request.message.message_id) == 36:
        return msgspec.structs.replace(
            request, message=msgspec.structs.replace(request.message, message_id="")
        )
    return request


@pytest.mark.parametrize(("dialect", "document"), CARDS, ids=[name for name, _ in CARDS])
def test_the_card_of_an_example_is_read_and_ours_has_its_members(dialect: str, document: Any) -> None:
    card, era = cards.read_card(document, found_at="https://example.com/.well-known/agent.json")
    assert same_family(era, dialect)
    assert card.supported_interfaces[0].url == document["url"]
    written = cards.write_card(card, dialect)
    missing = document.keys() - written.keys()
    added = written.keys() - document.keys()
    assert not missing
    assert added <= {"protocolVersion", "preferredTransport"}
    assert written["skills"] == document["skills"]
    assert written.get("securitySchemes") == document.get("securitySchemes")
    assert written.get("security") == document.get("security")


@pytest.mark.parametrize(("dialect", "document"), NOTIFICATIONS, ids=["0.1", "0.2"])
def test_the_notification_of_an_example_is_read(dialect: str, document: Any) -> None:
    event = select.DIALECTS[dialect].read_event(document)
    assert not isinstance(event, Message)
    task_id = event.id if isinstance(event, Task) else event.task_id
    assert task_id == document.get("taskId", document.get("id"))
