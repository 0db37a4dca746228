"""Copy a task up to a record, so that it runs again from there: with the same message and the recorded steps.

The copy is a task of its own, in the same scope. A node of its own holds its lease while it is written, in pieces. The first
record says how many records there are to be: a copy whose writer died is never run (`Run._turns`).
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
    made: str = "",
    generation: int | None = None,
) -> str:
    """Make a task whose log is a copy of the first `upto` records of `task`, and let it run. Returns its id, which is `made` if given.

    `generation` is that of the credential of whoever copies: the copy is their work, and does not depend on the credential of the original.

    A record that finishes the task, and what comes after it, is not copied. Raises `TaskNotFound`, and `InvalidParams` if there is
    no such record.
    """
    log, made = store.scope(scope), made or new_id()
    head = await log.head(task)
    if not 1 <= upto <= head.seq:
        raise InvalidParams(f"the task has records 1 to {head.seq}", fields=(("record", f"is {upto}"),))
    if head.terminal:
        upto = min(upto, await _last_open(log, task, head.seq))
    node = f"fork-{made}"
    await store.join(node, ttl=_TTL_SECONDS)
    try:
        lease = await _begin(log, task, made, upto, node, generation)
        at = 1
        while at < upto:
            await store.renew(node, ttl=_TTL_SECONDS)
            records = await log.read(task, after=at, limit=upto - at, max_bytes=PIECE_BYTES)
            if not records:
                raise TaskNotFound(task)  # purged meanwhile
            await _append(log, lease, records, task, made, generation)
            at = records[-1].seq
        await store.release(lease)
    finally:
        await store.leave(node)
        bus.wake(topic(scope, made))
        bus.wake(MAIL_TOPIC)
    return made


async def _last_open(log: Log, task: str, seq: int) -> int:
    """The last record before the one that finished the task."""
    while seq > 0:
        first = max(0, seq - 50)
        for record in reversed(await log.read(task, after=first, limit=seq - first)):
            if record.terminal:
                return max(1, record.seq - 1)
        seq = first
    return 1


async def _begin(log: Log, task: str, made: str, upto: int, node: str, generation: int | None) -> Lease:
    first, context = (await log.read(task, limit=1))[0], (await log.head(task)).context_id
    if not isinstance(first.body, Mail):
        raise TaskNotFound(task)
    mail = replace(
        first.body,
        message=_renamed(first.body.message, task, made),
        generation=generation,
        reply=False,
        deadline=None,
        copy_of=task,
        copied=upto,
    )
    lease = (await log.create(made, context, mail, node=node)).lease
    assert lease is not None
    return lease


async def _append(
    log: Log, lease: Lease, records: Sequence[Record], task: str, made: str, generation: int | None
) -> None:
    """Add copies of records: output under the lease, mail as mail."""
    output: list[Record] = []
    for record in records:
        body = record.body
        if isinstance(body, Mail):
            if output:
                await log.append(lease, output)
                output = []
            mail = replace(body, message=_renamed(body.message, task, made), generation=generation)
            await log.deliver(made, mail)
        elif record.kind != "cancel":
            output.append(_copy(record, task, made))
        else:  # a copy is not canceled; the numbers stay the same
            output.append(Record("note", Note(name="cancel")))
    if output:
        await log.append(lease, output)


def _copy(record: Record, task: str, made: str) -> Record:
    body = record.body
    if isinstance(body, StatusUpdate):
        message = body.status.message
        status = replace(body.status, message=_renamed(message, task, made)) if message else body.status
        return Record(record.kind, replace(body, task_id=made, status=status))
    if isinstance(body, ArtifactUpdate):
        return Record(record.kind, replace(body, task_id=made))
    if isinstance(body, Message):
        return Record(record.kind, _renamed(body, task, made))
    return unpack(pack((record,)), 0)[0]


def _renamed(message: Message, task: str, made: str) -> Message:
    """A message of the copy. Agents' messages are named after their task, and a re-run names them the same way."""
    id = message.message_id
    if id.startswith(f"{task}-"):
        id = made + id[len(task) :]
    return replace(message, task_id=made if message.task_id == task else message.task_id, message_id=id)
