"""Event streams (SSE): how events become frames, and when a stream ends."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.sse import MAX_EVENT
from dragoman.errors import A2AError, InvalidAgentResponse
from dragoman.model.ops import STREAM, Batch, Op, Request, ends_stream
from dragoman.model.task import INTERRUPTED, ArtifactUpdate, Task, TaskState

_NEVER: frozenset[TaskState] = frozenset()
_QUESTION = frozenset({TaskState.INPUT_REQUIRED})


Pauses = tuple[frozenset[TaskState], frozenset[TaskState]]


def pauses_of(dialect: Dialect, op: Op) -> Pauses:
    """The states in which a task waits that end a stream of `op`: in an update, and in a task (see `ends_stream`).

    They do so in the newest event only: an earlier one may be history.
    """
    pauses = INTERRUPTED if dialect.ends_on_interrupt else _NEVER
    # A task that was just answered may still show that it waits; in a subscription, the state is current.
    return (pauses or _QUESTION, _NEVER) if op is STREAM else (pauses, pauses)


class Frames:
    """The events of one stream as bytes of an event stream."""

    __slots__ = ("_writer", "_openings", "_opening", "_closing", "_max", "_pauses")

    def __init__(
        self,
        dialect: Dialect,
        op: Op,
        request: Request,
        *,
        opening: bytes = b"data: ",
        closing: bytes = b"\n\n",
        max_event: int = MAX_EVENT,
    ) -> None:
        self._writer = dialect.writer(request)
        self._opening, self._closing = opening, closing
        """Before and after each document; documents have no line breaks."""
        self._openings: Mapping[type, bytes] = getattr(self._writer, "openings", {})
        """Before an event's own JSON, in dialects that write it as it is; `}` follows it."""
        self._pauses = pauses_of(dialect, op)
        self._max = max_event

    def batch(self, batch: Batch) -> tuple[bytes, bool]:
        """The frames of a batch; True if the stream ends with it."""
        frames: list[bytes] = []
        opening, closing, openings, add = self._opening, self._closing, self._openings, frames.append
        final, last = len(batch) - 1, False
        for n, response in enumerate(batch):
            event, seq = response.event, response.seq
            kind = type(event)
            if kind is not ArtifactUpdate:
                last = ends_stream(event, self._pauses[kind is Task] if n == final else ())
            if openings and seq:
                raw = response.raw or response.encode()
                add(b"id: %d\n%b%b%b}%b" % (seq, opening, openings[kind], raw, closing))
            else:
                documents = self._writer.write(response, last=last)
                for document in documents[:-1]:
                    add(opening + document + closing)
                if documents:  # the last document has the id: with it the event is complete
                    add((b"id: %d\n" % seq if seq else b"") + opening + documents[-1] + closing)
            if last:
                break
        chunk = b"".join(frames)
        if len(chunk) > self._max and max(map(len, frames)) > self._max:
            raise InvalidAgentResponse(
                f"an event of this task is larger than {self._max} bytes; get the task instead"
            )
        return chunk, last

    def fail(self, error: A2AError) -> bytes:
        """The events that end a failed stream, in dialects that have such events; empty in others."""
        if (fail := getattr(self._writer, "fail", None)) is None:
            return b""
        return b"".join([self._opening + document + self._closing for document in fail(error)])
