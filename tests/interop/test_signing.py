"""Our signatures under the verifiers of the official SDKs, and theirs under ours."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.auth import JWT, OIDC, ApiKey, Basic, Bearer, MutualTLS, hashed, hashed_password
from dragoman.auth.canonical import spec_form
from dragoman.auth.keys import KeyRing, OurKey, new_key
from dragoman.auth.signing import SDK, SPEC, Trust, sign_card
from dragoman.dialects.cards import write_card
from dragoman.model.card import AgentCard, Interface, OAuthFlow, OAuthFlows
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.auth.issuer import Pages
from tests.auth.people import secure_agent
from tests.interop.environments import command, install
from tests.ports import free_port

pytestmark = pytest.mark.interop

SDKS = {"a2a-sdk-1.3.0": "a2a_sdk_1_signing.py", "a2a-js-1.3.0": "a2a_js_signing.mjs"}
KEYS = {algorithm: new_key(algorithm) for algorithm in ("ES256", "EdDSA", "RS256")}
HERE = (Interface(url="https://agents.example/", protocol_binding="JSONRPC", protocol_version="1.0"),)


def document(card: AgentCard) -> dict[str, Any]:
    return write_card(replace(card, supported_interfaces=HERE), "1.0")


SECURED = document(secure_agent().card)
CARDS: dict[str, dict[str, Any]] = {
    "open": {
        **document(secure_agent(auth=(), extended_card=None).card),
        "description": 'Gr\u00fc\u00dfe \U0001f600 \u2028 \\ "',
    },
    "secured": SECURED,
    "no scopes": {**SECURED, "securityRequirements": [{"schemes": {"bearer": {"list": []}}}]},
    "bare": {**spec_form({"name": "Bare"}), "supportedInterfaces": SECURED["supportedInterfaces"]},
    "extended": {
        **SECURED,
        "documentationUrl": "",
        "capabilities": {
            "streaming": False,
            "extensions": [
                {"uri": "https://e.example", "params": {"n": 7, "x": 1.5, "big": 1e21, "é": [1, "a", True]}}
            ],
        },
        "securitySchemes": {"tls": {"mtlsSecurityScheme": {}}, **SECURED["securitySchemes"]},
    },
}


def ask(sdk: str, verb: str, **question: Any) -> Any:
    install(sdk)
    run = subprocess.run(
        command(sdk, SDKS[sdk], verb), input=json.dumps(question), capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def signed(card: dict[str, Any], *keys: OurKey) -> dict[str, Any]:
    made = KeyRing(keys).sign(card)
    return {**card, "signatures": [{"protected": s.protected, "signature": s.signature} for s in made]}


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize("name", CARDS)
def test_our_signature_is_good_there(sdk: str, name: str) -> None:
    for key in KEYS.values():
        ring = KeyRing((key,))
        card = signed(CARDS[name], key)
        assert ask(sdk, "verify", card=card, keys=ring.public()) == {"ok": True}


@pytest.mark.parametrize("sdk", SDKS)
def test_a_card_that_was_changed_is_not(sdk: str) -> None:
    key = KEYS["ES256"]
    forged = {**signed(SECURED, key), "name": "Evil"}
    assert not ask(sdk, "verify", card=forged, keys=KeyRing((key,)).public())["ok"]


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize("name", CARDS)
async def test_their_signature_is_good_here(sdk: str, name: str) -> None:
    for algorithm, key in KEYS.items():
        private = {**key.key.as_dict(private=True), "kid": key.kid, "alg": algorithm}
        card = ask(sdk, "sign", card=CARDS[name], key=private)
        found = await Trust(KeyRing((key,)).public()).verify(card, Pages())
        assert found.kid == key.kid and found.form in (SPEC, SDK)
        assert found.document["name"] == CARDS[name]["name"]


@pytest.mark.parametrize("sdk", SDKS)
def test_the_official_verifiers_need_the_second_signature(sdk: str) -> None:
    """What the specification signs of this card, they do not sign: if that ever changes, one signature will do."""
    key, card = KEYS["ES256"], CARDS["no scopes"]
    only, *_ = sign_card(card, key.key, "ES256", key.kid)
    card = {**card, "signatures": [{"protected": only.protected, "signature": only.signature}]}
    assert not ask(sdk, "verify", card=card, keys=KeyRing((key,)).public())["ok"]


EVERY_SCHEME = [
    Bearer({"ada": hashed("t")}),
    ApiKey({"ada": hashed("t")}),
    Basic({"ada": hashed_password("t")}),
    JWT("https://issuer.example", "agents", jwks_url="https://issuer.example/jwks"),
    OIDC("https://issuer.example", "agents"),
    MutualTLS(),
    JWT("https://code.example", "agents", jwks_url="https://code.example/jwks", name="code", flows=OAuthFlows(
        authorization_code=OAuthFlow(authorization_url="https://a.example", token_url="https://t.example", scopes={"x": ""},
                                     pkce_required=True))),
    JWT("https://device.example", "agents", jwks_url="https://device.example/jwks", name="device", flows=OAuthFlows(
        device_code=OAuthFlow(device_authorization_url="https://d.example", token_url="https://t.example"))),
]  # fmt: skip


@pytest.mark.parametrize("auth", [(), EVERY_SCHEME], ids=["open", "secured"])
async def test_their_resolver_accepts_the_card_that_it_gets_by_default(auth: Any) -> None:
    """It names no version, so it gets the card for every version."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    agent = secure_agent(auth=auth) if auth else secure_agent(auth=(), extended_card=None)
    app = application(agent, store="memory:", keys=KeyRing(list(KEYS.values())), public_url=url)
    async with running(app, port=port):
        found = await asyncio.to_thread(ask, "a2a-sdk-1.3.0", "resolve", url=url)
    assert found["ok"] and found["name"] == agent.name, found
