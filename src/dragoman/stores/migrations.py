"""Schema scripts: numbered, run in order, each once."""

from __future__ import annotations

from importlib.resources import files


class UnsupportedSchema(Exception):
    """The tables were made by a newer or an unknown version of the program."""


def find_scripts(database: str, package: str = "dragoman.stores") -> dict[int, tuple[str, str]]:
    """The scripts of a package for `sqlite` or `postgres`: name and text, by number."""
    folder = files(package).joinpath("schema")
    found = [file for file in folder.iterdir() if file.name.endswith(f".{database}.sql")]
    return {int(file.name[:3]): (file.name, file.read_text(encoding="utf-8")) for file in found}


def find_missing_scripts(known: dict[int, tuple[str, str]], done: int) -> list[tuple[int, str, str]]:
    """The scripts after number `done`: number, name, text. Raises `UnsupportedSchema` if the database is newer than the scripts."""
    newest = max(known)
    if done > newest:
        raise UnsupportedSchema(
            f"the database has schema {done}, and this version of dragoman knows schemas up to {newest}: "
            "upgrade dragoman, or use another database"
        )
    return [(number, *known[number]) for number in range(done + 1, newest + 1)]
