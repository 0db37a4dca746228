"""`dragoman card get AGENT`; `get` may be left out"""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import urlsplit

from dragoman.cli import show
from dragoman.cli.arguments import add_command, add_flag
from dragoman.cli.connect import add_agent_options, parse_agent, run_with_agent
from dragoman.client import Client
from dragoman.client.credentials import describe_schemes
from dragoman.dialects.cards import write_card
from dragoman.model.card import AgentCard

EPILOG = """\
  dragoman card get http://127.0.0.1:8000
  dragoman card get http://127.0.0.1:8000 -o json            the card as the agent serves it
  dragoman card get http://127.0.0.1:8000 --extended --auth env:TOKEN
  dragoman card get https://agents.example.com --verify      check its signature with the host's published keys
  dragoman card get card.json --trust jwks.json              check its signature with keys that you have
"""


def register(commands: Any) -> None:
    parser = add_command(commands, "card", "print an agent's card", EPILOG, run)
    add_agent_options(parser)
    add_flag(parser, "--extended", help="the extended card, for authenticated callers")
    add_flag(parser, "--verify", help="fail unless the card is signed with a key of the agent's host")
    parser.add_argument(
        "--trust", metavar="KEYS", help="check with these keys instead: a file with a JWK set, or its URL"
    )


async def run(args: argparse.Namespace) -> int:
    if args.words[:1] == ["get"]:
        args.words = args.words[1:]
    parse_agent(args)

    async def work(agent: Client) -> int:
        card = await agent.extended_card() if args.extended else agent.card
        if args.json:
            show.json(write_card(card, "1.0") if args.extended else agent.link.found.document)
        else:
            _print(card, agent)
        return 0

    return await run_with_agent(args, work, signed_by=_trusted(args))


def _trusted(args: argparse.Namespace) -> str | None:
    if args.trust:
        return str(args.trust)
    if not args.verify:
        return None
    parts = urlsplit(args.url)
    if not parts.netloc:
        args.refuse("--verify needs a URL: for a file, name the keys with --trust")
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
        ("requires", describe_schemes(card)),
        ("input", ", ".join(card.default_input_modes)),
        ("output", ", ".join(card.default_output_modes)),
        *(
            ("extension", each.uri + (" (required)" if each.required else ""))
            for each in capabilities.extensions
        ),
        *(
            ("interface", f"{i.protocol_binding} {i.protocol_version}  {i.url}")
            for i in card.supported_interfaces
        ),
        ("connected", f"A2A {agent.version}  {agent.url}"),
    ]
    verified = agent.link.found.verified
    if verified is not None:
        from dragoman.auth.signing import SPEC

        form = "" if verified.form == SPEC else f", {verified.form} form"
        pairs.append(("signed by", f"{verified.kid} ({verified.algorithm}{form})"))
    show.fields([(name, value) for name, value in pairs if value])
    print()
    show.table(("skill", "", ""), [(s.id, ", ".join(s.tags), s.description) for s in card.skills])
