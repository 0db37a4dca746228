"""Signed tokens: valid ones name their principal, and forged ones are refused."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import RSAKey

from dragoman.auth import JWT, OIDC, Presented, Principal
from dragoman.auth.jose import BadSignature, decode
from dragoman.auth.jwks import FRESH_SECONDS, PAUSE_SECONDS, STALE_SECONDS, FetchedKeys
from dragoman.errors import Unauthenticated, Unavailable, Unreachable
from tests.auth.issuer import (
    AUDIENCE,
    EC,
    ED,
    ISSUER,
    OTHER_EC,
    PUBLISHED,
    RSA,
    SECRET,
    Pages,
    b64,
    claims,
    jwk,
    jwks,
    mint,
)
from tests.waiting import until

KEYS = "https://login.example/keys"


async def authenticate(token: str, scheme: Any = None, fetch: Any = None) -> Principal:
    scheme = scheme or JWT(ISSUER, AUDIENCE, jwks=PUBLISHED)
    principal = await scheme.authenticate(Presented({"authorization": f"Bearer {token}"}), fetch or Pages())
    assert principal is not None
    return principal


async def refused(token: str, why: str | None = None, scheme: Any = None, fetch: Any = None) -> None:
    with pytest.raises(Unauthenticated, match=why):
        await authenticate(token, scheme, fetch)


# --- good ones


@pytest.mark.parametrize(
    ("key", "alg", "kid"),
    [
        (EC, "ES256", "ec"),
        (RSA, "RS256", "rsa"),
        (RSA, "PS256", "rsa"),
        (ED, "Ed25519", "ed"),
        (ED, "EdDSA", "ed"),
    ],
)
async def test_a_token_names_the_principal(key: Any, alg: str, kid: str) -> None:
    principal = await authenticate(mint(key=key, alg=alg, kid=kid))
    assert principal.id == "https://login.example#ada"
    assert principal.scopes == {"read", "write"} and principal.claims["aud"] == AUDIENCE


async def test_two_issuers_may_have_the_same_subject_for_different_people() -> None:
    other = JWT("https://other.example", AUDIENCE, jwks=PUBLISHED)
    one = await authenticate(mint())
    another = await authenticate(mint(claims(iss="https://other.example")), other)
    assert one.id != another.id


@pytest.mark.parametrize("said", [{"scp": ["read"]}, {"scp": "read"}, {"scope": ["read"]}, {"scope": "read"}])
async def test_scopes_are_found_wherever_issuers_put_them(said: dict[str, Any]) -> None:
    assert (await authenticate(mint(claims(**({"scope": None} | said))))).scopes == {"read"}


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE], ["other", AUDIENCE]])
async def test_a_token_may_have_several_audiences(audience: Any) -> None:
    await authenticate(mint(claims(aud=audience)))


async def test_a_tenant_comes_from_the_claim_that_was_named() -> None:
    scheme = JWT(ISSUER, AUDIENCE, jwks=PUBLISHED, tenant_claim="org")
    assert (await authenticate(mint(claims(org="acme")), scheme)).tenant == "acme"
    await refused(mint(), "tenant", scheme)
    await refused(mint(claims(org=7)), "tenant", scheme)


async def test_identify_may_name_the_principal() -> None:
    scheme = JWT(ISSUER, AUDIENCE, jwks=PUBLISHED, identify=lambda said: Principal(id=said["email"]))
    assert (await authenticate(mint(claims(email="ada@example.com")), scheme)).id == "ada@example.com"


async def test_other_credentials_than_bearer_tokens_are_ignored() -> None:
    scheme = JWT(ISSUER, AUDIENCE, jwks=PUBLISHED)
    for headers in ({}, {"authorization": "Basic YTpi"}, {"authorization": "Bearer"}):
        assert await scheme.authenticate(Presented(headers), Pages()) is None


# --- claims


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"iss": "https://evil.example"}, "its iss|has no iss"),
        ({"iss": None}, "its iss|has no iss"),
        ({"iss": [ISSUER]}, "its iss|has no iss"),
        ({"aud": "other"}, "its aud|has no aud"),
        ({"aud": None}, "its aud|has no aud"),
        ({"aud": []}, "its aud|has no aud"),
        ({"aud": {AUDIENCE: 1}}, "its aud|has no aud"),
        ({"exp": time.time() - 61}, "expired"),
        ({"exp": None}, "has no exp"),
        ({"exp": "tomorrow"}, "time|NumericDate"),
        ({"exp": True}, "time|NumericDate"),
        ({"exp": 10**400}, "time|NumericDate"),
        ({"exp": 1e300}, "not a time"),
        ({"nbf": 10**400}, "time|NumericDate"),
        ({"iat": -(10**400)}, "time|NumericDate"),
        ({"nbf": time.time() + 7200}, "not yet valid|in the future"),
        ({"iat": time.time() + 7200}, "not yet valid|in the future"),
        ({"sub": None}, "no subject|its sub"),
        ({"sub": ""}, "no subject|its sub"),
        ({"sub": ["ada"]}, "no subject|its sub"),
    ],
)
async def test_a_token_with_a_wrong_claim_is_refused(said: dict[str, Any], why: str) -> None:
    await refused(mint(claims(**said)), why)


async def test_clocks_may_differ_a_little() -> None:
    await authenticate(mint(claims(exp=time.time() - 30, nbf=time.time() + 30)))
    strict = JWT(ISSUER, AUDIENCE, jwks=PUBLISHED, skew=0)
    await refused(mint(claims(exp=time.time() - 30)), "expired", strict)


# --- attacks


async def test_a_token_without_a_signature_is_refused() -> None:
    for alg in ("none", "None", "NONE", ""):
        head = b64(json.dumps({"alg": alg, "kid": "ec"}).encode())
        await refused(f"{head}.{b64(json.dumps(claims()).encode())}.", "not accepted")


async def test_the_public_key_is_not_a_shared_secret() -> None:
    public = RSA.as_pem(private=False)
    for body in (public, json.dumps(jwk(RSA, "rsa")).encode()):
        head = b64(json.dumps({"alg": "HS256", "kid": "rsa"}).encode())
        signed = f"{head}.{b64(json.dumps(claims()).encode())}"
        forged = b64(hmac.digest(body, signed.encode(), hashlib.sha256))
        await refused(f"{signed}.{forged}", "not accepted")


async def test_shared_secrets_and_public_keys_are_not_accepted_together() -> None:
    with pytest.raises(ValueError, match="cannot be mixed"):
        JWT(ISSUER, AUDIENCE, jwks=PUBLISHED, algorithms=("HS256", "RS256"))


async def test_a_shared_secret_has_to_be_asked_for() -> None:
    secret = jwks({**SECRET.as_dict(private=True), "kid": "shared"})
    token = mint(key=SECRET, alg="HS256", kid="shared")
    assert (await authenticate(token, JWT(ISSUER, AUDIENCE, jwks=secret, algorithms=("HS256",)))).id
    await refused(token, "not accepted", JWT(ISSUER, AUDIENCE, jwks=secret))


async def test_a_key_is_used_for_its_own_algorithm_only() -> None:
    await refused(mint(kid="rsa"), "a key that the issuer does not have")  # ES256, and the name of an RSA key
    stated = JWT(ISSUER, AUDIENCE, jwks=jwks(jwk(RSA, "rsa", alg="RS512")))
    await refused(mint(key=RSA, alg="RS256", kid="rsa"), "does not have", stated)


async def test_another_key_with_the_right_kid_is_refused() -> None:
    await refused(mint(key=OTHER_EC), "the signature is wrong")


@pytest.mark.parametrize(
    "header",
    [
        {"jwk": jwk(OTHER_EC, "ec")},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/cert"},
        {"x5c": ["AAAA"]},
    ],
)
async def test_a_token_does_not_bring_its_own_key(header: dict[str, Any]) -> None:
    pages = Pages(**{"https://evil.example/keys": jwks(jwk(OTHER_EC, "ec"))})
    await refused(mint(key=OTHER_EC, **header), "the signature is wrong", fetch=pages)
    assert pages.asked == []


@pytest.mark.parametrize(
    "kid",
    [
        "../../etc/passwd",
        "/dev/null",
        "ec\x00",
        "ec' or '1'='1",
        "file:///etc/passwd",
        "..%2f..%2fec",
        "é" * 200,
        "k" * 300,
    ],
)
async def test_the_name_of_a_key_is_only_ever_compared(kid: str) -> None:
    await refused(mint(kid=kid), "key")


@pytest.mark.parametrize(
    "header", [{"kid": 7}, {"kid": ["ec"]}, {"kid": {}}, {"alg": ["ES256"]}, {"alg": 7}, {"typ": 7}]
)
async def test_a_header_of_the_wrong_shape_is_refused(header: dict[str, Any]) -> None:
    token = mint()
    head = b64(json.dumps({"alg": "ES256", "kid": "ec", **header}).encode())
    await refused(f"{head}.{token.split('.', 1)[1]}", "malformed|not accepted")


async def test_an_extension_we_do_not_have_is_refused() -> None:
    await refused(mint(crit=["exp"]), "extension")
    await refused(mint(b64=False), "extension")


async def test_a_token_of_another_type_is_refused() -> None:
    for typ in ("logout+jwt", "dpop+jwt", "JOSE"):
        await refused(mint(typ=typ), "of another type")


async def test_a_token_that_names_no_key_gets_one_only_if_there_is_no_choice() -> None:
    await refused(
        mint(kid=None), "does not have", JWT(ISSUER, AUDIENCE, jwks=jwks(jwk(EC, "a"), jwk(OTHER_EC, "b")))
    )
    await authenticate(mint(kid=None), JWT(ISSUER, AUDIENCE, jwks=jwks(jwk(EC, "a"), jwk(RSA, "b"))))


@pytest.mark.parametrize(
    "members",
    [
        {"exp": time.time() - 1},
        {"nbf": time.time() + 7200},
        {"nbf": 10**400},
        {"revoked": {"revoked_at": 1}},
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
    ],
)
async def test_an_expired_key_or_one_of_another_use_is_not_used(members: dict[str, Any]) -> None:
    keys = jwks(jwk(EC, "ec", **members), jwk(RSA, "rsa"))
    await refused(mint(), "does not have", JWT(ISSUER, AUDIENCE, jwks=keys))


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_a_small_rsa_key_is_no_key() -> None:
    with pytest.raises(ValueError, match="no key"):
        JWT(ISSUER, AUDIENCE, jwks=jwks(jwk(RSAKey.generate_key(1024), "small")))


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "...",
        "é.é.é",
        f"{'A' * 20000}.B.C",
        "eyJhbGciOiJFUzI1NiJ9.e30=.AAAA",
    ],
)
async def test_a_string_that_is_not_a_token_is_refused(token: str) -> None:
    scheme = JWT(ISSUER, AUDIENCE, jwks=PUBLISHED)
    try:
        assert await scheme.authenticate(Presented({"authorization": f"Bearer {token}"}), Pages()) is None
    except Unauthenticated:
        pass


@given(st.data())
async def test_a_token_that_was_changed_anywhere_is_refused(data: st.DataObject) -> None:
    token = data.draw(st.sampled_from([GOOD_EC, GOOD_ED]))
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("ABab01_-."))
    changed = token[:at] + other + token[at + 1 :]
    before, after = token.rpartition("."), changed.rpartition(".")
    if before[0] == after[0] and _decoded(before[2]) == _decoded(after[2]):
        return  # the same bytes, spelled differently: the last character has bits to spare
    await refused(changed)


GOOD_EC = mint(claims(exp=4e9))
GOOD_ED = mint(claims(exp=4e9), key=ED, alg="EdDSA", kid="ed")


def _decoded(text: str) -> bytes | None:
    try:
        return decode(text)
    except BadSignature:
        return None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"jwks": PUBLISHED, "jwks_url": KEYS},
        {"jwks": {"keys": []}},
        {"jwks": {}},
        {"jwks": PUBLISHED, "algorithms": ("none",)},
        {"jwks": PUBLISHED, "algorithms": ()},
        {"jwks": jwks(*[jwk(EC, str(n)) for n in range(101)])},
    ],
)
def test_a_declaration_without_issuer_audience_or_algorithms_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        JWT(ISSUER, AUDIENCE, **options)
    with pytest.raises(ValueError, match="an issuer and an audience"):
        JWT(ISSUER, "", jwks=PUBLISHED)


# --- keys that are fetched


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_keys_are_fetched_once_and_cached() -> None:
    pages, scheme = Pages(**{KEYS: PUBLISHED}), JWT(ISSUER, AUDIENCE, jwks_url=KEYS)
    for _ in range(5):
        await authenticate(mint(), scheme, pages)
    assert pages.asked == [KEYS]


async def test_a_new_key_is_found_as_soon_as_a_token_names_it() -> None:
    clock, pages = Clock(), Pages(**{KEYS: jwks(jwk(RSA, "rsa"))})
    keys = FetchedKeys(KEYS, clock=clock)
    assert await keys.find("ec", "ES256", pages) is None
    pages.pages[KEYS] = PUBLISHED
    clock.now += PAUSE_SECONDS
    assert await keys.find("ec", "ES256", pages) is not None


async def test_made_up_key_names_cost_one_request_in_a_pause() -> None:
    clock, pages = Clock(), Pages(**{KEYS: PUBLISHED})
    keys = FetchedKeys(KEYS, clock=clock)
    for n in range(100):
        assert await keys.find(f"made-up-{n}", "ES256", pages) is None
    assert len(pages.asked) == 1
    clock.now += PAUSE_SECONDS
    for n in range(100):
        assert await keys.find(f"made-up-{n}", "ES256", pages) is None
    assert len(pages.asked) == 2


async def test_a_key_that_was_withdrawn_is_forgotten_when_the_keys_are_old() -> None:
    clock, pages = Clock(), Pages(**{KEYS: PUBLISHED})
    keys = FetchedKeys(KEYS, clock=clock)
    assert await keys.find("ec", "ES256", pages) is not None
    pages.pages[KEYS] = jwks(jwk(RSA, "rsa"))
    clock.now += FRESH_SECONDS + 1
    assert await keys.find("ec", "ES256", pages) is None


async def test_the_keys_of_an_issuer_that_cannot_be_reached_stay_valid_for_a_day() -> None:
    clock, pages = Clock(), Pages(**{KEYS: PUBLISHED})
    keys = FetchedKeys(KEYS, clock=clock)
    assert await keys.find("ec", "ES256", pages) is not None
    del pages.pages[KEYS]
    clock.now += FRESH_SECONDS + 1
    assert await keys.find("ec", "ES256", pages) is not None
    clock.now += STALE_SECONDS
    with pytest.raises(Unavailable):
        await keys.find("ec", "ES256", pages)


async def test_nobody_waits_for_an_issuer_that_did_not_answer_while_its_keys_are_valid() -> None:
    clock, pages, silence = Clock(), Pages(**{KEYS: PUBLISHED}), asyncio.Event()

    async def hang(url: str, form: Any = None, authorization: str = "") -> bytes:
        pages.asked.append(url)
        await silence.wait()
        raise Unreachable(f"{url} did not answer")

    keys = FetchedKeys(KEYS, clock=clock)
    assert await keys.find("ec", "ES256", pages) is not None
    clock.now += FRESH_SECONDS + 1
    first = asyncio.create_task(keys.find("ec", "ES256", hang))
    await until(lambda: len(pages.asked) == 2)
    silence.set()
    assert await first is not None
    silence.clear()
    clock.now += PAUSE_SECONDS
    async with asyncio.timeout(5):
        for _ in range(3):
            assert await keys.find("ec", "ES256", hang) is not None
    await until(lambda: len(pages.asked) == 3)
    silence.set()
    with pytest.raises(Unavailable):  # it may be a new key of the issuer
        await keys.find("new", "ES256", hang)
    clock.now += PAUSE_SECONDS
    assert await keys.find("ec", "ES256", pages) is not None
    await until(lambda: len(pages.asked) == 4)
    assert await keys.find("new", "ES256", pages) is None


@pytest.mark.parametrize(
    "page", [b"", b"<html>", b"[]", b"{}", b'{"keys": 7}', b'{"keys": "abc"}', b"[" * 10000, b"\xff"]
)
async def test_without_keys_no_caller_is_accepted(page: bytes) -> None:
    with pytest.raises(Unavailable):
        await authenticate(mint(), JWT(ISSUER, AUDIENCE, jwks_url=KEYS), Pages(**{KEYS: page}))


async def test_if_the_keys_cannot_be_fetched_the_caller_gets_unavailable() -> None:
    pages, scheme = Pages(), JWT(ISSUER, AUDIENCE, jwks_url=KEYS)
    with pytest.raises(Unavailable) as refusal:
        await authenticate(mint(), scheme, pages)
    assert refusal.value.retry_after
    with pytest.raises(Unavailable):
        await authenticate(mint(), scheme, pages)
    assert len(pages.asked) == 1


# --- OpenID Connect

CONFIGURATION = f"{ISSUER}/.well-known/openid-configuration"
PAGE = {"issuer": ISSUER, "jwks_uri": KEYS}


@pytest.mark.parametrize("url", [ISSUER, CONFIGURATION])
async def test_oidc_reads_the_url_of_the_keys_from_the_issuer(url: str) -> None:
    pages = Pages(**{CONFIGURATION: PAGE, KEYS: PUBLISHED})
    scheme = OIDC(url, AUDIENCE)
    assert (await authenticate(mint(), scheme, pages)).id == f"{ISSUER}#ada"
    assert pages.asked == [CONFIGURATION, KEYS]
    assert scheme.declaration.open_id_connect_security_scheme is not None
    assert scheme.declaration.open_id_connect_security_scheme.open_id_connect_url == CONFIGURATION


@pytest.mark.parametrize(
    "page", [{**PAGE, "issuer": "https://evil.example"}, {"issuer": ISSUER}, {"jwks_uri": KEYS}, []]
)
async def test_a_configuration_of_another_issuer_is_refused(page: Any) -> None:
    pages = Pages(**{CONFIGURATION: page, KEYS: PUBLISHED})
    with pytest.raises(Unavailable):
        await authenticate(mint(), OIDC(ISSUER, AUDIENCE), pages)
    assert KEYS not in pages.asked


async def test_an_issuer_names_no_keys_at_a_port_of_this_machine() -> None:
    here = "http://127.0.0.1:8080/keys"
    pages = Pages(**{CONFIGURATION: {**PAGE, "jwks_uri": here}, here: PUBLISHED})
    with pytest.raises(Unavailable):
        await authenticate(mint(), OIDC(ISSUER, AUDIENCE), pages)
    assert pages.asked == [CONFIGURATION]
