"""The file `dragoman.toml` in the working directory: agents by name (`[agents]`), and the settings of a hub (`[hub]`)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

CONFIG = "dragoman.toml"
TABLES = ("agents", "hub")


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
            hint = (
                f": is it [{near[0]}]?" if near else f", only {' and '.join(f'[{each}]' for each in TABLES)}"
            )
            raise ValueError(f"{place_of([name], config)}: there is no table [{name}]{hint}")
    return tables.get(table, {})


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


def explain(error: Exception) -> str:
    """What is wrong with the value of a setting, as the end of a sentence that begins with its name."""
    reason = str(error).partition(" - at ")[0]
    if unknown := re.fullmatch(r"Invalid enum value (.*)", reason):
        return f"cannot be {unknown[1]}"
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
