"""`dragoman tenant`: manage the tenants of a hub, in its database."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from dragoman.cli import show
from dragoman.cli.arguments import CommandParser, add_command, add_flag, add_verbs
from dragoman.cli.hub import add_hub_store, read_hub_settings
from dragoman.engine.protocols import Store
from dragoman.errors import InvalidParams
from dragoman.hub.store.artifacts import Artifacts
from dragoman.hub.store.blobs import BlobSweeper, open_blobs
from dragoman.hub.store.database import open_database
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.tenants import Tenants
from dragoman.hub.store.tokens import RUN, SCOPES
from dragoman.hub.tenants.lifecycle import TenantDeletion, TenantExport, file_name, rename_tenant
from dragoman.hub.tenants.policy import EMPTY_LIST, LISTS
from dragoman.stores import open_store

WAITS, WAIT_SECONDS = 50, 0.2
"""How often, and after how long, it is looked whether the tasks of a tenant have ended."""
Work = Callable[[Tenants, argparse.Namespace], Awaitable[None]]

EPILOG = """\
  dragoman tenant add acme          create a tenant and print its token, only this once
  dragoman tenant rotate acme       replace all its tokens by one; tasks that run with the old ones are canceled
  dragoman tenant disable acme      refuse its requests, and cancel its tasks
  dragoman tenant rename acme apex  give it another name
  dragoman tenant export acme       write everything it has to a ZIP archive
  dragoman tenant delete acme       delete everything it has

  dragoman tenant add-token acme ci --scope run --expires 90d     one more token, and print it
  dragoman tenant tokens acme                                     list its tokens and users
  dragoman tenant rotate-token acme 7 --overlap 24h               replace a token; the old one is valid for a day
  dragoman tenant revoke-token acme 7                             revoke a token, or block a user

  dragoman tenant policy acme                                     what it may use and store
  dragoman tenant policy acme tokens_per_day=50000000 models=openai/*,fast max_todos=default

  dragoman tenant rotate-admin --overlap 1h                       replace the admin token

A running hub applies changes within a second. NAME is the name of a tenant or its number.
"""


def register(commands: Any) -> None:
    parser = add_command(
        commands, "tenant", "create, list, rename and disable tenants of a hub; manage their tokens", EPILOG
    )
    verbs = add_verbs(parser)
    _verb(verbs, "add", _add, "create a tenant", tenant="name of the new tenant")
    _verb(verbs, "list", _list, "list tenants", tenant="")
    rename = _verb(verbs, "rename", _rename, "give a tenant another name")
    rename.add_argument("new_name", help="the new name")
    export = _verb(verbs, "export", _export, "write everything of a tenant to a ZIP archive")
    export.add_argument(
        "-o", "--output", metavar="FILE", help="the archive (default: tenant-NUMBER-TIME.zip)"
    )
    delete = _verb(verbs, "delete", _delete, "delete a tenant with everything it has")
    add_flag(delete, "--yes", help="do not ask")
    _verb(verbs, "disable", _disable, "refuse requests of a tenant")
    _verb(verbs, "enable", _enable, "accept requests of a tenant again")
    _add_overlap(_verb(verbs, "rotate", _rotate, "replace all tokens of a tenant by one"))
    _verb(verbs, "tokens", _tokens, "list the tokens and users of a tenant")
    token = _verb(verbs, "add-token", _add_token, "create another token of a tenant, and print it")
    token.add_argument("token", help="name of the new token")
    token.add_argument("--scope", choices=SCOPES, default=RUN, help="what it may do (default: %(default)s)")
    _add_expiry(token)
    rotate = _verb(verbs, "rotate-token", _rotate_token, "replace one token of a tenant")
    _add_number(rotate)
    _add_expiry(rotate, "as long as the old one was made for")
    _add_overlap(rotate)
    _add_number(_verb(verbs, "revoke-token", _revoke_token, "revoke a token of a tenant, or block a user"))
    _add_number(_verb(verbs, "allow-user", _allow_user, "unblock a user"))
    policy = _verb(verbs, "policy", _policy, "show or change what a tenant may use and store")
    policy.add_argument(
        "changes",
        nargs="*",
        metavar="MEMBER=VALUE",
        help="such as max_memories=100, models=openai/*,fast, approve=none; default: as the hub says",
    )
    admin = _verb(verbs, "rotate-admin", _rotate_admin, "replace the admin token, and print it", tenant="")
    _add_overlap(admin)


def _verb(
    verbs: Any, name: str, work: Work, about: str, *, tenant: str = "name or number of the tenant"
) -> CommandParser:
    """Add a verb. `tenant`: what its argument NAME is; empty: it has none."""
    parser = add_command(verbs, name, about, run=run)
    if tenant:
        parser.add_argument("name", help=tenant)
    add_hub_store(parser)
    parser.set_defaults(work=work)
    return parser


def _add_number(parser: CommandParser) -> None:
    parser.add_argument("token", type=int, help="number of the token; `tokens` lists them")


def _add_expiry(parser: CommandParser, default: str = "for ever") -> None:
    parser.add_argument(
        "--expires", type=seconds, metavar="TIME", help=f"how long it is valid: 90d, 12h (default: {default})"
    )


def _add_overlap(parser: CommandParser) -> None:
    parser.add_argument(
        "--overlap",
        type=seconds,
        default=0,
        metavar="TIME",
        help="how long the old token is valid beside the new one: 24h (default: it ends at once)",
    )


async def run(args: argparse.Namespace) -> int:
    given = read_hub_settings(args)
    folder = given.folder
    database = open_database(given.tasks, folder, policy=given.policy)
    try:
        await database.open(create=args.work is _add)
        args.store_url, args.folder, args.database, args.blobs = given.tasks, folder, database, given.blobs
        await args.work(Tenants(database), args)
    finally:
        await database.close()
    return 0


@asynccontextmanager
async def _task_store(args: argparse.Namespace) -> AsyncIterator[Store]:
    store = open_store(args.store_url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _add(tenants: Tenants, args: argparse.Namespace) -> None:
    tenant, token = await tenants.add(args.name, actor="cli")
    print(f"tenant {tenant.id} ({tenant.name})", file=sys.stderr)
    print(token)


async def _list(tenants: Tenants, args: argparse.Namespace) -> None:
    show.table(
        ("id", "name", "state"),
        [(str(t.id), t.name, "disabled" if t.disabled else "enabled") for t in await tenants.list()],
    )


async def _policy(tenants: Tenants, args: argparse.Namespace) -> None:
    tenant, policies = await tenants.find(args.name), Policies(args.database)
    if args.changes:
        await policies.change(tenant.id, dict(map(_change, args.changes)), actor="cli")
    policy, own = await policies.of(tenant.id), await policies.own(tenant.id)
    values = msgspec.structs.asdict(policy).items()
    show.table(
        ("member", "value", "from"),
        [(name, _shown(value), "tenant" if name in own else "hub") for name, value in values],
    )


def _change(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidParams(f"{text[:80]!r} is no change of a policy: MEMBER=VALUE, such as max_memories=100")
    if value == "default":
        return name, None
    if name in LISTS:
        return name, [] if value in ("", EMPTY_LIST) else value.split(",")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def _shown(value: Any) -> str:
    return (", ".join(value) or EMPTY_LIST) if isinstance(value, tuple) else str(value)


async def _disable(tenants: Tenants, args: argparse.Namespace) -> None:
    await tenants.disable(await tenants.find(args.name), True, actor="cli")


async def _enable(tenants: Tenants, args: argparse.Namespace) -> None:
    await tenants.disable(await tenants.find(args.name), False, actor="cli")


async def _rename(tenants: Tenants, args: argparse.Namespace) -> None:
    async with _task_store(args) as store:
        tenant = await tenants.find(args.name)
        await rename_tenant(tenants, store.catalogue, tenant, args.new_name, actor="cli")


async def _export(tenants: Tenants, args: argparse.Namespace) -> None:
    tenant = await tenants.find(args.name)
    path = Path(args.output or file_name(tenant))
    async with _task_store(args) as store:
        artifacts = Artifacts(args.database, open_blobs(args.blobs, args.folder / "blobs"))
        export = TenantExport(args.database, store, artifacts, args.folder / "workspaces")
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # for this user alone
        except FileExistsError:
            raise InvalidParams(f"there is a file {path} already") from None
        try:
            async for chunk in export.archive(tenant):
                while chunk:
                    chunk = chunk[os.write(file, chunk) :]
        finally:
            os.close(file)
    print(path)


async def _delete(tenants: Tenants, args: argparse.Namespace) -> None:
    """Shut it out, and delete what no hub runs. A hub that runs does the rest, or the next one that starts."""
    tenant = await tenants.find(args.name)
    if not args.yes:
        print(
            f"Everything of tenant {tenant.id} ({tenant.name}) is deleted. Its name, to go on: ",
            end="",
            flush=True,
        )
        if sys.stdin.readline().strip() != tenant.name:
            raise InvalidParams("nothing is deleted: that is not its name (--yes does not ask)")
    async with _task_store(args) as store:
        contents = BlobSweeper(args.database, open_blobs(args.blobs, args.folder / "blobs"))
        deletion = TenantDeletion(args.database, store, args.folder / "workspaces", contents)
        await deletion.begin(tenant, actor="cli")
        for _ in range(WAITS):  # a hub that runs cancels its tasks within a second
            if await deletion.continue_deletions():
                print(f"tenant {tenant.id} ({tenant.name}) is deleted", file=sys.stderr)
                return
            await asyncio.sleep(WAIT_SECONDS)
        print(
            "some tasks still run: a hub deletes the rest when they end, or when it starts", file=sys.stderr
        )


async def _rotate(tenants: Tenants, args: argparse.Namespace) -> None:
    _, token = await tenants.rotate(await tenants.find(args.name), overlap=args.overlap, actor="cli")
    print(token)


async def _tokens(tenants: Tenants, args: argparse.Namespace) -> None:
    tenant = await tenants.find(args.name)
    show.table(
        ("id", "kind", "name", "scope", "expires", "last used"),
        [
            (str(t.id), t.kind, t.name, t.scope, _time(t.expires_at, "never"), _time(t.last_used_at, "never"))
            for t in await tenants.tokens.list(tenant.id)
        ],
    )


async def _add_token(tenants: Tenants, args: argparse.Namespace) -> None:
    tenant = await tenants.find(args.name)
    token, secret = await tenants.tokens.create(
        tenant.id, args.token, args.scope, expires_at=_expiry(args), actor="cli"
    )
    print(f"token {token.id} ({token.name}, {token.scope})", file=sys.stderr)
    print(secret)


async def _rotate_token(tenants: Tenants, args: argparse.Namespace) -> None:
    tenant = await tenants.find(args.name)
    token, secret = await tenants.tokens.rotate(
        tenant.id, args.token, overlap=args.overlap, expires_at=_expiry(args), actor="cli"
    )
    print(f"token {token.id} ({token.name}, {token.scope})", file=sys.stderr)
    print(secret)


async def _revoke_token(tenants: Tenants, args: argparse.Namespace) -> None:
    await tenants.tokens.revoke((await tenants.find(args.name)).id, args.token, actor="cli")


async def _allow_user(tenants: Tenants, args: argparse.Namespace) -> None:
    await tenants.tokens.unblock((await tenants.find(args.name)).id, args.token, actor="cli")


def seconds(text: str) -> int:
    """`90`, `30m`, `12h` or `7d` in seconds. Raises `ArgumentTypeError`."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m, 12h or 7d")
    return int(number) * _UNITS[unit]


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _expiry(args: argparse.Namespace) -> int | None:
    return None if args.expires is None else int(time.time()) + int(args.expires)


def _time(at: int | None, otherwise: str) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}" if at else otherwise


async def _rotate_admin(tenants: Tenants, args: argparse.Namespace) -> None:
    if read_hub_settings(args).admin_token:
        raise InvalidParams(
            "the admin token is the setting admin_token: change it there, and start the hub again"
        )
    await tenants.rotate_admin_token(show=lambda token: print(token, flush=True), overlap=args.overlap)
