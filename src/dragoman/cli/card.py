"""`dragoman card AGENT`"""

from __future__ import annotations

import argparse
from typing import Any

from dragoman.cli import show
from dragoman.cli.reach import add_options, reached
from dragoman.client import Client
from dragoman.client.credentials import described
from dragoman.dialects.cards import write_card
from dragoman.model.card import AgentCard


def register(commands: Any) -> None:
    parser = commands.add_parser("card", help="print what an agent says it is")
    add_options(parser)
    parser.add_argument(
        "--extended", action="store_true", help="the card for those who have shown who they are"
    )
    parser.set_defaults(run=run)


async def run(args: argparse.Namespace) -> int:
    async def work(agent: Client) -> int:
        card = await agent.extended_card() if args.extended else agent.card
        if args.json:
            show.json(write_card(card, "1.0") if args.extended else agent.link.found.document)
        else:
            _print(card, agent)
        return 0

    return await reached(args, work)


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
        ("asks for", described(card)),
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
    show.fields([(name, value) for name, value in pairs if value])
    print()
    show.table(("skill", "", ""), [(s.id, ", ".join(s.tags), s.description) for s in card.skills])
