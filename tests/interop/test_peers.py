"""The official clients against the official servers: what they cannot do among themselves is not our fault."""

from __future__ import annotations

import pytest

from tests.interop.running import BINDINGS, checks, failures, serving

pytestmark = pytest.mark.interop

STREAM_OUTLIVES_CANCEL = {"cancel_stream"}
"""A stream of a2a-sdk 0.3.26's server does not end when its task is canceled."""


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize(
    ("name", "known"), [("a2a-sdk-1.3.0", set()), ("a2a-sdk-0.3.26", STREAM_OUTLIVES_CANCEL)]
)
def test_a_client_passes_every_check_against_the_server_of_its_own_library(
    name: str, known: set[str], binding: str
) -> None:
    with serving(name) as url:
        assert set(failures(checks(name, url, binding))) == known


@pytest.mark.parametrize(
    ("server", "client"),
    [
        ("a2a-sdk-1.3.0", "a2a-sdk-0.3.26"),
        ("a2a-js-1.3.0", "a2a-sdk-1.3.0"),
        ("a2a-js-1.3.0", "a2a-sdk-0.3.26"),
    ],
)
def test_a_client_passes_every_check_against_another_library_that_speaks_its_version(
    server: str, client: str
) -> None:
    with serving(server) as url:
        assert failures(checks(client, url)) == {}
