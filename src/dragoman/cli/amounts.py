"""Numbers on the command line, and what one request may cost: as options of `serve`, and as settings of `hub`."""

from __future__ import annotations

import argparse

from dragoman.server.limits import Limits

LIMITS = {
    "max_body": "bytes in the body of a request",
    "max_connections": "clients that may be connected at once; 0: any number",
    "head_timeout": "seconds until a connection has sent the head of a request",
    "body_timeout": "seconds until its body is here",
    "write_timeout": "seconds that a client may go without reading what we wrote",
    "read_rate": "bytes per second that a client has to read in that time",
}
"""Which of `Limits` an operator can set, and what they are."""


def add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits of one request")
    for name, about in LIMITS.items():
        default = getattr(Limits(), name)
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=positive if isinstance(default, float) else whole if default == 0 else count,
            default=default,
            metavar="SECONDS" if isinstance(default, float) else "N",
            help=f"{about} (default: %(default)s)",
        )


def read_limits(args: argparse.Namespace) -> Limits:
    return Limits(**{name: getattr(args, name) for name in LIMITS})


def amount(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} should be 0 or more, and have an end")
    return number


def positive(text: str) -> float:
    if not (number := amount(text)):
        raise argparse.ArgumentTypeError(f"{text} should be more than 0")
    return number


def whole(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} should be 0 or more")
    return number


def count(text: str) -> int:
    if not (number := whole(text)):
        raise argparse.ArgumentTypeError(f"{text} should be 1 or more")
    return number
