"""Secrets on the command line: whoever lists processes can read them, so they may also be in a variable."""

from __future__ import annotations

import argparse
import os


def secret(text: str) -> str:
    """What an option says, or the variable that it names (`env:NAME`)."""
    if not text.startswith("env:"):
        return text
    name = text.removeprefix("env:")
    if not os.environ.get(name):
        raise argparse.ArgumentTypeError(f"there is no variable {name!r}")
    return os.environ[name]
