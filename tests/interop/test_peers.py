"""The official clients against the official servers: what they cannot do among themselves is not our fault."""

from __future__ import annotations

import pytest

from tests.interop.running import BINDINGS, checks, failures, serving

pytestmark = pytest.mark.interop

RACES_WITH_CANCEL = {"cancel", "cancel_stream"}
"""On a2a-sdk 0.3.26's server a stream outlives its canceled task, and a late update may undo the cancel."""


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize(
    ("name", "known"),
    [("a2a-sdk-1.3.0", set()), ("a2a-sdk-0.3.26", RACES_WITH_CANCEL), ("a2a-js-1.3.0", set())],
)
def test_a_client_passes_every_check_against_the_server_of_its_own_library(
    name: str, known: set[str], binding: str
) -> None:
    with serving(name) as url:
        found = failures(checks(name, url, binding))
    assert {check: note for check, note in found.items() if check not in known} == {}


@pytest.mark.parametrize(
    ("server", "client"),
    [
        ("a2a-sdk-1.3.0", "a2a-sdk-0.3.26"),
        ("a2a-sdk-1.3.0", "a2a-js-1.3.0"),
        ("a2a-js-1.3.0", "a2a-sdk-1.3.0"),
        ("a2a-js-1.3.0", "a2a-sdk-0.3.26"),
    ],
)
def test_a_client_passes_every_check_against_another_library_that_speaks_its_version(
    server: str, client: str
) -> None:
    with serving(server) as url:
        assert failures(checks(client, url)) == {}


@pytest.mark.parametrize("binding", ["HTTP+JSON", "GRPC"])
def test_files_do_not_come_through_in_0_3_even_between_client_and_server_of_a2a_js(binding: str) -> None:
    with serving("a2a-js-1.3.0") as url:
        assert "parts" in failures(checks("a2a-js-1.3.0", url, binding, "0.3"))
