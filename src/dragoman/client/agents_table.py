"""The table `[agents]` of `dragoman.toml`: agents by name, with their credentials.

    [agents]
    weather = "https://weather.example.com"

    [agents.currency]
    url = "https://currency.example.com/a2a"
    credentials = "env:CURRENCY_TOKEN"

`connect`, every command of the command line and `turn.call` read it, so that a credential is written down once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.client.authorize import origin_of
from dragoman.client.config import explain, place_of, read_table, unknown_setting
from dragoman.client.credentials import ClientCertificate
from dragoman.client.transport.transport import NotSent


class AgentEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent. Everything but `url` is an option of `connect`; options given to `connect` come first."""

    url: str
    credentials: str | tuple[str, str] | dict[str, str] | None = None
    """A secret (`env:NAME` reads a variable), a name and a password, or secrets by the card's names for them."""
    certificate: str = ""
    """A client certificate and its key, in one PEM file."""
    headers: dict[str, str] = {}
    origin: str = ""
    version: str = ""
    binding: str = ""

    @property
    def credential(self) -> Any:
        return ClientCertificate(self.certificate) if self.certificate else self.credentials


def read_agents(given: Mapping[str, Any] | None = None) -> dict[str, AgentEntry]:
    """The agents of a table, by default that of `dragoman.toml` in the working directory. Raises `ValueError`."""
    from_file = given is None
    if from_file:
        given = read_table("agents")
    if not isinstance(given, Mapping):
        where = f"{place_of(['agents'])}: [agents]" if from_file else "agents="
        raise ValueError(f"{where} is not a table of agents")
    return {name: _entry(name, each, from_file) for name, each in given.items()}


def _entry(name: str, given: Any, from_file: bool) -> AgentEntry:
    if isinstance(given, AgentEntry):
        return given
    setting, fault = _fault(name, given)
    if fault:
        place = place_of(["agents", name, *setting]) if from_file else "agents="
        raise ValueError(f"{place}: {fault}")
    return msgspec.convert({"url": given} if isinstance(given, str) else given, AgentEntry)


def _fault(name: str, given: Any) -> tuple[list[str], str]:
    """What is wrong with an entry, after the setting that it is about; nothing, if it is right."""
    if isinstance(given, str):
        return [], ""
    if not isinstance(given, Mapping):
        return [], f"{name} is neither a URL nor a table"
    for setting in given:
        if setting not in AgentEntry.__struct_fields__:
            return [setting], unknown_setting(setting, AgentEntry.__struct_fields__, f"agents.{name}")
    if "url" not in given:
        return [], f"[agents.{name}] has no url"
    try:
        entry = msgspec.convert(given, AgentEntry)
    except msgspec.ValidationError as error:
        at = str(error).partition(" - at ")[2]
        path = re.findall(r"\w+", at)
        inside = "a value in " if len(path) > 1 or "[" in at else ""
        return path[:1], f"{inside}{' '.join(path[:1])} of {name} {explain(error)}"
    if entry.certificate and entry.credentials is not None:
        return ["certificate"], f"{name} has both a certificate and credentials"
    return [], ""


def find_entry(name: str, agents: Mapping[str, AgentEntry]) -> AgentEntry | None:
    """The entry under this very name, or under the nearest URL above it."""
    if name in agents:
        return agents[name]
    if "://" not in name:
        return None
    above = [entry for entry in agents.values() if is_below(name, entry.url)]
    return max(above, key=lambda entry: len(entry.url)) if above else None


def is_below(url: str, other: str) -> bool:
    """Whether `url` is at `other`, or at a path below it on the same origin."""
    try:
        path, above = urlsplit(url).path.rstrip("/") + "/", urlsplit(other).path.rstrip("/") + "/"
        return "://" in other and origin_of(url) == origin_of(other) and path.startswith(above)
    except (ValueError, NotSent):
        return False
