"""What a webhook is told of a record, in the tongue in which it was registered.

1.0 hears every update as it is, wrapped as in a stream. The versions before it hear of the task as a whole, when it
ends or waits for somebody; on request, at every change of its status.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.dialects.select import DIALECTS
from dragoman.engine.records import Record
from dragoman.model.content import Message
from dragoman.model.ops import GET, SEND
from dragoman.model.task import StatusUpdate, Task

NEWEST = "1.0"


class Notification(Struct, frozen=True):
    body: bytes
    content_type: str
    version: str
    """What `A2A-Version` says; empty where there is no such header."""


async def notification(
    dialect: str, record: Record, task: Callable[[], Awaitable[Task]], *, every_status: bool = False
) -> Notification | None:
    """The news of a record; None if it is none. `task` is the task as it was at that record."""
    name = tongue(dialect)
    if not record.public:
        return None
    if name == NEWEST:
        (body,) = DIALECTS[NEWEST].writer().write(record, last=record.terminal)
        return Notification(body, "application/a2a+json", DIALECTS[NEWEST].version)
    event = record.event
    if isinstance(event, Message):
        return _older(name, event)
    if isinstance(event, StatusUpdate) and (record.over or every_status):
        return _older(name, await task())
    return None


def tongue(dialect: str) -> str:
    """The dialect to write in: 0.3 has one payload, whichever of its bindings a config came by."""
    if dialect.startswith("0.3"):
        return "0.3"
    return dialect if dialect in DIALECTS and dialect != "arbiter" else NEWEST


def _older(name: str, news: Task | Message) -> Notification:
    dialect = DIALECTS[name]
    if dialect.names_tasks and isinstance(news, Task):
        news = replace(news, history=())  # it sends history only to those who ask
    body = dialect.write_result(GET if isinstance(news, Task) else SEND, news)
    if (
        dialect.names_tasks
    ):  # it only says that a payload should name the task, and shows one that does so like this
        id = news.id if isinstance(news, Task) else news.task_id
        body = b'{"taskId":' + msgspec.json.encode(id) + b"," + body[1:]
    return Notification(body, "application/json", dialect.version)
