"""What is wrong with an agent's card, rule by rule.

The rules are those of A2A for the version that the card is written for, and what our client needs to reach the agent. A finding
names the rule and the section of the specification that it comes from, says what to change, and points to the place in the card (a
JSON pointer, RFC 6901).
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.console.redact import redact_text
from dragoman.dialects.cards import version_of
from dragoman.dialects.reading import snake
from dragoman.observe.terminal import sanitize

ERROR, WARNING, INFO = "error", "warning", "info"
MAX_FINDINGS = 200
MAX_CARD_BYTES = 256 << 10
"""Our client does not cache a larger card, and others may not read it."""

WELL_KNOWN = "/.well-known/agent-card.json"
BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")

_COMMON = (
    "name",
    "description",
    "version",
    "capabilities",
    "defaultInputModes",
    "defaultOutputModes",
    "skills",
)
REQUIRED: dict[str, tuple[str, ...]] = {
    "1.0": (*_COMMON, "supportedInterfaces"),
    "0.3": (*_COMMON, "url", "protocolVersion", "preferredTransport"),
    "0.2": (*_COMMON, "url"),
    "0.1": ("name", "url", "version", "capabilities", "skills"),
    "arbiter": (*_COMMON, "url", "protocolVersion"),
}
"""The members that a card of each version must have."""
_TYPES: dict[str, type] = {
    "name": str, "description": str, "version": str, "url": str, "protocolVersion": str, "preferredTransport": str,
    "iconUrl": str, "documentationUrl": str, "capabilities": dict, "provider": dict, "securitySchemes": dict,
    "defaultInputModes": list, "defaultOutputModes": list, "skills": list, "supportedInterfaces": list,
    "additionalInterfaces": list, "signatures": list, "securityRequirements": list, "security": list,
}  # fmt: skip
_OLDER = (
    "url", "preferredTransport", "additionalInterfaces", "protocolVersion", "security", "authentication",
    "supportsAuthenticatedExtendedCard",
)  # fmt: skip
_WORDS = {str: "text", dict: "an object", list: "a list", bool: "true or false"}
_SCHEMES = {
    "apiKeySecurityScheme": "apiKey", "httpAuthSecurityScheme": "http", "oauth2SecurityScheme": "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect", "mtlsSecurityScheme": "mutualTLS",
}  # fmt: skip
_FLOWS = {
    "authorizationCode": ("authorizationUrl", "tokenUrl", "scopes"),
    "clientCredentials": ("tokenUrl", "scopes"),
    "implicit": ("authorizationUrl", "scopes"),
    "password": ("tokenUrl", "scopes"),
    "deviceCode": ("deviceAuthorizationUrl", "tokenUrl", "scopes"),
}
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+*-]+/[\w!#$&^.+*-]+(\s*;.*)?")
_VERSIONS = ("0.1", "0.2", "0.3", "1.0")


class Finding(Struct, frozen=True, kw_only=True):
    rule: str
    section: str
    """Of the specification; empty for a rule of good practice."""
    severity: str
    message: str
    fix: str
    pointer: str = ""


class FetchedCard(Struct, frozen=True, kw_only=True):
    """A card, and how it was served."""

    document: Any
    era: str
    """The version that it is written for."""
    url: str = ""
    """Where it was found; empty if it is a file."""
    headers: Mapping[str, str] = {}
    size: int = 0


def check_card(fetched: FetchedCard) -> list[Finding]:
    """All findings, the worst first. A card with very many gets the first `MAX_FINDINGS`."""
    document = fetched.document
    if not isinstance(document, dict):
        return [
            Finding(
                rule="card.object",
                section="8.2",
                severity=ERROR,
                message="The card is not a JSON object.",
                fix="Answer with an AgentCard object.",
            )
        ]
    found: list[Finding] = []
    for rules in (
        _served,
        _members,
        _texts,
        _interfaces,
        _skills,
        _capabilities,
        _security,
        _signatures,
        _secrets,
    ):
        for finding in rules(fetched):
            found.append(finding)
            if len(found) >= MAX_FINDINGS:
                break
    order = (ERROR, WARNING, INFO)
    return sorted(found[:MAX_FINDINGS], key=lambda each: order.index(each.severity))


def _finding(rule: str, section: str, severity: str, message: str, fix: str, *path: str | int) -> Finding:
    return Finding(
        rule=rule, section=section, severity=severity, message=message, fix=fix, pointer=pointer(*path)
    )


def pointer(*path: str | int) -> str:
    return "".join(f"/{str(each).replace('~', '~0').replace('/', '~1')}" for each in path)


def quoted(value: Any) -> str:
    """A value of the card in a sentence: short, without secrets and control characters."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = sanitize(redact_text(text[:200])).replace("\n", " ")
    return f'"{text[:60]}..."' if len(text) > 60 else f'"{text}"'


