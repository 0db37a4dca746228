"""What clients of Arbiter hear when they resubscribe, beside what every client of A2A hears: the notes in the log. (Who says
after which event gets what was missed of a stream, and that has none.)

A note that is no artifact anyway (which stream began, how many tokens a reply used) becomes one: `<task>-meta-<number>`,
with `x-arbiter.<kind>` in its part's metadata, by which others pass it over. It is told with the next event that is for
everybody, in the order of the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from dragoman.engine.protocols import Log
from dragoman.engine.records import PIECE_BYTES, Note, Record
from dragoman.hub.agents.event_writer import ARTIFACTS
from dragoman.model.content import Artifact, Message, Part
from dragoman.model.ops import Batch, StreamResponse
from dragoman.model.task import ArtifactUpdate, Event, Task

_ELSEWHERE = {*ARTIFACTS, "text"}
"""They are artifacts, or text of an agent that was asked, which is nobody else's to hear."""


async def with_asides(log: Log, task: str, batches: AsyncIterator[Batch]) -> AsyncIterator[Batch]:
    """`batches`, and the notes of the log among them, from its beginning."""
    after = 0
    async for batch in batches:
        first, last = batch[0].event, batch[-1].seq
        if isinstance(first, Task) and first.state.terminal:
            yield batch  # its end, and that is all
            continue
        records = [each async for each in _notes(log, task, after, last)]
        if isinstance(first, Task):  # as it is by now: what came with that has no place of its own after it
            yield [*batch[:1], *(_aside(each, first) for each in records), *batch[1:]]
        else:
            notes = (_aside(each, first, each.seq) for each in records)
            yield sorted((*notes, *batch), key=lambda response: response.seq)
        after = max(after, last)


async def _notes(log: Log, task: str, after: int, last: int) -> AsyncIterator[Record]:
    """The notes after `after` and up to `last`; the log is read in pieces."""
    while after < last:
        records = await log.read(task, after=after, limit=last - after, max_bytes=PIECE_BYTES)
        if not records:
            return
        for record in records:
            if _tells(record):
                yield record
        after = records[-1].seq


def _tells(record: Record) -> bool:
    return isinstance(record.body, Note) and record.body.name not in _ELSEWHERE


def _aside(record: Record, beside: Event, seq: int = 0) -> StreamResponse:
    note = record.body
    assert isinstance(note, Note) and not isinstance(beside, Message)
    task = beside.id if isinstance(beside, Task) else beside.task_id
    part = Part(data=note.data, metadata={f"x-arbiter.{note.name}": True})
    artifact = Artifact(artifact_id=f"{task}-meta-{record.seq}", name=note.name, parts=(part,))
    update = ArtifactUpdate(
        task_id=task, context_id=beside.context_id, artifact=artifact, append=False, last_chunk=True
    )
    return StreamResponse(update, seq)
