"""Rows of tasks and webhooks, as values of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import asdict

from dragoman.engine.protocols import Lease, TaskInfo
from dragoman.engine.push_configs import Delivery, PushRow, StoredPushConfig
from dragoman.engine.transition import Claim, TaskRow, decide, visible
from dragoman.model.ops import Scope
from dragoman.model.task import TaskState

DEDUPE_SECONDS = 24 * 60 * 60.0
"""How long idempotency keys are stored."""


def read_task_row(values: Sequence[Any]) -> TaskRow:
    """A task's row, from its columns in the order of the members."""
    seq, mail, state, updated, done, ready, node, fence, attempt, push = values
    return TaskRow(
        seq=seq,
        mail=mail,
        state=TaskState(state),
        updated=updated,
        done=bool(done),
        ready=bool(ready),
        node=node or "",
        fence=fence,
        attempt=attempt,
        push=bool(push),
    )


def claim_task(
    node: str, scope: Scope, task: str, key: int, holder: str | None, fence: int, attempt: int
) -> Lease:
    """The lease that `node` gets of a task that has work. `holder` is the dead node that had it before."""
    row = TaskRow(ready=True, node=holder or "", fence=fence, attempt=attempt)
    row = decide(row, Claim(node, holder_alive=False)).row
    return Lease(scope, task, key, row.fence, row.attempt)


encode_push_config = msgspec.json.Encoder().encode
decode_push_config = msgspec.json.Decoder(StoredPushConfig).decode


def read_delivery(row: Sequence[Any]) -> Delivery:
    """A webhook, from its key, the names of its scope, its task, its body and its `PUSH_COLUMNS`."""
    key, tenant, agent, owner, task, body, *values = row
    scope, webhook = Scope(tenant, agent, owner), decode_push_config(body)
    return Delivery(key=key, scope=scope, task=task, webhook=webhook, **_push_fields(values))


class PushListeners:
    """The part of a `PushQueue` that wakes listeners when a write of this process makes a webhook due."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    @contextmanager
    def listen(self, woken: Callable[[], None]) -> Iterator[None]:
        self._listeners.append(woken)
        try:
            yield
        finally:
            self._listeners.remove(woken)

    def wake(self) -> None:
        for woken in tuple(self._listeners):
            woken()


def read_task_info(row: Sequence[Any], expires: Callable[[str, Any], float]) -> TaskInfo:
    """A task in an operator's list. `expires` returns when the lease of a node ends, from its row; 0 if the node is dead."""
    (tenant, agent, owner, id, context, key, seq, size, state, updated, done, reply, ready, node, until, attempt,
     fence, head) = row  # fmt: skip
    return TaskInfo(
        scope=Scope(tenant, agent, owner),
        id=id,
        context=context,
        key=key,
        seq=seq,
        size=size,
        state=TaskState(state),
        updated=updated,
        done=bool(done),
        hidden=not visible(state, reply),
        ready=bool(ready),
        node=(node or "") if ready else "",
        expires=expires(node, until) if ready and node is not None and until is not None else 0.0,
        attempt=attempt,
        fence=fence,
        head=bytes(head or b""),
    )


PUSH_COLUMNS = ", ".join(PushRow.__struct_fields__)


def read_push_row(values: Sequence[Any]) -> PushRow:
    """The delivery state of a webhook, from its `PUSH_COLUMNS`."""
    return PushRow(**_push_fields(values))


def _push_fields(values: Sequence[Any]) -> dict[str, Any]:
    named = dict(zip(PushRow.__struct_fields__, values, strict=True))
    return named | {"node": named["node"] or "", "dead": bool(named["dead"])}


def write_push_row(row: PushRow) -> tuple[Any, ...]:
    """The values of `PUSH_COLUMNS`."""
    return tuple((value or None) if name == "node" else value for name, value in asdict(row).items())
