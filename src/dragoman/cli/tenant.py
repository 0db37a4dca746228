"""`dragoman tenant`: manage the tenants of a hub, in its database."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.cli import show
from dragoman.cli.hub import read
from dragoman.errors import A2AError, InvalidParams
from dragoman.hub.store.database import open_database
from dragoman.hub.store.tenants import Tenants

EPILOG = """\
  dragoman tenant add acme          create a tenant and print its token, only this once
  dragoman tenant rotate acme       replace its token; tasks that run with the old one are canceled
  dragoman tenant disable acme      refuse its requests, and cancel its tasks
  dragoman tenant rotate-admin      replace the admin token; the old one is refused at once

A running hub applies changes within a second. NAME is the name of a tenant or its number.
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "tenant",
        help="create, list and disable tenants of a hub; replace their tokens",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb, work, about in (
        ("add", _add, "create a tenant"),
        ("list", _list, "list tenants"),
        ("disable", _disable, "refuse requests of a tenant"),
        ("enable", _enable, "accept requests of a tenant again"),
        ("rotate", _rotate, "replace the token of a tenant"),
        ("rotate-admin", _rotate_admin, "replace the admin token, and print it"),
    ):
        each = verbs.add_parser(verb, help=about)
        if verb not in ("list", "rotate-admin"):
            each.add_argument(
                "name", help="name or number of the tenant" if verb != "add" else "name of the new tenant"
            )
        each.add_argument("--data", help="the hub's folder (default: ~/.dragoman)")
        each.add_argument(
            "--store", help="the hub's database, if it is not in its folder: postgresql://host/database"
        )
        each.set_defaults(run=run, work=work)


async def run(args: argparse.Namespace) -> int:
    work: Callable[[Tenants, argparse.Namespace], Awaitable[None]] = args.work
    given = read(args)
    folder = given.folder
    if work is not _add and not given.store and not (folder / "hub.db").is_file():
        print(f"dragoman: there is no hub in {folder}: `dragoman init` creates one", file=sys.stderr)
        return 1
    database = open_database(given.tasks, folder)
    try:
        await database.open()
        await work(Tenants(database), args)
    except A2AError as error:
        show.say(f"dragoman: {error.message}", sys.stderr)
        return 1
    finally:
        await database.close()
    return 0


async def _add(tenants: Tenants, args: argparse.Namespace) -> None:
    tenant, token = await tenants.add(args.name, actor="cli")
    print(f"tenant {tenant.id} ({tenant.name})", file=sys.stderr)
    print(token)


async def _list(tenants: Tenants, args: argparse.Namespace) -> None:
    show.table(
        ("id", "name", "state"),
        [(str(t.id), t.name, "disabled" if t.disabled else "enabled") for t in await tenants.list()],
    )


async def _disable(tenants: Tenants, args: argparse.Namespace) -> None:
    await tenants.disable(await tenants.find(args.name), True, actor="cli")


async def _enable(tenants: Tenants, args: argparse.Namespace) -> None:
    await tenants.disable(await tenants.find(args.name), False, actor="cli")


async def _rotate(tenants: Tenants, args: argparse.Namespace) -> None:
    _, token = await tenants.rotate(await tenants.find(args.name), actor="cli")
    print(token)


async def _rotate_admin(tenants: Tenants, args: argparse.Namespace) -> None:
    if read(args).admin_token:
        raise InvalidParams(
            "the admin token is the setting admin_token: change it there, and start the hub again"
        )
    await tenants.rotate_admin(show=lambda token: print(token, flush=True))
