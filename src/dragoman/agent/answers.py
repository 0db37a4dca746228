"""What a function returns or yields, as the answer of its task, or as a bare message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace

from dragoman.engine.recorded import ArtifactWriter
from dragoman.engine.turn import Turn, record_of
from dragoman.model.content import Artifact, Message, Part
from dragoman.model.task import TaskState
from dragoman.model.values import checked, parts_of


async def give(turn: Turn, value: Any) -> None:
    """What the function returned. A message is the task's last word, anything else is an artifact."""
    if isinstance(value, Message):
        turn.finish(TaskState.COMPLETED, value)
    elif value is not None:
        await _write(turn, value, last=True)


async def give_pieces(turn: Turn, pieces: AsyncIterator[Any]) -> None:
    """What the function yields, as it comes."""
    result: ArtifactWriter | None = None
    async for piece in pieces:
        if type(piece) is str:  # nearly all of them
            if result is None:
                result = turn.artifact("result")
            await result.write(piece)
        elif isinstance(piece, Message):
            await turn.status(piece)
        elif piece is not None:
            await _write(turn, piece, last=False)
    turn.artifact("result").close()


async def gathered(pieces: AsyncIterator[Any]) -> tuple[Part, ...] | None:
    """All that the function yields, for one message: pieces of text are one text."""
    parts: list[Part] = []
    async for piece in pieces:
        for part in _message_parts(piece) if piece is not None else ():
            if parts and part == Part(text=part.text) and parts[-1] == Part(text=parts[-1].text):
                parts[-1] = replace(part, text=f"{parts[-1].text}{part.text}")
            else:
                parts.append(part)
    return tuple(parts) or None


def message_of(value: Any) -> Message | tuple[Part, ...]:
    """What the function returned, as a message or its parts."""
    return value if isinstance(value, Message) else _message_parts("" if value is None else value)


def _message_parts(value: Any) -> tuple[Part, ...]:
    if isinstance(value, Message):
        return value.parts
    artifacts = _artifacts(value)
    return tuple(part for each in artifacts for part in each.parts) if artifacts else _parts(value)


def _artifacts(value: Any) -> list[Artifact]:
    """The artifacts that a value is; none if it is anything else."""
    values = value if isinstance(value, list | tuple) else [value]
    return list(values) if all(isinstance(each, Artifact) for each in values) else []


def _parts(value: Any) -> tuple[Part, ...]:
    try:
        return parts_of(value)
    except TypeError as error:
        raise TypeError(
            f"an answer is text, bytes, data (a dict, a dataclass, a model, ...), a Part, an Artifact or a Message: {error}"
        ) from None


async def _write(turn: Turn, value: Any, *, last: bool) -> None:
    artifacts = _artifacts(value)
    for artifact in map(checked, artifacts):
        writer = turn.artifact(
            artifact.name,
            id=artifact.artifact_id,
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=artifact.extensions,
        )
        writer.put_together(artifact.parts, last=True)
    if not artifacts:
        turn.artifact("result").put_together(_parts(value), last=last)
    if record_of(turn).journal.full:
        await record_of(turn).journal.commit()
