"""Agent cards in every version, their security schemes, and the one document that all versions can read.

Each version renamed some members and dropped others, but no two use one name for different things. So a card with the
members of all versions (`superset_card`) serves all clients. Reading needs no version: whatever is there becomes the 1.0
form, and the card's era says which version to try first.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import msgspec

from dragoman.dialects.reading import normalize
from dragoman.errors import InvalidAgentResponse
from dragoman.model.card import (
    JSONRPC,
    SCHEME_MEMBERS,
    AgentCard,
    Interface,
    OAuthFlows,
    SecurityRequirement,
    SecurityScheme,
    Skill,
)

TEXT = ("text/plain",)
_TRIO = ("streaming", "pushNotifications", "stateTransitionHistory")


_MAX_CACHED_CHARACTERS = 32
"""Longer labels are not cached: a caller or a card may have sent any text."""


def version_of(label: str) -> str:
    """`0.3.0` and `v0.3` are `0.3`; `1` is `1.0`. Patch digits never matter. Anything else stays as it is."""
    read = _read_version if len(label) <= _MAX_CACHED_CHARACTERS else _read_version.__wrapped__
    return read(label)


@lru_cache(maxsize=64)
def _read_version(label: str) -> str:
    found = re.fullmatch(r"v?(\d+)(?:\.(\d+|x))?(?:\.\w+)*", label.strip())
    return f"{found[1]}.{(found[2] or '0').replace('x', '0')}" if found else label.strip()


# --- writing


def write_card(card: AgentCard, dialect: str) -> dict[str, Any]:
    """The card as one version has it."""
    match dialect:
        case "1.0":
            return _write_1_0(card)
        case "0.3" | "0.3-proto":
            out = {**_write_0_2(card, "0.3"), "protocolVersion": "0.3.0"}
            if card.signatures:
                out["signatures"] = plain(card.signatures)
            return out
        case "0.2" | "0.2-type":
            return {**_write_0_2(card, "0.2"), "protocolVersion": "0.2.6"}
        case "0.1" | "draft":
            return _write_0_1(card, dialect)
        case "arbiter":
            out = {**_write_0_2(card, "arbiter"), "protocolVersion": "1.0"}
            out["capabilities"] = dict.fromkeys(_TRIO, False) | _capabilities(card)
            for member in ("additionalInterfaces", "supportsAuthenticatedExtendedCard"):
                out.pop(member, None)
            return out
    raise ValueError(f"no dialect is called {dialect!r}")


def superset_card(
    card: AgentCard, *, home: str = "0.3", versions: Collection[str] | None = None
) -> dict[str, Any]:
    """One document for peers of every version, without signatures: those of one of its versions need not fit it.

    `home` is the dialect of its older members: the newest supported one, or `arbiter`, which is nearly 0.3.
    `versions`: the supported versions; all of them if not given.
    """
    newest, older = _write_1_0(card), write_card(card, home)
    if home == "arbiter":
        older = {**write_card(card, "0.3"), **older}
    out = {**older, **newest}
    out["capabilities"] = {**older["capabilities"], **newest["capabilities"]}
    out["skills"] = [{**a, **b} for a, b in zip(older["skills"], newest["skills"], strict=True)]
    if card.security_schemes:
        wrapped, flat = newest["securitySchemes"], write_legacy_schemes(card.security_schemes)
        out["securitySchemes"] = {name: {**flat[name], **wrapped[name]} for name in wrapped}
    if versions is None or "0.1" in versions:
        out["authentication"] = {"schemes": scheme_words(card.security_schemes)}
    out.pop("signatures", None)
    return out


def _write_1_0(card: AgentCard) -> dict[str, Any]:
    """Members that 1.0 requires are there even when they are empty."""
    out: dict[str, Any] = plain(card)
    required = {
        "name": card.name,
        "description": card.description,
        "supportedInterfaces": [],
        "version": card.version,
    }
    out = {**required, **out, "capabilities": plain(card.capabilities)}
    out["defaultInputModes"] = list(card.default_input_modes or TEXT)
    out["defaultOutputModes"] = list(card.default_output_modes or TEXT)
    out["skills"] = [_write_skill(skill, "1.0") for skill in _skills(card)]
    if card.provider is not None:
        out["provider"] = {"organization": card.provider.organization, "url": card.provider.url}
    if card.security_schemes:
        out["securitySchemes"] = write_schemes(card.security_schemes)
    if card.security_requirements:
        out["securityRequirements"] = write_requirements(card.security_requirements)
    return out


def _write_0_2(card: AgentCard, version: str) -> dict[str, Any]:
    """What 0.2, 0.3 and Arbiter have in common."""
    interfaces = _interfaces(card, version)
    out = _write_common(card, version)
    if interfaces:
        out["preferredTransport"] = interfaces[0].protocol_binding
        rest = [{"url": each.url, "transport": each.protocol_binding} for each in interfaces]
        if len(rest) > 1:
            out["additionalInterfaces"] = rest
    out["capabilities"] = _capabilities(card)
    if card.capabilities.extensions:
        out["capabilities"]["extensions"] = plain(card.capabilities.extensions)
    if card.icon_url:
        out["iconUrl"] = card.icon_url
    if card.security_schemes:
        out["securitySchemes"] = write_legacy_schemes(card.security_schemes)
    if card.security_requirements:
        out["security"] = write_legacy_requirements(card.security_requirements)
    if card.capabilities.extended_agent_card is not None:
        out["supportsAuthenticatedExtendedCard"] = card.capabilities.extended_agent_card
    return out


def _write_0_1(card: AgentCard, dialect: str) -> dict[str, Any]:
    out = _write_common(card, "0.1")
    out["capabilities"] = _capabilities(card)
    if card.security_schemes or dialect == "draft":
        out["authentication"] = {"schemes": scheme_words(card.security_schemes)}
    return out


def _write_common(card: AgentCard, version: str) -> dict[str, Any]:
    """What every version before 1.0 has."""
    interfaces = _interfaces(card, version)
    out: dict[str, Any] = {
        "name": card.name,
        "description": card.description,
        "url": interfaces[0].url if interfaces else "",
        "version": card.version,
        "defaultInputModes": list(card.default_input_modes or TEXT),
        "defaultOutputModes": list(card.default_output_modes or TEXT),
        "skills": [_write_skill(skill, version) for skill in _skills(card)],
    }
    if card.provider is not None:
        out["provider"] = {"organization": card.provider.organization, "url": card.provider.url}
    if card.documentation_url:
        out["documentationUrl"] = card.documentation_url
    return out


def _interfaces(card: AgentCard, version: str) -> list[Interface]:
    """Where to reach the agent in a version; when nothing says so, its first JSON-RPC endpoint speaks them all."""
    listed = card.supported_interfaces
    exact = [each for each in listed if version_of(each.protocol_version) == version]
    rpc = [each for each in listed if each.protocol_binding == JSONRPC]
    return exact or rpc[:1] or list(listed[:1])


def _capabilities(card: AgentCard) -> dict[str, Any]:
    stated = {
        "streaming": card.capabilities.streaming,
        "pushNotifications": card.capabilities.push_notifications,
    }
    return {name: value for name, value in stated.items() if value is not None}


def _skills(card: AgentCard) -> tuple[Skill, ...]:
    """Never none: a card without skills is refused by many."""
    if card.skills:
        return card.skills
    slug = re.sub(r"[^a-z0-9]+", "-", card.name.lower()).strip("-") or "agent"
    return (Skill(id=slug, name=card.name, description=card.description or card.name, tags=(slug,)),)


def _write_skill(skill: Skill, version: str) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": skill.id,
        "name": skill.name,
        "description": skill.description,
        "tags": list(skill.tags),
    }
    for member, values in (
        ("examples", skill.examples),
        ("inputModes", skill.input_modes),
        ("outputModes", skill.output_modes),
    ):
        if values:
            out[member] = list(values)
    if skill.security_requirements and version == "1.0":
        out["securityRequirements"] = write_requirements(skill.security_requirements)
    elif skill.security_requirements and version == "0.3":
        out["security"] = write_legacy_requirements(skill.security_requirements)
    return out


# --- reading


def read_card(document: Any, *, found_at: str = "") -> tuple[AgentCard, str]:
    """A card of any version, and the dialect it was written for. Raises `InvalidAgentResponse`.

    `found_at` is the address it came from: older agents publish only `agent.json`.
    """
    if not isinstance(document, dict):
        raise InvalidAgentResponse("the agent card is not a JSON object")
    try:
        card = normalize(document)
        era = era_of(card, found_at=found_at)
        return msgspec.convert(_regular(card, era), AgentCard), era
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidAgentResponse(f"the agent card is malformed: {error}") from None


def era_of(card: dict[str, Any], *, found_at: str = "") -> str:
    """Which dialect a card was written for. Without `supportedInterfaces` it is never 1.0, also if it claims to be."""
    if card.get("supportedInterfaces"):
        return "1.0"
    label = card.get("protocolVersion")
    version = version_of(label) if isinstance(label, str) else ""
    if version.startswith("1."):
        return "arbiter"
    if version in ("0.3", "0.2", "0.1"):
        return version
    if version:
        return "0.3"
    if "authentication" in card:
        return "0.1"
    if any(member in card for member in ("securitySchemes", "security", "preferredTransport", "iconUrl")):
        return "0.2"
    return "0.2" if found_at.endswith("/agent.json") else "0.3"


def _regular(card: dict[str, Any], era: str) -> dict[str, Any]:
    """The document in the 1.0 form, with gaps filled that only a strict reader would mind."""
    out = dict(card)
    schemes, names = read_schemes(card.get("securitySchemes"))
    requirements = read_requirements(card.get("securityRequirements") or card.get("security"), names)
    if not schemes and not requirements and "authentication" in card:
        schemes, requirements = read_scheme_words(card["authentication"])
    out["securitySchemes"], out["securityRequirements"] = schemes, requirements
    out["supportedInterfaces"] = _read_interfaces(card, era)
    out["skills"] = [_read_skill(skill, n, names) for n, skill in enumerate(_list(card.get("skills")))]
    capabilities = dict(card["capabilities"]) if isinstance(card.get("capabilities"), dict) else {}
    if "supportsAuthenticatedExtendedCard" in card:
        capabilities.setdefault("extendedAgentCard", card["supportsAuthenticatedExtendedCard"])
    if isinstance(capabilities.get("extensions"), list):
        capabilities["extensions"] = [
            {"uri": "", **each} if isinstance(each, dict) else each for each in capabilities["extensions"]
        ]
    out["capabilities"] = capabilities
    if isinstance(card.get("provider"), dict):
        out["provider"] = {"organization": "", **card["provider"]}
    return out


def _read_interfaces(card: dict[str, Any], era: str) -> list[Any]:
    listed = [each for each in _list(card.get("supportedInterfaces")) if isinstance(each, dict)]
    if listed:
        return [
            {"protocolBinding": each.get("transport", JSONRPC), "protocolVersion": "1.0", **each}
            for each in listed
        ]
    out = []
    if isinstance(card.get("url"), str):
        out.append({"url": card["url"], "protocolBinding": card.get("preferredTransport", JSONRPC)})
    for each in _list(card.get("additionalInterfaces")):
        if isinstance(each, dict) and "url" in each:
            one = {"url": each["url"], "protocolBinding": each.get("transport", JSONRPC)}
            if one not in out:
                out.append(one)
    return [{**each, "protocolVersion": era} for each in out]


def _read_skill(skill: Any, n: int, names: dict[str, list[str]]) -> Any:
    if not isinstance(skill, dict):
        return skill
    out = {"id": f"skill-{n + 1}", **skill}
    out.setdefault("name", out["id"])
    stated = skill.get("securityRequirements") or skill.get("security")
    if stated:
        out["securityRequirements"] = read_requirements(stated, names)
    return out


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_TYPES = {wrapper: kind for kind, wrapper in SCHEME_MEMBERS.items()}

_FLOWS = {
    "authorizationCode": ("authorizationUrl", "tokenUrl", "scopes"),
    "clientCredentials": ("tokenUrl", "scopes"),
    "implicit": ("authorizationUrl", "scopes"),
    "password": ("tokenUrl", "scopes"),
    "deviceCode": ("deviceAuthorizationUrl", "tokenUrl", "scopes"),
}
"""The members that each kind of flow must have."""


def plain(value: Any) -> Any:
    """A value as the plain objects and lists of its JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def write_schemes(schemes: dict[str, SecurityScheme]) -> dict[str, Any]:
    """As 1.0 has them."""
    out = {}
    for name, scheme in schemes.items():
        document = plain(scheme)
        if scheme.oauth2_security_scheme is not None:
            document["oauth2SecurityScheme"]["flows"] = _write_flows(scheme.oauth2_security_scheme.flows)
        out[name] = document
    return out


