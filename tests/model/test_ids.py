"""Ids, in order and nobody else's; and moments, however somebody writes them."""

from __future__ import annotations

import os
from uuid import RFC_4122, UUID

import pytest

from dragoman.model.ids import new_id, read_timestamp


def test_ids_are_uuids_of_version_7_in_the_order_they_were_made() -> None:
    made = [new_id() for _ in range(500)]
    assert sorted(made) == made
    assert len(set(made)) == 500
    assert {(UUID(each).version, UUID(each).variant) for each in made} == {(7, RFC_4122)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_draws_other_ids_than_its_parent() -> None:
    new_id()
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ours, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(theirs, 100).decode()[19:] != new_id()[19:]
    os.close(theirs)
    os.close(ours)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-15T14:40:54.1239Z", "2026-11-15T14:40:54.123Z"),
        ("2025-04-02T16:59:25.331844", "2025-04-02T16:59:25.331Z"),
        ("2026-11-15T14:40:54+02:00", "2026-11-15T12:40:54.000Z"),
        ("0099-01-01T00:00:00Z", "0099-01-01T00:00:00.000Z"),
        ("2026-11-15t12:30:00z", "2026-11-15T12:30:00.000Z"),
    ],
)
def test_a_moment_is_read_as_ours(text: str, moment: str) -> None:
    assert read_timestamp(text) == moment


@pytest.mark.parametrize(
    "text", ["soon", "2026-02-30T00:00:00Z", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"]
)
def test_a_timestamp_that_is_not_utc_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_timestamp(text)
