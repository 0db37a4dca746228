"""`dragoman doctor`: print the settings of a hub, and what is missing."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman.auth import OIDC
from dragoman.buses import open_bus
from dragoman.cli import show
from dragoman.cli.arguments import add_command
from dragoman.cli.hub import add_options, failing_models, read_hub_settings, unused_key
from dragoman.cli.load import missing, split
from dragoman.client.fetch import Fetcher
from dragoman.errors import A2AError, InvalidParams
from dragoman.hub.models import local
from dragoman.hub.sandbox.child_process import command_user, root_warning
from dragoman.hub.sandbox.process import ProcessIsolation
from dragoman.hub.settings import Settings, misspelled
from dragoman.hub.store.blobs import new_key, open_blobs
from dragoman.hub.store.database import NoHub, open_database
from dragoman.hub.store.tenants import Tenants
from dragoman.hub.tools import mcp as mcp_servers
from dragoman.hub.tools import remote_agents as remotes
from dragoman.hub.tools.toolbox import AGENTS_FILE, SERVERS_FILE
from dragoman.server.tls import server_context

_OK, _WARN, _BAD = "ok", "note", "WRONG"

EPILOG = """\
  dragoman doctor
  dragoman doctor --data hub --model anthropic/claude-...     check other settings

The options are those of `dragoman hub`. Exits with 1 if the hub cannot start with these settings.
"""


def register(commands: Any) -> None:
    parser = add_command(commands, "doctor", "print the settings of a hub, and what is missing", EPILOG, run)
    add_options(parser)


async def run(args: argparse.Namespace) -> int:
    """Exit 1 if the hub could not start like this."""
    given = read_hub_settings(args)
    show.fields([(name, _format(value)) for name, value in given.describe().items()])
    print()
    findings = [*_python(), *_variables(), *_models(given), *_folder(given), *_files(given), *_tls(given)]
    findings += [*await _commands(given), *await _tenants(given), *await _bus(given)]
    findings += [*await _bucket(given), *await _issuer(given)]
    for kind, text in findings:
        show.say(f"{kind:5}  {text}")
    return 1 if any(kind == _BAD for kind, _ in findings) else 0


def _format(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _python() -> Iterator[tuple[str, str]]:
    yield _OK, f"Python {sys.version.partition(' ')[0]}"
    for extra, module, what in (
        ("llm", "any_llm", "models of providers"),
        ("local", "xllamacpp", "the embedded model"),
        ("mcp", "mcp", "/mcp"),
        ("grpc", "grpc", "gRPC"),
    ):
        if find_spec(module) is None:
            yield _WARN, f"the extra `{extra}` is not installed: {what} will not work"


def _variables() -> Iterator[tuple[str, str]]:
    for name, meant in misspelled(os.environ):
        yield _WARN, f"the variable {name} is not read: did you mean {meant}?"


def _models(given: Settings) -> Iterator[tuple[str, str]]:
    if key := unused_key(given):
        yield _WARN, f"{key} is set, and not used: pip install 'dragoman[llm]'"
    yield from _model(given)
    for model, why in failing_models(given):
        yield _WARN, f"{model} {why}: the hub starts, and every request to it fails"
    if not given.search:
        yield _WARN, "no search engine: /search will say so"


def _model(given: Settings) -> Iterator[tuple[str, str]]:
    """Whether the hub has its model; without a name, the embedded one, if it is installed."""
    name = given.model
    kind, colon, file = name.partition(":")
    if "/" in kind:
        if find_spec("any_llm") is None:
            yield _BAD, f"{name} needs the extra `llm`: pip install 'dragoman[llm]'"
        elif name not in dict(failing_models(given)):
            yield _OK, f"the model {name}"
    elif kind.startswith("embedded") or (not name and local.available()):
        if why := local.why_unavailable(file):
            yield _BAD, why
        else:
            yield _OK, f"the embedded model: {file or local.find_weights()}"
    elif kind == "scripted" and colon:
        yield (_OK, "a scripted model") if Path(file).is_file() else (_BAD, f"{name}: no such file")
    elif not name or kind == "echo":
        yield _WARN, "there is no model: agents will only repeat what they are told"
    elif kind == "demo":
        yield _OK, "rules for the example agents, in place of a model"
    else:
        yield _BAD, f"{name!r} is not a model: use provider/name, embedded or echo"


def _tls(given: Settings) -> Iterator[tuple[str, str]]:
    if not given.tls_cert:
        return
    try:
        server_context(given.tls_cert, given.tls_key or None, client_ca=given.tls_client_ca or None)
        yield _OK, f"TLS with {given.tls_cert}"
    except (OSError, ValueError) as error:
        yield _BAD, f"TLS cannot be set up: {error}"


def _folder(given: Settings) -> Iterator[tuple[str, str]]:
    folder = given.folder
    if folder.exists() and not folder.is_dir():
        yield _BAD, f"{folder} is no folder"
    elif not folder.is_dir():
        yield _WARN, f"{folder} does not exist yet: `dragoman init`"
    elif not os.access(folder, os.W_OK):
        yield _BAD, f"{folder} cannot be written to"
    else:
        yield _OK, f"{folder}"
        if folder.stat().st_mode & 0o077:
            yield _WARN, f"other users of this machine can look into {folder}: chmod 700"
    if given.store and not given.blobs:
        where = folder / "blobs"
        yield _WARN, f"large files are in {where}: let all hubs of the database share it, or say --blobs"


def _files(given: Settings) -> Iterator[tuple[str, str]]:
    try:
        agents = remotes.read_registry(given.folder / AGENTS_FILE)
        yield _OK, f"{AGENTS_FILE}: {len(agents)} agents elsewhere"
        for name, remote in agents.items():
            auth = remote.auth
            if auth is not None and not auth.token and auth.token_env and not os.environ.get(auth.token_env):
                yield _WARN, f"{name}: {auth.token_env} is not set"
    except InvalidParams as error:
        yield _BAD, error.message
    try:
        servers = mcp_servers.read_registry(given.folder / SERVERS_FILE)
        yield _OK, f"{SERVERS_FILE}: {len(servers)} servers"
    except InvalidParams as error:
        yield _BAD, error.message
    for name in given.agents:
        if why := missing(split(name)[0]):
            yield _BAD, why


async def _commands(given: Settings) -> list[tuple[str, str]]:
    if not given.allow_exec:
        return []
    found = [(_WARN, warning)] if (warning := root_warning()) else []
    if given.exec_image:
        there = shutil.which("docker") is not None
        how = f"commands run in containers of {given.exec_image}"
        return [*found, (_OK, how) if there else (_BAD, "there is no docker")]
    with tempfile.TemporaryDirectory() as folder:
        owner = command_user()
        if owner is not None:
            owner.chown(Path(folder))
        how = await ProcessIsolation(owner=owner, unconfined=given.exec_unconfined).describe(Path(folder))
    state = _OK if how.endswith("nothing of the hub") else _WARN if given.exec_unconfined else _BAD
    return [*found, (state, how)]


async def _tenants(given: Settings) -> list[tuple[str, str]]:
    database = open_database(given.tasks, given.folder)
    try:
        await database.open(create=False)
        tenants = Tenants(database)
        there = await tenants.list()
        out = (
            [(_OK, "1 tenant" if len(there) == 1 else f"{len(there)} tenants")]
            if there
            else [(_WARN, "no tenant: `dragoman tenant add NAME`")]
        )
        if not await tenants.has_admin() and not given.admin_token:
            out.append((_WARN, "no admin token yet: the hub makes one when it starts"))
        return out
    except NoHub as error:
        return [(_WARN, error.message)] if given.store or given.folder.is_dir() else []
    except A2AError as error:
        return [(_BAD, error.message)]
    finally:
        await database.close()


async def _bus(given: Settings) -> list[tuple[str, str]]:
    if not given.bus:
        return []
    try:
        bus = open_bus(given.bus)
        try:
            await bus.open()
        finally:
            await bus.close()
    except (A2AError, ValueError) as error:
        return [(_BAD, str(error))]
    return [(_OK, "the bus")]


async def _bucket(given: Settings) -> list[tuple[str, str]]:
    """Whether a content can be stored and deleted. A hub starts also if it cannot."""
    if not given.blobs.startswith("s3://"):
        return []

    async def content() -> AsyncIterator[bytes]:
        yield b"dragoman doctor"

    try:
        blobs, key = open_blobs(given.blobs, None), new_key(0)
        await blobs.put(key, content())
        await blobs.delete(key)
    except ValueError as error:
        return [(_BAD, str(error))]
    except A2AError as error:  # the log says more
        return [(_WARN, f"{given.blobs}: {error.message}: large files cannot be stored")]
    return [(_OK, given.blobs)]


async def _issuer(given: Settings) -> list[tuple[str, str]]:
    """Whether the keys of the issuer of users can be fetched. A hub starts also if they cannot."""
    if not given.oidc_issuer:
        return []
    fetch = Fetcher()
    try:
        keys = await OIDC(given.oidc_issuer, audience=given.oidc_audience).fetch_keys(fetch)
    except A2AError as error:
        return [(_WARN, f"{error.message}: no user can log in")]
    finally:
        await fetch.close()
    if not keys:
        return [(_WARN, f"{given.oidc_issuer} has no key for signatures: no user can log in")]
    return [(_OK, f"the issuer {given.oidc_issuer}: {len(keys)} key{'' if len(keys) == 1 else 's'}")]
