"""A schema that somebody may have a database of does not change: what is new is a new file."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

import pytest

from dragoman.stores.common import scripts

RELEASED = {
    "001_schema.postgres.sql": "900c7b48bc8cc75e6ab008c6037643a6a443bf01e64f3738c06375fe7a7f1dfe",
    "001_schema.sqlite.sql": "ccaafa0fe90a72fec817115df83776649c942a8b06f676e192d0adeee04cbf92",
    "002_catalogue.postgres.sql": "48dc2035cf981cb735126d3cb1953e2146a28d8af0c8253214735a9fb002d733",
    "002_catalogue.sqlite.sql": "8bd012600da9a2c06b7371d959445b16b9f4b5c7f6db5b840dab50c389634f35",
    "003_quotas.postgres.sql": "e990083e882204f0038b01c062bfce31c9974638c52ead3420bb5e1ad47fa1f4",
    "003_quotas.sqlite.sql": "1c3d42e5fd26e293abf01d9a477d5333b28de675e2f15e193155d53cbe15c883",
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