# -- how it is served ----------------------------------------------------------------------------------------------


def _served(card: FetchedCard) -> Iterator[Finding]:
    if not card.url:
        return
    parts = urlsplit(card.url)
    if parts.scheme == "http" and not _is_local(parts.hostname or ""):
        yield _finding(
            "http.tls", "14.3", WARNING, "The card is served without TLS.", "Serve the card over https."
        )
    newest = card.era in ("1.0", "0.3", "arbiter")
    if newest and parts.path.endswith("/agent.json"):
        yield _finding(
            "http.path",
            "8.2",
            ERROR,
            f"The card is at {quoted(parts.path)}, where clients of A2A {card.era} do not look.",
            f"Serve it at {WELL_KNOWN}, and keep the old path for older clients.",
        )
    elif not parts.path.endswith("/.well-known/agent-card.json") and newest:
        yield _finding(
            "http.path",
            "8.2",
            INFO,
            f"The card was found at {quoted(parts.path)}, not at {WELL_KNOWN}.",
            f"Serve it at {WELL_KNOWN} as well, so that a client finds it from the host alone.",
        )
    kind = card.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "application/a2a+json"):
        yield _finding(
            "http.content-type",
            "14.2",
            WARNING,
            f"The content type of the card is {quoted(kind or 'missing')}.",
            "Answer with Content-Type: application/json.",
        )
    if card.era == "1.0":
        if "max-age" not in card.headers.get("cache-control", "").lower():
            yield _finding(
                "http.cache-control",
                "8.6.1",
                WARNING,
                "The card has no Cache-Control with max-age, so clients ask for it again and again.",
                "Add a header such as Cache-Control: public, max-age=300.",
            )
        if not card.headers.get("etag") and not card.headers.get("last-modified"):
            yield _finding(
                "http.etag",
                "8.6.1",
                WARNING,
                "The card has no ETag, so clients cannot ask whether it has changed.",
                "Add an ETag made from the card's version or content, and answer 304 to If-None-Match.",
            )
    if card.size > MAX_CARD_BYTES:
        yield _finding(
            "http.size",
            "",
            WARNING,
            f"The card has {card.size} bytes. Clients may not read or cache so much.",
            "Leave out inline pictures and long texts.",
        )


# -- members -------------------------------------------------------------------------------------------------------


