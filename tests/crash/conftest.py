"""Let the checks say what was wrong."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.crash.checks")
