"""What a push config may ask us to show, and whether it fits into a header."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec

from dragoman.errors import InvalidParams
from dragoman.model.ops import PushConfig

MAX_ID = 128
MAX_TOKEN = 2048
MAX_CREDENTIALS = 8192

_VISIBLE = re.compile(r"[!-~]([ -~]*[!-~])?")
"""What survives the way through a header unchanged."""
_HTTP_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_OURS = re.compile(
    r"host|content-.*|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect|proxy-.*|webhook-.*|dragoman-.*"
    r"|x-a2a-.*|a2a-.*|traceparent|tracestate|user-agent",
    re.IGNORECASE,
)
"""Headers that say something else already."""


def is_api_key(scheme: str) -> bool:
    return re.sub("[^a-z]", "", scheme.lower()) == "apikey"


def is_hmac(scheme: str) -> bool:
    return scheme.lower() in ("hmac", "hmac-sha256")


def api_key(credentials: str) -> tuple[str, str]:
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
    """Raises `InvalidParams` for what is too long, or would be read as something else once it is in a header."""
    if len(config.id) > MAX_ID or not config.id.isprintable():
        _refuse("id", f"must be printable, and no longer than {MAX_ID} characters")
    _check("token", config.token, MAX_TOKEN)
    asked = config.authentication
    if asked is None:
        return
    if not _HTTP_TOKEN.fullmatch(asked.scheme):
        _refuse("authentication.scheme", "is not the name of an authentication scheme")
    _check("authentication.credentials", asked.credentials, MAX_CREDENTIALS)
    if asked.credentials and is_api_key(asked.scheme):
        name, value = api_key(asked.credentials)
        if not _HTTP_TOKEN.fullmatch(name) or _OURS.fullmatch(name):
            _refuse("authentication.credentials", "names a header that cannot be had")
        _check("authentication.credentials", value, MAX_CREDENTIALS)


def _check(field: str, value: str, longest: int) -> None:
    if len(value) > longest:
        _refuse(field, f"is longer than {longest} characters")
    if value and not _VISIBLE.fullmatch(value):
        _refuse(field, "has characters that do not fit into a header")


def _refuse(field: str, why: str) -> NoReturn:
    raise InvalidParams(f"the push config's {field} {why}", fields=((field, why),))
