"""Security schemes and requirements: the OpenAPI form of 0.2 and 0.3, the wrapped form of 1.0, the words of 0.1.

1.0 allows one OAuth flow per scheme; an older scheme with two becomes two, `name` and `name#2`, and whoever required
`name` may use either.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.model.card import OAuthFlows, SecurityRequirement, SecurityScheme

_WRAPPERS = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}
_TYPES = {wrapper: kind for kind, wrapper in _WRAPPERS.items()}

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
        elif (wrapper := _WRAPPERS.get(str(scheme.get("type")))) is not None:
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
    if wrapper != _WRAPPERS["oauth2"] or not isinstance(flows, dict) or len(flows) < 2:
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
        if scheme.http_auth_security_scheme is not None:
            word = scheme.http_auth_security_scheme.scheme
            words.append(word[:1].upper() + word[1:])
        elif scheme.api_key_security_scheme is not None:
            words.append("ApiKey")
        elif scheme.oauth2_security_scheme is not None:
            words.append("OAuth2")
        elif scheme.open_id_connect_security_scheme is not None:
            words.append("OpenIdConnect")
        else:
            words.append("MutualTLS")
    return list(dict.fromkeys(words))


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
