"""A schema that somebody may have a database of does not change: what is new is a new file."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

import pytest

from dragoman.stores.migrations import scripts

RELEASED = {
    "001_schema.postgres.sql": "7e4ec7f87b4ac10d33fcd457879c449af108ce5ca430f7d9248189a770786b2c",
    "001_schema.sqlite.sql": "8d48b1bc6ade0cb4f227175d15e08c314e18bc2d9b57f6d8543891d7f5077934",
}
"""Never change a line here: databases have run these files, and will not run them again. Add a file, and a line for it."""


def test_every_schema_file_is_as_it_was_released() -> None:
    folder = files("dragoman.stores").joinpath("schema")
    found = {
        file.name: sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    }
    assert found == RELEASED


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_schema_files_are_numbered_without_a_gap(database: str) -> None:
    assert sorted(scripts(database)) == list(range(1, len(scripts(database)) + 1))
