"""`dragoman keys new|list|rotate|public|token|password|seal` and `dragoman sign card.json`"""

from __future__ import annotations

import argparse
import getpass
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dragoman.auth.canonical import spec_form
from dragoman.auth.keys import ALGORITHMS, RETIRED_SECONDS, KeyRing, OurKey
from dragoman.auth.secrets import hashed, hashed_password, new_token
from dragoman.cli import show
from dragoman.cli.arguments import add_command, add_flag, add_verbs, describe
from dragoman.client.transport.transport import NOT_JSON
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
    parser = add_command(
        commands, "keys", "create and rotate the keys that sign cards; create tokens", EPILOG
    )
    verbs = add_verbs(parser)
    for verb, help, run in (
        ("new", "create a key that signs besides the existing ones", _new),
        ("list", "list the keys", _list),
        ("rotate", "create a key that signs instead of the existing ones", _rotate),
        ("public", "print the public keys, as a JWK set", _public),
    ):
        each = add_command(verbs, verb, help, run=_report_errors(run))
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
            add_flag(each, "--json", help="print JSON")
    add_command(verbs, "token", "create a token for a caller, and its hash for the server", run=_token)
    add_command(verbs, "password", "hash a password (read from the terminal) for the server", run=_password)
    add_command(verbs, "seal", "create a key that encrypts stored push credentials", run=_seal)
    _register_sign(commands)


def _report_errors(run: Any) -> Any:
    def reporting(args: argparse.Namespace) -> int:
        try:
            run(args, KeyRing(args.dir))
        except (OSError, ValueError) as error:
            show.say(f"dragoman: {describe(error)}", sys.stderr)
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


SIGN_EPILOG = """\
Signs a card of A2A 1.0, and prints it or writes it to --output. Signatures of other keys stay.

  dragoman keys new
  dragoman sign card.json --output signed.json
  dragoman card signed.json --verify --trust https://agents.example.com/.well-known/jwks.json
"""


def _register_sign(commands: Any) -> None:
    parser = add_command(commands, "sign", "sign an agent card", SIGN_EPILOG, _sign_card)
    parser.add_argument("card", metavar="FILE", help="the card; - for standard input")
    parser.add_argument(
        "--keys", default="keys", metavar="DIR", help="folder of the keys (default: %(default)s)"
    )
    parser.add_argument("--jku", default="", metavar="URL", help="URL of the public keys, for the signature")
    parser.add_argument("--output", metavar="FILE", help="write the signed card to this file")


def _sign_card(args: argparse.Namespace) -> int:
    try:
        body = sys.stdin.buffer.read() if args.card == "-" else Path(args.card).read_bytes()
        try:
            card = msgspec.json.decode(body)
        except NOT_JSON as error:
            raise ValueError(f"{args.card} is not a card: {error}") from None
        signed, unsigned = sign(card, KeyRing(args.keys, jku=args.jku))
    except (OSError, ValueError) as error:
        show.say(f"dragoman: {describe(error)}", sys.stderr)
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
