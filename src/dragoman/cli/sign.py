"""`dragoman sign card.json`"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from dragoman.auth.canonical import spec_form
from dragoman.auth.keys import KeyRing
from dragoman.cli import show

EPILOG = """\
Signs a card of A2A 1.0, and prints it or writes it to --output. Signatures of other keys stay.

  dragoman keys new
  dragoman sign card.json --output signed.json
  dragoman card signed.json --verify --trust https://agents.example.com/.well-known/jwks.json
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "sign",
        help="sign an agent card",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("card", metavar="FILE", help="the card; - for standard input")
    parser.add_argument(
        "--keys", default="keys", metavar="DIR", help="folder of the keys (default: %(default)s)"
    )
    parser.add_argument("--jku", default="", metavar="URL", help="URL of the public keys, for the signature")
    parser.add_argument("--output", metavar="FILE", help="write the signed card to this file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        body = sys.stdin.buffer.read() if args.card == "-" else Path(args.card).read_bytes()
        signed, unsigned = sign(msgspec.json.decode(body), KeyRing(args.keys, jku=args.jku))
    except (OSError, ValueError) as error:
        show.say(f"dragoman: {error}", sys.stderr)
        return 1
    if unsigned:
        members = ", ".join(unsigned)
        show.say(
            f"dragoman: A2A 1.0 has no {members}: left out, because a signature cannot cover it", sys.stderr
        )
    if args.output:
        Path(args.output).write_bytes(msgspec.json.format(msgspec.json.encode(signed), indent=2) + b"\n")
    else:
        show.json(signed)
    return 0


def sign(document: Any, ring: KeyRing) -> tuple[dict[str, Any], list[str]]:
    """Return the signed card, and the members of the document that it leaves out. Raises `ValueError`."""
    if not isinstance(document, dict) or not document.get("supportedInterfaces"):
        raise ValueError("this is not a card of A2A 1.0: it has no supportedInterfaces")
    card = spec_form(document)
    ours = [msgspec.to_builtins(signature) for signature in ring.sign(card)]
    if not ours:
        raise ValueError("there is no key to sign with: `dragoman keys new` creates one")
    replaced = {signature["protected"] for signature in ours}
    before = document.get("signatures")
    others = [
        each
        for each in (before if isinstance(before, list) else [])
        if isinstance(each, dict) and each.get("protected") not in replaced
    ]
    return {**card, "signatures": [*others, *ours]}, sorted(set(document) - set(card) - {"signatures"})
