"""`dragoman version`"""

from __future__ import annotations

import argparse
import platform
from typing import Any

from dragoman import __version__


def register(commands: Any) -> None:
    parser = commands.add_parser("version", help="print the version", epilog="example: dragoman version")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    print(f"dragoman {__version__} (Python {platform.python_version()})")
    return 0
