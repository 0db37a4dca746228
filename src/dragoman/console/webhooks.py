"""Webhooks of tasks: which events they got, what failed, and redelivery; and the test receivers of the console.

A test receiver is a URL that receives notifications, to show them. They are files in a folder that all workers share.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from dragoman.console.access import OPERATOR, Viewer
from dragoman.console.api import ANY_QUERY, API, Console, ConsoleRequest, frame, stream
from dragoman.console.keys import key_of, no_task, read_json, read_key, write_json
from dragoman.engine.protocols import Store
from dragoman.engine.push_configs import Delivery
from dragoman.errors import A2AError, InvalidParams, TaskNotFound
from dragoman.model.ids import timestamp
from dragoman.model.ops import Scope
from dragoman.observe.redact import MASK, is_secret_name, redact_text, redact_url
from dragoman.push.post import CHALLENGE_PARAMETER
from dragoman.server.exchange import Exchange
from dragoman.server.routes import NotFound, Route, RouteList
from dragoman.server.temporary import TemporaryFolder

MAX_WEBHOOKS = 200
STATES = ("pending", "failed", "dead")
MAX_RECEIVERS, RECEIVER_SECONDS = 16, 3600.0
MAX_DELIVERIES, MAX_BODY_BYTES = 100, 64 << 10
POLL_SECONDS = 0.25
"""How often a stream of a receiver checks for deliveries that other workers received."""
_ID = re.compile(r"[A-Za-z0-9_-]{20,64}")


class WebhookView(Struct, frozen=True, kw_only=True, rename="camel"):
    key: str
    task: str
    """The key of its task."""
    id: str
    url: str
    cursor: int
    """The last record that was delivered."""
    last: int
    """The last record to deliver."""
    pending: bool
    attempts: int
    """How often delivery of the next notification failed."""
    last_error: str | None
    next_attempt: str | None
    dead: bool


class WebhookPage(Struct, frozen=True):
    webhooks: list[WebhookView]
    next: str | None


class Redelivery(Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from"}):
    start: int | None = None
    """The first record to deliver again; null: continue where delivery stopped."""


class Receiver(Struct, frozen=True):
    id: str
    url: str


def webhook_view(delivery: Delivery) -> WebhookView:
    pending = delivery.cursor < delivery.last
    return WebhookView(
        key=_key(delivery.scope, delivery.task, delivery.key),
        task=key_of(delivery.scope, delivery.task),
        id=delivery.webhook.config.id,
        url=redact_url(delivery.webhook.config.url),
        cursor=delivery.cursor,
        last=delivery.last,
        pending=pending and not delivery.dead,
        attempts=delivery.attempt,
        last_error=redact_text(delivery.error)[:500] or None,
        next_attempt=timestamp(delivery.at) if pending and not delivery.dead and delivery.at else None,
        dead=delivery.dead,
    )


def _key(scope: Scope, task: str, webhook: int) -> str:
    return write_json((key_of(scope, task), webhook))


def _read_key(key: str, viewer: Viewer) -> tuple[Scope, str, int]:
    try:
        task_key, webhook = read_json(key, tuple[str, int])
    except ValueError:
        raise _no_webhook() from None
    return (*read_key(task_key, viewer), webhook)


def _no_webhook() -> NotFound:
    return NotFound("there is no such webhook")


class Webhooks:
    def __init__(self, store: Store) -> None:
        self._queue = store.push_queue

    async def of_task(self, scope: Scope, task: str) -> list[Delivery]:
        try:
            return list(await self._queue.browse(of=(scope, task), limit=MAX_WEBHOOKS))
        except TaskNotFound:
            raise no_task() from None

    async def find(self, viewer: Viewer, state: str, after: int) -> tuple[list[Delivery], int | None]:
        """A page of webhooks in a state, and where the next page begins."""
        if state in ("pending", "dead") and viewer.role == OPERATOR:
            return list(await self._queue.find(dead=state == "dead", limit=MAX_WEBHOOKS)), None
        found: list[Delivery] = []
        for _ in range(20):
            page = await self._queue.browse(after=after, limit=MAX_WEBHOOKS)
            for each in page:
                if _in_state(each, state) and (viewer.role == OPERATOR or each.scope.tenant == viewer.tenant):
                    found.append(each)
                    if len(found) == MAX_WEBHOOKS:
                        return found, each.key
            if len(page) < MAX_WEBHOOKS:
                return found, None
            after = page[-1].key
        return found, after

    async def redeliver(self, scope: Scope, task: str, webhook: int, start: int | None) -> Delivery:
        if not any(each.key == webhook for each in await self.of_task(scope, task)):
            raise _no_webhook()
        if start is not None and start < 1:
            raise InvalidParams("from is the number of a record", fields=(("from", f"is {start}"),))
        await self._queue.redeliver(webhook, cursor=None if start is None else start - 1)
        for each in await self.of_task(scope, task):
            if each.key == webhook:
                return each
        raise _no_webhook()


def _in_state(delivery: Delivery, state: str) -> bool:
    match state:
        case "pending":
            return delivery.cursor < delivery.last and not delivery.dead
        case "failed":
            return bool(delivery.error) and not delivery.dead
        case "dead":
            return delivery.dead
    return True


# -- receivers -----------------------------------------------------------------------------------------------------


class TooManyReceivers(A2AError):
    reason, http = "RESOURCE_EXHAUSTED", 429


class Receivers:
    """A folder for each receiver, a file for each delivery. Create it before workers are forked, so that they share it."""

    def __init__(self) -> None:
        self._temporary = TemporaryFolder("receivers")
        self._folder = self._temporary.path

    def create(self) -> str:
        """Raises `TooManyReceivers`."""
        self._temporary.make()
        self._delete_old()
        if sum(1 for _ in self._folder.iterdir()) >= MAX_RECEIVERS:
            raise TooManyReceivers(
                f"there are {MAX_RECEIVERS} test receivers; each is deleted an hour after its last delivery"
            )
        id = secrets.token_urlsafe(24)
        (self._folder / id).mkdir(mode=0o700)
        return id

    def _delete_old(self) -> None:
        """Delete receivers whose folder has not changed for an hour: they got no delivery since."""
        for folder in self._folder.iterdir():
            if folder.stat().st_mtime < time.time() - RECEIVER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

    def exists(self, id: str) -> bool:
        if _ID.fullmatch(id) is None or not (self._folder / id).is_dir():
            return False
        self._temporary.make()  # this worker uses it, too
        return True

    def put(self, id: str, delivery: Any) -> bool:
        """Store a delivery. False if the receiver is full."""
        folder = self._folder / id
        n = sum(1 for _ in folder.iterdir())
        if n >= MAX_DELIVERIES:
            return False
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        temporary = folder / f".{name}"
        temporary.write_bytes(msgspec.json.encode(delivery))
        os.replace(temporary, folder / name)
        return True

    def after(self, id: str, name: str) -> list[tuple[str, bytes]]:
        """The deliveries after the one with this name."""
        try:
            files = sorted(file for file in os.listdir(self._folder / id) if file > name and file[0] != ".")
            return [(file, (self._folder / id / file).read_bytes()) for file in files]
        except OSError:
            raise NotFound("there is no such receiver any more") from None


async def receive_delivery(receivers: Receivers, exchange: Exchange, id: str) -> None:
    """Receive a notification for a test receiver. Anybody who knows its URL may send one."""
    if not receivers.exists(id):
        raise NotFound("there is no such receiver")
    if exchange.method == "GET":
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
        token = query.get(CHALLENGE_PARAMETER, [""])[-1]
        await exchange.respond(200, token[:200].encode(), ((b"content-type", b"text/plain; charset=utf-8"),))
        return
    body = await exchange.body()
    headers = {
        name.decode("latin-1"): MASK
        if is_secret_name(name.decode("latin-1"))
        else value.decode("latin-1")[:1000]
        for name, value in exchange.scope["headers"][:64]
    }
    text = redact_text(body[:MAX_BODY_BYTES].decode("utf-8", "replace"))
    taken = receivers.put(id, {"time": timestamp(), "headers": headers, "body": text})
    await exchange.respond(204 if taken else 507)


def routes(console: Console, receivers: Receivers | None) -> Sequence[Route]:
    api, server = RouteList("webhooks"), console.server
    assert server is not None
    webhooks = Webhooks(server.store)
    filters = {
        "task": "The key of a task.",
        "state": "pending, failed (and tried again) or dead (given up).",
        "cursor": "`next` of the page before.",
    }

    @api.add(
        "GET",
        "/webhooks",
        "Webhooks of tasks, and the last event that each got.",
        query=filters,
        returns=WebhookPage,
    )
    async def list_webhooks(request: ConsoleRequest) -> Any:
        state = request.query("state")
        if state and state not in STATES:
            raise InvalidParams(
                f"there is no state {state[:40]!r}", fields=(("state", f"is one of {', '.join(STATES)}"),)
            )
        if key := request.query("task"):
            found = await webhooks.of_task(*read_key(key, request.caller))
            return WebhookPage([webhook_view(each) for each in found if _in_state(each, state)], None)
        found, after = await webhooks.find(request.caller, state, request.query_int("cursor"))
        return WebhookPage([webhook_view(each) for each in found], None if after is None else str(after))

    about = "Deliver to a webhook again, also to one that was given up."

    @api.add("POST", "/webhooks/{key}/redeliver", about, body=Redelivery, returns=WebhookView)
    async def redeliver(request: ConsoleRequest) -> Any:
        scope, task, webhook = _read_key(request.path["key"], request.caller)
        start = (await request.json(Redelivery)).start
        with console.audit(request, "redeliver", scope, task):
            return webhook_view(await webhooks.redeliver(scope, task, webhook, start))

    if receivers is not None:
        _add_receivers(api, console, receivers)
    return api


def _add_receivers(api: RouteList, console: Console, receivers: Receivers) -> None:
    @api.add(
        "POST",
        "/receivers",
        "Make a URL that takes notifications and shows them.",
        access=OPERATOR,
        returns=Receiver,
        status=201,
    )
    async def create(request: ConsoleRequest) -> Any:
        id = receivers.create()
        console.record("create receiver", "OK", principal=console.actor(request.caller))
        return Receiver(id, f"{request.exchange.base_url()}{API}/receive/{id}")

    @api.add(
        "GET", "/receivers/{id}/events", "What a test receiver takes, live.", access=OPERATOR, streams=True
    )
    async def events(request: ConsoleRequest) -> None:
        if not receivers.exists(request.path["id"]):
            raise NotFound("there is no such receiver")
        check = partial(console.access.check_session, request.caller)
        await stream(request.exchange, _deliveries(receivers, request.path["id"], check))

    for method in ("GET", "POST", "PUT"):

        @api.add(
            method,
            "/receive/{id}",
            "Where a test receiver takes notifications.",
            access="anybody",
            query={
                CHALLENGE_PARAMETER: "Repeated in the answer.",
                ANY_QUERY: "Whatever the webhook's URL has.",
            },
            streams=True,
        )
        async def receive(request: ConsoleRequest) -> None:
            await receive_delivery(receivers, request.exchange, request.path["id"])


async def _deliveries(
    receivers: Receivers, id: str, check: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    name = ""
    yield b""
    while True:
        for file, body in receivers.after(id, name):
            name = file
            yield frame(msgspec.Raw(body))
        await check()
        await asyncio.sleep(POLL_SECONDS)
