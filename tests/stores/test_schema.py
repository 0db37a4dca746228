"""A schema that somebody may have a database of does not change: what is new is a new file."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

import pytest

from dragoman.stores.migrations import find_scripts

RELEASED = {
    "dragoman.stores": {
        "001_schema.postgres.sql": "0161a551562e425f1cee4d7f02c00b453d32f4c23b2485d1ed31a2a5a845dbbd",
        "001_schema.sqlite.sql": "2b66ec53795250d7d66119f5fe774b79248d461ef31afce86e54a6ea82265483",
    },
    "dragoman.hub.store": {
        "001_schema.postgres.sql": "7cffa61c09260aabc3d970a4ee8f7d4a70abf57ef561549f3ceb08bcf2f1a1b1",
        "001_schema.sqlite.sql": "db145cf4234ea6b170dd94d0e89e529607170220af695112f70eda19bd15230d",
        "002_unused_blobs.postgres.sql": "5db779eb999b225868812deb2c07aa125d5303770df841ef66774d12e319b09d",
        "002_unused_blobs.sqlite.sql": "7c3bbfa1ad0c7a95b890f541c300725aeef40a918ec5ba14f58949ef81106c26",
        "003_memory_words.postgres.sql": "8a0eb480d6e54f29c314b2b1242a5b9ef7b781550953c3d7e0f94c029df70e8d",
    },
}
"""Never change a line here: databases have run these files, and will not run them again. Add a file, and a line for it."""


@pytest.mark.parametrize("package", RELEASED)
def test_every_schema_file_is_as_it_was_released(package: str) -> None:
    folder = files(package).joinpath("schema")
    found = {
        file.name: sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    }
    assert found == RELEASED[package]


@pytest.mark.parametrize("package", RELEASED)
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_schema_files_are_numbered_without_a_gap(database: str, package: str) -> None:
    numbers = sorted(find_scripts(database, package))
    assert numbers == list(range(1, len(numbers) + 1))
