"""What the databases have in common about their rows: what records do to that of their task, and how others are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman.engine.protocols import AuditEntry
from dragoman.engine.push_configs import Delivery, StoredPushConfig
from dragoman.engine.transition import PushRow
from dragoman.model.ops import Scope

encode_push_config = msgspec.json.Encoder().encode
decode_push_config = msgspec.json.Decoder(StoredPushConfig).decode


def delivery_of(row: Sequence[Any]) -> Delivery:
    """A webhook that has something to tell, from its row and those of its task and scope."""
    key, tenant, agent, owner, task, body, cursor, last, fence, attempt, since, at, error, dead = row
    return Delivery(
        key=key,
        scope=Scope(tenant, agent, owner),
        task=task,
        webhook=decode_push_config(body),
        cursor=cursor,
        last=last,
        fence=fence,
        attempt=attempt,
        since=since,
        at=at,
        error=error,
        dead=bool(dead),
    )


def entries_of(rows: Iterable[Sequence[Any]]) -> list[AuditEntry]:
    """Of an audit, from rows in the order of their fields."""
    names = AuditEntry.__struct_fields__
    return [AuditEntry(**dict(zip(names, row, strict=True))) for row in rows]


PUSH_COLUMNS = "cursor, last, node, fence, attempt, since, at, error, dead"


def push_row(values: Sequence[Any]) -> PushRow:
    """How far a webhook has been told, from its `PUSH_COLUMNS`."""
    cursor, last, node, fence, attempt, since, at, error, dead = values
    return PushRow(
        cursor=cursor,
        last=last,
        node=node or "",
        fence=fence,
        attempt=attempt,
        since=since,
        at=at,
        error=error,
        dead=bool(dead),
    )


def push_values(row: PushRow) -> tuple[Any, ...]:
    """The values of `PUSH_COLUMNS`."""
    return (
        row.cursor,
        row.last,
        row.node or None,
        row.fence,
        row.attempt,
        row.since,
        row.at,
        row.error,
        row.dead,
    )
