"""A whole hub in this process, on stores that are gone with it, and a caller with a token."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing
from functools import cache
from hashlib import sha256
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from dragoman.agent.agent import Agent
from dragoman.hub.assembly import application
from dragoman.hub.hub import Hub
from dragoman.hub.models import Model, Prompt
from dragoman.hub.settings import Settings
from dragoman.hub.store.database import Database, open_database
from dragoman.hub.store.tenants import Tenant
from tests import postgres
from tests.hub import openapi_check
from tests.hub.scripted import Scripted, ScriptedModel
from tests.server.wire import Answer, open_request

ON_POSTGRES = os.environ.get("DRAGOMAN_TEST_HUB") == "postgresql"
"""The suite runs on PostgreSQL: `make test-hub-postgres`."""
ADMIN = "adm_" + "0" * 64

SCOUT = {"id": "scout", "name": "Scout", "role": "research-analyst", "goal": "find things out"}


class Caller:
    """Speaks for one tenant."""

    def __init__(self, app: Any, token: str, tenant: Tenant | None = None) -> None:
        self.app, self.token = app, token
        self._tenant = tenant

    @property
    def tenant(self) -> Tenant:
        assert self._tenant is not None
        return self._tenant

    def open(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        path, _, query = path.partition("?")
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            given.setdefault("authorization", f"Bearer {self.token}")
        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        return open_request(self.app, method, path, raw, headers=given, query=query)

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        answer = await self.open(method, path, body, **headers).end()
        openapi_check.check(self.app, method, path.partition("?")[0], answer)
        return answer

    async def rpc(
        self, agent: str, method: str, params: Any = None, *, id: Any = 1, **headers: str
    ) -> Answer:
        return await self.open_rpc(agent, method, params, id=id, **headers).end()

    def open_rpc(self, agent: str, method: str, params: Any = None, *, id: Any = 1, **headers: str) -> Answer:
        body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
        return self.open("POST", f"/v1/a2a/agents/{agent}", body, **headers)

    async def ask(self, message: Any, path: str = "/v1/orchestrate", **body: Any) -> list[tuple[str, Any]]:
        """The events of a native request: (kind, payload)."""
        return events(await self("POST", path, {"message": message, **body}))


class House:
    def __init__(self, hub: Hub, app: Any, model: Any) -> None:
        self.hub, self.app, self.model = hub, app, model
        self.admin = Caller(app, ADMIN)
        self.nobody = Caller(app, "")

    async def tenant(self, name: str) -> Caller:
        tenant, token = await self.hub.tenants.add(name)
        return Caller(self.app, token, tenant)


@asynccontextmanager
async def house(
    replies: Iterable[Scripted] | Callable[[Prompt], Scripted] = (),
    *,
    model: Model | None = None,
    code: Sequence[Agent] = (),
    folder: Any = None,
    **settings: Any,
) -> AsyncIterator[House]:
    """A hub whose model says what it is told. With `folder` it is kept there, and can be opened again.

    Its operator allows every model, every command and any number of reads, unless the settings say otherwise.
    """
    settings = {"models": ("*",), "approve": (), "reads_per_min": 0, **settings}
    given = model or ScriptedModel(replies)
    with ExitStack() as stack:
        data = (
            str(folder)
            if folder is not None
            else stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
        )
        if url := _postgres(folder):
            settings["store"] = url
            os.environ["DRAGOMAN_STORE"] = url  # the command line finds it there
            stack.callback(os.environ.pop, "DRAGOMAN_STORE", None)
        hub, app = application(
            Settings(**{"admin_token": ADMIN, "drain": 0.0, "data": data, **settings}),
            model=given,
            code=code,
            store="" if url or folder is not None else "memory:",
        )
        await app.start()
        try:
            yield House(hub, app, given)
        finally:
            async with asyncio.timeout(10):
                await app.stop()


_houses = count()


def _postgres(folder: Any) -> str:
    """The database of a hub, if the suite runs on PostgreSQL; that of a folder stays."""
    if not ON_POSTGRES:
        return ""
    name = (
        f"hub_{next(_houses)}" if folder is None else f"hub_{sha256(str(folder).encode()).hexdigest()[:16]}"
    )
    return postgres.server().database(name, template=_template())


def tables_of(folder: Any) -> Database:
    """The tables of the hub that is kept in a folder."""
    return open_database(_postgres(folder) or folder / "hub.db")


def store_of(folder: Any, name: str = "tasks.db") -> str:
    """The address of the tasks of the hub that is kept in a folder, or of another store there."""
    return _postgres(folder if name == "tasks.db" else folder / name) or f"sqlite:///{folder / name}"


def place_of(folder: Any) -> list[str]:
    """The options by which the command line finds the hub that is kept in a folder."""
    url = _postgres(folder)
    return ["--data", str(folder), *(["--store", url] if url else ())]


async def rows_of(folder: Any) -> dict[str, list[str]]:
    """The rows of every table of the hub that is kept in a folder, and of its tasks, as texts."""
    if url := _postgres(folder):
        import asyncpg

        db = await asyncpg.connect(url)
        try:
            named = "select table_schema, table_name from information_schema.tables where table_schema in ('hub', 'dragoman')"
            names = [f'{schema}."{table}"' for schema, table in await db.fetch(named)]
            return {
                name: [str(tuple(row)) for row in await db.fetch(f"select * from {name}")] for name in names
            }
        finally:
            await db.close()
    found: dict[str, list[str]] = {}
    for file in ("hub.db", "tasks.db"):
        with closing(sqlite3.connect(folder / file)) as opened:
            tables = opened.execute("select name from sqlite_master where type = 'table'").fetchall()
            for (table,) in tables:
                rows = opened.execute(f'select * from "{table}"')
                found[f'{file}."{table}"'] = [str(row) for row in rows.fetchall()]
    return found


@cache
def _template() -> str:
    """The name of a database that has a hub's tables: a copy of it is ready sooner than new tables."""
    server, name = postgres.server(), "hub_template"
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _make_tables(server.database(name))).result()
    return name


async def _make_tables(url: str) -> None:
    database = await open_database(url).open()
    await database.close()


def events(answer: Answer) -> list[tuple[str, Any]]:
    return [(frame.event, msgspec.json.decode(frame.data)) for frame in answer.frames()]


def kinds(received: list[tuple[str, Any]]) -> list[str]:
    """The kinds of events, without repetitions in a row."""
    out: list[str] = []
    for kind, _ in received:
        if not out or out[-1] != kind:
            out.append(kind)
    return out


def message(text: str, id: str = "m-1", **more: Any) -> dict[str, Any]:
    return {"message": {"role": "user", "messageId": id, "parts": [{"kind": "text", "text": text}], **more}}