def _members(card: FetchedCard) -> Iterator[Finding]:
    document, era = card.document, card.era
    snakes = [name for name in document if "_" in name and snake(name) == name]
    for name in snakes:
        yield _finding(
            "card.camel-case",
            "5.5",
            ERROR,
            f"The member {quoted(name)} is not in camel case.",
            f"Write it as {quoted(_camel(name))}: JSON of A2A has camel case names.",
            name,
        )
    there = {_camel(name) for name in document}
    section = "4.4.1" if era == "1.0" else f"A2A {era}"
    for name in REQUIRED.get(era, ()):
        if name not in there:
            optional = name == "preferredTransport"  # the text of 0.3 requires it, its schema does not
            yield _finding(
                "card.required",
                section,
                WARNING if optional else ERROR,
                f"The card has no {quoted(name)}.",
                f"Add {quoted(name)}, which a card of A2A {era} must have.",
                name,
            )
    for name, kind in _TYPES.items():
        if name in document and not isinstance(document[name], kind):
            yield _finding(
                "card.type",
                section,
                ERROR,
                f"{quoted(name)} is not {_WORDS[kind]}.",
                f"Make it {_WORDS[kind]}.",
                name,
            )
        elif name in REQUIRED.get(era, ()) and kind is str and document.get(name) == "":
            yield _finding(
                "card.empty", section, WARNING, f"{quoted(name)} is empty.", "Say something there.", name
            )
    older = [name for name in _OLDER if name in document] if era == "1.0" else []
    if older:
        yield _finding(
            "card.older-members",
            "8.3",
            INFO,
            f"The card also has members of older versions ({', '.join(older)}), so older clients can read it.",
            "Keep them if you serve older versions. A client that reads 1.0 strictly may refuse them.",
        )
    for name in ("defaultInputModes", "defaultOutputModes"):
        modes = document.get(name)
        for i, mode in enumerate(modes if isinstance(modes, list) else ()):
            if not isinstance(mode, str) or not _MEDIA_TYPE.fullmatch(mode):
                yield _finding(
                    "card.media-type",
                    section,
                    WARNING,
                    f"{quoted(mode)} is not a media type.",
                    'Write a media type such as "text/plain" or "application/json".',
                    name,
                    i,
                )
    provider = document.get("provider")
    if isinstance(provider, dict):
        for name in ("organization",) if era == "0.1" else ("organization", "url"):
            if not provider.get(name):
                yield _finding(
                    "provider.required",
                    section,
                    ERROR,
                    f"The provider has no {quoted(name)}.",
                    f"Add {quoted(name)}, or leave out the provider.",
                    "provider",
                    name,
                )
    for name in ("iconUrl", "documentationUrl"):
        if isinstance(document.get(name), str) and not _is_web_url(document[name]):
            yield _finding(
                "card.url",
                section,
                WARNING,
                f"{quoted(name)} is {quoted(document[name])}, which is not an http or https URL.",
                "Write an absolute https URL.",
                name,
            )


def _texts(card: FetchedCard) -> Iterator[Finding]:
    """Texts that a page or a terminal might obey."""
    for path, text in _strings(card.document):
        if sanitize(text) != text:
            yield _finding(
                "text.control",
                "",
                WARNING,
                f"The text {quoted(text)} has control characters or escape sequences in it.",
                "Remove them: people read cards on terminals.",
                *path,
            )
        elif re.search(r"<\s*(script|iframe|object|svg|img)\b", text, re.IGNORECASE):
            yield _finding(
                "text.html",
                "",
                WARNING,
                f"The text {quoted(text)} has HTML in it.",
                "Write plain text: a page that shows the card must not run it.",
                *path,
            )


def _strings(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict) and len(path) < 12:
        for name, each in value.items():
            yield from _strings(each, (*path, name))
    elif isinstance(value, list) and len(path) < 12:
        for i, each in enumerate(value):
            yield from _strings(each, (*path, i))


# -- interfaces ----------------------------------------------------------------------------------------------------


def _interfaces(card: FetchedCard) -> Iterator[Finding]:
    document = card.document
    if card.era == "1.0":
        yield from _listed_interfaces(card, document.get("supportedInterfaces"))
        return
    transport = document.get("preferredTransport", "JSONRPC")
    if isinstance(document.get("url"), str):
        yield from _address(card, document["url"], transport, "url")
    if "preferredTransport" in document:
        yield from _binding(card, transport, "preferredTransport")
    others = document.get("additionalInterfaces")
    if not isinstance(others, list):
        return
    same = [each for each in others if isinstance(each, dict) and each.get("url") == document.get("url")]
    if same and not any(each.get("transport") == transport for each in same):
        yield _finding(
            "interface.preferred",
            "5.6.3 of 0.3",
            ERROR,
            f"The URL of the card has the transport {quoted(transport)} in one place, and "
            f"{quoted(same[0].get('transport'))} in another.",
            "Give the URL and preferredTransport that belong together, and repeat them in additionalInterfaces.",
            "additionalInterfaces",
            others.index(same[0]),
        )
    for i, each in enumerate(others):
        if not isinstance(each, dict):
            continue
        for name in ("url", "transport"):
            if not each.get(name):
                yield _missing("interface", name, "additionalInterfaces", i)
        if isinstance(each.get("url"), str):
            yield from _address(card, each["url"], each.get("transport"), "additionalInterfaces", i, "url")
        if each.get("transport"):
            yield from _binding(card, each["transport"], "additionalInterfaces", i, "transport")


