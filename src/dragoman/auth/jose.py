"""Signatures of JSON (JWS), with the algorithm pinned by us and never chosen by the message.

Every algorithm says which kind of key it takes, so a public key can not be used as a shared secret, and there is no
algorithm without a key.
"""

from __future__ import annotations

import binascii
import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from joserfc.errors import JoseError
from joserfc.jwk import Key, import_key
from joserfc.jws import JWSRegistry
from msgspec import Struct

ASYMMETRIC = (
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
)
"""What we accept unless told otherwise: nothing that a public key could forge."""
SYMMETRIC = ("HS256", "HS384", "HS512")
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding something that somebody else wrote may raise."""
MAX_KEYS = 100
MAX_KID = 256

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")


class BadSignature(Exception):
    """It is not signed by that key, or not in a way we read."""


class VerifyingKey(Struct, frozen=True):
    """A key of a key set, and when it may be used."""

    kid: str
    key: Key
    algorithms: tuple[str, ...]
    begins: float = 0.0
    ends: float = float("inf")

    def usable(self) -> bool:
        return self.begins <= time.time() < self.ends


def read_keys(document: Any) -> tuple[VerifyingKey, ...]:
    """The keys of a JWK set that can verify a signature. What we cannot use is left out; `ValueError` if it is no set."""
    listed = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise ValueError("it is not a JWK set: it has no keys")
    if len(listed) > MAX_KEYS:
        raise ValueError(f"it has more than {MAX_KEYS} keys")
    return tuple(key for each in listed if (key := _read_key(each)) is not None)


def _read_key(jwk: Any) -> VerifyingKey | None:
    if not isinstance(jwk, Mapping) or "revoked" in jwk or jwk.get("use", "sig") != "sig":
        return None
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or not {"verify", "sign"} & set(map(str, operations)):
        return None
    kid = jwk.get("kid", "")
    if not isinstance(kid, str) or len(kid) > MAX_KID:
        return None
    members = {name: value for name, value in jwk.items() if name not in ("use", "key_ops", "alg")}
    try:
        key = import_key(members)
        algorithms = _algorithms(key, jwk.get("alg"))
        begins, ends = _moment(jwk.get("nbf"), 0.0), _moment(jwk.get("exp"), float("inf"))
    except (JoseError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return VerifyingKey(kid, key, algorithms, begins, ends) if algorithms else None


def _algorithms(key: Key, stated: Any) -> tuple[str, ...]:
    """What a key is good for, by its kind; if it states an algorithm, that alone."""
    kind = key.key_type
    if kind == "RSA":
        public = key.public_key
        fitting = (
            tuple(a for a in ASYMMETRIC if a[:2] in ("RS", "PS"))
            if isinstance(public, RSAPublicKey) and public.key_size >= 2048
            else ()
        )
    elif kind in ("EC", "OKP"):
        curve = key.as_dict(private=False)["crv"]
        fitting = tuple(a for a, needed in _CURVES.items() if needed == curve)
    else:
        fitting = SYMMETRIC if kind == "oct" and len(key.raw_value) >= 32 else ()  # type: ignore[arg-type]
    if stated is None or stated in ("EdDSA", "Ed25519"):  # two names of one algorithm
        return fitting
    return tuple(a for a in fitting if a == stated)


def _moment(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def choose(keys: Iterable[VerifyingKey], kid: str, algorithm: str) -> VerifyingKey | None:
    """The key called `kid`. A message that names none gets one only if there is no choice."""
    fitting = [key for key in keys if algorithm in key.algorithms and key.usable()]
    if kid:
        fitting = [key for key in fitting if key.kid == kid]
    return fitting[0] if len(fitting) == 1 else None


class Header(Struct, frozen=True):
    """The protected header of a signature, as far as we read it."""

    alg: str
    kid: str = ""
    typ: str = ""
    jku: str = ""


def read_header(protected: str, algorithms: Sequence[str]) -> Header:
    """Raises `BadSignature` for one that we would not follow."""
    try:
        document = msgspec.json.decode(decode(protected))
    except NOT_JSON as error:
        raise BadSignature("its header is not JSON") from error
    if not isinstance(document, dict):
        raise BadSignature("its header is not an object")
    if "crit" in document or document.get("b64") is False:
        raise BadSignature("it asks for an extension that we do not have")
    try:
        header = msgspec.convert(document, Header)
    except msgspec.ValidationError as error:
        raise BadSignature("its header is malformed") from error
    if header.alg not in algorithms or header.alg == "none":
        raise BadSignature(f"the algorithm {header.alg[:20]!r} is not accepted")
    if len(header.kid) > MAX_KID:
        raise BadSignature("the name of its key is too long")
    return header


def check(key: VerifyingKey, algorithm: str, signed: bytes, signature: str) -> None:
    """Raises `BadSignature` unless `signature` is that of `key` over `signed`."""
    if algorithm not in key.algorithms:
        raise BadSignature("its key is not for this algorithm")
    try:
        right = _algorithm(algorithm).verify(signed, decode(signature), key.key)
    except (JoseError, ValueError) as error:
        raise BadSignature("the signature is malformed") from error
    if not right:
        raise BadSignature("the signature does not fit")


def sign(key: Key, algorithm: str, signed: bytes) -> str:
    return encode(_algorithm(algorithm).sign(signed, key))


def _algorithm(name: str) -> Any:
    return JWSRegistry.algorithms["EdDSA" if name == "Ed25519" else name]  # RFC 9864 gave it another name


def encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """base64url without padding, and nothing else. Raises `BadSignature`."""
    try:
        if not _BASE64URL.fullmatch(text):
            raise BadSignature("it is not base64url")
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise BadSignature("it is not base64url") from error
