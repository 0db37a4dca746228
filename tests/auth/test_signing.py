"""Signatures on cards: made, verified, forged."""

from __future__ import annotations

import hmac
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import RSAKey

from dragoman.auth import jose
from dragoman.auth.canonical import canonical, sdk_ascii, sdk_form
from dragoman.auth.keys import KeyRing, OurKey, new_key
from dragoman.auth.signing import DOCUMENT, SDK, SDK_ASCII, SPEC, Trust, Verified
from dragoman.dialects.cards import write_card
from dragoman.errors import InvalidAgentResponse
from dragoman.model.card import AgentCard
from tests.auth.issuer import Pages, b64, jwks
from tests.auth.test_canonical import CARD
from tests.dialects.strategies import cards
from tests.requirements import requirement

KEYS = {algorithm: new_key(algorithm) for algorithm in ("ES256", "EdDSA", "RS256")}
KEY, OTHER = KEYS["ES256"], new_key()
JKU = "https://keys.example/jwks.json"

SECURED: dict[str, Any] = {
    **CARD,
    "description": "Ünïcödé 😀",
    "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
    "securityRequirements": [{"schemes": {"bearer": {"list": []}}}],
}


def signed(document: dict[str, Any], *keys: OurKey, jku: str = "") -> dict[str, Any]:
    made = KeyRing(keys or (KEY,), jku=jku).sign(document)
    return {**document, "signatures": [{"protected": s.protected, "signature": s.signature} for s in made]}


def trusting(*keys: OurKey, **more: Any) -> Trust:
    return Trust(KeyRing(keys or (KEY,)).public(), **more)


async def verified(document: Any, trust: Trust | None = None, fetch: Any = None) -> Verified:
    return await (trust or trusting()).verify(json.loads(json.dumps(document)), fetch or Pages())


async def refused(document: Any, why: str, trust: Trust | None = None, fetch: Any = None) -> None:
    with pytest.raises(InvalidAgentResponse, match=why):
        await verified(document, trust, fetch)


def by_hand(document: dict[str, Any], payload: bytes, key: OurKey = KEY, **header: Any) -> dict[str, Any]:
    """A signature over any bytes, under any header."""
    head = {"alg": key.algorithm, "kid": key.kid, "typ": "JOSE", **header}
    protected = b64(json.dumps({name: value for name, value in head.items() if value is not None}).encode())
    signature = jose.sign(key.key, key.algorithm, f"{protected}.{b64(payload)}".encode())
    return {**document, "signatures": [{"protected": protected, "signature": signature}]}


# --- good ones


@pytest.mark.parametrize("algorithm", KEYS)
async def test_a_card_is_signed_as_the_specification_says(algorithm: str) -> None:
    key = KEYS[algorithm]
    found = await verified(signed(SECURED, key), trusting(key, strict=True))
    assert (found.kid, found.algorithm, found.form) == (key.kid, algorithm, SPEC)


def test_a_signature_names_its_algorithm_its_key_and_where_that_is() -> None:
    [signature, *_] = KeyRing((KEY,), jku=JKU).sign(CARD)
    assert json.loads(jose.decode(signature.protected)) == {
        "alg": "ES256", "kid": KEY.kid, "typ": "JOSE", "jku": JKU,
    }  # fmt: skip
    assert len(jose.decode(signature.signature)) == 64  # r and s, not ASN.1


def test_a_card_has_a_second_signature_if_the_official_sdks_read_it_differently() -> None:
    plain = {
        **CARD,
        "description": "x",
        "skills": [{"id": "a", "name": "a", "description": "a", "tags": ["a"]}],
    }
    assert len(KeyRing((KEY,)).sign(plain)) == 1
    assert len(KeyRing((KEY,)).sign(SECURED)) == 2


@requirement(32)
@given(cards("1.0"))
@settings(max_examples=40)
async def test_any_card_can_be_signed_and_verified(card: AgentCard) -> None:
    document = write_card(card, "1.0")
    found = await verified(signed(document), trusting(strict=True))
    assert found.form == SPEC and "signatures" not in found.document