def _listed_interfaces(card: FetchedCard, listed: Any) -> Iterator[Finding]:
    if listed == []:
        yield _finding(
            "interface.none",
            "8.3.1",
            ERROR,
            "The card lists no interface, so nobody can reach the agent.",
            "List every URL with its binding and version, the best first.",
            "supportedInterfaces",
        )
    seen: dict[tuple[Any, ...], int] = {}
    for i, each in enumerate(listed if isinstance(listed, list) else ()):
        at = ("supportedInterfaces", i)
        if not isinstance(each, dict):
            yield _finding(
                "interface.type", "4.4.6", ERROR, "An interface is not an object.", "Make it one.", *at
            )
            continue
        for name in ("url", "protocolBinding", "protocolVersion"):
            if not each.get(name):
                yield _missing("interface", name, *at)
        binding, version = each.get("protocolBinding"), each.get("protocolVersion")
        if isinstance(each.get("url"), str):
            yield from _address(card, each["url"], binding, *at, "url")
        if binding:
            yield from _binding(card, binding, *at, "protocolBinding")
        if isinstance(version, str) and version:
            yield from _version(version, *at, "protocolVersion")
        key = tuple(str(each.get(name)) for name in ("url", "protocolBinding", "protocolVersion", "tenant"))
        if key in seen:
            yield _finding(
                "interface.twice",
                "8.3.1",
                WARNING,
                f"Interface {i} is the same as interface {seen[key]}.",
                "List every combination once.",
                *at,
            )
        seen.setdefault(key, i)


def _missing(what: str, name: str, *at: str | int) -> Finding:
    return _finding(
        f"{what}.required",
        "4.4",
        ERROR,
        f"This {what} has no {quoted(name)}.",
        f"Add {quoted(name)}.",
        *at,
        name,
    )


def _address(card: FetchedCard, url: str, binding: Any, *at: str | int) -> Iterator[Finding]:
    if str(binding).upper() == "GRPC" and "://" not in url:
        if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})", url):
            yield _finding(
                "interface.grpc-address",
                "4.4.6",
                ERROR,
                f"{quoted(url)} is not the address of a gRPC server.",
                "Write host:port.",
                *at,
            )
        return
    if not _is_web_url(url):
        yield _finding(
            "interface.url",
            "4.4.6",
            ERROR,
            f"{quoted(url)} is not an absolute URL.",
            "Write a URL such as https://agents.example.com/a2a.",
            *at,
        )
        return
    parts = urlsplit(url)
    host, here = parts.hostname or "", urlsplit(card.url).hostname or ""
    if parts.username or parts.password:
        yield _finding(
            "interface.credentials",
            "14.3",
            ERROR,
            "The URL has a user name or a password in it.",
            "Declare a security scheme instead, and remove the credentials.",
            *at,
        )
    if _is_local(host) and here and not _is_local(here):
        yield _finding(
            "interface.private",
            "14.3",
            ERROR,
            f"The interface is at {quoted(host)}, which only machines of a private network can reach.",
            "Write the public address, and tell the server about it.",
            *at,
        )
    elif parts.scheme == "http" and not _is_local(host):
        yield _finding(
            "interface.tls",
            "4.4.6",
            WARNING,
            "The interface has no TLS.",
            "Serve the agent over https in production.",
            *at,
        )


