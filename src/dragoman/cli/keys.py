"""`dragoman keys new|list|rotate|public|token|password|seal`"""

from __future__ import annotations

import argparse
import getpass
import sys
from datetime import UTC, datetime
from typing import Any

from dragoman.auth.keys import ALGORITHMS, KEEP, KeyRing, OurKey
from dragoman.auth.secrets import hashed, hashed_password, new_token
from dragoman.cli import show
from dragoman.push.seal import new_key

EPILOG = """\
Keys sign agent cards (`dragoman serve --keys DIR`, `dragoman sign`). Every key that is not retired signs; a retired one
is still published, so that what it signed can be checked. A running server notices a change by itself.

  dragoman keys new                        a key in ./keys
  dragoman keys rotate --keep-days 30      a new one instead; the old is published for 30 days more
  dragoman keys public                     the JWK set to hand to others
  dragoman keys seal                       a key for DRAGOMAN_PUSH_SEAL: push credentials are kept sealed
  dragoman keys token                      a token for a caller, and the hash to keep: Bearer({"alice": HASH})
"""
_DAY = 86_400.0


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "keys",
        help="make and rotate the keys that sign cards; make tokens",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb, help, run in (
        ("new", "make a key that signs beside those there are", _new),
        ("list", "print the keys there are", _list),
        ("rotate", "make a key that signs instead of those there are", _rotate),
        ("public", "print the public keys, as a JWK set", _public),
    ):
        each = verbs.add_parser(verb, help=help)
        each.add_argument("--dir", default="keys", help="where the keys are (default: %(default)s)")
        if verb in ("new", "rotate"):
            each.add_argument("--alg", default="ES256", choices=tuple(ALGORITHMS))
        if verb == "rotate":
            each.add_argument(
                "--keep-days", type=float, default=KEEP / _DAY, help="publish the old ones for so long"
            )
        if verb == "list":
            each.add_argument("--json", action="store_true", help="print JSON")
        each.set_defaults(run=_said(run))
    token = verbs.add_parser("token", help="make a token for a caller, and the hash to keep of it")
    token.set_defaults(run=_token)
    password = verbs.add_parser(
        "password", help="make the hash to keep of a password (read from the terminal)"
    )
    password.set_defaults(run=_password)
    seal = verbs.add_parser("seal", help="make a key that seals push credentials while they are kept")
    seal.set_defaults(run=_seal)


def _said(run: Any) -> Any:
    """What is wrong with the keys, as a sentence."""

    def said(args: argparse.Namespace) -> int:
        try:
            run(args, KeyRing(args.dir))
        except (OSError, ValueError) as error:
            show.say(f"dragoman: {error}", sys.stderr)
            return 1
        return 0

    return said


def _new(args: argparse.Namespace, ring: KeyRing) -> None:
    print(ring.add(args.alg).kid)


def _rotate(args: argparse.Namespace, ring: KeyRing) -> None:
    print(ring.rotate(args.alg, keep=args.keep_days * _DAY).kid)


def _public(args: argparse.Namespace, ring: KeyRing) -> None:
    show.json(ring.public())


def _list(args: argparse.Namespace, ring: KeyRing) -> None:
    if args.json:
        show.json(
            [
                {"kid": key.kid, "alg": key.algorithm, "created": _day(key.created), "state": _state(key)}
                for key in ring.keys
            ]
        )
    else:
        rows = [(key.kid, key.algorithm, _day(key.created), _state(key)) for key in ring.keys]
        show.table(("key", "algorithm", "made", ""), rows)


def _state(key: OurKey) -> str:
    if key.signs:
        return "signs"
    return f"published until {_day(key.retired)}" if key.published else "over"


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")


def _token(args: argparse.Namespace) -> int:
    token = new_token()
    show.fields([("token", token), ("hash", hashed(token))])
    return 0


def _seal(args: argparse.Namespace) -> int:
    print(new_key())
    return 0


def _password(args: argparse.Namespace) -> int:
    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        print("dragoman: an empty password is no password", file=sys.stderr)
        return 1
    print(hashed_password(password))
    return 0
