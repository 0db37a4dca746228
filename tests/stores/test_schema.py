"""A schema that somebody may have a database of does not change: what is new is a new file."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

import pytest

from dragoman.stores.common import scripts

RELEASED = {
    "001_schema.postgres.sql": "0161a551562e425f1cee4d7f02c00b453d32f4c23b2485d1ed31a2a5a845dbbd",
    "001_schema.sqlite.sql": "2b66ec53795250d7d66119f5fe774b79248d461ef31afce86e54a6ea82265483",
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
