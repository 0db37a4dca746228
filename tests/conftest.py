"""What every test may rely on."""

from __future__ import annotations

from hypothesis import settings

# The machine decides how long an example takes; what it finds must be the same everywhere.
settings.register_profile("dragoman", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("dragoman")
