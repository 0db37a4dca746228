"""What the databases have in common about their schemas: numbered scripts, run in order, each once."""

from __future__ import annotations

from importlib.resources import files


class NewerDatabase(Exception):
    """The database was written by a newer version of the program."""


def scripts(database: str) -> dict[int, tuple[str, str]]:
    """The scripts for `sqlite` or `postgres`, by number: name and text."""
    folder = files("dragoman.stores").joinpath("schema")
    found = [file for file in folder.iterdir() if file.name.endswith(f".{database}.sql")]
    return {int(file.name[:3]): (file.name, file.read_text(encoding="utf-8")) for file in found}


def missing(known: dict[int, tuple[str, str]], done: int) -> list[tuple[int, str, str]]:
    """What is to be run on a database that has seen the scripts up to `done`: number, name, text. Raises `NewerDatabase`."""
    newest = max(known)
    if done > newest:
        raise NewerDatabase(
            f"the database has schema {done}, and this version of dragoman knows schemas up to {newest}: "
            "upgrade dragoman, or use another database"
        )
    return [(number, *known[number]) for number in range(done + 1, newest + 1)]
