"""The bytes of a card that a signature covers: RFC 8785 over what 1.0's definition keeps of it (spec 8.4.1).

A required member stays, even empty; an optional one stays if it is there, even with its default; any other that holds
its default (empty, false) is left out; members that 1.0 does not have are no part of the card. So two parties that
wrote the same card a little differently still sign the same bytes.

The official SDKs do it otherwise: they leave out everything that is empty, required or not (`sdk_form`), and older ones
did not write RFC 8785 either (`sdk_ascii`). Those forms cannot tell a requirement without scopes from no requirement.
Their Python resolver, in addition, reads members of older versions into those of 1.0 before it verifies (`resolver_form`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import rfc8785

from dragoman.model.card import SCHEME_MEMBERS

MAX_DEPTH = 64
_WHOLE = 1 << 53
"""Up to here every whole number is a double."""


class Unsignable(ValueError):
    """It is no card, or it has no canonical form."""


def spec_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """A card as 1.0 would sign it, without its signatures. Raises `Unsignable`."""
    _check_depth(document)
    out: dict[str, Any] = _read(document, "AgentCard")
    return out


def sdk_form(document: Mapping[str, Any]) -> dict[str, Any]:
    return _without_empty(spec_form(document)) or {}


def resolver_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """`sdk_form` of a card with members of older versions, as the resolver of the Python SDK 1.x reads it.

    It takes a 1.0 member where there is one, except for security schemes: one with a `type` is read as 0.3 has it.
    """
    out = dict(document)
    if out.get("supportsAuthenticatedExtendedCard"):
        out["capabilities"] = {"extendedAgentCard": True, **out.get("capabilities", {})}
    schemes = out.get("securitySchemes")
    if isinstance(schemes, Mapping):
        out["securitySchemes"] = {name: _wrap(scheme) for name, scheme in schemes.items()}
    return sdk_form(out)


def _wrap(scheme: Any) -> Any:
    if not isinstance(scheme, Mapping) or scheme.get("type") not in SCHEME_MEMBERS:
        return scheme
    members = {name: value for name, value in scheme.items() if name != "type"}
    if scheme["type"] == "apiKey" and "in" in members:
        members["location"] = members.pop("in")
    return {SCHEME_MEMBERS[scheme["type"]]: members}


def canonical(form: Mapping[str, Any]) -> bytes:
    """RFC 8785."""
    try:
        return rfc8785.dumps(dict(form))
    except (ValueError, RecursionError) as error:
        raise Unsignable(f"it has no canonical form: {error}") from error


def sdk_ascii(form: Mapping[str, Any]) -> bytes:
    return json.dumps(form, separators=(",", ":"), sort_keys=True).encode()


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        members = {name: inner for name, each in value.items() if (inner := _without_empty(each)) is not None}
        return members or None
    if isinstance(value, list):
        return [inner for each in value if (inner := _without_empty(each)) is not None] or None
    return None if value == "" and isinstance(value, str) else value


def _check_depth(value: Any, depth: int = 1) -> None:
    if depth > MAX_DEPTH:
        raise Unsignable(f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        for each in value.values():
            _check_depth(each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_depth(each, depth + 1)


# --- 1.0's definition: which members there are, and which stay

Shape = Any
"""`text`, `flag`, `free` (any object), the name of a message, `[shape]` (a list), `{"": shape}` (a map)."""


class _Message(NamedTuple):
    required: dict[str, Shape]
    """Always there."""
    present: dict[str, Shape]
    """There if they were given, even with their default: `optional` members, and messages."""
    other: dict[str, Shape]
    """There unless they hold their default."""


_URLS = {"refreshUrl": "text"}
_SCOPES = {"scopes": {"": "text"}}
_TOKEN = {"tokenUrl": "text", **_SCOPES}
_ABOUT = {"description": "text"}

_MESSAGES: dict[str, _Message] = {
    "AgentCard": _Message(
        {
            "name": "text",
            "description": "text",
            "supportedInterfaces": ["AgentInterface"],
            "version": "text",
            "capabilities": "AgentCapabilities",
            "defaultInputModes": ["text"],
            "defaultOutputModes": ["text"],
            "skills": ["AgentSkill"],
        },
        {"provider": "AgentProvider", "documentationUrl": "text", "iconUrl": "text"},
        {"securitySchemes": {"": "SecurityScheme"}, "securityRequirements": ["SecurityRequirement"]},
    ),
    "AgentInterface": _Message(
        {"url": "text", "protocolBinding": "text", "protocolVersion": "text"}, {}, {"tenant": "text"}
    ),
    "AgentProvider": _Message({"url": "text", "organization": "text"}, {}, {}),
    "AgentCapabilities": _Message(
        {},
        {"streaming": "flag", "pushNotifications": "flag", "extendedAgentCard": "flag"},
        {"extensions": ["AgentExtension"]},
    ),
    "AgentExtension": _Message({}, {"params": "free"}, {"uri": "text", "required": "flag", **_ABOUT}),
    "AgentSkill": _Message(
        {"id": "text", "name": "text", "description": "text", "tags": ["text"]},
        {},
        {
            "examples": ["text"],
            "inputModes": ["text"],
            "outputModes": ["text"],
            "securityRequirements": ["SecurityRequirement"],
        },
    ),
    "SecurityRequirement": _Message({}, {}, {"schemes": {"": "StringList"}}),
    "StringList": _Message({}, {}, {"list": ["text"]}),
    "SecurityScheme": _Message(
        {},
        {
            "apiKeySecurityScheme": "ApiKey",
            "httpAuthSecurityScheme": "HttpAuth",
            "oauth2SecurityScheme": "OAuth2",
            "openIdConnectSecurityScheme": "OpenIdConnect",
            "mtlsSecurityScheme": "MutualTls",
        },
        {},
    ),
    "ApiKey": _Message({"location": "text", "name": "text"}, {}, _ABOUT),
    "HttpAuth": _Message({"scheme": "text"}, {}, {"bearerFormat": "text", **_ABOUT}),
    "OAuth2": _Message({"flows": "OAuthFlows"}, {}, {"oauth2MetadataUrl": "text", **_ABOUT}),
    "OpenIdConnect": _Message({"openIdConnectUrl": "text"}, {}, _ABOUT),
    "MutualTls": _Message({}, {}, _ABOUT),
    "OAuthFlows": _Message(
        {},
        {
            "authorizationCode": "AuthorizationCode",
            "clientCredentials": "ClientCredentials",
            "implicit": "Implicit",
            "password": "Password",
            "deviceCode": "DeviceCode",
        },
        {},
    ),
    "AuthorizationCode": _Message(
        {"authorizationUrl": "text", **_TOKEN}, {}, {**_URLS, "pkceRequired": "flag"}
    ),
    "ClientCredentials": _Message(_TOKEN, {}, _URLS),
    "Implicit": _Message({}, {}, {"authorizationUrl": "text", **_URLS, **_SCOPES}),
    "Password": _Message({}, {}, {**_TOKEN, **_URLS}),
    "DeviceCode": _Message({"deviceAuthorizationUrl": "text", **_TOKEN}, {}, _URLS),
}


def _read(value: Any, shape: Shape) -> Any:
    if isinstance(shape, list):
        if not isinstance(value, list | tuple):
            raise Unsignable(f"{value!r:.40} should be a list")
        return [_read(each, shape[0]) for each in value]
    if shape in ("text", "flag"):
        if not isinstance(value, str if shape == "text" else bool):
            raise Unsignable(f"{value!r:.40} should be a {shape}")
        return value
    if not isinstance(value, Mapping):
        raise Unsignable(f"{value!r:.40} should be an object")
    if isinstance(shape, dict):
        return {str(name): _read(each, shape[""]) for name, each in value.items()}
    return _doubles(value) if shape == "free" else _read_message(value, _MESSAGES[shape])


def _read_message(value: Mapping[str, Any], message: _Message) -> dict[str, Any]:
    given = {_camel(name): each for name, each in value.items() if each is not None}
    out = {
        name: _read(given[name], shape) if name in given else _empty(shape)
        for name, shape in message.required.items()
    }
    out |= {name: _read(given[name], shape) for name, shape in message.present.items() if name in given}
    for name, shape in message.other.items():
        if name in given and (inner := _read(given[name], shape)):
            out[name] = inner
    return out


def _doubles(value: Any) -> Any:
    """Numbers are IEEE doubles in both 1.0's definition and RFC 8785, with any number of digits."""
    if isinstance(value, Mapping):
        return {str(name): _doubles(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_doubles(each) for each in value]
    if isinstance(value, int) and abs(value) >= _WHOLE:
        try:
            return float(value)
        except OverflowError:
            raise Unsignable(f"{str(value)[:20]}... is too large") from None
    return value


def _empty(shape: Shape) -> Any:
    if isinstance(shape, list):
        return []
    return "" if shape == "text" else _read({}, shape)


def _camel(name: str) -> str:
    """The names of the definition itself (`default_input_modes`) are as good as those of its JSON."""
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest) if head else name
