"""Checks an agent's card, rule by rule.

The rules are those of the A2A version that the card is written for, and what a client needs to reach the agent. A finding names the rule
and its section of the specification, says what to change, and has a JSON pointer (RFC 6901) to the place in the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.console.keys import read_json
from dragoman.dialects.cards import version_of
from dragoman.dialects.reading import snake
from dragoman.observe.redact import redact_text
from dragoman.observe.terminal import sanitize

ERROR, WARNING, INFO = "error", "warning", "info"
MAX_FINDINGS = 200
MAX_CARD_BYTES = 256 << 10
"""Our client does not cache a larger card, and others may not read it."""


class Rule(NamedTuple):
    section: str
    """Of the specification of 1.0; empty for a rule of good practice."""
    severity: str
    message: str
    fix: str


RULES: dict[str, Rule] = {
    "http.tls": Rule("14.3", WARNING, "The card is served without TLS.", "Serve the card over https."),
    "http.old-path": Rule("8.2", ERROR, "The card is at {path}, where clients of A2A {era} do not look.", "Serve it at /.well-known/agent-card.json, and keep the old path for older clients."),
    "http.path": Rule("8.2", INFO, "The card was found at {path}, not at /.well-known/agent-card.json.", "Serve it there as well, so that a client finds it from the host alone."),
    "http.content-type": Rule("14.2", WARNING, "The content type of the card is {kind}.", "Answer with Content-Type: application/json."),
    "http.cache-control": Rule("8.6.1", WARNING, "The card has no Cache-Control with max-age, so clients ask for it again and again.", "Add a header such as Cache-Control: public, max-age=300."),
    "http.etag": Rule("8.6.1", WARNING, "The card has no ETag, so clients cannot ask whether it has changed.", "Add an ETag made from the card's version or content, and answer 304 to If-None-Match."),
    "http.size": Rule("", WARNING, "The card has {size} bytes. Clients may not read or cache so much.", "Leave out inline pictures and long texts."),
    "card.object": Rule("8.2", ERROR, "The card is not a JSON object.", "Answer with an AgentCard object."),
    "card.camel-case": Rule("5.5", ERROR, "The member {name} is not in camel case.", "Write it as {camel}: JSON of A2A has camel case names."),
    "card.required": Rule("4.4.1", ERROR, "The card has no {name}.", "Add {name}, which a card of A2A {era} must have."),
    "card.transport": Rule("4.4.1", WARNING, "The card has no {name}.", "Add {name}: the text of A2A 0.3 requires it, though its schema does not."),
    "card.type": Rule("4.4.1", ERROR, "{name} is not {kind}.", "Make it {kind}."),
    "card.empty": Rule("4.4.1", WARNING, "{name} is empty.", "Say something there."),
    "card.older-members": Rule("8.3", INFO, "The card also has members of older versions ({names}), so older clients can read it.", "Keep them if you serve older versions. A client that reads 1.0 strictly may refuse them."),
    "card.media-type": Rule("4.4.1", WARNING, "{mode} is not a media type.", 'Write a media type such as "text/plain" or "application/json".'),
    "card.url": Rule("4.4.1", WARNING, "{name} is {url}, which is not an http or https URL.", "Write an absolute https URL."),
    "card.secret": Rule("14.3", ERROR, "This text looks like a credential. Everybody can read it.", "Remove it, and make a new one: this one is known."),
    "text.control": Rule("", WARNING, "The text {text} has control characters or escape sequences in it.", "Remove them: people read cards on terminals."),
    "text.html": Rule("", WARNING, "The text {text} has HTML in it.", "Write plain text: a page that shows the card must not run it."),
    "provider.required": Rule("4.4.2", ERROR, "The provider has no {name}.", "Add {name}, or leave out the provider."),
    "interface.none": Rule("8.3.1", ERROR, "The card lists no interface, so nobody can reach the agent.", "List every URL with its binding and version, the best first."),
    "interface.type": Rule("4.4.6", ERROR, "An interface is not an object.", "Make it one."),
    "interface.required": Rule("4.4.6", ERROR, "This interface has no {name}.", "Add {name}."),
    "interface.twice": Rule("8.3.1", WARNING, "Interface {n} is the same as interface {other}.", "List every combination once."),
    "interface.preferred": Rule("4.4.6", ERROR, "The URL of the card has the transport {transport} in one place, and {other} in another.", "Give the URL and preferredTransport that belong together, and repeat them in additionalInterfaces."),
    "interface.url": Rule("4.4.6", ERROR, "{url} is not an absolute URL.", "Write a URL such as https://agents.example.com/a2a."),
    "interface.grpc-address": Rule("4.4.6", ERROR, "{url} is not the address of a gRPC server.", "Write host:port."),
    "interface.credentials": Rule("14.3", ERROR, "The URL has a user name or a password in it.", "Declare a security scheme instead, and remove the credentials."),
    "interface.private": Rule("14.3", ERROR, "The interface is at {host}, which only machines of a private network can reach.", "Write the public address, and tell the server about it."),
    "interface.tls": Rule("4.4.6", WARNING, "The interface has no TLS.", "Serve the agent over https in production."),
    "interface.misspelt-binding": Rule("5.8", ERROR, "{binding} is not a binding of A2A.", "Write {near}."),
    "interface.binding": Rule("5.8", WARNING, "{binding} is not a binding of A2A.", "Write JSONRPC, HTTP+JSON or GRPC, or the URI of a binding of your own."),
    "interface.patch-version": Rule("3.6", WARNING, "The version {version} has a patch number.", "Write {short}."),
    "interface.unknown-version": Rule("3.6", WARNING, "There is no A2A {version} that this client knows.", "Write 1.0, 0.3, 0.2 or 0.1."),
    "skill.none": Rule("4.4.5", WARNING, "The card has no skill. Many clients choose agents by their skills, and some refuse such a card.", "Describe at least one skill."),
    "skill.type": Rule("4.4.5", ERROR, "A skill is not an object.", "Make it one."),
    "skill.required": Rule("4.4.5", ERROR, "This skill has no {name}.", "Add {name}."),
    "skill.tags": Rule("4.4.5", INFO, "The skill has no tags, so nobody finds it by one.", "Add a few words."),
    "skill.same-id": Rule("4.4.5", ERROR, "Two skills have the id {id}.", "Give one of them another id."),
    "skill.media-type": Rule("4.4.5", WARNING, "{mode} is not a media type.", 'Write a media type such as "text/plain".'),
    "capability.type": Rule("4.4.3", ERROR, "{name} is not true or false.", "Write true or false."),
    "capability.streaming": Rule("3.3.4", INFO, "The card does not say whether the agent streams, so clients do not try.", 'Write "streaming": true if it does.'),
    "capability.removed": Rule("4.4.3", INFO, "stateTransitionHistory is not in A2A 1.0.", "Leave it out, unless older clients read this card."),
    "capability.extended-card": Rule("13.3", ERROR, "There is an extended card for authenticated callers, and no way to authenticate.", "Declare a security scheme, or say that there is no extended card."),
    "extension.uri": Rule("4.6", ERROR, "An extension has no URI.", "Name it with a URI."),
    "extension.required": Rule("4.6", INFO, "Clients must know the extension {uri} to call this agent.", "Require an extension only if the agent cannot work without it."),
    "security.unknown-scheme": Rule("4.5", ERROR, "The requirement names {name}, which is not in securitySchemes.", "Declare the scheme, or correct the name."),
    "security.renamed": Rule("4.4.1", ERROR, 'A2A 1.0 does not read "security".', 'Write "securityRequirements": [{{"schemes": {{"name": {{"list": []}}}}}}].'),
    "security.not-required": Rule("4.5", INFO, "Security schemes are declared, and none is required.", "Say in securityRequirements which ones callers need, if they do."),
    "security.schemes": Rule("4.5", WARNING, "authentication has no schemes.", 'List them, such as "Bearer".'),
    "security.credentials": Rule("14.3", ERROR, "The card has credentials in it. Everybody can read them.", "Remove them, and make new ones: these are known."),
    "scheme.type": Rule("4.5", ERROR, "A scheme is not an object.", "Make it one."),
    "scheme.kind": Rule("4.5", ERROR, "The scheme has no kind that A2A {era} knows, or several.", "Write {kinds}."),
    "scheme.required": Rule("4.5", ERROR, "This scheme has no {name}.", "Add {name}."),
    "scheme.api-key": Rule("4.5.2", ERROR, "An API key is in {place}.", "Say header, query or cookie."),
    "scheme.key-in-query": Rule("", WARNING, "The API key is part of the URL, which servers and proxies log.", "Take it in a header."),
    "scheme.flows": Rule("4.5.4", ERROR, "OAuth2 has no flow.", "Describe how to get a token."),
    "scheme.one-flow": Rule("4.5.4", ERROR, "The scheme has {n} flows, and A2A 1.0 allows one.", "Declare a scheme for each flow."),
    "scheme.flow": Rule("4.5.4", ERROR, "There is no flow {name}.", "Write authorizationCode, clientCredentials or deviceCode."),
    "scheme.deprecated-flow": Rule("4.5.4", WARNING, "The flow {name} is deprecated, because tokens or passwords leak.", "Offer authorizationCode with PKCE, clientCredentials or deviceCode."),
    "scheme.url": Rule("4.5", ERROR, "{name} is missing, or not an absolute URL.", "Write an https URL."),
    "scheme.tls": Rule("14.1", ERROR, "{name} has no TLS, so secrets go over the network in the clear.", "Write an https URL."),
    "scheme.pkce": Rule("4.5.5", INFO, "The flow does not say that PKCE is required.", 'Require it, and write "pkceRequired": true.'),
    "signature.members": Rule("8.4.2", ERROR, "A signature has no protected header, or no signature.", 'Write {{"protected": ..., "signature": ...}}.'),
    "signature.header": Rule("8.4.2", ERROR, "The protected header is not base64url of JSON.", "Sign the card again."),
    "signature.header-member": Rule("8.4.2", ERROR, "The protected header has no {name}.", "Sign with a header that has {name}."),
    "signature.algorithm": Rule("8.4.2", ERROR, "{alg} proves nothing to those who have no secret.", "Sign with ES256, EdDSA or RS256."),
    "signature.typ": Rule("8.4.2", INFO, 'The protected header has no "typ": "JOSE".', "Add it."),
}  # fmt: skip

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
    "0.3": (*_COMMON, "url", "protocolVersion"),
    "0.2": (*_COMMON, "url"),
    "0.1": ("name", "url", "version", "capabilities", "skills"),
    "arbiter": (*_COMMON, "url", "protocolVersion"),
}
"""The members that a card of each version must have."""
TYPES: dict[str, type] = {
    "name": str, "description": str, "version": str, "url": str, "protocolVersion": str, "preferredTransport": str,
    "iconUrl": str, "documentationUrl": str, "capabilities": dict, "provider": dict, "securitySchemes": dict,
    "defaultInputModes": list, "defaultOutputModes": list, "skills": list, "supportedInterfaces": list,
    "additionalInterfaces": list, "signatures": list, "securityRequirements": list, "security": list,
}  # fmt: skip
_OLDER = (
    "url", "preferredTransport", "additionalInterfaces", "protocolVersion", "security", "authentication",
    "supportsAuthenticatedExtendedCard",
)  # fmt: skip
_BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
_VERSIONS = ("0.1", "0.2", "0.3", "1.0")
_TYPE_NAMES: dict[type, str] = {str: "text", dict: "an object", list: "a list"}
_KINDS = {
    "apiKeySecurityScheme": "apiKey", "httpAuthSecurityScheme": "http", "oauth2SecurityScheme": "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect", "mtlsSecurityScheme": "mutualTLS",
}  # fmt: skip
"""The kinds of a security scheme: how 1.0 wraps them, and the `type` of older versions."""
_FLOWS = {
    "authorizationCode": ("authorizationUrl", "tokenUrl"),
    "clientCredentials": ("tokenUrl",),
    "implicit": ("authorizationUrl",),
    "password": ("tokenUrl",),
    "deviceCode": ("deviceAuthorizationUrl", "tokenUrl"),
}
"""The flows of OAuth2, and the URLs that they must have."""
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+*-]+/[\w!#$&^.+*-]+(\s*;.*)?")
_HTML = re.compile(r"<\s*(script|iframe|object|svg|img)\b", re.IGNORECASE)
_GRPC_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})")

Pointer = tuple[str | int, ...]


class Finding(Struct, frozen=True, kw_only=True):
    rule: str
    section: str
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

    def finding(self, rule: str, *place: str | int, **values: Any) -> Finding:
        """A finding at a place in the card. `values` fill in the sentences of the rule."""
        section, severity, message, fix = RULES[rule]
        shown = {name: quote_value(value) for name, value in values.items()}
        return Finding(
            rule=rule,
            section=section if self.era == "1.0" or not section else f"A2A {self.era}",
            severity=severity,
            message=message.format(era=self.era, **shown),
            fix=fix.format(era=self.era, **shown),
            pointer="".join(f"/{str(each).replace('~', '~0').replace('/', '~1')}" for each in place),
        )


class Unquoted(str):
    """A text that is not from the card, which needs no quotes in a sentence."""


def quote_value(value: Any) -> str:
    """A value of the card in a sentence: short, without secrets and control characters."""
    if isinstance(value, Unquoted | int):
        return str(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = sanitize(redact_text(text[:200])).replace("\n", " ")
    return f'"{text[:60]}..."' if len(text) > 60 else f'"{text}"'


def check_card(card: FetchedCard) -> list[Finding]:
    """All findings, the worst first. A card with very many gets the first `MAX_FINDINGS`."""
    if not isinstance(card.document, dict):
        return [card.finding("card.object")]
    found: list[Finding] = []
    for check in (_http, _members, _texts, _interfaces, _skills, _capabilities, _security, _signatures):
        for finding in check(card):
            found.append(finding)
            if len(found) >= MAX_FINDINGS:
                break
    order = (ERROR, WARNING, INFO)
    return sorted(found[:MAX_FINDINGS], key=lambda each: order.index(each.severity))


def _http(card: FetchedCard) -> Iterator[Finding]:
    if not card.url:
        return
    parts = urlsplit(card.url)
    if parts.scheme == "http" and not _is_local(parts.hostname or ""):
        yield card.finding("http.tls")
    if card.era in ("1.0", "0.3", "arbiter") and not parts.path.endswith("/.well-known/agent-card.json"):
        rule = "http.old-path" if parts.path.endswith("/agent.json") else "http.path"
        yield card.finding(rule, path=parts.path)
    kind = card.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "application/a2a+json"):
        yield card.finding("http.content-type", kind=kind or "missing")
    if card.era == "1.0":
        if "max-age" not in card.headers.get("cache-control", "").lower():
            yield card.finding("http.cache-control")
        if not card.headers.get("etag") and not card.headers.get("last-modified"):
            yield card.finding("http.etag")
    if card.size > MAX_CARD_BYTES:
        yield card.finding("http.size", size=card.size)


def _members(card: FetchedCard) -> Iterator[Finding]:
    document, era = card.document, card.era
    for name in document:
        if "_" in name and snake(name) == name:
            yield card.finding("card.camel-case", name, name=name, camel=_camel(name))
    present, required = {_camel(name) for name in document}, REQUIRED.get(era, ())
    for name in required:
        if name not in present:
            yield card.finding("card.required", name, name=name)
    if era == "0.3" and "preferredTransport" not in present:
        yield card.finding("card.transport", "preferredTransport", name="preferredTransport")
    for name, kind in TYPES.items():
        if name in document and not isinstance(document[name], kind):
            yield card.finding("card.type", name, name=name, kind=Unquoted(_TYPE_NAMES[kind]))
        elif name in required and document.get(name) == "":
            yield card.finding("card.empty", name, name=name)
    if era == "1.0" and (older := [name for name in _OLDER if name in document]):
        yield card.finding("card.older-members", names=Unquoted(", ".join(older)))
    for name in ("defaultInputModes", "defaultOutputModes"):
        yield from _media_types(card, "card.media-type", document.get(name), name)
    if isinstance(provider := document.get("provider"), dict):
        for name in ("organization",) if era == "0.1" else ("organization", "url"):
            if not provider.get(name):
                yield card.finding("provider.required", "provider", name, name=name)
    for name in ("iconUrl", "documentationUrl"):
        if isinstance(document.get(name), str) and not _is_web_url(document[name]):
            yield card.finding("card.url", name, name=name, url=document[name])


def _media_types(card: FetchedCard, rule: str, modes: Any, *place: str | int) -> Iterator[Finding]:
    for i, mode in enumerate(_list(modes)):
        if not isinstance(mode, str) or not _MEDIA_TYPE.fullmatch(mode):
            yield card.finding(rule, *place, i, mode=mode)


def _texts(card: FetchedCard) -> Iterator[Finding]:
    """Texts with control characters or HTML, and texts that look like credentials."""
    for place, text in _strings(card.document):
        if sanitize(text) != text:
            yield card.finding("text.control", *place, text=text)
        elif _HTML.search(text):
            yield card.finding("text.html", *place, text=text)
        if len(text) < 100_000 and place[:1] != ("signatures",) and redact_text(text) != text:
            yield card.finding("card.secret", *place)


def _strings(value: Any, place: Pointer = ()) -> Iterator[tuple[Pointer, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict | list) and len(place) < 12:
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _strings(each, (*place, name))


# -- interfaces ----------------------------------------------------------------------------------------------------


def _interfaces(card: FetchedCard) -> Iterator[Finding]:
    if card.era == "1.0":
        yield from _listed_interfaces(card, card.document.get("supportedInterfaces"))
        return
    url, transport = card.document.get("url"), card.document.get("preferredTransport", "JSONRPC")
    yield from _address(card, url, transport, "url")
    yield from _binding(card, transport, "preferredTransport")
    others = [
        (i, each)
        for i, each in enumerate(_list(card.document.get("additionalInterfaces")))
        if isinstance(each, dict)
    ]
    same = [(i, each.get("transport")) for i, each in others if each.get("url") == url]
    if same and transport not in [each for _, each in same]:
        i, other = same[0]
        yield card.finding("interface.preferred", "additionalInterfaces", i, transport=transport, other=other)
    for i, each in others:
        at = ("additionalInterfaces", i)
        yield from _required_members(card, "interface.required", each, ("url", "transport"), *at)
        yield from _address(card, each.get("url"), each.get("transport"), *at, "url")
        yield from _binding(card, each.get("transport"), *at, "transport")


def _listed_interfaces(card: FetchedCard, listed: Any) -> Iterator[Finding]:
    if listed == []:
        yield card.finding("interface.none", "supportedInterfaces")
    seen: dict[tuple[Any, ...], int] = {}
    for i, each in enumerate(_list(listed)):
        at = ("supportedInterfaces", i)
        if not isinstance(each, dict):
            yield card.finding("interface.type", *at)
            continue
        yield from _required_members(
            card, "interface.required", each, ("url", "protocolBinding", "protocolVersion"), *at
        )
        yield from _address(card, each.get("url"), each.get("protocolBinding"), *at, "url")
        yield from _binding(card, each.get("protocolBinding"), *at, "protocolBinding")
        yield from _version(card, each.get("protocolVersion"), *at, "protocolVersion")
        key = tuple(str(each.get(name)) for name in ("url", "protocolBinding", "protocolVersion", "tenant"))
        if key in seen:
            yield card.finding("interface.twice", *at, n=i, other=seen[key])
        seen.setdefault(key, i)


def _required_members(
    card: FetchedCard, rule: str, value: dict[str, Any], names: tuple[str, ...], *place: str | int
) -> Iterator[Finding]:
    for name in names:
        if name not in value or value[name] in ("", None):
            yield card.finding(rule, *place, name, name=name)


def _address(card: FetchedCard, url: Any, binding: Any, *place: str | int) -> Iterator[Finding]:
    if not isinstance(url, str) or not url:
        return
    if str(binding).upper() == "GRPC" and "://" not in url:
        if not _GRPC_ADDRESS.fullmatch(url):
            yield card.finding("interface.grpc-address", *place, url=url)
        return
    if not _is_web_url(url):
        yield card.finding("interface.url", *place, url=url)
        return
    parts = urlsplit(url)
    host, here = parts.hostname or "", urlsplit(card.url).hostname or ""
    if parts.username or parts.password:
        yield card.finding("interface.credentials", *place)
    if _is_local(host) and here and not _is_local(here):
        yield card.finding("interface.private", *place, host=host)
    elif parts.scheme == "http" and not _is_local(host):
        yield card.finding("interface.tls", *place)


def _binding(card: FetchedCard, binding: Any, *place: str | int) -> Iterator[Finding]:
    if (
        not isinstance(binding, str)
        or binding in ("", *_BINDINGS)
        or "://" in binding
        or binding.startswith("urn:")
    ):
        return
    word = re.sub(r"\W", "", binding).upper()
    near = next((each for each in _BINDINGS if each.replace("+", "") == word), "")
    rule = "interface.misspelt-binding" if near else "interface.binding"
    yield card.finding(rule, *place, binding=binding, near=near)


def _version(card: FetchedCard, version: Any, *place: str | int) -> Iterator[Finding]:
    if not isinstance(version, str) or not version:
        return
    if re.fullmatch(r"\d+\.\d+\.\w+", version):
        yield card.finding("interface.patch-version", *place, version=version, short=version_of(version))
    elif version_of(version) not in _VERSIONS:
        yield card.finding("interface.unknown-version", *place, version=version)


# -- skills and capabilities ---------------------------------------------------------------------------------------


def _skills(card: FetchedCard) -> Iterator[Finding]:
    skills = card.document.get("skills")
    if skills == []:
        yield card.finding("skill.none", "skills")
    needed = ("id", "name") if card.era == "0.1" else ("id", "name", "description", "tags")
    ids: set[str] = set()
    for i, skill in enumerate(_list(skills)):
        at = ("skills", i)
        if not isinstance(skill, dict):
            yield card.finding("skill.type", *at)
            continue
        yield from _required_members(card, "skill.required", skill, needed, *at)
        if skill.get("tags") == [] and "tags" in needed:
            yield card.finding("skill.tags", *at, "tags")
        if isinstance(id := skill.get("id"), str):
            if id in ids:
                yield card.finding("skill.same-id", *at, "id", id=id)
            ids.add(id)
        for name in ("inputModes", "outputModes"):
            yield from _media_types(card, "skill.media-type", skill.get(name), *at, name)


def _capabilities(card: FetchedCard) -> Iterator[Finding]:
    about = card.document.get("capabilities")
    if not isinstance(about, dict):
        return
    for name in ("streaming", "pushNotifications", "extendedAgentCard", "stateTransitionHistory"):
        if name in about and not isinstance(about[name], bool):
            yield card.finding("capability.type", "capabilities", name, name=name)
    if "streaming" not in about:
        yield card.finding("capability.streaming", "capabilities")
    if card.era == "1.0" and "stateTransitionHistory" in about:
        yield card.finding("capability.removed", "capabilities", "stateTransitionHistory")
    extended = about.get("extendedAgentCard") or card.document.get("supportsAuthenticatedExtendedCard")
    if extended is True and not card.document.get("securitySchemes"):
        yield card.finding("capability.extended-card", "capabilities")
    for i, extension in enumerate(_list(about.get("extensions"))):
        uri = extension.get("uri") if isinstance(extension, dict) else None
        if not isinstance(uri, str) or ":" not in uri:
            yield card.finding("extension.uri", "capabilities", "extensions", i)
        elif extension.get("required") is True:
            yield card.finding("extension.required", "capabilities", "extensions", i, uri=uri)


# -- security ------------------------------------------------------------------------------------------------------


def _security(card: FetchedCard) -> Iterator[Finding]:
    document = card.document
    schemes = document.get("securitySchemes")
    schemes = schemes if isinstance(schemes, dict) else {}
    for name, scheme in schemes.items():
        yield from _scheme(card, name, scheme)
    member = "securityRequirements" if "securityRequirements" in document else "security"
    named: set[str] = set()
    for i, each in enumerate(_list(document.get(member))):
        wrapped = isinstance(each, dict) and isinstance(each.get("schemes"), dict)
        inner = each["schemes"] if wrapped else each
        for name in inner if isinstance(inner, dict) else ():
            named.add(name)
            if name not in schemes:
                yield card.finding("security.unknown-scheme", member, i, name=name)
    if card.era == "1.0" and member == "security" and "security" in document:
        yield card.finding("security.renamed", "security")
    if schemes and not named:
        yield card.finding("security.not-required", "securitySchemes")
    if isinstance(authentication := document.get("authentication"), dict):
        if card.era == "0.1" and not authentication.get("schemes"):
            yield card.finding("security.schemes", "authentication")
        if authentication.get("credentials"):
            yield card.finding("security.credentials", "authentication", "credentials")


def _scheme(card: FetchedCard, name: str, scheme: Any) -> Iterator[Finding]:
    at: tuple[str, ...] = ("securitySchemes", name)
    if not isinstance(scheme, dict):
        yield card.finding("scheme.type", *at)
        return
    wrappers = [wrapper for wrapper in _KINDS if isinstance(scheme.get(wrapper), dict)]
    kind, members = scheme.get("type"), scheme
    newest = card.era == "1.0"
    if len(wrappers) == 1 and (newest or not kind):
        kind, members, at = _KINDS[wrappers[0]], scheme[wrappers[0]], (*at, wrappers[0])
    elif newest or kind not in _KINDS.values():
        kinds = ", ".join(_KINDS if newest else _KINDS.values())
        yield card.finding("scheme.kind", *at, kinds=Unquoted(f"one of {kinds}"))
        return
    if kind == "apiKey":
        place = members.get("location", members.get("in"))
        if place not in ("header", "query", "cookie"):
            yield card.finding("scheme.api-key", *at, place=place)
        if place == "query":
            yield card.finding("scheme.key-in-query", *at)
        yield from _required_members(card, "scheme.required", members, ("name",), *at)
    elif kind == "http":
        yield from _required_members(card, "scheme.required", members, ("scheme",), *at)
    elif kind == "openIdConnect":
        yield from _login_url(card, members, "openIdConnectUrl", *at)
    elif kind == "oauth2":
        yield from _flows(card, members.get("flows"), *at, "flows")


def _flows(card: FetchedCard, flows: Any, *place: str | int) -> Iterator[Finding]:
    present = [each for each in flows.items() if isinstance(each[1], dict)] if isinstance(flows, dict) else []
    if not present:
        yield card.finding("scheme.flows", *place)
    if len(present) > 1 and card.era == "1.0":
        yield card.finding("scheme.one-flow", *place, n=len(present))
    for name, flow in present:
        at = (*place, name)
        if name not in _FLOWS:
            yield card.finding("scheme.flow", *at, name=name)
            continue
        if name in ("implicit", "password"):
            yield card.finding("scheme.deprecated-flow", *at, name=name)
        for member in _FLOWS[name]:
            yield from _login_url(card, flow, member, *at)
        yield from _required_members(card, "scheme.required", flow, ("scopes",), *at)
        if name == "authorizationCode" and card.era == "1.0" and not flow.get("pkceRequired"):
            yield card.finding("scheme.pkce", *at)


def _login_url(card: FetchedCard, scheme: dict[str, Any], name: str, *place: str | int) -> Iterator[Finding]:
    url = scheme.get(name)
    if not isinstance(url, str) or not _is_web_url(url):
        yield card.finding("scheme.url", *place, name, name=name)
    elif url.startswith("http://") and not _is_local(urlsplit(url).hostname or ""):
        yield card.finding("scheme.tls", *place, name, name=name)


def _signatures(card: FetchedCard) -> Iterator[Finding]:
    for i, each in enumerate(_list(card.document.get("signatures"))[:16]):
        protected = each.get("protected") if isinstance(each, dict) else None
        if not isinstance(protected, str) or not each.get("signature"):
            yield card.finding("signature.members", "signatures", i)
            continue
        at = ("signatures", i, "protected")
        try:
            header = read_json(protected, dict[str, Any])
        except ValueError:
            yield card.finding("signature.header", *at)
            continue
        for name in ("alg", "kid"):
            if not header.get(name):
                yield card.finding("signature.header-member", *at, name=name)
        algorithm = str(header.get("alg", ""))
        if algorithm.lower() == "none" or algorithm.startswith("HS"):
            yield card.finding("signature.algorithm", *at, alg=algorithm)
        if header.get("typ") != "JOSE":
            yield card.finding("signature.typ", *at)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _camel(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
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
