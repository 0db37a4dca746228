"""Signs and verifies cards with a2a-sdk. `sign|verify`, then JSON on standard input; the answer is JSON, too.

sign    {"card": {...}, "key": <private JWK>}   -> the signed card
verify  {"card": {...}, "keys": <JWK set>}      -> {"ok": true} or {"ok": false, "why": "..."}
"""

import json
import sys

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


print(json.dumps({"sign": sign, "verify": verify}[sys.argv[1]](json.load(sys.stdin))))