async def test_one_signature_of_several_is_enough() -> None:
    document = signed(CARD, OTHER, KEY)
    assert (await verified(document)).kid == KEY.kid
    assert (await verified(document, trusting(OTHER))).kid == OTHER.kid


async def test_a_card_that_was_only_rewritten_is_still_signed() -> None:
    document = signed(SECURED)
    document["securityRequirements"] = [{"schemes": {"bearer": {}}}]
    document["capabilities"] = {"streaming": False, "extensions": []}
    document["iconUrl"] = None
    assert (await verified(dict(sorted(document.items(), reverse=True)), trusting(strict=True))).form == SPEC


# --- other people's forms


async def test_the_form_of_the_sdks_is_recognised_and_named() -> None:
    document = by_hand(SECURED, canonical(sdk_form(SECURED)))
    assert (await verified(document)).form == SDK
    await refused(document, "does not match the card", trusting(strict=True))
    assert (await verified(by_hand(SECURED, sdk_ascii(sdk_form(SECURED))))).form == SDK_ASCII


async def test_a_document_that_was_signed_as_it_is_is_recognised_and_named() -> None:
    old = {
        "name": "Old",
        "url": "https://a.example",
        "protocolVersion": "0.3.0",
        "skills": {},
        "capabilities": {},
    }
    found = await verified(by_hand(old, canonical(old)))
    assert found.form == DOCUMENT and found.document == old


async def test_only_what_was_signed_comes_back() -> None:
    tampered = {
        **signed(SECURED),
        "url": "https://evil.example",
        "protocolVersion": "0.3.0",
        "security": [{}],
    }
    found = await verified(tampered)
    assert not {"url", "protocolVersion", "security", "signatures"} & set(found.document)
    theirs = {**by_hand(SECURED, canonical(sdk_form(SECURED))), "securityRequirements": []}
    assert "securityRequirements" not in (await verified(theirs)).document


# --- forged ones


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Evil"},
        {"supportedInterfaces": [{**CARD["supportedInterfaces"][0], "url": "https://evil.example/"}]},
        {"capabilities": {"streaming": True}},
        {"capabilities": {}},
        {"securityRequirements": [{"schemes": {"bearer": {"list": ["admin"]}}}]},
        {"securitySchemes": {}},
    ],
)
async def test_a_card_that_was_changed_is_refused(change: dict[str, Any]) -> None:
    await refused({**signed(SECURED), **change}, "does not match the card")


@pytest.mark.parametrize("change", [{"securityRequirements": []}, {"iconUrl": ""}])
async def test_any_change_of_a_signed_member_breaks_the_signature(
    change: dict[str, Any],
) -> None:
    changed = {**signed(SECURED), **change}
    await refused(changed, "does not match the card", trusting(strict=True))
    found = await verified(changed)
    assert found.form == SDK  # which cannot tell, and so has neither
    assert not {"securityRequirements", "iconUrl"} & set(found.document)


@pytest.mark.parametrize(
    "signatures", [None, [], {}, "abc", [None], [{}], [{"protected": 7, "signature": 7}]]
)
async def test_a_card_without_a_usable_signature_is_refused(signatures: Any) -> None:
    await refused({**CARD, "signatures": signatures}, "signed|signature")


async def test_a_signature_by_an_untrusted_key_with_our_kid_is_refused() -> None:
    await refused(by_hand(CARD, canonical(CARD), OTHER, kid=KEY.kid), "does not match the card")
    await refused(signed(CARD, OTHER), "is not trusted")


@pytest.mark.parametrize("alg", ["none", "None", "HS256", "ES384", "RS256", "", None, 7])
async def test_a_card_cannot_choose_the_algorithm(alg: Any) -> None:
    await refused(by_hand(CARD, canonical(CARD), alg=alg), "accepted|malformed|not trusted")


async def test_a_public_key_does_not_sign() -> None:
    rsa = KEYS["RS256"]
    assert isinstance(rsa.key, RSAKey)
    protected = b64(json.dumps({"alg": "HS256", "kid": rsa.kid}).encode())
    for secret in (rsa.key.as_pem(private=False), json.dumps(rsa.public()).encode()):
        forged = b64(hmac.digest(secret, f"{protected}.{b64(canonical(CARD))}".encode(), "sha256"))
        card = {**CARD, "signatures": [{"protected": protected, "signature": forged}]}
        await refused(card, "not accepted", trusting(rsa))


