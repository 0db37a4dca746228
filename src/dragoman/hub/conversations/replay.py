"""`tasks/resubscribe` in Arbiter's dialect: a task's log is replayed with the notes of the agent, which no other dialect shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from msgspec.structs import replace

from dragoman.dialects.arbiter import with_reply
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Head
from dragoman.engine.records import Mail, Note, Record
from dragoman.hub.agents.event_writer import ARTIFACT_EVENTS
from dragoman.hub.metadata import ARBITER
from dragoman.model.content import Artifact, Part
from dragoman.model.ops import Batch, Call, GetTask, Request, SendMessage, StreamResponse, SubscribeToTask
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus


class ReplayingEngine:
    """An engine whose `tasks/resubscribe` in Arbiter's dialect replays the log of a task event by event: from its beginning, or after
    the event that the caller names.

    The notes of the agent come between the events, in the order of the log, as artifacts `<task>-meta-<number>`. If there is nothing to
    replay, the caller gets what a subscription gets.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def call(self, call: Call, request: Request) -> Any:
        return await self._engine.call(call, request)

    def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        if isinstance(request, SendMessage) or call.dialect != ARBITER:
            return self._engine.stream(call, request)
        return self._replay(call, request)

    async def _replay(self, call: Call, request: SubscribeToTask) -> AsyncIterator[Batch]:
        begun = False
        async with aclosing(cast(Any, self._engine.replay(call, request))) as batches:
            async for head, records in batches:
                begun, first = True, records[0]
                if first.seq == 1 and isinstance(first.body, Mail):
                    status = TaskStatus(state=TaskState.SUBMITTED, timestamp=first.body.at)
                    yield (StreamResponse(Task(id=request.id, context_id=head.context_id, status=status)),)
                shown = [
                    _note_update(record, head) if isinstance(record.body, Note) else record
                    for record in records
                    if record.public or _is_shown(record)
                ]
                if call.after and shown and _lacks_reply(shown[-1].event):
                    shown[-1] = await self._with_reply(call, shown[-1])
                if shown:
                    yield shown
        if not begun:
            async for batch in self._engine.stream(call, request):
                yield batch

    async def _with_reply(self, call: Call, end: StreamResponse) -> StreamResponse:
        """The last event with the text of all artifacts, because the caller of this stream has not got all of them."""
        update = end.event
        assert isinstance(update, StatusUpdate)
        task = await self._engine.call(call, GetTask(id=update.task_id))
        status = with_reply(update.status, task.text, task.id, task.context_id)
        return StreamResponse(replace(update, status=status), end.seq)


def _lacks_reply(event: Event) -> bool:
    return (
        isinstance(event, StatusUpdate)
        and event.status.state is TaskState.COMPLETED
        and event.status.message is None
    )


_NOT_SHOWN = {*ARTIFACT_EVENTS, "text"}
"""Notes that are artifacts already, or text of a delegated agent."""


def _is_shown(record: Record) -> bool:
    return isinstance(record.body, Note) and record.body.name not in _NOT_SHOWN


def _note_update(record: Record, head: Head) -> StreamResponse:
    note, task = record.body, head.task_id
    assert isinstance(note, Note)
    part = Part(data=note.data, metadata={f"x-arbiter.{note.name}": True})
    artifact = Artifact(artifact_id=f"{task}-meta-{record.seq}", name=note.name, parts=(part,))
    update = ArtifactUpdate(
        task_id=task, context_id=head.context_id, artifact=artifact, append=False, last_chunk=True
    )
    return StreamResponse(update, record.seq)
