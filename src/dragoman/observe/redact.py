"""Takes secrets out of log lines and out of what the console shows.

JSON values are masked by the name of their member (`token`, `client_secret`, `Authorization`), and secrets inside texts by their
shape (`Bearer ...`, a JWT, the user and password of a URL, keys of well-known makers). A log line also has names in it
(`password=...`, `"token": "..."`): what comes after them is masked, too. A text may lose more than a secret; what is stored does
not change.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

MASK = "***"

_JWT = r"(?<![\w-])(?P<before>(?>[\w-]*?(?=eyJ)))[\w-]{10,}+\.[\w.-]*+"
"""Looks only for the first `eyJ` of a word (an atomic group), so each word is read once. `token_eyJ...` is found, too."""
_KEYS = r"""
    (?: dgm_ | atr_ | adm_ | whsec_ | \b sk- ) [A-Za-z0-9_-]{8,}
    | \b (?: op | sk | pk | rk | ghp | gho | ghs | xoxb | xoxp | glpat ) [_-] [A-Za-z0-9_-]{16,}
    | \b AKIA[A-Z0-9]{16} \b
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY----- .*? (?: -----END[ ][A-Z ]*----- | \Z )
"""
"""Tokens and keys by their first letters: ours, those of well-known makers, private keys."""
_NAMES = re.compile(
    r"(^|.*[-_. ]|.*(?<=[a-z])(?=[A-Z]))"
    r"(authorization|token|secrets?|passw(or)?d|passphrase|credentials?|api[-_ ]?key|private[-_ ]?key|cookie|signature)$",
    re.IGNORECASE,
)
_TEXTS = re.compile(
    rf"""
    (?P<scheme>\b(?:Bearer|Basic|DPoP)\s+)[A-Za-z0-9._~+/=-]{{12,}}
    | (?P<url>\b[a-z][a-z0-9+.-]{{1,20}}://)[^\s/@"'<>]{{1,500}}@
    | {_JWT}
    | {_KEYS}
    """,
    re.VERBOSE | re.DOTALL,
)
_JWT_IN_LINE = re.compile(_JWT)
_IN_LINE = re.compile(
    rf"""(?ix)
    (?P<head> (?: set-)? cookie ["'\\]* \s* [=:] \s* ) [^\r\n"']+
    | (?P<named> \b (?: bearer | basic | apikey ) \s+
        | (?: token | secret | passw(?:or)?d | credentials? | api[-_]?key | authorization ) ["'\\]* \s* [=:] \s* ["'\\]*
          (?: (?: bearer | basic | apikey | digest | hmac ) \s+ )? )
      [^\s"'\\&,;}}]{{4,}}
    | (?P<url> :// [^\s/@:]* : ) [^\s/@]+ (?= @ )
    | {_KEYS}
    """,
    re.DOTALL,
)
_SHAPES = (
    "bearer", "basic ", "dpop ", "://", "eyj", "akia", "atr_", "adm_", "op_", "dgm_", "sk-", "sk_", "pk-", "pk_", "rk-", "rk_",
    "whsec_", "ghp_", "gho_", "ghs_", "xoxb-", "xoxp-", "glpat-", "private key",
)  # fmt: skip
"""A text with none of these has no secret that could be known by its shape. To look for words is much faster than the expression."""
_WORDS = ("authoriz", "token", "secret", "passw", "passphrase", "credential", "key", "cookie", "signature")
_BYTES = tuple(word.encode() for word in (*_SHAPES, *_WORDS) if word != "://")


def suspicious(raw: bytes) -> bool:
    """False if JSON surely holds nothing to mask. Most records are not read any further."""
    lower = raw.lower()
    return any(word in lower for word in _BYTES) or (b"://" in lower and b"@" in lower)


def has_shape(text: str) -> bool:
    """False if a text surely holds nothing that `redact_text` masks."""
    lower = text.lower()
    return any(word in lower for word in _SHAPES)


def redact(value: Any, *, masked: bool = False) -> Any:
    """A JSON value without its secrets. `masked`: every string in it is one."""
    if isinstance(value, str):
        return (MASK if value else "") if masked else redact_text(value)
    if isinstance(value, dict):
        return {name: redact(item, masked=masked or is_secret_name(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, masked=masked) for item in value]
    return value


def redact_text(text: str) -> str:
    """A text without the secrets that can be known by their shape."""
    return _TEXTS.sub(_mask, text) if has_shape(text) else text


def redact_line(text: str) -> str:
    """A log line without what looks like a secret, by its shape or by the name before it."""
    text = _JWT_IN_LINE.sub(r"\g<before>***", text)
    return _IN_LINE.sub(lambda m: (m["head"] or m["named"] or m["url"] or "") + MASK, text)


def _mask(match: re.Match[str]) -> str:
    if scheme := match["scheme"]:
        return scheme + MASK
    if url := match["url"]:
        return f"{url}{MASK}@"
    return (match["before"] or "") + MASK


def is_secret_name(name: str) -> bool:
    """True for the names of members and headers that hold secrets."""
    return len(name) < 100 and _NAMES.match(name) is not None


def redact_url(url: str) -> str:
    """A URL without its user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return MASK
    user = f"{MASK}@" if "@" in parts.netloc else ""
    return urlunsplit((parts.scheme, user + host, parts.path, MASK if parts.query else "", ""))
