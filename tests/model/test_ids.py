"""Ids: in order, and nobody else's."""

from __future__ import annotations

import os
from uuid import RFC_4122, UUID

import pytest

from dragoman.model.ids import new_id


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
