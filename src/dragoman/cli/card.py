"""`dragoman card get AGENT`; `get` may be left out"""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import urlsplit

from dragoman.cli import show
from dragoman.cli.reach import add_options, reached, target
from dragoman.client import Client
from dragoman.client.credentials import describe_schemes
from dragoman.dialects.cards import write_card
from dragoman.model.card import AgentCard

EPILOG = """\
  dragoman card get http://127.0.0.1:8000
  dragoman card get http://127.0.0.1:8000 -o json            as it was served
  dragoman card get http://127.0.0.1:8000 --extended --auth env:TOKEN
  dragoman card get https://agents.example.com --verify      signed, by a key that the host publishes
  dragoman card get card.json --trust jwks.json              signed, by a key you have been given
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "card",
        help="print what an agent says it is",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument(
        "--extended", action="store_true", help="the card for those who have shown who they are"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="fail unless the card is signed, by a key of the agent's own host",
    )
    parser.add_argument(
        "--trust", metavar="KEYS", help="verify with these keys instead: a file with a JWK set, or its URL"
    )
    parser.set_defaults(run=run)


async def run(args: argparse.Namespace) -> int:
    if args.words[:1] == ["get"]:
        args.words = args.words[1:]
    target(args)

    async def work(agent: Client) -> int:
        card = await agent.extended_card() if args.extended else agent.card
        if args.json:
            show.json(write_card(card, "1.0") if args.extended else agent.link.found.document)
        else:
            _print(card, agent)
        return 0

    return await reached(args, work, signed_by=_trusted(args))


def _trusted(args: argparse.Namespace) -> str | None:
    if args.trust:
        return str(args.trust)
    if not args.verify:
        return None
    parts = urlsplit(args.url)
    if not parts.netloc:
        args.refuse("say whose signature counts with --trust")
    return f"{parts.scheme}://{parts.netloc}/.well-known/jwks.json"


def _print(card: AgentCard, agent: Client) -> None:
    capabilities = card.capabilities
    offers = [
        word
        for word, offered in (
            ("streaming", capabilities.streaming),
            ("push notifications", capabilities.push_notifications),
            ("extended card", capabilities.extended_agent_card),
        )
        if offered
    ]
    pairs = [
        ("name", card.name),
        ("description", card.description),
        ("version", card.version),
        ("provider", card.provider.organization if card.provider else ""),
        ("documentation", card.documentation_url),
        ("offers", ", ".join(offers)),
        ("asks for", describe_schemes(card)),
        ("takes", ", ".join(card.default_input_modes)),
        ("gives", ", ".join(card.default_output_modes)),
        *(
            ("extension", each.uri + (" (required)" if each.required else ""))
            for each in capabilities.extensions
        ),
        *(
            ("interface", f"{i.protocol_binding} {i.protocol_version}  {i.url}")
            for i in card.supported_interfaces
        ),
        ("we speak", f"A2A {agent.version}  {agent.url}"),
    ]
    verified = agent.link.found.verified
    if verified is not None:
        from dragoman.auth.signing import SPEC

        form = "" if verified.form == SPEC else f", in the form that is called {verified.form}"
        pairs.append(("signed by", f"{verified.kid} ({verified.algorithm}{form})"))
    show.fields([(name, value) for name, value in pairs if value])
    print()
    show.table(("skill", "", ""), [(s.id, ", ".join(s.tags), s.description) for s in card.skills])
