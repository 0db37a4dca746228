"""The SDK's card, in both spellings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.executor.spoken import Made, members, snaked
from dragoman.model.card import AgentCard as Card
from dragoman.model.card import Capabilities, Extension, Interface, Provider, Skill

_WHERE = ("url", "preferred_transport", "additional_interfaces", "supported_interfaces", "protocol_version")
"""Where an agent is reached, and in which versions: the server knows that, and says so."""
_WHO = ("authentication", "security_schemes", "security", "security_requirements")
_EXTENDED = "supports_authenticated_extended_card"
EXTENDED = "an extended card is the agent's to give: leave this out, and say `extended_card=` beside `auth=`"


class AgentSkill(Made):
    made = Skill

    def __new__(cls, id: str, name: str, **given: Any) -> Any:
        return Skill(id=id, name=name, **members(Skill, given, ("security",)))


class AgentExtension(Made):
    made = Extension

    def __new__(cls, uri: str, **given: Any) -> Any:
        return Extension(uri=uri, **members(Extension, given))


class AgentCapabilities(Made):
    made = Capabilities

    def __new__(cls, streaming: bool | None = True, **given: Any) -> Any:
        given = {"push_notifications": False} | members(Capabilities, given, ("state_transition_history",))
        if given.pop("extended_agent_card", False):
            raise TypeError(EXTENDED)
        return Capabilities(streaming=streaming is not False, **given)


class AgentProvider(Made):
    made = Provider

    def __new__(cls, organization: str, url: str | None = "") -> Any:
        return Provider(organization=organization, url=url or "")


class AgentInterface(Made):
    made = Interface

    def __new__(cls, url: str, **given: Any) -> Any:
        given = {"protocol_binding": given.pop("transport", "JSONRPC"), "protocol_version": ""} | given
        return Interface(url=url, **members(Interface, given))


def AgentAuthentication(schemes: Sequence[str] = (), credentials: str = "") -> tuple[str, ...]:
    """0.1's list of scheme names. `public` means none."""
    return tuple(scheme for scheme in schemes if scheme != "public")


class AgentCard(Made):
    made = Card

    def __new__(cls, name: str, description: str = "", **given: Any) -> Any:
        if any(given[member] for member in given if snaked(member) in _WHO):
            raise TypeError("a card does not authenticate anybody: declare `auth=` on the agent instead")
        if given.pop("supportsAuthenticatedExtendedCard", False) or given.pop(_EXTENDED, False):
            raise TypeError(EXTENDED)
        filled: dict[str, Any] = {"version": "1.0.0", "capabilities": Capabilities(streaming=True)}
        filled |= members(Card, given, (*_WHERE, *_WHO, _EXTENDED, "signatures"))
        for modes in ("default_input_modes", "default_output_modes"):
            filled[modes] = _modes(filled.get(modes, ()))
        return Card(name=name, description=description, **filled)


def _modes(modes: Sequence[str]) -> tuple[str, ...]:
    return tuple("text/plain" if mode == "text" else mode for mode in modes) or ("text/plain",)