def _binding(card: FetchedCard, binding: Any, *at: str | int) -> Iterator[Finding]:
    if not isinstance(binding, str) or binding in BINDINGS or "://" in binding or binding.startswith("urn:"):
        return
    near = next(
        (each for each in BINDINGS if each.replace("+", "") == re.sub(r"\W", "", binding).upper()), ""
    )
    yield _finding(
        "interface.binding",
        "5.8",
        ERROR if near else WARNING,
        f"{quoted(binding)} is not a binding of A2A.",
        f"Write {quoted(near)}."
        if near
        else "Write JSONRPC, HTTP+JSON or GRPC, or the URI of a binding of your own.",
        *at,
    )


def _version(version: str, *at: str | int) -> Iterator[Finding]:
    if re.fullmatch(r"\d+\.\d+\.\w+", version):
        yield _finding(
            "interface.patch-version",
            "3.6",
            WARNING,
            f"The version {quoted(version)} has a patch number.",
            f"Write {quoted(version_of(version))}.",
            *at,
        )
    elif version_of(version) not in _VERSIONS:
        yield _finding(
            "interface.unknown-version",
            "3.6",
            WARNING,
            f"There is no A2A {quoted(version)} that this client knows.",
            f"Write one of {', '.join(_VERSIONS)}.",
            *at,
        )


# -- skills and capabilities ---------------------------------------------------------------------------------------


def _skills(card: FetchedCard) -> Iterator[Finding]:
    skills = card.document.get("skills")
    if skills == []:
        yield _finding(
            "skill.none",
            "4.4.5",
            WARNING,
            "The card has no skill. Many clients choose agents by their skills, and some refuse such a card.",
            "Describe at least one skill.",
            "skills",
        )
    ids: dict[str, int] = {}
    needed = ("id", "name") if card.era == "0.1" else ("id", "name", "description", "tags")
    for i, skill in enumerate(skills if isinstance(skills, list) else ()):
        if not isinstance(skill, dict):
            yield _finding(
                "skill.type", "4.4.5", ERROR, "A skill is not an object.", "Make it one.", "skills", i
            )
            continue
        for name in needed:
            if name not in skill or skill[name] == "":
                yield _missing("skill", name, "skills", i)
        if skill.get("tags") == [] and "tags" in needed:
            yield _finding(
                "skill.tags",
                "4.4.5",
                INFO,
                "The skill has no tags, so nobody finds it by one.",
                "Add a few words.",
                "skills",
                i,
                "tags",
            )
        id = skill.get("id")
        if isinstance(id, str) and id in ids:
            yield _finding(
                "skill.same-id",
                "4.4.5",
                ERROR,
                f"Two skills have the id {quoted(id)}.",
                "Give one of them another id.",
                "skills",
                i,
                "id",
            )
        elif isinstance(id, str):
            ids[id] = i
        for name in ("inputModes", "outputModes"):
            for k, mode in enumerate(skill[name] if isinstance(skill.get(name), list) else ()):
                if not isinstance(mode, str) or not _MEDIA_TYPE.fullmatch(mode):
                    yield _finding(
                        "skill.media-type",
                        "4.4.5",
                        WARNING,
                        f"{quoted(mode)} is not a media type.",
                        'Write a media type such as "text/plain".',
                        "skills",
                        i,
                        name,
                        k,
                    )


