"""Steps that stream: their pieces are sent as they come, and all of them are recorded when the step ends.

A run after that gets the pieces from the record. If the step was interrupted before its end, it runs again, and its pieces are
compared with those that peers have seen: equal ones are not sent again, and the first difference replaces the artifact. If an
attempt fails and is repeated, the pieces of the next one replace those that it sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Generic, TypeVar

import msgspec

from dragoman.engine.artifact_writer import ArtifactWriter
from dragoman.engine.recorded import ONCE, Recorded, Retries, name_of
from dragoman.model.content import NOTHING, Artifact, Message, Part, Wire, checked, part_of, plain, text_of

T = TypeVar("T")

logger = logging.getLogger("dragoman.turn")


class Status(Wire, frozen=True, kw_only=False):
    """A status update among the pieces of a stream: `Status("Searching", {"tool": "search"})`."""

    text: str = ""
    metadata: dict[str, Any] = NOTHING


class Result(msgspec.Struct, frozen=True):
    """A value among the pieces of a stream. It is recorded and not sent. `stream.value` is the last one."""

    value: Any


class StartOver(msgspec.Struct, frozen=True):
    """The step failed and is repeated: the pieces before this one do not count."""


class RecordedPiece(Wire, frozen=True):
    """One recorded piece of a stream. One member is set."""

    text: str | None = None
    part: Part | None = None
    status: Status | None = None
    message: Message | None = None
    artifact: Artifact | None = None
    result: Any = msgspec.UNSET


class RecordedStream(Wire, frozen=True):
    """The result of a streaming step, as it is recorded."""

    pieces: tuple[RecordedPiece, ...] = ()


class StepStream(Generic[T]):
    """The pieces of a streaming step. Iterate over it, or await it for its text.

    `text` and `value` are complete when it has ended. A step that is not read to its end is not recorded.
    """

    def __init__(
        self,
        recorded: Recorded,
        key: str,
        work: Callable[..., Any],
        args: Sequence[Any],
        kw: Mapping[str, Any],
        artifact: str | None,
        retries: Retries = ONCE,
    ) -> None:
        if not isinstance(key, str):
            raise TypeError(f"a step's key is text, not {key!r}")
        if not callable(work):
            raise TypeError(
                f"turn.stream_step({key!r}, ...) takes a function and its arguments, not the stream itself"
            )
        self._recorded, self._key, self._retries = recorded, key, retries
        self._work, self._args, self._kw = work, args, kw
        self._artifact = artifact
        self._pieces: list[RecordedPiece] = []
        self._texts: list[str] = []
        """Text since the last piece that is not text."""
        self._marks: dict[ArtifactWriter, tuple[Part, ...]] = {}
        """The parts of each artifact before this step wrote to it; only for a step that may be repeated."""
        self.value: Any = None
        """The value of the last `Result` of the stream."""

    @property
    def text(self) -> str:
        """The text so far."""
        pieces = (piece.text if piece.text is not None else _text_of_piece(piece) for piece in self._pieces)
        return "".join([*pieces, *self._texts])

    def __aiter__(self) -> AsyncIterator[T]:
        return self._run()

    def __await__(self) -> Generator[Any, None, str]:
        return self._read_all().__await__()

    async def _read_all(self) -> str:
        async for _ in self:
            pass
        return self.text

    async def _run(self) -> AsyncGenerator[Any, None]:
        recorded, key = self._recorded, self._key
        function = name_of(self._work)
        if (step := recorded.steps.get(key)) is not None:
            recorded.check_function(step, function)
            for piece in _decode(key, step.value).pieces:
                content = _content_of(piece)
                await self._send(content)
                recorded.streamed_piece = content
                yield content
            recorded.streamed_piece = None
            return
        with recorded.running(key):
            attempt = 1
            while True:
                await recorded.may_begin()
                try:
                    async with aclosing(self._attempt()) as contents:
                        async for content in contents:
                            recorded.streamed_piece = content
                            yield content
                    break
                except Exception as error:
                    await self._retries.pause(attempt, error, recorded.task_id, key)
                finally:
                    recorded.streamed_piece = None
                attempt += 1
                if self._pieces or self._texts:
                    self._withdraw_attempt()
                    recorded.streamed_piece = again = StartOver()
                    yield again
            self._end_text()
            await recorded.record_step(key, RecordedStream(pieces=tuple(self._pieces)), function)

    async def _attempt(self) -> AsyncGenerator[Any, None]:
        """Run the function once, and send its pieces."""
        timeout = self._retries.timeout
        latest = None if timeout is None else asyncio.get_running_loop().time() + timeout
        async with asyncio.timeout_at(latest):
            source = self._work(*self._args, **self._kw)
            if isinstance(source, Awaitable):
                source = await source
        if not hasattr(source, "__aiter__"):
            raise TypeError(
                f"the function of turn.stream_step({self._key!r}, ...) returns an async iterator,"
                f" not {type(source).__name__}"
            )
        pieces = aiter(source)
        try:
            while True:
                try:
                    if latest is None:
                        piece = await anext(pieces)
                    else:
                        async with asyncio.timeout_at(latest):  # not around the yield, where others run
                            piece = await anext(pieces)
                except StopAsyncIteration:
                    return
                if piece is None or piece == "":
                    continue
                content = await self._send(piece)
                yield content
        finally:
            await _close(pieces, source)

    async def _send(self, piece: Any) -> Any:
        """Send a piece, and keep it for the record."""
        recorded, artifact = self._recorded, self._artifact
        if isinstance(piece, str):
            self._texts.append(piece)
            if artifact is not None:
                await self._write(recorded.writer(artifact), (piece,))
            return piece
        self._end_text()
        match piece:
            case Status():
                piece = checked(piece)
                self._pieces.append(RecordedPiece(status=piece))
                recorded.status(piece.text, piece.metadata)
            case Message():
                self._pieces.append(RecordedPiece(message=piece))
                recorded.status(piece, {})
            case Artifact():
                piece = checked(piece)
                self._pieces.append(RecordedPiece(artifact=piece))
                about = (piece.name, piece.artifact_id, piece.description, "", piece.metadata)
                writer = recorded.artifact(*about, piece.extensions, append=False)
                await self._write(writer, piece.parts, last=True)
            case Result():
                self.value = plain(piece.value)
                self._pieces.append(RecordedPiece(result=self.value))
                return Result(self.value)
            case _:
                part = part_of(piece)
                self._pieces.append(RecordedPiece(part=part))
                if artifact is not None:
                    await self._write(recorded.writer(artifact), (part,))
        if recorded.journal.full:
            await recorded.journal.commit()
        return piece

    async def _write(self, writer: ArtifactWriter, content: Sequence[Any], *, last: bool = False) -> None:
        if self._retries.retries and writer not in self._marks:
            self._marks[writer] = await writer.mark()
        if len(content) == 1:
            writer.put(content[0], last=last)
        else:
            writer.put_together(content, last=last)
        if self._recorded.journal.full:
            await self._recorded.journal.commit()

    def _end_text(self) -> None:
        if self._texts:
            self._pieces.append(RecordedPiece(text="".join(self._texts)))
            self._texts = []

    def _withdraw_attempt(self) -> None:
        """Withdraw the pieces of a failed attempt. The next pieces replace them."""
        self._pieces, self._texts, self.value = [], [], None
        for writer, parts in self._marks.items():
            self._recorded.rewind(writer, parts)
        self._marks = {}


def _content_of(piece: RecordedPiece) -> Any:
    """The piece as the stream yielded it."""
    for content in (piece.text, piece.part, piece.status, piece.message, piece.artifact):
        if content is not None:
            return content
    return Result(piece.result)


def _text_of_piece(piece: RecordedPiece) -> str:
    return text_of((piece.part,)) if piece.part is not None else ""


def _decode(key: str, value: msgspec.Raw) -> RecordedStream:
    try:
        return msgspec.json.decode(value, type=RecordedStream)
    except msgspec.ValidationError as error:
        raise RuntimeError(
            f"step {key!r} was recorded by turn.step: give turn.stream_step another key"
        ) from error


async def _close(pieces: Any, source: Any) -> None:
    """Close a stream that may not be at its end, so that the model stops."""
    for each in dict.fromkeys((pieces, source)):
        close = getattr(each, "aclose", None) or getattr(each, "close", None)
        if close is not None:
            with suppress(Exception):
                closing = close()
                if isinstance(closing, Awaitable):
                    await closing
