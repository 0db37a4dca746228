"""`dragoman keys new|list|rotate|public|token|password|seal`"""

from __future__ import annotations

import argparse
import getpass
import sys
from datetime import UTC, datetime
from typing import Any

from dragoman.auth.keys import ALGORITHMS, RETIRED_SECONDS, KeyRing, OurKey
from dragoman.auth.secrets import hashed, hashed_password, new_token
from dragoman.cli import show
from dragoman.push.seal import new_key

EPILOG = """\
Keys sign agent cards (`dragoman serve --keys DIR`, `dragoman sign`). Every key that is not retired signs. A retired key stays
published for a while, so that its signatures can be checked. A running server picks up changes by itself.

  dragoman keys new                        create a key in ./keys
  dragoman keys rotate --keep-days 30      create a new key, and publish the old one for 30 more days
  dragoman keys public                     print the public keys (a JWK set)
  dragoman keys seal                       create a key for DRAGOMAN_PUSH_SEAL, which encrypts stored push credentials
  dragoman keys token                      create a token for a caller, and its hash for Bearer({"alice": HASH})
"""
_DAY_SECONDS = 86_400.0


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "keys",
        help="create and rotate the keys that sign cards; create tokens",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb, help, run in (
        ("new", "create a key that signs besides the existing ones", _new),
        ("list", "list the keys", _list),
        ("rotate", "create a key that signs instead of the existing ones", _rotate),
        ("public", "print the public keys, as a JWK set", _public),
    ):
        each = verbs.add_parser(verb, help=help)
        each.add_argument("--dir", default="keys", help="folder of the keys (default: %(default)s)")
        if verb in ("new", "rotate"):
            each.add_argument("--alg", default="ES256", choices=tuple(ALGORITHMS))
        if verb == "rotate":
            each.add_argument(
                "--keep-days",
                type=float,
                default=RETIRED_SECONDS / _DAY_SECONDS,
                help="publish the old keys for this many days",
            )
        if verb == "list":
            each.add_argument("--json", action="store_true", help="print JSON")
        each.set_defaults(run=_report_errors(run))
    token = verbs.add_parser("token", help="create a token for a caller, and its hash for the server")
    token.set_defaults(run=_token)
    password = verbs.add_parser("password", help="hash a password (read from the terminal) for the server")
    password.set_defaults(run=_password)
    seal = verbs.add_parser("seal", help="create a key that encrypts stored push credentials")
    seal.set_defaults(run=_seal)


def _report_errors(run: Any) -> Any:
    def reporting(args: argparse.Namespace) -> int:
        try:
            run(args, KeyRing(args.dir))
        except (OSError, ValueError) as error:
            show.say(f"dragoman: {error}", sys.stderr)
            return 1
        return 0

    return reporting


def _new(args: argparse.Namespace, ring: KeyRing) -> None:
    print(ring.add(args.alg).kid)


def _rotate(args: argparse.Namespace, ring: KeyRing) -> None:
    print(ring.rotate(args.alg, keep=args.keep_days * _DAY_SECONDS).kid)


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
        show.table(("key", "algorithm", "created", "state"), rows)


def _state(key: OurKey) -> str:
    if key.signs:
        return "signs"
    return f"published until {_day(key.retired)}" if key.published else "expired"


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
        print("dragoman: the password is empty", file=sys.stderr)
        return 1
    print(hashed_password(password))
    return 0
