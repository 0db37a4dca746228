"""Sign agent cards, and verify their signatures.

A signature covers a form of the card, not the document as it came (`canonical.py`). So verification returns the form that
was signed, without members that were added later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from joserfc.jwk import Key
from msgspec import Struct

from dragoman.auth import jose
from dragoman.auth.canonical import Unsignable, canonical, resolver_form, sdk_ascii, sdk_form, spec_form
from dragoman.auth.jose import ASYMMETRIC, BadSignature
from dragoman.auth.jwks import FetchedKeys, GivenKeys, Keys
from dragoman.auth.schemes import Fetch
from dragoman.errors import A2AError, InvalidAgentResponse
from dragoman.model.card import Signature

MAX_SIGNATURES = 16
SPEC, SDK, SDK_ASCII, DOCUMENT = "1.0", "sdk", "sdk-ascii", "document"
"""The forms of a card that signatures are found to cover; see `canonical.py`. `document` is all of it, as it came."""


def sign_card(
    document: Mapping[str, Any], key: Key, algorithm: str, kid: str, *, jku: str = ""
) -> list[Signature]:
    """The signature over a card (its 1.0 members), the first, and others where the official SDKs would read it differently:
    if it has empty members, or security schemes in the form of older versions.
    """
    forms = (spec_form(document), sdk_form(document), resolver_form(document))
    payloads = dict.fromkeys(map(canonical, forms))
    header = {"alg": algorithm, "kid": kid, "typ": "JOSE", **({"jku": jku} if jku else {})}
    protected = jose.encode(msgspec.json.encode(header))
    return [
        Signature(
            protected=protected,
            signature=jose.sign(key, algorithm, f"{protected}.{jose.encode(payload)}".encode()),
        )
        for payload in payloads
    ]


class Verified(Struct, frozen=True):
    """A card with a signature of a trusted key."""

    kid: str
    algorithm: str
    form: str
    """What the signature covers: `1.0` as the specification has it, or one of the others above."""
    document: dict[str, Any]
    """The card as it was signed. Nothing else is verified."""


class Trust:
    """Trusted keys: those of a JWK set, given or at a URL, and those at a `jku` on one of `jku_hosts`.

    The `jku` of a signature is followed to those hosts only, and over https: otherwise somebody who changes a card could
    name keys of their own.
    """

    def __init__(
        self,
        jwks: Mapping[str, Any] | None = None,
        *,
        jwks_url: str = "",
        jku_hosts: Sequence[str] = (),
        algorithms: Sequence[str] = ASYMMETRIC,
        strict: bool = False,
    ) -> None:
        if jwks is None and not jwks_url and not jku_hosts:
            raise ValueError("trust needs a key: jwks=, jwks_url= or jku_hosts=")
        if set(algorithms) - set(ASYMMETRIC):
            raise ValueError(f"a card is signed with one of {', '.join(ASYMMETRIC)}")
        self._algorithms, self._strict = tuple(algorithms), strict
        self._given: list[Keys] = []
        if jwks is not None:
            self._given.append(GivenKeys(jwks))
        if jwks_url:
            self._given.append(FetchedKeys(jwks_url))
        self._jku_hosts = frozenset(host.lower() for host in jku_hosts)
        self._fetched: dict[str, Keys] = {}

    async def verify(self, document: Mapping[str, Any], fetch: Fetch) -> Verified:
        """The first signature that a trusted key made. Raises `InvalidAgentResponse` if there is none.

        `strict` accepts only the form that the specification defines.
        """
        signatures = document.get("signatures")
        if not isinstance(signatures, list) or not signatures:
            raise InvalidAgentResponse("the card is not signed")
        try:
            forms = _forms(document, self._strict)
        except Unsignable as error:
            raise InvalidAgentResponse(f"the signatures of the card cannot be checked: {error}") from error
        why = "no signature can be checked"
        for each in signatures[:MAX_SIGNATURES]:
            try:
                return await self._check(msgspec.convert(each, Signature), forms, fetch)
            except (BadSignature, msgspec.ValidationError, A2AError) as error:
                why = str(error)
        raise InvalidAgentResponse(f"no signature of the card is by a trusted key: {why}")

    async def _check(
        self, signature: Signature, forms: Sequence[tuple[str, dict[str, Any], bytes]], fetch: Fetch
    ) -> Verified:
        header = jose.read_header(signature.protected, self._algorithms)
        if not header.kid:
            raise BadSignature("it has no kid")
        for keys in (*self._given, *self._keys_at(header.jku)):
            key = await keys.find(header.kid, header.alg, fetch)
            if key is None:
                continue
            for form, signed, payload in forms:
                try:
                    covered = f"{signature.protected}.{jose.encode(payload)}".encode()
                    jose.check(key, header.alg, covered, signature.signature)
                except BadSignature:
                    continue
                return Verified(header.kid, header.alg, form, signed)
            raise BadSignature("the signature does not match the card")
        raise BadSignature(f"the key {header.kid[:80]!r} is not trusted")

    def _keys_at(self, jku: str) -> Sequence[Keys]:
        if not jku or not self._jku_hosts:
            return ()
        try:
            parts = urlsplit(jku)
            host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or ""
        except ValueError:
            return ()
        if parts.username or parts.password or host.lower() not in self._jku_hosts:
            return ()
        if jku not in self._fetched:
            if len(self._fetched) >= MAX_SIGNATURES:
                self._fetched.clear()
            self._fetched[jku] = FetchedKeys(jku)
        return (self._fetched[jku],)


def _forms(document: Mapping[str, Any], strict: bool) -> list[tuple[str, dict[str, Any], bytes]]:
    """The forms that a signature may cover, the likeliest first: name, form of the card, bytes."""
    forms = []
    try:
        spec = spec_form(document)
        forms.append((SPEC, spec, canonical(spec)))
        if not strict:
            sdk = sdk_form(document)
            forms += [(SDK, sdk, canonical(sdk)), (SDK_ASCII, sdk, sdk_ascii(sdk))]
    except Unsignable:
        if strict:
            raise
    if not strict:  # 0.3 does not define a form
        whole = {name: value for name, value in document.items() if name != "signatures"}
        forms.append((DOCUMENT, whole, canonical(whole)))
    return forms
