"""Agent cards in protobuf.

They are asked for rarely and have many members, so they take the way through JSON: `dialects.cards` knows all of them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from dragoman.dialects import cards
from dragoman.dialects.reading import Malformed
from dragoman.errors import InvalidAgentResponse
from dragoman.model.card import AgentCard


def write_1_0(message: Any, card: AgentCard) -> None:
    _write(message, cards.write_card(card, "1.0"))


def write_0_3(message: Any, card: AgentCard) -> None:
    """0.3's members, with security in the wrapped form that its protobuf shares with 1.0."""
    document = cards.write_card(card, "0.3")
    if card.security_schemes:
        document["securitySchemes"] = cards.write_schemes(card.security_schemes)
    if card.security_requirements:
        document["security"] = cards.write_requirements(card.security_requirements)
    for skill, stated in zip(document["skills"], card.skills, strict=False):
        if stated.security_requirements:
            skill["security"] = cards.write_requirements(stated.security_requirements)
    _write(message, document)


def _write(message: Any, document: dict[str, Any]) -> None:
    try:
        ParseDict(document, message, ignore_unknown_fields=True)
    except ParseError as error:
        raise ValueError(str(error)) from error


def read_card(message: Any) -> AgentCard:
    document = _whole(MessageToDict(message, always_print_fields_with_no_presence=True))
    for stated in (document, *document["skills"]):
        if "security" in stated:  # 0.3's name for it, in the form of 1.0
            stated["securityRequirements"] = stated.pop("security")
    try:
        return cards.read_card(document)[0]
    except InvalidAgentResponse as error:
        raise Malformed("the card", f"is malformed: {error}") from None


def _whole(value: Any) -> Any:
    """Whole numbers as such: in protobuf they were doubles."""
    if type(value) is dict:
        return {name: _whole(each) for name, each in value.items()}
    if type(value) is list:
        return [_whole(each) for each in value]
    return int(value) if type(value) is float and value.is_integer() and abs(value) <= 2**53 else value
