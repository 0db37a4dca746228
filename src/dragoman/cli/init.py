"""`dragoman init`: create the folder, the tokens and the configuration of a hub."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dragoman.cli.arguments import add_command
from dragoman.cli.hub import add_hub_store, read_hub_settings
from dragoman.client.config import CONFIG
from dragoman.hub.settings import Settings
from dragoman.hub.store.database import open_database
from dragoman.hub.store.tenants import Tenants

_FILES = {"a2a_agents.json": '{\n  "agents": {}\n}\n', "mcp_servers.json": '{\n  "servers": {}\n}\n'}
_TOML = """\
# Settings of `dragoman hub`. A flag or a variable (DRAGOMAN_PORT) overrides a line here.
[hub]
data = "{data}"
{store}port = 8080
# model = "anthropic/claude-..."            # for constitutions without a model; the key is in the environment
# public_url = "https://hub.example.com"    # URL in the cards, behind a proxy
# max_concurrent = 8                        # requests of one tenant that run at the same time
# rate_per_min = 120
"""

EPILOG = """\
  dragoman init                              create a hub in ~/.dragoman
  dragoman init --data hub --tenant acme     create a hub in ./hub, with the tenant acme
  dragoman hub                               serve it; dragoman.toml has its folder

The tokens are printed only once. Existing files are not changed.
"""


def register(commands: Any) -> None:
    parser = add_command(
        commands, "init", "create a hub: its folder, its tokens, its configuration", EPILOG, run
    )
    add_hub_store(parser)
    parser.add_argument(
        "--tenant", default="default", help="the name of the first tenant (default: %(default)s)"
    )


async def run(args: argparse.Namespace) -> int:
    """What is there already is left alone."""
    given = read_hub_settings(args)
    for missing in [each for each in (*reversed(given.folder.parents), given.folder) if not each.exists()]:
        missing.mkdir(mode=0o700)
    database = open_database(given.tasks, given.folder)
    try:
        await database.open()
        _write(given)  # not earlier: the file would name a database that cannot be opened
        tenants = Tenants(database)
        await tenants.ensure_admin_token(
            given.admin_token, show=lambda made: print(f"admin token:   {made}", flush=True)
        )
        if not await tenants.list():
            tenant, token = await tenants.add(args.tenant, actor="cli")
            print(f"tenant {tenant.name}: {token}")
            print("Tokens are shown this once.")
        else:
            print(
                "This hub has tenants already. `dragoman tenant rotate NAME` replaces tokens that are lost."
            )
    finally:
        await database.close()
    print(f"next: {_next(given)}")
    return 0


def _next(given: Settings) -> str:
    """How to serve this hub: without the options that the environment or the configuration has."""
    found = read_hub_settings(argparse.Namespace())
    data = "" if found.folder.resolve() == given.folder.resolve() else f" --data {shlex.quote(given.data)}"
    return f"dragoman hub{data}{'' if found.store == given.store else ', with the same --store'}"


def _write(given: Settings) -> None:
    """Write the files that are missing. The configuration names the database of the hub, unless its URL has a password."""
    store, config = "" if _has_password(given.store) else given.store, Path(CONFIG)
    folder = given.folder
    wanted = {folder / name: text for name, text in _FILES.items()}
    wanted[config] = _TOML.format(data=given.data, store=f'store = "{store}"\n' if store else "")
    for path, text in wanted.items():
        if not path.exists():
            # for this user alone: tokens are going to be written into them
            with open(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
            ) as file:
                file.write(text)
            print(f"made {path}")


def _has_password(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.password) or "password" in parse_qs(parts.query)
