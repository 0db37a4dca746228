"""The file `dragoman.toml` in the working directory: agents by name (`[agents]`), and the settings of a hub (`[hub]`) and of a
catalogue (`[catalogue]`).

    [agents]
    weather = "https://weather.example.com"

    [agents.currency]
    url = "https://currency.example.com/a2a"
    credentials = "env:CURRENCY_TOKEN"

`connect`, every command of the command line and `turn.call` read `[agents]`, so that a credential is written down once.
`hub/settings.py` reads `[hub]`, `catalogue/settings.py` reads `[catalogue]`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.client.authorize import origin_of
from dragoman.client.credentials import ClientCertificate
from dragoman.client.transport.transport import NotSent

CONFIG = "dragoman.toml"
TABLES = ("agents", "hub", "catalogue")


def read_table(table: str, config: str = CONFIG) -> Any:
    """What the file has under this name; an empty table if there is no file. Raises `ValueError`."""
    path = Path(config)
    if not path.is_file():
        return {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{config} cannot be read: {error}") from error
    for name in tables:
        if name not in TABLES:
            near = get_close_matches(name, TABLES, 1)
            hint = f": is it [{near[0]}]?" if near else f", only {', '.join(f'[{each}]' for each in TABLES)}"
            raise ValueError(f"{place_of([name], config)}: there is no table [{name}]{hint}")
    return tables.get(table, {})


def read_settings(table: str, known: Collection[str], config: str = CONFIG) -> dict[str, Any]:
    """The settings of a table. Raises `ValueError`, also for one that is not `known`."""
    given = read_table(table, config)
    if not isinstance(given, dict):
        raise ValueError(f"{place_of([table], config)}: {table} is not a table ([{table}])")
    for name in given:
        if name not in known:
            raise ValueError(f"{place_of([table, name], config)}: {unknown_setting(name, known, table)}")
    return given


def unknown_setting(name: str, known: Iterable[str], table: str) -> str:
    near = get_close_matches(name, known, 1)
    hint = f": is it {near[0]!r}?" if near else ""
    return f"there is no setting {name!r} in [{table}]{hint}"


_EXPECTED = re.compile(r"Expected `([^`]+)`(?:, got `(\w+)`| (>=?|<=?) (\S+))")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_BOUNDS = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}


def explain_setting(error: Exception, table: type[Any] | None = None, name: str = "") -> str:
    """What is wrong with the value of a setting, as the end of a sentence that begins with its name.

    `table` and `name`: where the setting is declared, to list the values that it can have.
    """
    reason = str(error).partition(" - at ")[0]
    if unknown := re.fullmatch(r"Invalid enum value (.*)", reason):
        values = [each for each in get_args(get_type_hints(table).get(name)) if each] if table else []
        return f"cannot be {unknown[1]}{': use ' if values else ''}{', '.join(values)}"
    if not (expected := _EXPECTED.fullmatch(reason)):
        return f"has a value that does not fit: {reason[:1].lower()}{reason[1:]}"
    wanted, got, relation, bound = expected.groups()
    if relation:
        return f"must be {_BOUNDS[relation]} {bound.removesuffix('.0')}"
    kinds = [_KINDS.get(kind, kind) for kind in wanted.split(" | ") if kind != "null"]
    return f"must be {' or '.join(kinds)}, not {_KINDS.get(got, got)}"


def place_of(path: list[str], config: str = CONFIG) -> str:
    """The file, and the line on which the setting at `path` is, or the nearest table around it."""
    best, line_of_best = 0, 0
    table: list[str] = []
    for n, line in enumerate(Path(config).read_text(encoding="utf-8").splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            here = table = _names(header[1])
        elif setting := re.match(r"([^=#]+)=", line):
            here = table + _names(setting[1])
        else:
            continue
        common = next((i for i, (a, b) in enumerate(zip(here, path, strict=False)) if a != b), None)
        deep = min(len(here), len(path)) if common is None else common
        if deep > best:
            best, line_of_best = deep, n
    return f"{config}, line {line_of_best}" if best else config


def _names(dotted: str) -> list[str]:
    return [each.strip().strip("\"'") for each in dotted.split(".")]


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
        return path[:1], f"{inside}{' '.join(path[:1])} of {name} {explain_setting(error)}"
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
