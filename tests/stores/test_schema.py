"""A schema that somebody may have a database of does not change: what is new is a new file."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

import pytest

from dragoman.stores.common import scripts

RELEASED = {
    "001_schema.postgres.sql": "7c27c6b0ea3ef518ca496a909270d1a18eb06fa6166d1190e0e4b13ba17d54f5",
    "001_schema.sqlite.sql": "785a6dbade718993a6847d933901d23f0187fdf8b1b4ff30994f2dd26aa519bd",
    "002_catalogue.postgres.sql": "48dc2035cf981cb735126d3cb1953e2146a28d8af0c8253214735a9fb002d733",
    "002_catalogue.sqlite.sql": "8bd012600da9a2c06b7371d959445b16b9f4b5c7f6db5b840dab50c389634f35",
    "003_replies.postgres.sql": "71ecab39611114806fcce1230d2dddd20fd348ac81cdd41f26d761f8cc852c34",
    "003_replies.sqlite.sql": "fea669134c44826cbbbdc39bd50d87a58f23b37f09051827854fc5168de52d91",
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