async def test_a_secret_is_never_a_key_to_trust() -> None:
    with pytest.raises(ValueError):
        Trust({"keys": [{"kty": "oct", "k": b64(b"s" * 32), "kid": "x"}]}, algorithms=("HS256",))


@pytest.mark.parametrize("kid", ["../../../etc/passwd", "/etc/passwd", "", None, 7, "x" * 300, "a\x00b"])
async def test_the_name_of_a_key_is_only_ever_compared(kid: Any) -> None:
    await refused(by_hand(CARD, canonical(CARD), kid=kid), "key|malformed")


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"b64": False}])
async def test_an_extension_that_we_do_not_have_is_refused(header: dict[str, Any]) -> None:
    await refused(by_hand(CARD, canonical(CARD), **header), "extension")


@requirement(35)
@pytest.mark.parametrize(
    "members",
    [
        {"exp": time.time() - 1},
        {"nbf": time.time() + 7200},
        {"revoked": {}},
        {"use": "enc"},
        {"alg": "ES512"},
    ],
)
async def test_an_expired_key_or_one_of_another_use_is_not_used(members: dict[str, Any]) -> None:
    keys = jwks({**KEY.public(), **members}, OTHER.public())
    await refused(signed(CARD), "is not trusted", Trust(keys))


async def test_a_thousand_signatures_are_not_all_tried() -> None:
    good = signed(CARD)["signatures"][0]
    bad = by_hand(CARD, b"x")["signatures"][0]
    await refused({**CARD, "signatures": [bad] * 1000 + [good]}, "does not match the card")


@given(st.data())
async def test_a_signature_that_was_changed_anywhere_is_refused(data: st.DataObject) -> None:
    document = json.loads(json.dumps(SIGNED))
    for signature in document["signatures"]:
        member = data.draw(st.sampled_from(["protected", "signature"]))
        text = signature[member]
        at = data.draw(st.integers(0, len(text) - 3))  # the last ones have bits to spare
        other = data.draw(st.sampled_from([c for c in "ABab01_-" if c != text[at]]))
        signature[member] = text[:at] + other + text[at + 1 :]
    await refused(document, "by a trusted key")


SIGNED = signed(SECURED)


# --- where keys come from


async def test_keys_can_be_fetched_from_a_given_url() -> None:
    pages = Pages(**{JKU: KeyRing((KEY,)).public()})
    assert (await verified(signed(CARD), Trust(jwks_url=JKU), pages)).kid == KEY.kid
    assert pages.asked == [JKU]


async def test_a_jku_is_followed_only_to_trusted_hosts() -> None:
    card = signed(CARD, jku=JKU)
    pages = Pages(**{JKU: KeyRing((KEY,)).public()})
    assert (await verified(card, Trust(jku_hosts=["keys.example"]), pages)).kid == KEY.kid
    await refused(card, "is not trusted", trusting(OTHER), pages)
    await refused(card, "is not trusted", Trust(jku_hosts=["other.example"]), pages)
    assert pages.asked == [JKU]


@pytest.mark.parametrize(
    "jku",
    [
        "https://keys.example.evil.example/jwks.json",
        "https://evil.example/keys.example",
        "https://keys.example@evil.example/jwks.json",
        "https://user:pass@keys.example/jwks.json",
        "https://keys.example:8443/jwks.json",
        "https://[keys.example/jwks.json",
        "file:///etc/passwd",
    ],
)
async def test_a_jku_that_only_looks_like_a_trusted_one_is_not_followed(jku: str) -> None:
    class Anything(Pages):
        async def __call__(self, url: str, *_: Any) -> bytes:
            self.asked.append(url)
            return json.dumps(KeyRing((KEY,)).public()).encode()

    pages = Anything()
    await refused(signed(CARD, jku=jku), "is not trusted", Trust(jku_hosts=["keys.example"]), pages)
    assert pages.asked == []


def test_trust_needs_a_key() -> None:
    with pytest.raises(ValueError, match="needs a key"):
        Trust()
