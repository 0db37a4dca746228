"""The SDK's card, in both spellings, and what there is to know about it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from dragoman.executor.spoken import LEGACY, Made, as_spoken, each_of, members, read_as, snaked
from dragoman.model.card import AgentCard as Card
from dragoman.model.card import Capabilities, Extension, Interface, Provider, Skill

_WHO = ("authentication", "security_schemes", "security", "security_requirements")

AGENT_CARD_WELL_KNOWN_PATH = "/.well-known/agent-card.json"
PREV_AGENT_CARD_WELL_KNOWN_PATH = "/.well-known/agent.json"
EXTENDED_AGENT_CARD_PATH = "/agent/authenticatedExtendedCard"
DEFAULT_RPC_URL = "/"
HTTP_EXTENSION_HEADER = "A2A-Extensions"
VERSION_HEADER = "A2A-Version"
PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3 = "1.0", "0.3"
PROTOCOL_VERSION_CURRENT = PROTOCOL_VERSION_1_0


class TransportProtocol(str, Enum):
    JSONRPC = jsonrpc = "JSONRPC"
    HTTP_JSON = http_json = "HTTP+JSON"
    GRPC = grpc = "GRPC"


class AgentSkill(Made):
    made = Skill
    also = ("security",)

    def __new__(cls, id: str, name: str, **given: Any) -> Any:
        return as_spoken(Skill(id=id, name=name, **members(Skill, given, cls.also)))


class AgentExtension(Made):
    made = Extension

    def __new__(cls, uri: str = "", **given: Any) -> Any:
        return as_spoken(Extension(uri=uri, **members(Extension, given)))


class AgentCapabilities(Made):
    made = Capabilities
    also = ("state_transition_history",)

    def __new__(cls, streaming: bool | None = True, **given: Any) -> Any:
        given = {"push_notifications": False} | members(Capabilities, given, cls.also)
        given["extensions"] = tuple(each_of(AgentExtension, given.get("extensions")))
        return as_spoken(Capabilities(streaming=streaming is not False, **given))


class AgentProvider(Made):
    made = Provider

    def __new__(cls, organization: str, url: str | None = "") -> Any:
        return as_spoken(Provider(organization=organization, url=url or ""))


class AgentInterface(Made):
    made = Interface
    also = ("transport",)

    def __new__(cls, url: str, **given: Any) -> Any:
        given = {"protocol_binding": given.pop("transport", "JSONRPC"), "protocol_version": ""} | members(
            Interface, given, cls.also
        )
        return as_spoken(Interface(url=url, **given))


def AgentAuthentication(schemes: Sequence[str] = (), credentials: str = "") -> tuple[str, ...]:
    """0.1's list of scheme names. `public` means none."""
    return tuple(scheme for scheme in schemes if scheme != "public")


class AgentCard(Made):
    """Where the agent is reached, and in which versions, is the server's to say: what a card says about it can be read again."""

    made = Card
    also = LEGACY

    def __new__(cls, name: str, description: str = "", **given: Any) -> Any:
        if any(given[member] for member in given if snaked(member) in _WHO):
            raise TypeError("a card does not authenticate anybody: declare `auth=` on the agent instead")
        filled: dict[str, Any] = {"version": "1.0.0"}
        filled |= members(Card, given, (*cls.also, *_WHO, "signatures"))
        filled["capabilities"] = read_as(AgentCapabilities, filled.get("capabilities", {}))
        filled["skills"] = tuple(each_of(AgentSkill, filled.get("skills")))
        filled["supported_interfaces"] = tuple(each_of(AgentInterface, filled.get("supported_interfaces")))
        if filled.get("provider") is not None:
            filled["provider"] = read_as(AgentProvider, filled["provider"])
        for modes in ("default_input_modes", "default_output_modes"):
            filled[modes] = _modes(filled.get(modes, ()))
        card = as_spoken(Card(name=name, description=description, **filled))
        for member, value in given.items():
            if snaked(member) in LEGACY:
                setattr(card, snaked(member), value)
        return card


def _modes(modes: Sequence[str]) -> tuple[str, ...]:
    return tuple("text/plain" if mode == "text" else mode for mode in modes) or ("text/plain",)


def are_modalities_compatible(
    server_output_modes: Sequence[str] | None, client_output_modes: Sequence[str] | None
) -> bool:
    """Whether one of these modes is also one of those; who names none takes any."""
    if not server_output_modes or not client_output_modes:
        return True
    return not set(server_output_modes).isdisjoint(client_output_modes)


def find_extension_by_uri(card: Any, uri: str) -> Any:
    """The extension that a card declares under a URI; None if it has none."""
    return next((each for each in card.capabilities.extensions if each.uri == uri), None)


def get_requested_extensions(values: Sequence[str]) -> set[str]:
    """The URIs in the values of a header."""
    return {uri.strip() for value in values for uri in value.split(",") if uri.strip()}
