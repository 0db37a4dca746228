"""Tokens, keys, passwords and certificates: which are accepted, and for which principal."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dragoman import Agent
from dragoman.auth import (
    All,
    ApiKey,
    Basic,
    Bearer,
    Custom,
    Holder,
    MutualTLS,
    Presented,
    Principal,
    hashed,
    hashed_password,
    new_token,
)
from dragoman.auth.requirements import AgentAuthenticator, Requirements, no_fetch
from dragoman.errors import Forbidden, RateLimited, Unauthenticated
from tests.auth.certificates import Authority
from tests.requirements import requirement

ALICE, BOB = new_token(), new_token()


async def authenticate(
    auth: Any, headers: Any = (), *, query: str = "", certificate: bytes = b""
) -> Principal:
    guard = AgentAuthenticator(Requirements(auth if isinstance(auth, list) else [auth]), realm="test")
    return await guard.authenticate(dict(headers), query=query, certificate=certificate)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"}


# --- tokens


async def test_a_token_is_known_by_its_hash() -> None:
    scheme = Bearer(
        {"alice": hashed(ALICE), "bob": Holder(secret=hashed(BOB), scopes=["read"], tenant="acme")}
    )
    assert await authenticate(scheme, bearer(ALICE)) == Principal(id="alice")
    assert await authenticate(scheme, bearer(BOB)) == Principal(
        id="bob", tenant="acme", scopes=frozenset({"read"})
    )
    assert (await authenticate(scheme, {"authorization": f"bEaReR   {ALICE} "})).id == "alice"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": ALICE},
        {"authorization": f"Basic {ALICE}"},
        {"authorization": f"Bearer{ALICE}"},
        bearer(ALICE[:-1]),
        bearer(ALICE + "x"),
        bearer(ALICE.upper()),
        bearer(hashed(ALICE)),
        bearer(f"{ALICE}, Bearer {ALICE}"),
        bearer("é" * 40),
        bearer("x" * 100_000),
    ],
)
async def test_an_unknown_token_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        await authenticate(Bearer({"alice": hashed(ALICE)}), headers)
    assert ALICE not in refusal.value.message and hashed(ALICE) not in refusal.value.message


async def test_the_old_token_and_the_new_one_are_good_at_the_same_time() -> None:
    scheme = Bearer({"alice": Holder(secret=[hashed(ALICE), hashed(BOB)])})
    assert (
        (await authenticate(scheme, bearer(ALICE))).id
        == (await authenticate(scheme, bearer(BOB))).id
        == "alice"
    )


async def test_a_token_may_expire() -> None:
    past, future = datetime.now(UTC) - timedelta(seconds=1), datetime.now(UTC) + timedelta(hours=1)
    scheme = Bearer(
        {
            "alice": Holder(secret=hashed(ALICE), expires=past.isoformat()),
            "bob": Holder(secret=hashed(BOB), expires=future.isoformat()),
        }
    )
    with pytest.raises(Unauthenticated, match="expired"):
        await authenticate(scheme, bearer(ALICE))
    assert (await authenticate(scheme, bearer(BOB))).id == "bob"


@pytest.mark.parametrize(
    "kept", [ALICE, "", hashed(ALICE)[:-1], "zz" * 32], ids=["plain", "empty", "cut", "no hex"]
)
def test_a_secret_that_is_not_hashed_is_an_error(kept: str) -> None:
    with pytest.raises(ValueError, match="keep hashes"):
        Bearer({"alice": kept})


def test_two_people_cannot_have_one_token() -> None:
    with pytest.raises(ValueError, match="same secret"):
        Bearer({"alice": hashed(ALICE), "bob": hashed(ALICE)})


@pytest.mark.parametrize(
    "one",
    [Bearer({"alice": hashed(ALICE)}), All(Bearer({"alice": hashed(ALICE)})), lambda presented: None],
    ids=["a scheme", "All", "a function"],
)
def test_one_scheme_needs_no_list(one: Any) -> None:
    assert Agent("a", auth=one).card.security_schemes == Agent("a", auth=[one]).card.security_schemes != {}


@requirement(222)
def test_the_repr_of_a_scheme_has_no_secrets() -> None:
    scheme = Bearer({"alice": hashed(ALICE)})
    assert hashed(ALICE) not in repr(scheme) and hashed(ALICE) not in repr(Requirements([scheme]))


# --- API keys


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("header", {"headers": {"x-key": ALICE}}),
        ("query", {"query": f"a=b&X-Key={ALICE}"}),
        ("cookie", {"headers": {"cookie": f'a=b; X-Key={ALICE}; c="d"'}}),
        ("cookie", {"headers": {"cookie": f'X-Key="{ALICE}"'}}),
    ],
)
async def test_an_api_key_is_found_where_the_card_says(location: str, shown: dict[str, Any]) -> None:
    scheme = ApiKey({"alice": hashed(ALICE)}, location=location, parameter="X-Key")
    assert (await authenticate(scheme, **shown)).id == "alice"
    key = scheme.declaration.api_key_security_scheme
    assert key is not None and (key.location, key.name) == (location, "X-Key")


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("header", {"query": f"X-Key={ALICE}"}),
        ("header", {"headers": {"x-key": f"{ALICE}, {ALICE}"}}),
        ("query", {"headers": {"x-key": ALICE}}),
        ("query", {"query": f"X-Key={ALICE}&X-Key={ALICE}"}),
        ("query", {"query": f"X-Key={ALICE}&" + "a=b&" * 200}),
        ("query", {"query": f"x-key={ALICE}"}),
        ("cookie", {"headers": {"cookie": f"X-Key={ALICE}; X-Key={BOB}"}}),
        ("cookie", {"headers": {"cookie": "X-Key="}}),
    ],
)
async def test_an_api_key_in_another_place_or_twice_is_refused(location: str, shown: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        await authenticate(ApiKey({"alice": hashed(ALICE)}, location=location, parameter="X-Key"), **shown)


@pytest.mark.parametrize(
    "options", [{"location": "body"}, {"parameter": "X Key"}, {"parameter": 'X"\r\n'}, {"parameter": ""}]
)
def test_a_key_that_has_no_place_is_an_error(options: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        ApiKey({}, **options)


# --- passwords

PASSWORDS = Basic({"alice": hashed_password("pâss:wörd"), "bob": hashed("a long random one")})


async def test_a_name_and_its_password_are_accepted() -> None:
    for _ in range(2):
        assert (await authenticate(PASSWORDS, basic("alice", "pâss:wörd"))).id == "alice"
    assert (await authenticate(PASSWORDS, basic("bob", "a long random one"))).id == "bob"


@pytest.mark.parametrize(
    "headers",
    [
        basic("alice", "wrong"),
        basic("alice", ""),
        basic("nobody", "pâss:wörd"),
        basic("", ""),
        {"authorization": "Basic !!!"},
        {"authorization": "Basic " + b64encode(b"alice").decode()},
        {"authorization": "Basic " + b64encode(b"\xff\xfe:x").decode()},
        {"authorization": "Basic YWxpY2U6\nYQ=="},
    ],
)
async def test_a_wrong_name_or_password_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        await authenticate(PASSWORDS, headers)


async def test_a_right_password_of_one_is_wrong_for_another() -> None:
    await authenticate(PASSWORDS, basic("alice", "pâss:wörd"))
    with pytest.raises(Unauthenticated):
        await authenticate(PASSWORDS, basic("bob", "pâss:wörd"))


def test_passwords_are_stored_as_hashes_and_names_have_no_colons() -> None:
    for holders in ({"alice": "secret"}, {"al:ice": hashed_password("x")}):
        with pytest.raises(ValueError, match="hashed"):
            Basic(holders)
    assert hashed_password("x") != hashed_password("x")


async def test_guessing_passwords_has_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = Basic({"alice": hashed_password("x")})
    monkeypatch.setattr(scheme._passwords.current(), "_waiting", 64)
    with pytest.raises(RateLimited):
        await authenticate(scheme, basic("alice", "guess"))


# --- certificates


async def test_a_certificate_names_its_holder() -> None:
    authority = Authority()
    der, _ = authority.issue("ada")
    assert (await authenticate(MutualTLS(), certificate=der)).id == "x509:CN=ada"
    der, _ = authority.issue("ada", uri="spiffe://example.org/agent/ada")
    assert (await authenticate(MutualTLS(), certificate=der)).id == "spiffe://example.org/agent/ada"


async def test_only_certificates_that_are_listed_if_there_is_a_list() -> None:
    authority = Authority()
    (ada, _), (bob, _) = authority.issue("ada"), authority.issue("bob")
    scheme = MutualTLS({"the-countess": Holder(secret=hashlib.sha256(ada).hexdigest(), scopes=["read"])})
    assert await authenticate(scheme, certificate=ada) == Principal(
        id="the-countess", scopes=frozenset({"read"})
    )
    with pytest.raises(Unauthenticated):
        await authenticate(scheme, certificate=bob)


async def test_a_connection_may_outlive_its_certificate() -> None:
    der, _ = Authority().issue("ada", days=-1)
    with pytest.raises(Unauthenticated, match="not valid now"):
        await authenticate(MutualTLS(), certificate=der)


async def test_a_certificate_without_a_name_is_refused() -> None:
    der, _ = Authority().issue("")
    with pytest.raises(Unauthenticated, match="has no name"):
        await authenticate(MutualTLS(), certificate=der)
    with pytest.raises(Unauthenticated):
        await authenticate(MutualTLS())


# --- one's own


async def test_a_function_is_a_scheme() -> None:
    async def magic(presented: Presented) -> Principal | None:
        return Principal(id="merlin") if presented.header("X-Magic") == "please" else None

    assert (await authenticate(magic, {"x-magic": "please"})).id == "merlin"
    with pytest.raises(Unauthenticated):
        await authenticate(magic)
    assert list(Requirements([magic]).schemes) == ["magic"]
    assert (await authenticate(Custom(lambda presented: Principal(id="all")))).id == "all"


@pytest.mark.parametrize(
    "principal",
    [
        Principal(id=""),
        Principal(id="", tenant="acme"),
        Principal(id="a\r\nSet-Cookie: x"),
        Principal(id="a\x00"),
        Principal(id="x" * 513),
        Principal(id="a", tenant="b\n"),
        Principal(id="\u202eecila"),
    ],
)
async def test_a_principal_with_an_invalid_id_is_refused(principal: Principal) -> None:
    with pytest.raises(Unauthenticated):
        await authenticate(Custom(lambda presented: principal))


async def test_a_check_that_raises_accepts_no_caller() -> None:
    def broken(presented: Presented) -> Principal:
        raise RuntimeError("the database is away")

    with pytest.raises(RuntimeError):
        await authenticate(broken)


# --- together


async def test_one_of_several_schemes_is_enough() -> None:
    either = [Bearer({"alice": hashed(ALICE)}), ApiKey({"bob": hashed(BOB)})]
    assert (await authenticate(either, bearer(ALICE))).id == "alice"
    assert (await authenticate(either, {"x-api-key": BOB})).id == "bob"


@pytest.mark.parametrize("token", ["wrong", ALICE, BOB], ids=["wrong", "alice", "bob"])
@pytest.mark.parametrize("key", ["wrong", ALICE, BOB], ids=["wrong", "alice", "bob"])
async def test_credentials_of_two_schemes_at_once_are_refused(token: str, key: str) -> None:
    bearers, keys = Bearer({"alice": hashed(ALICE)}), ApiKey({"bob": hashed(BOB)})
    shown = {**bearer(token), "x-api-key": key}
    for order in ([bearers, keys], [keys, bearers]):
        with pytest.raises(Unauthenticated, match="two credentials"):
            await authenticate(order, shown)
    together = [bearers, All(keys, bearers)]  # then both are looked at
    if (token, key) == (ALICE, BOB):
        assert (await authenticate(together, shown)).id == "bob"
    else:
        with pytest.raises(Unauthenticated):
            await authenticate(together, shown)


async def test_one_credential_may_be_for_either_of_two_schemes() -> None:
    tokens, others = Bearer({"alice": hashed(ALICE)}), Bearer({"bob": hashed(BOB)})
    keys = ApiKey({"carl": hashed(BOB)}, parameter="Authorization")
    assert (await authenticate([tokens, others], bearer(BOB))).id == "bob"
    assert (await authenticate([tokens, keys], {"authorization": BOB})).id == "carl"

    def check(presented: Presented) -> Principal | None:
        return Principal(id="dora") if presented.header("x-signature") == "good" else None

    assert (await authenticate([tokens, check], {"x-signature": "good"})).id == "dora"


async def test_all_needs_every_scheme() -> None:
    both = All(
        ApiKey({"machine": Holder(secret=hashed(BOB), scopes=["run"])}),
        Bearer({"alice": Holder(secret=hashed(ALICE), scopes=["read"], tenant="acme")}),
    )
    who = await authenticate(both, {**bearer(ALICE), "x-api-key": BOB})
    assert who == Principal(id="machine", tenant="acme", scopes=frozenset({"run", "read"}))
    for headers in (bearer(ALICE), {"x-api-key": BOB}, {**bearer("wrong"), "x-api-key": BOB}):
        with pytest.raises(Unauthenticated):
            await authenticate(both, headers)


async def test_credentials_of_two_tenants_do_not_add_up() -> None:
    both = All(
        ApiKey({"a": Holder(secret=hashed(BOB), tenant="acme")}),
        Bearer({"a": Holder(secret=hashed(ALICE), tenant="umbrella")}),
    )
    with pytest.raises(Unauthenticated, match="different tenants"):
        await authenticate(both, {**bearer(ALICE), "x-api-key": BOB})


async def test_a_known_caller_without_the_scope_is_forbidden_and_the_error_names_the_scope() -> None:
    scheme = Bearer({"alice": Holder(secret=hashed(ALICE), scopes=["read"])}, scopes=["read", "write"])
    for auth in ([scheme], [scheme, ApiKey({})], [ApiKey({}), scheme]):
        with pytest.raises(Forbidden) as refusal:
            await authenticate(auth, bearer(ALICE))
        assert refusal.value.metadata == {"scope": "write"}


def test_the_card_has_the_required_schemes() -> None:
    first, second = Bearer({}), Bearer({}, scopes=["b"])
    wanted = Requirements([first, All(second, ApiKey({}))])
    assert list(wanted.schemes) == ["bearer", "bearer2", "apiKey"]
    general = [{name: scopes.list for name, scopes in each.schemes.items()} for each in wanted.needing()]
    assert general == [{"bearer": ()}, {"bearer2": ("b",), "apiKey": ()}]
    skill = [{name: scopes.list for name, scopes in each.schemes.items()} for each in wanted.needing(["x"])]
    assert skill == [{"bearer": ("x",)}, {"bearer2": ("b", "x"), "apiKey": ("x",)}]
    assert not Requirements()


def test_a_challenge_names_every_scheme_once_and_cannot_be_injected() -> None:
    guard = AgentAuthenticator(
        Requirements([Bearer({}), Bearer({}), ApiKey({}), Basic({}), MutualTLS()]),
        realm='a"\r\nSet-Cookie: b\\',
    )
    assert guard.challenge == (
        'Bearer realm="aSet-Cookie: b", ApiKey realm="aSet-Cookie: b", in="header", name="X-API-Key", '
        'Basic realm="aSet-Cookie: b", charset="UTF-8", MutualTLS realm="aSet-Cookie: b"'
    )


@pytest.mark.parametrize("wrong", [7, "bearer", None])
def test_a_value_that_is_not_a_scheme_is_an_error(wrong: Any) -> None:
    with pytest.raises(TypeError):
        Requirements([wrong])


async def test_an_authenticator_without_fetch_is_unavailable() -> None:
    from dragoman.errors import Unavailable

    with pytest.raises(Unavailable):
        await no_fetch("https://login.example")