def _capabilities(card: FetchedCard) -> Iterator[Finding]:
    about = card.document.get("capabilities")
    if not isinstance(about, dict):
        return
    for name in ("streaming", "pushNotifications", "extendedAgentCard", "stateTransitionHistory"):
        if name in about and not isinstance(about[name], bool):
            yield _finding(
                "capability.type",
                "4.4.3",
                ERROR,
                f"{quoted(name)} is not true or false.",
                "Write true or false.",
                "capabilities",
                name,
            )
    if "streaming" not in about:
        yield _finding(
            "capability.streaming",
            "3.3.4",
            INFO,
            "The card does not say whether the agent streams, so clients do not try.",
            'Write "streaming": true if it does.',
            "capabilities",
        )
    if card.era == "1.0" and "stateTransitionHistory" in about:
        yield _finding(
            "capability.removed",
            "4.4.3",
            INFO,
            "stateTransitionHistory is not in A2A 1.0.",
            "Leave it out, unless older clients read this card.",
            "capabilities",
            "stateTransitionHistory",
        )
    extended = about.get("extendedAgentCard") or card.document.get("supportsAuthenticatedExtendedCard")
    if extended is True and not card.document.get("securitySchemes"):
        yield _finding(
            "capability.extended-card",
            "13.3",
            ERROR,
            "There is an extended card for authenticated callers, and no way to authenticate.",
            "Declare a security scheme, or say that there is no extended card.",
            "capabilities",
        )
    for i, extension in enumerate(about["extensions"] if isinstance(about.get("extensions"), list) else ()):
        uri = extension.get("uri") if isinstance(extension, dict) else None
        if not isinstance(uri, str) or not urlsplit(uri).scheme:
            yield _finding(
                "extension.uri",
                "4.6",
                ERROR,
                "An extension has no URI.",
                "Name it with a URI.",
                "capabilities",
                "extensions",
                i,
            )
        elif extension.get("required") is True:
            yield _finding(
                "extension.required",
                "4.6",
                INFO,
                f"Clients must know the extension {quoted(uri)} to call this agent.",
                "Require an extension only if the agent cannot work without it.",
                "capabilities",
                "extensions",
                i,
            )


# -- security ------------------------------------------------------------------------------------------------------


def _security(card: FetchedCard) -> Iterator[Finding]:
    document, newest = card.document, card.era == "1.0"
    schemes = document.get("securitySchemes")
    schemes = schemes if isinstance(schemes, dict) else {}
    for name, scheme in schemes.items():
        yield from _scheme(card, name, scheme)
    member = "securityRequirements" if "securityRequirements" in document else "security"
    requirements = document.get(member)
    named: set[str] = set()
    for i, each in enumerate(requirements if isinstance(requirements, list) else ()):
        inner = (
            each.get("schemes") if isinstance(each, dict) and isinstance(each.get("schemes"), dict) else each
        )
        for name in inner if isinstance(inner, dict) else ():
            named.add(name)
            if name not in schemes:
                yield _finding(
                    "security.unknown-scheme",
                    "4.5",
                    ERROR,
                    f"The requirement names {quoted(name)}, which is not in securitySchemes.",
                    "Declare the scheme, or correct the name.",
                    member,
                    i,
                )
    if newest and "security" in document and "securityRequirements" not in document:
        yield _finding(
            "security.renamed",
            "4.4.1",
            ERROR,
            'A2A 1.0 does not read "security".',
            'Write "securityRequirements": [{"schemes": {"name": {"list": []}}}].',
            "security",
        )
    if schemes and not named:
        yield _finding(
            "security.not-required",
            "4.5",
            INFO,
            "Security schemes are declared, and none is required.",
            "Say in securityRequirements which ones callers need, if they do.",
            "securitySchemes",
        )
    authentication = document.get("authentication")
    if card.era == "0.1" and isinstance(authentication, dict) and not authentication.get("schemes"):
        yield _finding(
            "security.schemes",
            "A2A 0.1",
            WARNING,
            "authentication has no schemes.",
            'List them, such as "Bearer".',
            "authentication",
        )
    if isinstance(authentication, dict) and authentication.get("credentials"):
        yield _finding(
            "security.credentials",
            "14.3",
            ERROR,
            "The card has credentials in it. Everybody can read them.",
            "Remove them, and make new ones: these are known.",
            "authentication",
            "credentials",
        )


