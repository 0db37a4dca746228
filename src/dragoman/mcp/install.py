"""Adds an agent to the configuration files of MCP clients.

An existing file keeps all its content: it is read, one entry is added, and a copy of the old file stays beside it. A file that cannot be
parsed exactly (for example one with comments) is not changed, and the user is told what to add.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class InstallError(Exception):
    """The file cannot be changed. The text says why, and what to do."""


class McpClient(Struct, frozen=True, kw_only=True):
    """The configuration files of an MCP client, and the format of an entry."""

    title: str
    user: str = ""
    """The file for all projects of a user; `{config}` is the folder for configuration files of this system."""
    project: str = ""
    """The file in a project's folder."""
    key: str = "mcpServers"
    typed: bool = False
    """Entries have `"type": "stdio"`."""
    toml: bool = False
    prefers_project: bool = False
    next_step: str = ""
    """What the user does next."""


CLIENTS: dict[str, McpClient] = {
    "claude-code": McpClient(
        title="Claude Code",
        user="~/.claude.json",
        project=".mcp.json",
        typed=True,
        prefers_project=True,
        next_step="start `claude` in this folder, and look at /mcp",
    ),
    "claude-desktop": McpClient(
        title="Claude Desktop",
        user="{config}/Claude/claude_desktop_config.json",
        next_step="quit Claude Desktop and start it again",
    ),
    "cursor": McpClient(title="Cursor", user="~/.cursor/mcp.json", project=".cursor/mcp.json"),
    "vscode": McpClient(
        title="VS Code",
        user="{config}/Code/User/mcp.json",
        project=".vscode/mcp.json",
        key="servers",
        typed=True,
        prefers_project=True,
    ),
    "windsurf": McpClient(title="Windsurf", user="~/.codeium/windsurf/mcp_config.json"),
    "codex": McpClient(
        title="Codex",
        user="~/.codex/config.toml",
        project=".codex/config.toml",
        key="mcp_servers",
        toml=True,
        next_step="start `codex`, and look at /mcp",
    ),
    "gemini": McpClient(title="Gemini CLI", user="~/.gemini/settings.json", project=".gemini/settings.json"),
    "cline": McpClient(title="Cline", user="~/.cline/data/settings/cline_mcp_settings.json"),
}


class Change(Struct, frozen=True, kw_only=True):
    """A change of a configuration file that is not written yet."""

    path: Path
    before: bytes | None
    """What the file has now; None if there is none."""
    after: bytes
    snippet: str
    """Only the new entry, as it stands in a file of this client."""

    @property
    def needed(self) -> bool:
        return self.before != self.after


def config_file(client: McpClient, scope: str, *, folder: Path, env: Mapping[str, str]) -> Path:
    """The file of a client. `scope`: user, project, or empty for what fits the client. Raises InstallError."""
    scope = scope or ("project" if client.prefers_project or not client.user else "user")
    if scope == "project":
        if not client.project:
            raise InstallError(f"{client.title} has no files for projects: use --scope user")
        return folder / client.project
    if client.toml and env.get("CODEX_HOME"):
        return Path(env["CODEX_HOME"]) / "config.toml"
    home = Path(env.get("HOME") or env.get("USERPROFILE") or Path.home())
    if sys.platform == "darwin":
        config = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        config = Path(env.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    return Path(client.user.replace("{config}", str(config)).replace("~", str(home), 1))


def make_entry(client: McpClient, command: list[str]) -> dict[str, Any]:
    return {**({"type": "stdio"} if client.typed else {}), "command": command[0], "args": command[1:]}


def plan_change(
    client: McpClient, path: Path, name: str, added: dict[str, Any], *, force: bool = False
) -> Change:
    """The file with the new entry. Raises InstallError if it cannot be added safely."""
    snippet = _toml(client, name, added) if client.toml else _dump({client.key: {name: added}}, "  ")
    try:
        before = path.read_bytes() if path.exists() else None
    except OSError as error:
        raise InstallError(f"{path} cannot be read: {error.strerror}") from error
    try:
        text = (before or b"").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InstallError(_by_hand(path, "it is not UTF-8 text", snippet)) from None
    merge = _merge_toml if client.toml else _merge_json
    after = merge(client, path, text, name, added, snippet, force)
    return Change(
        path=path,
        before=before,
        after=before if after == text and before is not None else after.encode(),
        snippet=snippet,
    )


def _merge_json(
    client: McpClient, path: Path, text: str, name: str, added: dict[str, Any], snippet: str, force: bool
) -> str:
    if not text.strip():
        return snippet
    try:
        config = json.loads(text, object_pairs_hook=_refuse_repeated_names)
    except ValueError as error:
        raise InstallError(_by_hand(path, f"it is not plain JSON ({error})", snippet)) from None
    servers = config.setdefault(client.key, {}) if isinstance(config, dict) else None
    if not isinstance(servers, dict):
        raise InstallError(_by_hand(path, f"it has no object {client.key!r} to add to", snippet))
    if servers.get(name) == added:
        return text
    if name in servers and not force:
        raise InstallError(
            f"{path} has a server {name!r} already: use --name for another name, or --force to replace it"
        )
    servers[name] = added
    return _dump(config, _indent(text)).rstrip("\n") + ("\n" if text.endswith("\n") else "")


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def _indent(text: str) -> str:
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else "  "


def _dump(value: Any, indent: str) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False) + "\n"


def _merge_toml(
    client: McpClient, path: Path, text: str, name: str, added: dict[str, Any], snippet: str, force: bool
) -> str:
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InstallError(_by_hand(path, f"it is not valid TOML ({error})", snippet)) from None
    servers = before.get(client.key, {})
    if isinstance(servers, dict) and servers.get(name) == added:
        return text
    if isinstance(servers, dict) and name in servers:
        raise InstallError(
            f"{path} has a server {name!r} already: use --name for another name, or remove it there"
        )
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    after = f"{text}{gap}{snippet}"
    try:
        wanted = {**before, client.key: {**servers, name: added}}
        good = tomllib.loads(after) == wanted
    except (tomllib.TOMLDecodeError, TypeError):
        good = False
    if not good:
        raise InstallError(_by_hand(path, f"an entry of {client.key!r} cannot be added at its end", snippet))
    return after


def _toml(client: McpClient, name: str, added: dict[str, Any]) -> str:
    lines = [f"[{client.key}.{name}]"]
    lines += [f"{key} = {_toml_value(value)}" for key, value in added.items()]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _by_hand(path: Path, why: str, snippet: str) -> str:
    return f"{path} is not changed, because {why}. Add this by hand:\n\n{snippet}"


def write(change: Change) -> Path | None:
    """Write the file, and return the copy of what was there before. Raises InstallError."""
    path = Path(os.path.realpath(change.path))  # the file may be a link into somebody's dotfiles
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        now = path.read_bytes() if path.exists() else None
        if now != change.before:
            raise InstallError(f"{path} has just been changed by somebody else: try again")
        copy = _keep_copy(path, now) if now is not None else None
        mode = path.stat().st_mode & 0o777 if now is not None else 0o600
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(change.after)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InstallError(f"{path} cannot be written: {error.strerror or error}") from error
    return copy


def _keep_copy(path: Path, content: bytes) -> Path:
    """A copy beside the file, under a name that no other copy has."""
    number = 0
    while True:
        copy = path.with_name(f"{path.name}.bak{number or ''}")
        try:
            descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, path.stat().st_mode & 0o777)
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        return copy
