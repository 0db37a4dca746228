"""What every test may rely on."""

from __future__ import annotations

import pytest
from hypothesis import settings

from dragoman.client import discover

# The machine decides how long an example takes; what it finds must be the same everywhere.
settings.register_profile("dragoman", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("dragoman")


@pytest.fixture(autouse=True)
def _no_cards_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports come back: the card of an agent that was there in another test is not to be remembered."""
    monkeypatch.setattr(discover, "SHARED_CACHE", discover.AgentCache())