def _scheme(card: FetchedCard, name: str, scheme: Any) -> Iterator[Finding]:
    at: tuple[str, ...] = ("securitySchemes", name)
    if not isinstance(scheme, dict):
        yield _finding("scheme.type", "4.5", ERROR, "A scheme is not an object.", "Make it one.", *at)
        return
    wrappers = [wrapper for wrapper in _SCHEMES if isinstance(scheme.get(wrapper), dict)]
    kind, members, inside = scheme.get("type"), scheme, at
    if card.era == "1.0":
        if len(wrappers) != 1:
            flat = _SCHEMES_BY_TYPE.get(str(kind))
            fix = f'Write {{"{flat}": {{...}}}}.' if flat else f"Write one of {', '.join(_SCHEMES)}."
            yield _finding(
                "scheme.kind",
                "4.5",
                ERROR,
                "The scheme has no kind that A2A 1.0 knows."
                if not wrappers
                else "The scheme has several kinds.",
                fix,
                *at,
            )
            if not flat or wrappers:
                return
        else:
            kind, members, inside = _SCHEMES[wrappers[0]], scheme[wrappers[0]], (*at, wrappers[0])
    elif wrappers and not kind:
        kind, members, inside = _SCHEMES[wrappers[0]], scheme[wrappers[0]], (*at, wrappers[0])
    elif kind not in _SCHEMES_BY_TYPE:
        yield _finding(
            "scheme.kind",
            f"A2A {card.era}",
            ERROR,
            f"There is no scheme of the type {quoted(kind)}.",
            f"Write one of {', '.join(_SCHEMES_BY_TYPE)}.",
            *at,
        )
        return
    yield from _scheme_members(card, str(kind), members, inside)


_SCHEMES_BY_TYPE = {kind: wrapper for wrapper, kind in _SCHEMES.items()}


def _scheme_members(
    card: FetchedCard, kind: str, scheme: dict[str, Any], at: tuple[str, ...]
) -> Iterator[Finding]:
    if kind == "apiKey":
        place = scheme.get("location", scheme.get("in"))
        if place not in ("header", "query", "cookie"):
            yield _finding(
                "scheme.api-key",
                "4.5.2",
                ERROR,
                f"An API key is in {quoted(place)}.",
                "Say header, query or cookie.",
                *at,
            )
        if place == "query":
            yield _finding(
                "scheme.key-in-query",
                "",
                WARNING,
                "The API key is part of the URL, which servers and proxies log.",
                "Take it in a header.",
                *at,
            )
        if not scheme.get("name"):
            yield _missing("scheme", "name", *at)
    elif kind == "http":
        if not scheme.get("scheme"):
            yield _missing("scheme", "scheme", *at)
    elif kind == "openIdConnect":
        yield from _login_url(scheme.get("openIdConnectUrl"), "openIdConnectUrl", *at)
    elif kind == "oauth2":
        yield from _flows(card, scheme.get("flows"), at)


def _flows(card: FetchedCard, flows: Any, at: tuple[str, ...]) -> Iterator[Finding]:
    there = (
        {name: flow for name, flow in flows.items() if isinstance(flow, dict)}
        if isinstance(flows, dict)
        else {}
    )
    if not there:
        yield _finding(
            "scheme.flows",
            "4.5.4",
            ERROR,
            "OAuth2 has no flow.",
            "Describe how to get a token.",
            *at,
            "flows",
        )
    if len(there) > 1 and card.era == "1.0":
        yield _finding(
            "scheme.one-flow",
            "4.5.4",
            ERROR,
            f"The scheme has {len(there)} flows, and A2A 1.0 allows one.",
            "Declare a scheme for each flow.",
            *at,
            "flows",
        )
    for name, flow in there.items():
        here = (*at, "flows", name)
        if name not in _FLOWS:
            yield _finding(
                "scheme.flow",
                "4.5.4",
                ERROR,
                f"There is no flow {quoted(name)}.",
                f"Write one of {', '.join(_FLOWS)}.",
                *here,
            )
            continue
        if name in ("implicit", "password"):
            yield _finding(
                "scheme.deprecated-flow",
                "4.5.4",
                WARNING,
                f"The flow {quoted(name)} is deprecated, because tokens or passwords leak.",
                "Offer authorizationCode with PKCE, clientCredentials or deviceCode.",
                *here,
            )
        for member in _FLOWS[name]:
            if member == "scopes":
                if not isinstance(flow.get("scopes"), dict):
                    yield _missing("scheme", "scopes", *here)
            else:
                yield from _login_url(flow.get(member), member, *here)
        if name == "authorizationCode" and card.era == "1.0" and not flow.get("pkceRequired"):
            yield _finding(
                "scheme.pkce",
                "4.5.5",
                INFO,
                "The flow does not say that PKCE is required.",
                'Require it, and write "pkceRequired": true.',
                *here,
            )


