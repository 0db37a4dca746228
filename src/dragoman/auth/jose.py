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
"""Accepted by default: a public key is not enough to forge these."""
SYMMETRIC = ("HS256", "HS384", "HS512")
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding JSON may raise."""
MAX_KEYS = 100
MAX_KID_CHARS = 256

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")


class BadSignature(Exception):
    """The signature is wrong, or has a form that is not accepted."""


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
    """The keys of a JWK set that can verify a signature. Other keys are left out. Raises `ValueError` if it is not a set."""
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
    if not isinstance(kid, str) or len(kid) > MAX_KID_CHARS:
        return None
    members = {name: value for name, value in jwk.items() if name not in ("use", "key_ops", "alg")}
    try:
        key = import_key(members)
        algorithms = _algorithms(key, jwk.get("alg"))
        begins, ends = _time_or(jwk.get("nbf"), 0.0), _time_or(jwk.get("exp"), float("inf"))
    except (JoseError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return VerifyingKey(kid, key, algorithms, begins, ends) if algorithms else None


def _algorithms(key: Key, stated: Any) -> tuple[str, ...]:
    """The algorithms of a key, by its type; if it names an algorithm, only that one."""
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


def _time_or(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def choose(keys: Iterable[VerifyingKey], kid: str, algorithm: str) -> VerifyingKey | None:
    """The key with this `kid`. A message without a `kid` gets a key only if there is exactly one."""
    fitting = [key for key in keys if algorithm in key.algorithms and key.usable()]
    if kid:
        fitting = [key for key in fitting if key.kid == kid]
    return fitting[0] if len(fitting) == 1 else None


class JwsHeader(Struct, frozen=True):
    """The protected header of a signature, as far as we read it."""

    alg: str
    kid: str = ""
    typ: str = ""
    jku: str = ""


def read_header(protected: str, algorithms: Sequence[str]) -> JwsHeader:
    """Raises `BadSignature` for a header that is not accepted."""
    try:
        document = msgspec.json.decode(decode(protected))
    except NOT_JSON as error:
        raise BadSignature("its header is not JSON") from error
    if not isinstance(document, dict):
        raise BadSignature("its header is not an object")
    if "crit" in document or document.get("b64") is False:
        raise BadSignature("it needs an extension that is not supported")
    try:
        header = msgspec.convert(document, JwsHeader)
    except msgspec.ValidationError as error:
        raise BadSignature("its header is malformed") from error
    if header.alg not in algorithms or header.alg == "none":
        raise BadSignature(f"the algorithm {header.alg[:20]!r} is not accepted")
    if len(header.kid) > MAX_KID_CHARS:
        raise BadSignature("its kid (the id of its key) is too long")
    return header


def check(key: VerifyingKey, algorithm: str, signed: bytes, signature: str) -> None:
    """Raises `BadSignature` unless `signature` is that of `key` over `signed`."""
    if algorithm not in key.algorithms:
        raise BadSignature("its key is not for this algorithm")
    try:
        valid = _algorithm(algorithm).verify(signed, decode(signature), key.key)
    except (JoseError, ValueError) as error:
        raise BadSignature("the signature is malformed") from error
    if not valid:
        raise BadSignature("the signature is wrong")


def sign(key: Key, algorithm: str, signed: bytes) -> str:
    return encode(_algorithm(algorithm).sign(signed, key))


def _algorithm(name: str) -> Any:
    return JWSRegistry.algorithms["EdDSA" if name == "Ed25519" else name]  # its name in RFC 9864


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
