"""Secrets at rest: only what cannot be turned back into them.

A token we made is random, so one SHA-256 is enough, and cheap. A password was made up by a person, so it gets scrypt,
which is slow on purpose; what was found right is remembered for as long as the process runs, by a keyed hash.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from msgspec import Struct

from dragoman.errors import RateLimited, Unauthenticated
from dragoman.model.ops import Principal

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_N, _R, _P = 1 << 14, 8, 1
_REMEMBERED = 1024
_AT_ONCE, _WAITING = 2, 64
"""How many passwords are checked at a time, and how many may wait for it: each takes 16 MB and some 50 ms."""
_PREFIX = 8
"""Bytes of a hash by which it is looked up; the rest is compared in constant time."""


def new_token() -> str:
    """256 random bits, as text."""
    return "dgm_" + secrets.token_urlsafe(32)


def hashed(token: str) -> str:
    """What to keep of a token: its SHA-256, in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def hashed_password(password: str) -> str:
    """What to keep of a password: `scrypt:<salt>:<hash>`."""
    salt = secrets.token_bytes(16)
    return f"scrypt:{b64encode(salt).decode()}:{b64encode(_scrypt(password, salt)).decode()}"


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_N, r=_R, p=_P, dklen=32)


class Holder(Struct, frozen=True, kw_only=True):
    """Who holds a secret, and what it is good for."""

    secret: str | Sequence[str]
    """The hash of the secret, or of each that is good at the moment: the old one and the new one, say."""
    scopes: Sequence[str] = ()
    tenant: str = ""
    expires: str = ""
    """An ISO 8601 date or moment (UTC unless it says otherwise); never, if empty."""


Holders = Mapping[str, "str | Holder"]
"""By name, which becomes the principal's id. A bare text is the hash of the secret."""


class _Known(Struct, frozen=True):
    principal: Principal
    hashes: tuple[str, ...]
    expires: float | None

    def admitted(self) -> Principal:
        if self.expires is not None and time.time() >= self.expires:
            raise Unauthenticated("the credential has expired")
        return self.principal


def _read(name: str, holder: str | Holder) -> _Known:
    if isinstance(holder, str):
        holder = Holder(secret=holder)
    hashes = (holder.secret,) if isinstance(holder.secret, str) else tuple(holder.secret)
    expires = None
    if holder.expires:
        moment = datetime.fromisoformat(holder.expires)
        expires = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    principal = Principal(id=name, tenant=holder.tenant, scopes=frozenset(holder.scopes))
    return _Known(principal, hashes, expires)


class Tokens:
    """Finds out whose token it is."""

    def __init__(self, holders: Holders) -> None:
        self._by_prefix: dict[bytes, list[tuple[bytes, _Known]]] = {}
        for name, holder in holders.items():
            known = _read(name, holder)
            for each in known.hashes:
                if not _SHA256.fullmatch(each):
                    raise ValueError(
                        f"the secret of {name!r} is not a SHA-256 in hex: keep hashes, not secrets "
                        "(`dragoman keys token` makes a token and its hash)"
                    )
                digest = bytes.fromhex(each)
                alike = self._by_prefix.setdefault(digest[:_PREFIX], [])
                if any(other == digest for other, _ in alike):
                    raise ValueError(f"{name!r} has the same secret as somebody else")
                alike.append((digest, known))

    def find(self, token: str) -> Principal:
        """Raises `Unauthenticated`."""
        # The bytes as they came over the wire, whatever the client thinks they mean.
        return self.find_digest(hashlib.sha256(token.encode("latin-1", "replace")).digest())

    def find_digest(self, digest: bytes) -> Principal:
        for other, known in self._by_prefix.get(digest[:_PREFIX], ()):
            if hmac.compare_digest(other, digest):
                return known.admitted()
        raise Unauthenticated("the credential is not known here")


class Passwords:
    """Finds out whether a name and a password go together."""

    def __init__(self, holders: Holders) -> None:
        self._known: dict[str, _Known] = {}
        for name, holder in holders.items():
            known = self._known[name] = _read(name, holder)
            if ":" in name or not all(_is_hash(each) for each in known.hashes):
                raise ValueError(
                    f"the password of {name!r} is not hashed (`dragoman keys password` makes the hash), "
                    "or there is a colon in the name"
                )
        self._nobody = (hashed_password(secrets.token_urlsafe()),)
        self._key = secrets.token_bytes(32)
        self._right: dict[bytes, None] = {}
        self._workers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dragoman-password")
        self._waiting = 0

    async def find(self, name: str, password: str) -> Principal:
        """Raises `Unauthenticated`. Somebody who does not exist takes as long as a wrong password."""
        known = self._known.get(name)
        hashes = known.hashes if known is not None else self._nobody
        seen = hmac.digest(self._key, f"{name}:{password}".encode(), "sha256")
        if seen not in self._right:
            if not await self._check(hashes, password) or known is None:
                raise Unauthenticated("the name or the password is wrong")
            if len(self._right) >= _REMEMBERED:
                self._right.clear()
            self._right[seen] = None
        assert known is not None
        return known.admitted()

    async def _check(self, hashes: Sequence[str], password: str) -> bool:
        if self._waiting >= _WAITING:
            raise RateLimited("too many passwords have to be checked at the moment", retry_after=1)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._workers, _any_fits, hashes, password)
        finally:
            self._waiting -= 1


def _is_hash(text: str) -> bool:
    return bool(_SHA256.fullmatch(text)) or (text.startswith("scrypt:") and text.count(":") == 2)


def _any_fits(hashes: Sequence[str], password: str) -> bool:
    return any(_fits(each, password) for each in hashes)


def _fits(kept: str, password: str) -> bool:
    if kept.startswith("scrypt:"):
        _, salt, digest = kept.split(":")
        return hmac.compare_digest(b64decode(digest), _scrypt(password, b64decode(salt)))
    return hmac.compare_digest(kept.lower(), hashed(password))