def _login_url(url: Any, name: str, *at: str | int) -> Iterator[Finding]:
    if not isinstance(url, str) or not _is_web_url(url):
        yield _finding(
            "scheme.url",
            "4.5",
            ERROR,
            f"{quoted(name)} is {'missing' if not url else 'not an absolute URL'}.",
            "Write an https URL.",
            *at,
            name,
        )
    elif url.startswith("http://") and not _is_local(urlsplit(url).hostname or ""):
        yield _finding(
            "scheme.tls",
            "14.1",
            ERROR,
            f"{quoted(name)} has no TLS, so secrets go over the network in the clear.",
            "Write an https URL.",
            *at,
            name,
        )


# -- signatures and secrets ----------------------------------------------------------------------------------------


def _signatures(card: FetchedCard) -> Iterator[Finding]:
    signatures = card.document.get("signatures")
    for i, each in enumerate(signatures[:16] if isinstance(signatures, list) else ()):
        at = ("signatures", i)
        if (
            not isinstance(each, dict)
            or not isinstance(each.get("protected"), str)
            or not each.get("signature")
        ):
            yield _finding(
                "signature.members",
                "8.4.2",
                ERROR,
                "A signature has no protected header, or no signature.",
                'Write {"protected": ..., "signature": ...}.',
                *at,
            )
            continue
        try:
            raw = urlsafe_b64decode(each["protected"] + "=" * (-len(each["protected"]) % 4))
            header = msgspec.json.decode(raw, type=dict[str, Any])
        except (ValueError, msgspec.MsgspecError):
            yield _finding(
                "signature.header",
                "8.4.2",
                ERROR,
                "The protected header is not base64url of JSON.",
                "Sign the card again.",
                *at,
                "protected",
            )
            continue
        for name in ("alg", "kid"):
            if not header.get(name):
                yield _finding(
                    "signature.header",
                    "8.4.2",
                    ERROR,
                    f"The protected header has no {quoted(name)}.",
                    f"Sign with a header that has {quoted(name)}.",
                    *at,
                    "protected",
                )
        if str(header.get("alg", "")).lower() == "none" or str(header.get("alg", "")).startswith("HS"):
            yield _finding(
                "signature.algorithm",
                "8.4.2",
                ERROR,
                f"{quoted(header['alg'])} proves nothing to those who have no secret.",
                "Sign with ES256, EdDSA or RS256.",
                *at,
                "protected",
            )
        if header.get("typ") != "JOSE":
            yield _finding(
                "signature.typ",
                "8.4.2",
                INFO,
                'The protected header has no "typ": "JOSE".',
                "Add it.",
                *at,
                "protected",
            )


def _secrets(card: FetchedCard) -> Iterator[Finding]:
    for path, text in _strings(card.document):
        if path[:1] == ("signatures",):
            continue
        if len(text) < 100_000 and redact_text(text) != text:
            yield _finding(
                "card.secret",
                "14.3",
                ERROR,
                "This text looks like a credential. Everybody can read it.",
                "Remove it, and make a new one: this one is known.",
                *path,
            )


def _camel(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        return False


def _is_local(host: str) -> bool:
    """True for a host that other machines cannot reach, or only those of a private network."""
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        return not ip_address(host).is_global
    except ValueError:
        return "." not in host
