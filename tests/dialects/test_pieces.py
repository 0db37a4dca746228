"""A large task is written in pieces, and they are what is written at once."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.dialects import pieces
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.pieces import LARGE_BYTES, write_pieces
from dragoman.dialects.proto import v0_3 as grpc_0_3
from dragoman.dialects.proto import v1_0 as grpc_1_0
from dragoman.dialects.proto.codec import Codec
from dragoman.dialects.select import DIALECTS
from dragoman.model import ops
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.server.pipeline import is_large

LONG = 'tau \u03c4 \\ " \U0001f600 \x01\n' * 100
PARTS: dict[str, tuple[Part, ...]] = {
    "none": (),
    "one": (Part(text="a"),),
    "many small": tuple(Part(text=f"{n}") for n in range(200)),
    "one long": (Part(text=LONG, metadata={"a": 1}),),
    "long ones between": (Part(text="a"), Part(text=LONG), Part(text=LONG), Part(text="b"), Part(data=[1])),
    "files": (
        Part(raw=bytes(range(256)) * 20, filename="f", media_type="image/png"),
        Part(raw=b"text " * 500, media_type="text/plain"),
        Part(url="http://x/y"),
    ),
    "data": (Part(data={"a": LONG}), Part(data=None), Part(text="")),
}


def _task(parts: tuple[Part, ...]) -> Task:
    return Task(
        id="t1",
        context_id="c1",
        status=TaskStatus(
            state=TaskState.COMPLETED, message=Message(parts=(Part(text="done"),), message_id="s")
        ),
        artifacts=(
            Artifact(artifact_id="a", parts=parts, name="first", metadata={"k": "v"}, extensions=("urn:x",)),
            Artifact(artifact_id="b", parts=(Part(text="second"),)),
        ),
        history=(
            Message(message_id="m1", role=Role.USER, parts=(Part(text="go"),), context_id="c1"),
            Message(message_id="m2", role=Role.AGENT, parts=parts, metadata={"k": 1}),
        ),
        metadata={"x": [1, 2]},
    )


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 300)
    monkeypatch.setattr(pieces, "_SLICE", 99)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("op", [ops.GET, ops.SEND], ids=lambda op: op.name)
def test_pieces_are_the_result_in_every_dialect(
    dialect: Dialect, parts: tuple[Part, ...], op: ops.Op
) -> None:
    task = _task(parts)
    request: Any = ops.GetTask(id="t1") if op is ops.GET else ops.SendMessage(message=task.history[0])
    assert b"".join(write_pieces(dialect, op, task, request)) == dialect.write_result(op, task, request)


@pytest.mark.parametrize("codec", [grpc_1_0.CODEC, grpc_0_3.CODEC], ids=lambda codec: codec.version)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("op", [ops.GET, ops.SEND], ids=lambda op: op.name)
def test_pieces_are_the_result_over_grpc(codec: Codec, parts: tuple[Part, ...], op: ops.Op) -> None:
    task, message = _task(parts), codec.results[op]
    written = b"".join(codec.write_pieces(op, task))
    assert message.FromString(written) == message.FromString(codec.write_result(op, task))


@pytest.mark.parametrize("name", ["1.0", "0.3", "0.2", "0.1"])
def test_no_piece_is_much_larger_than_the_others(name: str) -> None:
    task = _task((*PARTS["many small"], *PARTS["one long"], *PARTS["files"]))
    sizes = [len(piece) for piece in write_pieces(DIALECTS[name], ops.GET, task)]
    assert max(sizes) < 4500 and sum(sizes) > 12_000


def test_only_a_task_that_takes_long_to_write_is_large() -> None:
    assert not is_large(_task(PARTS["many small"]))
    assert not is_large("x" * (2 * LARGE_BYTES))
    assert is_large(_task((Part(text="x" * LARGE_BYTES),)))
    assert is_large(_task((Part(text="x" * 1000),) * (LARGE_BYTES // 1000)))
    assert is_large(_task((Part(raw=b"x" * LARGE_BYTES),)))
