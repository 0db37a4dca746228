"""Copy a task up to a record, so that it runs again from there: with the same message and the recorded steps.

The copy is a new task in the same scope. While it is written, in pieces, a node with a name of its own holds its lease. The first
record has the number of records that the copy will have: an incomplete copy, whose writer died, is never run (`Run._turns`).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.engine.protocols import MAIL_TOPIC, Bus, Lease, Log, Store
from dragoman.engine.records import PIECE_BYTES, Mail, Note, Record, pack, topic, unpack
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model.content import Message
from dragoman.model.ids import new_id
from dragoman.model.ops import Scope
from dragoman.model.task import ArtifactUpdate, StatusUpdate

_TTL_SECONDS = 60.0


async def fork(
    store: Store,
    bus: Bus,
    scope: Scope,
    task: str,
    upto: int,
    *,
    new_task: str = "",
    generation: int | None = None,
) -> str:
    """Make a task whose log is a copy of the first `upto` records of `task`, and let it run. Returns its id: `new_task`, or a new one.

    `generation` is that of the credential with which it is copied: the copy does not depend on the credential of the original.

    A record that finishes the task, and records after it, are not copied. Raises `TaskNotFound`, and `InvalidParams` if there is
    no record `upto`.
    """
    log, new_task = store.scope(scope), new_task or new_id()
    head = await log.head(task)
    if not 1 <= upto <= head.seq:
        raise InvalidParams(f"the task has records 1 to {head.seq}", fields=(("record", f"is {upto}"),))
    if head.terminal:
        upto = min(upto, await _last_open(log, task, head.seq))
    node = f"fork-{new_task}"
    await store.join(node, ttl=_TTL_SECONDS)
    try:
        lease = await _begin(log, task, new_task, upto, node, generation)
        at = 1
        while at < upto:
            await store.renew(node, ttl=_TTL_SECONDS)
            records = await log.read(task, after=at, limit=upto - at, max_bytes=PIECE_BYTES)
            if not records:
                raise TaskNotFound(task)  # purged meanwhile
            await _append(log, lease, records, task, new_task, generation)
            at = records[-1].seq
        await store.release(lease)
    finally:
        await store.leave(node)
        bus.wake(topic(scope, new_task))
        bus.wake(MAIL_TOPIC)
    return new_task


async def _last_open(log: Log, task: str, seq: int) -> int:
    """The last record before the one that finished the task."""
    while seq > 0:
        first = max(0, seq - 50)
        for record in reversed(await log.read(task, after=first, limit=seq - first)):
            if record.terminal:
                return max(1, record.seq - 1)
        seq = first
    return 1


async def _begin(log: Log, task: str, new_task: str, upto: int, node: str, generation: int | None) -> Lease:
    first, context = (await log.read(task, limit=1))[0], (await log.head(task)).context_id
    if not isinstance(first.body, Mail):
        raise TaskNotFound(task)
    mail = replace(
        first.body,
        message=_rename(first.body.message, task, new_task),
        generation=generation,
        reply=False,
        deadline=None,
        copy_of=task,
        copied=upto,
    )
    lease = (await log.create(new_task, context, mail, node=node)).lease
    assert lease is not None
    return lease


async def _append(
    log: Log, lease: Lease, records: Sequence[Record], task: str, new_task: str, generation: int | None
) -> None:
    """Add copies of records: output under the lease, mail as mail."""
    output: list[Record] = []
    for record in records:
        body = record.body
        if isinstance(body, Mail):
            if output:
                await log.append(lease, output)
                output = []
            mail = replace(body, message=_rename(body.message, task, new_task), generation=generation)
            await log.deliver(new_task, mail)
        elif record.kind != "cancel":
            output.append(_copy(record, task, new_task))
        else:  # a copy is not canceled; the numbers stay the same
            output.append(Record("note", Note(name="cancel")))
    if output:
        await log.append(lease, output)


def _copy(record: Record, task: str, new_task: str) -> Record:
    body = record.body
    if isinstance(body, StatusUpdate):
        message = body.status.message
        status = replace(body.status, message=_rename(message, task, new_task)) if message else body.status
        return Record(record.kind, replace(body, task_id=new_task, status=status))
    if isinstance(body, ArtifactUpdate):
        return Record(record.kind, replace(body, task_id=new_task))
    if isinstance(body, Message):
        return Record(record.kind, _rename(body, task, new_task))
    return unpack(pack((record,)), 0)[0]


def _rename(message: Message, task: str, new_task: str) -> Message:
    """The message for the copy. Ids of agents' messages begin with the id of their task, as a re-run makes them."""
    id = message.message_id
    if id.startswith(f"{task}-"):
        id = new_task + id[len(task) :]
    return replace(message, task_id=new_task if message.task_id == task else message.task_id, message_id=id)
