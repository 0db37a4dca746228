"""`dragoman agent`: manage the agents of a tenant, at a running hub or in the database of a hub."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from dragoman.cli import show
from dragoman.cli.arguments import add_command, add_verbs
from dragoman.cli.connect import HUB_URL, report_error
from dragoman.cli.hub import read_hub_settings
from dragoman.client.transport.network import HttpTransport
from dragoman.client.transport.transport import NOT_JSON
from dragoman.errors import A2AError, InvalidParams
from dragoman.hub.agents.constitution import ignored_members
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
            default=os.environ.get("DRAGOMAN_URL", HUB_URL),
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
    """The agents of a tenant, at a running hub."""

    def __init__(self, args: argparse.Namespace) -> None:
        if not args.token:
            raise HubRefused("whose agents? give --token, or set DRAGOMAN_TOKEN")
        self._url, self._token = args.url.rstrip("/"), args.token
        self._http = HttpTransport()

    async def list(self) -> Sequence[_Listed]:
        return (await self._request("GET", kind=_Page)).agents

    async def get(self, id: str) -> dict[str, Any]:
        return await self._request("GET", id, kind=dict[str, Any])

    async def put(self, id: str, document: bytes) -> _Applied:
        return await self._request("PUT", id, document, kind=_Applied)

    async def delete(self, id: str) -> None:
        await self._request("DELETE", id, kind=object)

    async def close(self) -> None:
        await self._http.close()

    async def _request(self, method: str, id: str = "", body: bytes = b"", *, kind: type[T]) -> T:
        path = f"/v1/agents/{quote(id, safe='')}" if id else "/v1/agents"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        response = await self._http.request(method, self._url + path, headers, body)
        raw = await response.read() or b"null"
        if response.status >= 400:
            raise HubRefused(_reason(raw, response.status))
        try:
            return msgspec.json.decode(raw, type=kind)
        except NOT_JSON as error:
            raise HubRefused(f"{self._url} does not answer like a hub: {error}") from None


class _HubDatabase:
    """The agents of a tenant, in the database of a hub. `open` before anything else."""

    def __init__(self, args: argparse.Namespace) -> None:
        if not args.tenant:
            raise HubRefused("whose agents? give --tenant with --store and --data")
        given = read_hub_settings(args)
        from dragoman.hub.assembly import model_names

        self._named, self._tenant, self._names = args.tenant, 0, model_names(given)
        self._database = open_database(given.tasks, given.folder, policy=given.policy)
        self._catalogue = Catalogue(self._database)

    async def open(self) -> None:
        await self._database.open(create=False)
        self._tenant = (await Tenants(self._database).find(self._named)).id

    async def list(self) -> Sequence[_Listed]:
        entries = await self._catalogue.list(self._tenant)
        return [_Listed(entry.id, entry.constitution.role, entry.constitution.goal) for entry in entries]

    async def get(self, id: str) -> dict[str, Any]:
        found = await self._catalogue.find(self._tenant, id)
        if not isinstance(found, CatalogueEntry):
            raise HubRefused(f"there is no agent {id[:80]!r}")
        return found.public

    async def put(self, id: str, document: bytes) -> _Applied:
        entry = await self._catalogue.replace(self._tenant, id, msgspec.json.decode(document), create=True)
        try:
            self._names.check(await Policies(self._database).of(self._tenant), entry.constitution)
        except InvalidParams as error:  # a hub may have other settings than this command
            show.say(f"dragoman: {id}: {error.message}", sys.stderr)
        return _Applied(entry.id, entry.version)

    async def delete(self, id: str) -> None:
        await self._catalogue.delete(self._tenant, id)

    async def close(self) -> None:
        await self._database.close()


_Hub = _HubClient | _HubDatabase


async def run(args: argparse.Namespace) -> int:
    try:
        hub = _HubDatabase(args) if args.tenant or args.store or args.data else _HubClient(args)
        try:
            if isinstance(hub, _HubDatabase):
                await hub.open()
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
            raise HubRefused(f"{name} is not JSON: {error}") from None
        id = document.get("id") if isinstance(document, dict) else None
        if not isinstance(id, str) or not id:
            raise HubRefused(f"{name} has no id")
        try:
            agent = await hub.put(id, raw)
        except HubRefused as refused:
            raise HubRefused(f"{name}: {refused}") from None
        show.say(f"{agent.id}  version {agent.version}")
        for sentence in ignored_members(document):
            show.say(f"{name}: {sentence}", sys.stderr)


def _read(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


async def _list(hub: _Hub, args: argparse.Namespace) -> None:
    found = await hub.list()
    rows = [(each.id, each.role or ("code" if each.code else ""), each.goal) for each in found]
    show.table(("agent", "role", "goal"), rows)


async def _show(hub: _Hub, args: argparse.Namespace) -> None:
    show.json(await hub.get(args.id))


async def _delete(hub: _Hub, args: argparse.Namespace) -> None:
    await hub.delete(args.id)


def _reason(raw: bytes, status: int) -> str:
    try:
        failure = msgspec.json.decode(raw, type=_Error)
    except NOT_JSON:
        return f"the hub answered HTTP {status}"
    lines = [failure.error]
    if not any(field.reason in failure.error for field in failure.fields):
        lines += [f"  {field.field}: {field.reason}" for field in failure.fields]
    return "\n".join(lines)
