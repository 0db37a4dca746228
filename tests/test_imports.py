"""What a script does not use, it does not wait for."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "joserfc",
    "cryptography",
    "uvicorn",
    "grpc",
    "google.protobuf",
    "pydantic",
    "opentelemetry",
    "dragoman.hub",
)


@pytest.mark.parametrize(
    "statement",
    [
        "import dragoman",
        "import dragoman.client",
        "from dragoman import Agent, connect, connect_sync",
        "from dragoman.cli import parser; parser(['send'])",
        "from dragoman.cli import parser; parser(['card'])",
        "from dragoman.cli import parser; parser(['chat'])",
        "from dragoman.cli import parser; parser(['tasks'])",
    ],
)
def test_an_import_brings_nothing_heavy_along(statement: str) -> None:
    loaded = f"{statement}\nimport sys\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_that_is_promised_is_there() -> None:
    import dragoman
    import dragoman.auth

    for module in (dragoman, dragoman.auth):
        for name in module.__all__:
            assert getattr(module, name) is not None
