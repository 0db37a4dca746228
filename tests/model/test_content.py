"""Values that were said: nothing said weighs nothing, and cannot be changed behind somebody's back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from dragoman.model.content import NOTHING, Artifact, Message, Part, Role
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus

STATUS = TaskStatus(state=TaskState.WORKING)
EMPTY: list[Any] = [
    Part(text="x"),
    Message(message_id="m", role=Role.USER, parts=()),
    Artifact(artifact_id="a", parts=()),
    Task(id="t", status=STATUS),
    StatusUpdate(task_id="t", context_id="c", status=STATUS),
    ArtifactUpdate(task_id="t", context_id="c", artifact=Artifact(artifact_id="a", parts=())),
]


@pytest.mark.parametrize("value", EMPTY, ids=lambda value: type(value).__name__)
def test_no_metadata_is_not_written_and_is_read_as_none(value: Any) -> None:
    document = msgspec.json.encode(value)
    assert b"metadata" not in document
    assert msgspec.json.decode(document, type=type(value)) == value
    assert value.metadata == {} and value.metadata is NOTHING


@pytest.mark.parametrize(
    "change",
    [
        lambda nothing: nothing.update(x=1),
        lambda nothing: nothing.setdefault("x", 1),
        lambda nothing: nothing.__setitem__("x", 1),
        lambda nothing: nothing.__ior__({"x": 1}),
        lambda nothing: nothing.pop("x", None),
        lambda nothing: nothing.clear(),
    ],
    ids=["update", "setdefault", "item", "or", "pop", "clear"],
)
def test_the_shared_empty_metadata_cannot_be_changed(change: Any) -> None:
    with pytest.raises(TypeError, match="cannot be changed"):
        change(Part(text="x").metadata)
    assert NOTHING == {}


def test_metadata_can_be_added_to_a_copy() -> None:
    part = Part(text="x")
    assert part.metadata | {"a": 1} == {"a": 1}
    assert msgspec.structs.replace(part, metadata={**part.metadata, "a": 1}).metadata == {"a": 1}


def test_a_message_that_is_made_by_hand_has_an_id_of_its_own() -> None:
    one, two = Message(parts=(Part(text="a"),)), Message(parts=(Part(text="a"),))
    assert one.message_id and one.message_id != two.message_id and one.role is Role.USER
    assert msgspec.structs.replace(one, role=Role.AGENT).message_id == one.message_id


def test_a_message_is_made_of_a_text_or_of_parts() -> None:
    assert Message("a").parts == (Part(text="a"),)
    assert Message("a", role=Role.AGENT, task_id="t").task_id == "t"
    both = (Part(text="a"), Part(data=1))
    given: list[Iterable[Part | str]] = [both, list(both), iter(both), ["a", both[1]], ("a", both[1])]
    for parts in given:
        assert Message(parts=parts).parts == both
    assert Message().parts == () and Message().message_id


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Message(1), r"Message\(\"text\"\), or Message\(parts="),  # type: ignore[arg-type]
        (lambda: Message("a", parts=[Part(text="a")]), r"Message\(\"text\"\), or Message\(parts="),
        (lambda: Message(parts="a"), "are a list, not str"),
        (lambda: Message(parts=Part(text="a")), "are a list, not Part"),  # type: ignore[arg-type]
        (lambda: Message(parts=[1]), "a Part or a text, not int"),  # type: ignore[list-item]
    ],
)
def test_a_message_that_cannot_be_made_says_why(make: Callable[[], Message], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        make()


@pytest.mark.parametrize("missing", ["messageId", "role"])
def test_a_message_that_is_read_must_say_what_it_is(missing: str) -> None:
    document = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "a"}]}
    document.pop(missing)
    with pytest.raises(msgspec.ValidationError, match=missing):
        msgspec.convert(document, Message)
