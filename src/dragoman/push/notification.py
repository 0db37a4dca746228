"""Build a notification: its body, and the headers that authenticate it.

The body is written in the dialect in which the webhook was registered. 1.0 gets every update as it is, wrapped as in a
stream. Older versions get the whole task when it ends or is interrupted, or on request at every change of its status.

    X-A2A-Notification-Token    the token of the config
    Authorization               what the config asks for; else our signed token, if we have keys
    Dragoman-Token              our signed token, if Authorization is used
    webhook-id                  the delivery: the same at every attempt
    webhook-timestamp           when this attempt was made, in Unix seconds
    webhook-signature           v1,base64(HMAC-SHA256(secret, "id.timestamp.body")), if there is a secret

The last three are those of the Standard Webhooks specification, so its libraries can check them. Our signed token is a
JWT: iss, aud (the URL), iat, exp, jti (the delivery), task_id, request_body_sha256.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.auth import jose
from dragoman.auth.keys import KeyRing
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.select import DIALECTS
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Record
from dragoman.errors import InvalidParams
from dragoman.model.content import Message
from dragoman.model.ops import GET, PUSH_CREATE, SEND, AuthenticationInfo, PushConfig
from dragoman.model.task import StatusUpdate, Task

TOKEN_HEADER = "X-A2A-Notification-Token"
JWT_HEADER = "Dragoman-Token"
_TOKEN_LIFETIME_SECONDS = 300
_MAX_ID_CHARS = 128
_MAX_TOKEN_CHARS = 2048
_MAX_CREDENTIALS_CHARS = 8192
_NEWEST = "1.0"

_VISIBLE = re.compile(r"[!-~]([ -~]*[!-~])?")
"""Text that a header carries unchanged."""
_HTTP_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_RESERVED_HEADERS = re.compile(
    r"host|content-.*|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect|proxy-.*|webhook-.*|dragoman-.*"
    r"|x-a2a-.*|a2a-.*|traceparent|tracestate|user-agent",
    re.IGNORECASE,
)
"""Headers that an API key may not replace."""


class Notification(Struct, frozen=True):
    body: bytes
    content_type: str
    version: str
    """The `A2A-Version` header; empty for none."""


async def build_notification(
    dialect: str, record: Record, task: Callable[[], Awaitable[Task]], *, every_status: bool = False
) -> Notification | None:
    """The notification of a record; None if the webhook does not get one. `task` returns the task as of that record."""
    written = _payload_dialect(dialect)
    if not record.public:
        return None
    if written.model_json:
        (body,) = written.writer().write(record, last=record.terminal)
        return Notification(body, "application/a2a+json", written.version)
    event = record.event
    if isinstance(event, Message):
        return _write_older(written, event)
    if isinstance(event, StatusUpdate) and (record.settles or every_status):
        return _write_older(written, await task())
    return None


def _payload_dialect(name: str) -> Dialect:
    """The dialect to write in. 0.3 has one payload for all bindings. Dialects without push notifications get the newest."""
    dialect = DIALECTS.get(name)
    if dialect is None or not dialect.method(PUSH_CREATE):
        return DIALECTS[_NEWEST]
    return DIALECTS["0.3"] if dialect.family == "0.3" else dialect


def _write_older(dialect: Dialect, news: Task | Message) -> Notification:
    if dialect.names_tasks and isinstance(news, Task):
        news = replace(news, history=())  # these versions send the history only on request
    body = dialect.write_result(GET if isinstance(news, Task) else SEND, news)
    if dialect.names_tasks:  # the specification only shows an example with this member
        id = news.id if isinstance(news, Task) else news.task_id
        body = b'{"taskId":' + msgspec.json.encode(id) + b"," + body[1:]
    return Notification(body, "application/json", dialect.version)


def build_auth_headers(
    webhook: StoredPushConfig,
    delivery: str,
    task: str,
    body: bytes,
    *,
    secret: str = "",
    keys: KeyRing | None = None,
    issuer: str = "",
) -> dict[str, str]:
    """The headers that authenticate a notification."""
    config, now = webhook.config, int(time.time())
    headers = {"webhook-id": delivery, "webhook-timestamp": str(now)}
    if config.token:
        headers[TOKEN_HEADER] = config.token
    asked = config.authentication
    headers |= _config_headers(asked)
    secrets = [secret] if secret else []
    if asked is not None and asked.credentials and _is_hmac(asked.scheme):
        secrets.insert(0, asked.credentials)
    if secrets:
        headers["webhook-signature"] = sign_hmac(secrets, delivery, now, body)
    if keys is not None and (token := _sign_token(keys, issuer, config.url, delivery, task, body, now)):
        where = JWT_HEADER if "Authorization" in headers else "Authorization"
        headers[where] = token if where == JWT_HEADER else f"Bearer {token}"
    return headers


def _config_headers(asked: AuthenticationInfo | None) -> dict[str, str]:
    if asked is None or not asked.credentials or _is_hmac(asked.scheme):
        return {}
    if _is_api_key(asked.scheme):
        name, value = _read_api_key(asked.credentials)
        return {name: value}
    credentials = asked.credentials
    if asked.scheme.lower() == "basic" and ":" in credentials:
        credentials = b64encode(credentials.encode()).decode()
    return {"Authorization": f"{asked.scheme} {credentials}"}


def sign_hmac(secrets: Sequence[str], delivery: str, timestamp: int, body: bytes) -> str:
    """One signature for each secret, so that a secret can be replaced without a gap."""
    signed = f"{delivery}.{timestamp}.".encode() + body
    digests = [hmac.digest(_hmac_key(secret), signed, hashlib.sha256) for secret in secrets]
    return " ".join(f"v1,{b64encode(digest).decode()}" for digest in digests)


def _hmac_key(secret: str) -> bytes:
    """`whsec_` and base64, or the text itself."""
    if secret.startswith("whsec_"):
        try:
            return b64decode(secret[6:], validate=True)
        except Error:
            pass
    return secret.encode()


def hash_body(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _sign_token(
    keys: KeyRing, issuer: str, audience: str, delivery: str, task: str, body: bytes, now: int
) -> str:
    key = next((key for key in keys.keys if key.signs), None)
    if key is None:
        return ""
    claims = {
        "iss": issuer,
        "aud": audience,
        "iat": now,
        "exp": now + _TOKEN_LIFETIME_SECONDS,
        "jti": delivery,
        "task_id": task,
        "request_body_sha256": hash_body(body),
    }
    signed = f"{_encode_part({'alg': key.algorithm, 'kid': key.kid, 'typ': 'JWT'})}.{_encode_part(claims)}"
    return f"{signed}.{jose.sign(key.key, key.algorithm, signed.encode())}"


def _encode_part(document: Mapping[str, Any]) -> str:
    return jose.encode(msgspec.json.encode(document))


def _is_api_key(scheme: str) -> bool:
    return re.sub("[^a-z]", "", scheme.lower()) == "apikey"


def _is_hmac(scheme: str) -> bool:
    return scheme.lower() in ("hmac", "hmac-sha256")


def _read_api_key(credentials: str) -> tuple[str, str]:
    """The header of an API key and its value: `{"in": "header", "name": ..., "value": ...}`, or just the key."""
    document: Any = None
    if credentials.lstrip().startswith("{"):
        try:
            document = msgspec.json.decode(credentials)
        except msgspec.DecodeError:
            pass
    if not isinstance(document, dict):
        return "X-API-Key", credentials
    name, value = document.get("name", "X-API-Key"), document.get("value")
    if document.get("in", "header") != "header" or not isinstance(name, str) or not isinstance(value, str):
        _refuse("authentication.credentials", "must name a header and a value")
    return name, value


def check_credentials(config: PushConfig) -> None:
    """Raises `InvalidParams` for text that is too long, or that a header does not carry unchanged."""
    if len(config.id) > _MAX_ID_CHARS or not config.id.isprintable():
        _refuse("id", f"must be printable, and no longer than {_MAX_ID_CHARS} characters")
    _check_text("token", config.token, _MAX_TOKEN_CHARS)
    asked = config.authentication
    if asked is None:
        return
    if not _HTTP_TOKEN.fullmatch(asked.scheme):
        _refuse("authentication.scheme", "is not the name of an authentication scheme")
    _check_text("authentication.credentials", asked.credentials, _MAX_CREDENTIALS_CHARS)
    if asked.credentials and _is_api_key(asked.scheme):
        name, value = _read_api_key(asked.credentials)
        if not _HTTP_TOKEN.fullmatch(name) or _RESERVED_HEADERS.fullmatch(name):
            _refuse("authentication.credentials", "names a header that is reserved")
        _check_text("authentication.credentials", value, _MAX_CREDENTIALS_CHARS)


def _check_text(field: str, value: str, longest: int) -> None:
    if len(value) > longest:
        _refuse(field, f"is longer than {longest} characters")
    if value and not _VISIBLE.fullmatch(value):
        _refuse(field, "has characters that do not fit into a header")


def _refuse(field: str, why: str) -> NoReturn:
    raise InvalidParams(f"the push config's {field} {why}", fields=((field, why),))
