"""Signs and verifies cards with a2a-sdk. `sign|verify|resolve`, then JSON on standard input; the answer is JSON, too.

sign    {"card": {...}, "key": <private JWK>}   -> the signed card
verify  {"card": {...}, "keys": <JWK set>}      -> {"ok": true} or {"ok": false, "why": "..."}
resolve {"url": "http://..."}                   -> the same, for the card there and the keys that its signatures name
"""

import asyncio
import json
import sys

import httpx
from a2a.client import A2ACardResolver
from a2a.types import AgentCard
from a2a.utils.signing import (
    SignatureVerificationError,
    create_agent_card_signer,
    create_signature_verifier,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from jwt import PyJWK


def sign(asked: dict) -> dict:
    key = asked["key"]
    header = {"kid": key["kid"], "alg": key["alg"], "typ": "JOSE"}
    signer = create_agent_card_signer(PyJWK(key), header)
    return MessageToDict(signer(ParseDict(asked["card"], AgentCard(), ignore_unknown_fields=True)))


def verify(asked: dict) -> dict:
    keys = {key["kid"]: PyJWK(key) for key in asked["keys"]["keys"]}
    verifier = create_signature_verifier(lambda kid, jku: keys[kid], ["ES256", "RS256", "EdDSA"])
    try:
        verifier(ParseDict(asked["card"], AgentCard(), ignore_unknown_fields=True))
    except SignatureVerificationError as error:
        return {"ok": False, "why": repr(error)}
    return {"ok": True}


def resolve(asked: dict) -> dict:
    def find(kid: str, jku: str) -> PyJWK:
        assert jku.startswith(asked["url"]), jku
        return next(PyJWK(key) for key in httpx.get(jku).json()["keys"] if key["kid"] == kid)

    async def fetch() -> AgentCard:
        verifier = create_signature_verifier(find, ["ES256", "RS256", "EdDSA"])
        async with httpx.AsyncClient() as client:
            return await A2ACardResolver(client, asked["url"]).get_agent_card(signature_verifier=verifier)

    try:
        card = asyncio.run(fetch())
    except SignatureVerificationError as error:
        return {"ok": False, "why": repr(error)}
    return {"ok": True, "name": card.name, "signatures": len(card.signatures)}


print(json.dumps({"sign": sign, "verify": verify, "resolve": resolve}[sys.argv[1]](json.load(sys.stdin))))
