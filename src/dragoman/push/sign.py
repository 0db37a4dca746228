"""How a webhook knows that it is us: the headers of a notification.

    X-A2A-Notification-Token    the token of the config
    Authorization               what the config asks for; else a signed token of ours, if we have keys
    Dragoman-Token              our signed token, where Authorization is taken
    webhook-id                  the delivery: the same at every attempt, so that it can be told apart from others
    webhook-timestamp           when this attempt was made, in Unix seconds
    webhook-signature           v1,base64(HMAC-SHA256(secret, "id.timestamp.body")), if there is a secret

The last three are those of the Standard Webhooks specification, so its libraries can check them. Our signed token is a
JWT: iss, aud (the URL), iat, exp, jti (the delivery), task_id, request_body_sha256.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.auth import jose
from dragoman.auth.keys import KeyRing
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.model.ops import AuthenticationInfo
from dragoman.push.credentials import api_key, is_api_key, is_hmac

TOKEN = "X-A2A-Notification-Token"
JWT = "Dragoman-Token"
LIFE = 300
"""Seconds a signed token is good for."""


def proof(
    webhook: StoredPushConfig,
    delivery: str,
    task: str,
    body: bytes,
    *,
    secret: str = "",
    keys: KeyRing | None = None,
    issuer: str = "",
) -> dict[str, str]:
    """The headers that prove where a notification comes from."""
    config, now = webhook.config, int(time.time())
    headers = {"webhook-id": delivery, "webhook-timestamp": str(now)}
    if config.token:
        headers[TOKEN] = config.token
    asked = config.authentication
    headers |= _asked(asked)
    secrets = [secret] if secret else []
    if asked is not None and asked.credentials and is_hmac(asked.scheme):
        secrets.insert(0, asked.credentials)
    if secrets:
        headers["webhook-signature"] = signatures(secrets, delivery, now, body)
    if keys is not None and (token := _token(keys, issuer, config.url, delivery, task, body, now)):
        where = JWT if "Authorization" in headers else "Authorization"
        headers[where] = token if where == JWT else f"Bearer {token}"
    return headers


def _asked(asked: AuthenticationInfo | None) -> dict[str, str]:
    if asked is None or not asked.credentials or is_hmac(asked.scheme):
        return {}
    if is_api_key(asked.scheme):
        name, value = api_key(asked.credentials)
        return {name: value}
    credentials = asked.credentials
    if asked.scheme.lower() == "basic" and ":" in credentials:
        credentials = b64encode(credentials.encode()).decode()
    return {"Authorization": f"{asked.scheme} {credentials}"}


def signatures(secrets: Sequence[str], delivery: str, timestamp: int, body: bytes) -> str:
    """One for each secret, so that secrets can be exchanged without a gap."""
    signed = f"{delivery}.{timestamp}.".encode() + body
    digests = [hmac.digest(_key(secret), signed, hashlib.sha256) for secret in secrets]
    return " ".join(f"v1,{b64encode(digest).decode()}" for digest in digests)


def _key(secret: str) -> bytes:
    """`whsec_` and base64, or the text itself."""
    if secret.startswith("whsec_"):
        try:
            return b64decode(secret[6:], validate=True)
        except Error:
            pass
    return secret.encode()


def body_hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _token(keys: KeyRing, issuer: str, audience: str, delivery: str, task: str, body: bytes, now: int) -> str:
    key = next((key for key in keys.keys if key.signs), None)
    if key is None:
        return ""
    claims = {
        "iss": issuer,
        "aud": audience,
        "iat": now,
        "exp": now + LIFE,
        "jti": delivery,
        "task_id": task,
        "request_body_sha256": body_hash(body),
    }
    signed = f"{_part({'alg': key.algorithm, 'kid': key.kid, 'typ': 'JWT'})}.{_part(claims)}"
    return f"{signed}.{jose.sign(key.key, key.algorithm, signed.encode())}"


def _part(document: Mapping[str, Any]) -> str:
    return jose.encode(msgspec.json.encode(document))