def write_legacy_schemes(schemes: dict[str, SecurityScheme]) -> dict[str, Any]:
    """As 0.2 and 0.3 have them: `type` says which, the members are flat."""
    out = {}
    for name, document in write_schemes(schemes).items():
        for wrapper, members in document.items():
            kind = _TYPES[wrapper]
            if kind == "apiKey":
                members["in"] = members.pop("location")
            elif kind == "oauth2":
                members["flows"].pop("deviceCode", None)
                members["flows"].get("authorizationCode", {}).pop("pkceRequired", None)
            out[name] = {"type": kind, **members}
    return out


def _write_flows(flows: OAuthFlows) -> dict[str, Any]:
    out: dict[str, Any] = plain(flows)
    for kind, flow in out.items():
        for member in _FLOWS[kind]:
            flow.setdefault(member, {} if member == "scopes" else "")
    return out


def read_schemes(document: Any) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Schemes of any version in the 1.0 form, and for each name the names it became (more than one if it was split)."""
    out: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    for name, scheme in document.items() if isinstance(document, dict) else ():
        if not isinstance(scheme, dict):
            continue
        wrapper = next((member for member in _TYPES if isinstance(scheme.get(member), dict)), None)
        if wrapper is not None:
            members = dict(scheme[wrapper])
        elif (wrapper := SCHEME_MEMBERS.get(str(scheme.get("type")))) is not None:
            members = {k: v for k, v in scheme.items() if k not in ("type", "in")}
            if "in" in scheme:
                members["location"] = scheme["in"]
        else:
            continue
        split = _split(name, wrapper, members)
        out |= split
        names[name] = list(split)
    return out, names


def _split(name: str, wrapper: str, members: dict[str, Any]) -> dict[str, Any]:
    flows = members.get("flows")
    if wrapper != SCHEME_MEMBERS["oauth2"] or not isinstance(flows, dict) or len(flows) < 2:
        return {name: {wrapper: members}}
    return {
        f"{name}#{n}" if n > 1 else name: {wrapper: {**members, "flows": {kind: flow}}}
        for n, (kind, flow) in enumerate(flows.items(), 1)
    }


def write_requirements(requirements: tuple[SecurityRequirement, ...]) -> list[Any]:
    """As 1.0 has them. A scheme that needs no scopes still has its list."""
    return [
        {"schemes": {name: {"list": list(scopes.list)} for name, scopes in requirement.schemes.items()}}
        for requirement in requirements
    ]


def write_legacy_requirements(requirements: tuple[SecurityRequirement, ...]) -> list[Any]:
    return [
        {name: list(scopes.list) for name, scopes in requirement.schemes.items()}
        for requirement in requirements
    ]


def read_requirements(document: Any, names: dict[str, list[str]]) -> list[Any]:
    """`securityRequirements` or `security` in the 1.0 form; a split scheme gives alternatives."""
    out: list[Any] = []
    for item in document if isinstance(document, list) else ():
        if not isinstance(item, dict):
            continue
        schemes = item.get("schemes") if isinstance(item.get("schemes"), dict) else item
        assert isinstance(schemes, dict)
        choices: list[dict[str, Any]] = [{}]
        for name, scopes in schemes.items():
            scopes = scopes if isinstance(scopes, dict) else {"list": scopes}
            choices = [{**choice, each: scopes} for each in names.get(name, [name]) for choice in choices]
        out.extend({"schemes": choice} for choice in choices)
    return out


def scheme_words(schemes: dict[str, SecurityScheme]) -> list[str]:
    """As the draft and 0.1 name them in `authentication.schemes`: `Bearer`, `ApiKey` ..."""
    words: list[str] = []
    for scheme in schemes.values():
        if (http := scheme.http_auth_security_scheme) is not None:
            words.append(http.scheme[:1].upper() + http.scheme[1:])
        else:
            kinds = (word for kind, word in _SCHEME_WORDS.items() if getattr(scheme, kind) is not None)
            words.append(next(kinds, "MutualTLS"))
    return list(dict.fromkeys(words))


_SCHEME_WORDS = {
    "api_key_security_scheme": "ApiKey",
    "oauth2_security_scheme": "OAuth2",
    "open_id_connect_security_scheme": "OpenIdConnect",
}
_WORDS: dict[str, dict[str, Any]] = {
    "apikey": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}},
    "oauth2": {"oauth2SecurityScheme": {"flows": {}}},
    "openidconnect": {"openIdConnectSecurityScheme": {"openIdConnectUrl": ""}},
    "mutualtls": {"mtlsSecurityScheme": {}},
}


def read_scheme_words(authentication: Any) -> tuple[dict[str, Any], list[Any]]:
    """`authentication` of the draft and 0.1 as schemes and requirements: any one of the words will do."""
    if not isinstance(authentication, dict):
        return {}, []
    words = authentication.get("schemes")
    words = [words] if isinstance(words, str) else words
    names = [word.lower() for word in words if isinstance(word, str)] if isinstance(words, list) else []
    schemes = {
        name: _WORDS.get(name, {"httpAuthSecurityScheme": {"scheme": name}})
        for name in names
        if name not in ("public", "none", "")
    }
    if "oauth2" in schemes:
        schemes["oauth2"] = {"oauth2SecurityScheme": {"flows": _flows_in(authentication.get("credentials"))}}
    return schemes, [{"schemes": {name: {"list": []}}} for name in schemes]


def _flows_in(credentials: Any) -> dict[str, Any]:
    """`credentials` may hold where to get a token, as JSON in a string."""
    try:
        flow = msgspec.json.decode(credentials)
    except (msgspec.DecodeError, TypeError):
        return {}
    if not isinstance(flow, dict) or not isinstance(flow.get("tokenUrl"), str):
        return {}
    return {"authorizationCode" if "authorizationUrl" in flow else "clientCredentials": flow}
