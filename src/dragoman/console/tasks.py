"""Tasks and their logs, for operators, from the index of any store.

A tenant sees only tasks of its own scope. For any other it gets 404, as for a task that does not exist.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.console import dialect_views
from dragoman.console.access import OPERATOR, Viewer
from dragoman.console.api import Console, ConsoleRequest, stream
from dragoman.console.dialect_views import DialectView
from dragoman.console.feeds import (
    ListFeed,
    TaskFeeds,
    attempt_at,
    extend_attempts,
    first_mail,
    has_one_attempt,
)
from dragoman.console.folds import LISTED_BYTES, Folds, check_has_record
from dragoman.console.keys import key_of, no_task, read_json, read_key, write_json
from dragoman.console.records import RecordView, describe_parts, one_line, view
from dragoman.console.webhooks import Webhooks, webhook_view
from dragoman.engine.delegate import get_child
from dragoman.engine.fork import fork
from dragoman.engine.protocols import TaskInfo, TaskQuery
from dragoman.engine.records import Child, Mail, Record
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import InvalidParams, TaskClosed, TaskNotCancelable, TaskNotFound, Unreachable
from dragoman.model.ids import new_id, read_timestamp, timestamp
from dragoman.model.ops import Call, CancelTask, Principal, Scope
from dragoman.model.task import INTERRUPTED, StatusUpdate, Task, TaskState
from dragoman.observe.redact import redact, suspicious
from dragoman.server.options import ServerParts
from dragoman.server.routes import Conflict, NotFound, Route, RouteList

PAGE_TASKS, MAX_PAGE_TASKS = 50, 200
PAGE_RECORDS, MAX_PAGE_RECORDS = 500, 2000
PAGE_BYTES = 1 << 20
"""Bytes of a log in one page of records. A single record may be larger."""
SEARCH_PAGES = 20
"""How many pages of tasks one search for a text reads."""
CANCEL_SECONDS = 5.0
"""How long a cancel waits for its task to end. The cancel itself is stored before that."""
MAX_CHILDREN = 1000

_TEXT = re.compile(rb'"text":"((?:[^"\\]|\\.)*)')


class TaskSummary(Struct, frozen=True, kw_only=True, rename="camel"):
    """A task in a list."""

    key: str
    id: str
    agent: str
    scope: str
    """Whose task it is: `tenant/owner`, as in the store."""
    tenant: str
    """The name of the tenant; empty on a server without tenants."""
    context_id: str
    state: str
    created: str | None
    updated: str | None
    records: int
    attempts: int
    text: str
    """The text of the first message."""
    node: str | None
    lease_expires: str | None
    question: str | None
    """The question that it waits with."""
    reply: bool
    """The answer is a bare message: peers see no task."""


class ChildView(Struct, frozen=True, kw_only=True, rename="camel"):
    """A task that a task delegated to."""

    agent: str
    url: str | None
    task_id: str
    key: str | None
    """Its key, if it is on this server."""


class ForkOrigin(Struct, frozen=True, rename="camel"):
    """The task that a task is a copy of."""

    task_id: str
    key: str
    record: int
    """The last record that was copied."""
    kind: str = "fork"


class TaskDetail(TaskSummary, frozen=True, kw_only=True):
    """A task, and what its log folds to."""

    task: Any
    """As A2A 1.0 writes it; null if it was not asked for."""
    webhooks: Sequence[Any]
    children: list[ChildView]
    parent: ForkOrigin | None


class TaskSummaryPage(Struct, frozen=True):
    tasks: list[TaskSummary]
    next: str | None
    counts: dict[str, int]


class RecordPage(Struct, frozen=True):
    records: list[RecordView]
    last: int
    more: bool


class NewTask(Struct, frozen=True):
    key: str


class DialectViews(Struct, frozen=True):
    views: list[DialectView]


class ForkRequest(Struct, frozen=True, forbid_unknown_fields=True):
    record: int
    """Copy the log up to this record."""


class Tasks:
    """Reads tasks of all scopes for viewers."""

    def __init__(self, server: ServerParts) -> None:
        self._server = server
        self._store = server.store
        self.folds = Folds(server.store)

    async def info(self, request: ConsoleRequest) -> TaskInfo:
        """The task of the path. Raises `NotFound`."""
        scope, task = read_key(request.path["key"], request.caller)
        try:
            return await self._store.index.get(scope, task)
        except TaskNotFound:
            raise no_task() from None

    async def row(self, info: TaskInfo) -> TaskSummary:
        """A task as a list shows it. Of a long log, `attempts` may be too low, because the log is not read."""
        return await self._row(info, max_bytes=LISTED_BYTES)

    async def exact_row(self, info: TaskInfo) -> TaskSummary:
        """`row` with the exact number of attempts, which may need the whole log."""
        return await self._row(info, max_bytes=info.size)

    async def _row(self, info: TaskInfo, *, max_bytes: int) -> TaskSummary:
        mail = first_mail(info)
        if mail is not None:
            text = one_line(describe_parts(mail.message.parts))
        else:
            text = _text_of_prefix(info.head)
        replied = info.done and info.state is TaskState.SUBMITTED
        return TaskSummary(
            key=key_of(info.scope, info.id),
            id=info.id,
            agent=info.scope.agent,
            scope=scope_text(info.scope),
            tenant=await self.tenant_name(info.scope.tenant),
            context_id=info.context,
            state=TaskState.COMPLETED.value if replied else info.state.value,
            created=_creation_time(info, mail),
            updated=info.updated or None,
            records=info.seq,
            attempts=await self._attempts(info, max_bytes),
            text=text,
            node=info.node or None,
            lease_expires=timestamp(info.expires) if info.expires else None,
            question=await self._question(info) if info.state in INTERRUPTED else None,
            reply=info.hidden,
        )

    async def tenant_name(self, key: str) -> str:
        """The name of the tenant of a scope."""
        tenants = self._server.tenants
        return key if tenants is None or not key else await tenants.name_of(key)

    async def tenant_key(self, request: ConsoleRequest) -> str | None:
        """The tenant that a request is about, as scopes have it; None: all. Raises `NotFound`."""
        viewer, named, tenants = request.caller, request.query("tenant"), self._server.tenants
        if not named:
            return None if viewer.role == OPERATOR else viewer.tenant
        key = named if tenants is None else await tenants.key_of(named)
        if key is None or (viewer.role != OPERATOR and key != viewer.tenant):
            raise NotFound(f"there is no tenant {named[:100]!r}")
        return key

    async def _attempts(self, info: TaskInfo, max_bytes: int) -> int:
        """The most attempts that a turn of a task took."""
        if has_one_attempt(info) or info.size > max_bytes:
            return max(1, info.attempt)
        with suppress(TaskNotFound, NotFound):
            snapshot = await self.folds.now(info)
            return max((n for _, n in snapshot.attempts), default=1)
        return 1

    async def _question(self, info: TaskInfo) -> str:
        try:
            records = await self._store.scope(info.scope).read(info.id, after=info.seq - 1, limit=1)
        except TaskNotFound:
            return ""
        for record in records:
            if isinstance(record.body, StatusUpdate) and record.body.status.message is not None:
                return one_line(describe_parts(record.body.status.message.parts))
        return ""

    async def find(
        self, query: TaskQuery, text: str, limit: int
    ) -> tuple[list[TaskSummary], tuple[str, int] | None]:
        """A page of tasks. With a `text`, those whose first message has it, among the tasks that one search looks at."""
        rows: list[TaskSummary] = []
        wanted = text.casefold()
        for _ in range(SEARCH_PAGES if text else 1):
            found = await self._store.index.find(query, limit=MAX_PAGE_TASKS if text else limit)
            for info in found.tasks:
                row = await self.row(info)
                if wanted in row.text.casefold():
                    rows.append(row)
                    if len(rows) == limit and info is not found.tasks[-1]:
                        return rows, (info.updated, info.key)
            if found.next is None or len(rows) >= limit:
                return rows, found.next
            query = msgspec.structs.replace(query, before=found.next)
        return rows, query.before

    async def counts(self, of: str | None) -> dict[str, dict[str, int]]:
        """How many tasks are in each state, by agent. `of`: only those of one tenant."""
        counts: dict[str, dict[str, int]] = {}
        for tenant, agent, state, n in await self._store.index.counts():
            if of is None or tenant == of:
                states = counts.setdefault(agent, {})
                states[state.value] = states.get(state.value, 0) + n
        return counts

    async def records(self, info: TaskInfo, after: int, limit: int) -> list[RecordView]:
        log = self._store.scope(info.scope)
        read = await log.read(info.id, after=after, limit=limit, max_bytes=PAGE_BYTES)
        if after == 0 or has_one_attempt(info):  # the page itself shows the attempts: do not fold a long log
            attempts = extend_attempts((), read)
        else:
            attempts = (await self.folds.now(info)).attempts
        return [view(record, attempt_at(attempts, record.seq)) for record in read]

    async def record(self, info: TaskInfo, seq: int) -> Record:
        """One record. Raises `NotFound`."""
        check_has_record(info, seq)
        (record,) = await self._store.scope(info.scope).read(info.id, after=seq - 1, limit=1)
        return record

    async def children(self, info: TaskInfo, snapshot: Snapshot) -> list[ChildView]:
        """The tasks that a task delegated to in its last turn."""
        found: list[ChildView] = []
        for child in list(snapshot.children.values())[:MAX_CHILDREN]:
            found.append(await self._child(info.scope, child))
        return found

    async def child(self, info: TaskInfo, task: str) -> Task:
        """A task at another server that this one began, as that server shows it to our agent. Raises `NotFound`."""
        snapshot, peers = await self._store.scope(info.scope).load(info.id), self._server.engine.runner.peers
        child = next((each for each in snapshot.children.values() if each.task == task), None)
        if child is None or peers is None:
            raise NotFound("the task has called no agent for that")
        try:
            return await get_child(peers, snapshot, child)
        except TimeoutError:
            raise Unreachable(f"{child.peer} does not answer") from None

    async def _child(self, scope: Scope, child: Child) -> ChildView:
        here = Scope(scope.tenant, child.peer, scope.owner)
        try:
            await self._store.index.get(here, child.task)
        except TaskNotFound:
            remote = "://" in child.peer
            return ChildView(
                agent=child.peer, url=child.peer if remote else None, task_id=child.task, key=None
            )
        return ChildView(agent=child.peer, url=None, task_id=child.task, key=key_of(here, child.task))


def _parent(snapshot: Snapshot) -> ForkOrigin | None:
    mail = snapshot.mails[0][1] if snapshot.mails else None
    if mail is None or not mail.copy_of:
        return None
    return ForkOrigin(mail.copy_of, key_of(snapshot.scope, mail.copy_of), mail.copied)


def _creation_time(info: TaskInfo, mail: Mail | None) -> str | None:
    """When the first message was received, or else written to the log."""
    if mail is not None and mail.at:
        return mail.at
    stamp = info.head[:20].partition(b" ")[0]
    return timestamp(int(stamp) / 1000) if stamp.isdigit() else None


def _text_of_prefix(head: bytes) -> str:
    """The first text in a message that is too long for `head`."""
    match = _TEXT.search(head)
    if match is None:
        return ""
    try:
        text = msgspec.json.decode(b'"%b"' % match[1], type=str)
    except msgspec.MsgspecError:
        text = match[1].decode("utf-8", "replace")
    return one_line(text)


def scope_text(scope: Scope) -> str:
    return f"{scope.tenant}/{scope.owner}" if scope.tenant or scope.owner else ""


# -- queries -------------------------------------------------------------------------------------------------------


def _query(request: ConsoleRequest, tenant: str | None) -> TaskQuery:
    """`tenant`: the one that the request names, or may see. Raises `InvalidParams`."""
    owner = None
    if scope := request.query("scope"):
        named, _, name = scope.partition("/")
        owner = name or None
        tenant = named if tenant is None else tenant
    states = {_state(word) for word in request.query("state").split(",") if word}
    if request.query_flag("waiting", default=False):
        states |= INTERRUPTED
    return TaskQuery(
        tenant=tenant,
        owner=owner,
        agent=request.query("agent") or None,
        states=frozenset(states),
        context=request.query("context"),
        since=_moment(request, "since"),
        until=_moment(request, "until"),
        before=_cursor(request),
    )


def _state(word: str) -> TaskState:
    for state in TaskState:
        if word in (state.value, state.word):
            return state
    raise InvalidParams(
        f"there is no state {word[:40]!r}", fields=(("state", "is TASK_STATE_WORKING, for example"),)
    )


def _moment(request: ConsoleRequest, name: str) -> str:
    text = request.query(name)
    try:
        return read_timestamp(text) if text else ""
    except ValueError:
        raise InvalidParams(
            f"{name} is not a time", fields=((name, "is 2026-11-15T14:40:54Z, for example"),)
        ) from None


def _cursor(request: ConsoleRequest) -> tuple[str, int] | None:
    text = request.query("cursor")
    if not text:
        return None
    try:
        return read_json(text, tuple[str, int])
    except ValueError:
        raise InvalidParams(
            "cursor is not from a page of this list", fields=(("cursor", "is unknown"),)
        ) from None


# -- routes --------------------------------------------------------------------------------------------------------

_FILTERS = {
    "state": "States, with commas between them: TASK_STATE_WORKING.",
    "agent": "The id of an agent.",
    "tenant": "The name of a tenant.",
    "scope": "Whose tasks: tenant/owner, or tenant/, as in the store.",
    "context": "The id of a context.",
    "text": "A part of the first message.",
    "since": "Changed at this time or later.",
    "until": "Changed before this time.",
    "waiting": "1: only those that wait for a person.",
    "cursor": "`next` of the page before.",
    "limit": "50, at most 200.",
}


def routes(console: Console) -> Sequence[Route]:
    api, server = RouteList("tasks"), console.server
    assert server is not None
    tasks, webhooks = Tasks(server), Webhooks(server.store)
    check_session = console.access.check_session
    feeds, list_feed = TaskFeeds(server, tasks.exact_row), ListFeed(server, tasks.row)

    @api.add("GET", "/tasks", "Tasks of all scopes, newest first.", query=_FILTERS, returns=TaskSummaryPage)
    async def list_tasks(request: ConsoleRequest) -> Any:
        limit = max(1, request.query_int("limit", PAGE_TASKS, MAX_PAGE_TASKS))
        tenant = await tasks.tenant_key(request)
        rows, at = await tasks.find(_query(request, tenant), request.query("text")[:200], limit)
        counts: dict[str, int] = {}
        for states in (await tasks.counts(tenant)).values():
            for state, n in states.items():
                counts[state] = counts.get(state, 0) + n
        return TaskSummaryPage(rows, write_json(at) if at is not None else None, counts)

    @api.add("GET", "/tasks/stream", "Rows of tasks as they change (`event: task`).", streams=True)
    async def stream_tasks(request: ConsoleRequest) -> None:
        tenant = None if request.caller.role == OPERATOR else request.caller.tenant
        await stream(request.exchange, list_feed.follow(tenant, partial(check_session, request.caller)))

    @api.add(
        "GET",
        "/tasks/{key}",
        "One task: its row, and what its log folds to.",
        query={"fold": "0: without what its log folds to, which may be long."},
        returns=TaskDetail,
    )
    async def one_task(request: ConsoleRequest) -> Any:
        info = await tasks.info(request)
        snapshot = await tasks.folds.now(info)
        row = msgspec.structs.asdict(await tasks.exact_row(info))
        return TaskDetail(
            **row,
            task=_without_secrets(snapshot.task) if request.query_flag("fold", default=True) else None,
            webhooks=[webhook_view(each) for each in await webhooks.of_task(info.scope, info.id)],
            children=await tasks.children(info, snapshot),
            parent=_parent(snapshot),
        )

    pages = {"after": "Records after this one.", "limit": "500, at most 2000."}

    @api.add("GET", "/tasks/{key}/records", "A page of a task's log.", query=pages, returns=RecordPage)
    async def records(request: ConsoleRequest) -> Any:
        info = await tasks.info(request)
        after, limit = request.query_int("after"), request.query_int("limit", PAGE_RECORDS, MAX_PAGE_RECORDS)
        found = await tasks.records(info, after, max(1, limit))
        last = found[-1].seq if found else min(after, info.seq)
        return RecordPage(found, last, last < info.seq)

    @api.add("GET", "/tasks/{key}/records/{n}", "One record with all of its strings.", returns=RecordView)
    async def one_record(request: ConsoleRequest) -> Any:
        info = await tasks.info(request)
        record = await tasks.record(info, request.path_id("n"))
        attempts = (await tasks.folds.now(info)).attempts
        return view(record, attempt_at(attempts, record.seq), full=True)

    @api.add(
        "GET",
        "/tasks/{key}/records/{n}/as",
        "A record as each version and binding writes it.",
        returns=DialectViews,
    )
    async def record_as(request: ConsoleRequest) -> Any:
        info = await tasks.info(request)
        record = await tasks.record(info, request.path_id("n"))
        return DialectViews(dialect_views.views(record, info.id))

    @api.add(
        "GET",
        "/tasks/{key}/children/{task}",
        "A task at another server that this one began, as that server shows it.",
        returns=dict[str, Any],
    )
    async def child(request: ConsoleRequest) -> Any:
        return _without_secrets(await tasks.child(await tasks.info(request), request.path["task"]))

    @api.add("GET", "/tasks/{key}/at/{n}", "The task as it was at a record.", returns=dict[str, Any])
    async def task_at(request: ConsoleRequest) -> Any:
        info = await tasks.info(request)
        return _without_secrets((await tasks.folds.at(info, request.path_id("n"))).task)

    @api.add(
        "GET", "/tasks/{key}/events", "A task's log, live.", query={"after": pages["after"]}, streams=True
    )
    async def events(request: ConsoleRequest) -> None:
        info = await tasks.info(request)
        after = request.last_event_id
        if after is None:
            after = request.query_int("after")
        check = partial(check_session, request.caller)
        await stream(request.exchange, feeds.follow(info, min(after, info.seq), check))

    @api.add("POST", "/tasks/{key}/cancel", "Cancel a task.", returns=TaskSummary)
    async def cancel(request: ConsoleRequest) -> Any:
        info = await tasks.info(request)
        with console.audit(request, "cancel", info.scope, info.id):
            call = Call(scope=info.scope, principal=Principal(id=console.actor(request.caller)))
            try:
                async with asyncio.timeout(CANCEL_SECONDS):
                    await server.engine.cancel(call, CancelTask(id=info.id))
            except TimeoutError:
                pass  # the task ends later
            except (TaskNotCancelable, TaskClosed) as error:
                raise Conflict(error.message) from None
        return await tasks.row(await tasks.info(request))

    async def copy_task(viewer: Viewer, info: TaskInfo, upto: int) -> NewTask:
        made, generation = new_id(), viewer.generation or None
        check = server.check_limits
        async with check(info.scope, made, info.size) if check is not None else nullcontext():
            await fork(
                server.store, server.bus, info.scope, info.id, upto, new_task=made, generation=generation
            )
        return NewTask(key_of(info.scope, made))

    @api.add(
        "POST", "/tasks/{key}/retry", "Run a failed task again, as a new task.", returns=NewTask, status=201
    )
    async def retry(request: ConsoleRequest) -> Any:
        info = await tasks.info(request)
        if not info.done or info.state is TaskState.COMPLETED or info.hidden:
            raise Conflict(
                "only a task that failed, was rejected or canceled can be retried; fork copies any task"
            )
        with console.audit(request, "retry", info.scope, info.id):
            return await copy_task(request.caller, info, info.seq)

    about = "Copy a task's log up to a record, as a new task, and run it from there."

    @api.add("POST", "/tasks/{key}/fork", about, body=ForkRequest, returns=NewTask, status=201)
    async def copy(request: ConsoleRequest) -> Any:
        info = await tasks.info(request)
        upto = (await request.json(ForkRequest)).record
        with console.audit(request, "fork", info.scope, info.id):
            return await copy_task(request.caller, info, upto)

    return api


def _without_secrets(task: Task) -> Any:
    """A task's JSON without secrets."""
    raw = msgspec.json.encode(task)
    return redact(msgspec.json.decode(raw)) if suspicious(raw) else msgspec.Raw(raw)
