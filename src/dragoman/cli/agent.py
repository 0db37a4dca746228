"""`dragoman agent`: manage the agents of a tenant, at a running hub or in the database of a hub."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from dragoman.cli import show
from dragoman.cli.arguments import add_command, add_verbs
from dragoman.cli.connect import report_error
from dragoman.cli.hub import read
from dragoman.client.transport.network import HttpTransport
from dragoman.client.transport.transport import NOT_JSON
from dragoman.errors import A2AError, InvalidParams
from dragoman.hub.store.catalogue import Catalogue, CatalogueEntry
from dragoman.hub.store.database import open_database
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.tenants import Tenants

T = TypeVar("T")

EPILOG = """\
  dragoman agent apply scout.json critic.json     create or replace two agents
  dragoman agent list
  dragoman agent show scout
  dragoman agent delete scout

--url or the variable DRAGOMAN_URL is the hub (default: http://127.0.0.1:8080). --token or DRAGOMAN_TOKEN is the token of a tenant.

  dragoman agent apply scout.json --tenant acme --store postgresql://host/database

With --tenant, the agents are changed in the database of the hub, which need not run. Running hubs have the change at once.
"""


def register(commands: Any) -> None:
    parser = add_command(commands, "agent", "create, replace, list, show and delete agents of a hub", EPILOG)
    verbs = add_verbs(parser)
    for verb, work, argument, about in (
        (
            "apply",
            _apply,
            "file",
            "create or replace agents: one constitution in each file, - for standard input",
        ),
        ("list", _list, "", "list agents"),
        ("show", _show, "id", "print an agent's constitution"),
        ("delete", _delete, "id", "delete an agent"),
    ):
        each = add_command(verbs, verb, about, run=run)
        if argument:
            each.add_argument(argument, nargs="+" if argument == "file" else None)
        each.add_argument(
            "--url",
            default=os.environ.get("DRAGOMAN_URL", "http://127.0.0.1:8080"),
            help="URL of the hub (default: %(default)s)",
        )
        each.add_argument(
            "--token",
            default=os.environ.get("DRAGOMAN_TOKEN", ""),
            help="token of a tenant (default: the variable DRAGOMAN_TOKEN)",
        )
        each.add_argument("--tenant", default="", help="name or number of a tenant: use the hub's database")
        each.add_argument("--data", help="with --tenant: the hub's folder (default: ~/.dragoman)")
        each.add_argument("--store", help="with --tenant: the hub's database: postgresql://host/database")
        each.set_defaults(work=work)


class HubRefused(Exception):
    """The hub refused the request."""


class _Listed(Struct):
    id: str
    role: str = ""
    goal: str = ""
    code: bool = False


class _Page(Struct):
    agents: list[_Listed]


class _Applied(Struct):
    id: str
    version: int | str


class _Field(Struct):
    field: str
    reason: str


class _Error(Struct):
    error: str
    fields: list[_Field] = []


class _HubClient:
    def __init__(self, args: argparse.Namespace) -> None:
        if not args.token:
            raise HubRefused("whose agents? give --token, or set DRAGOMAN_TOKEN")
        self._url, self._token = args.url.rstrip("/"), args.token
        self._http = HttpTransport()

    async def __call__(self, method: str, id: str = "", body: bytes = b"", *, shape: type[T]) -> T:
        """What the hub has to say about an agent, or about all of them."""
        path = f"/v1/agents/{quote(id, safe='')}" if id else "/v1/agents"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        response = await self._http.request(method, self._url + path, headers, body)
        raw = await response.read() or b"null"
        if response.status >= 400:
            raise HubRefused(_reason(raw, response.status))
        try:
            return msgspec.json.decode(raw, type=shape)
        except NOT_JSON as error:
            raise HubRefused(f"{self._url} does not answer like a hub: {error}") from None

    async def close(self) -> None:
        await self._http.close()


class _HubDatabase:
    """The agents of a tenant, in the database of a hub."""

    def __init__(self, args: argparse.Namespace) -> None:
        if not args.tenant:
            raise HubRefused("whose agents? give --tenant with --store and --data")
        given = read(args)
        if not given.store and not (given.folder / "hub.db").is_file():
            raise HubRefused(f"there is no hub in {given.folder}: `dragoman init` creates one")
        from dragoman.hub.assembly import model_names

        self._tenant, self._names = args.tenant, model_names(given)
        self._database = open_database(given.tasks, given.folder, policy=given.policy)

    async def __call__(self, method: str, id: str = "", body: bytes = b"", *, shape: type[T]) -> T:
        await self._database.open()
        tenant = (await Tenants(self._database).find(self._tenant)).id
        catalogue = Catalogue(self._database)
        result: Any = None
        if method == "PUT":
            entry = await catalogue.replace(tenant, id, msgspec.json.decode(body), make=True)
            try:
                self._names.check(await Policies(self._database).of(tenant), entry.constitution)
            except InvalidParams as error:  # a hub may have other settings than this command
                show.say(f"dragoman: {id}: {error.message}", sys.stderr)
            result = entry.public
        elif method == "DELETE":
            await catalogue.delete(tenant, id)
        elif id:
            found = await catalogue.find(tenant, id)
            if not isinstance(found, CatalogueEntry):
                raise HubRefused(f"there is no agent {id[:80]!r}")
            result = found.public
        else:
            result = {"agents": [entry.public for entry in await catalogue.list(tenant)]}
        return msgspec.convert(result, shape)

    async def close(self) -> None:
        await self._database.close()


_Hub = _HubClient | _HubDatabase


async def run(args: argparse.Namespace) -> int:
    try:
        hub = _HubDatabase(args) if args.tenant or args.store or args.data else _HubClient(args)
        try:
            await args.work(hub, args)
        finally:
            await hub.close()
    except (HubRefused, A2AError, OSError, *NOT_JSON) as error:
        return report_error(error)
    return 0


async def _apply(hub: _Hub, args: argparse.Namespace) -> None:
    for name in args.file:
        raw = _read(name)
        try:
            document = msgspec.json.decode(raw)
        except NOT_JSON as error:
            raise HubRefused(f"{name}: {error}") from None
        id = document.get("id") if isinstance(document, dict) else None
        if not isinstance(id, str) or not id:
            raise HubRefused(f"{name} has no id")
        try:
            agent = await hub("PUT", id, raw, shape=_Applied)
        except HubRefused as refused:
            raise HubRefused(f"{name}: {refused}") from None
        show.say(f"{agent.id}  version {agent.version}")


def _read(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


async def _list(hub: _Hub, args: argparse.Namespace) -> None:
    page = await hub("GET", shape=_Page)
    rows = [(each.id, each.role or ("code" if each.code else ""), each.goal) for each in page.agents]
    show.table(("agent", "role", "goal"), rows)


async def _show(hub: _Hub, args: argparse.Namespace) -> None:
    show.json(await hub("GET", args.id, shape=dict[str, Any]))


async def _delete(hub: _Hub, args: argparse.Namespace) -> None:
    await hub("DELETE", args.id, shape=object)


def _reason(raw: bytes, status: int) -> str:
    try:
        failure = msgspec.json.decode(raw, type=_Error)
    except NOT_JSON:
        return f"the hub answered HTTP {status}"
    lines = [failure.error]
    if not any(field.reason in failure.error for field in failure.fields):
        lines += [f"  {field.field}: {field.reason}" for field in failure.fields]
    return "\n".join(lines)
