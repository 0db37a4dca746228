"""Secrets at rest: only hashes are stored.

A token that we make is random, so one SHA-256 is enough, and cheap. A password is chosen by a person, so it gets scrypt,
which is slow on purpose; correct passwords are cached by a keyed hash. Holders of secrets can be in a file:

    {"ada": "HASH", "bob": {"secret": ["OLD HASH", "NEW HASH"], "scopes": ["read"], "expires": "2027-01-01"}}
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from dragoman.errors import RateLimited, Unauthenticated
from dragoman.model.ops import Principal

log = logging.getLogger(__name__)

T = TypeVar("T")

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_N, _R, _P = 1 << 14, 8, 1
_MAX_CACHED_PASSWORDS = 1024
_MAX_PARALLEL_CHECKS, _MAX_WAITING_CHECKS = 2, 64
"""Of passwords: each check takes 16 MB and some 50 ms."""
_PREFIX_BYTES = 8
"""How much of a hash is used to look it up; all of it is compared in constant time."""
_RELOAD_SECONDS = 1.0
"""How often a file is checked for changes."""


def new_token() -> str:
    """256 random bits, as text."""
    return "dgm_" + secrets.token_urlsafe(32)


def hashed(token: str) -> str:
    """The hash of a token to store: its SHA-256, in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def hashed_password(password: str) -> str:
    """The hash of a password to store: `scrypt:<salt>:<hash>`."""
    salt = secrets.token_bytes(16)
    return f"scrypt:{b64encode(salt).decode()}:{b64encode(_scrypt(password, salt)).decode()}"


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_N, r=_R, p=_P, dklen=32)


class Holder(Struct, frozen=True, kw_only=True):
    """The holder of a secret, with its scopes, tenant and expiry."""

    secret: str | Sequence[str]
    """The hash of the secret, or of each that is valid: the old one and the new one, for example."""
    scopes: Sequence[str] = ()
    tenant: str = ""
    expires: str = ""
    """An ISO 8601 date or time (UTC by default); empty for never."""


Holders = Mapping[str, "str | Holder"]
"""By name, which becomes the principal's id. A string is the hash of the secret."""


class _Entry(Struct, frozen=True):
    principal: Principal
    hashes: tuple[str, ...]
    expires: float | None

    def check_expiry(self) -> Principal:
        if self.expires is not None and time.time() >= self.expires:
            raise Unauthenticated("the credential has expired")
        return self.principal


def _read(name: str, holder: str | Holder) -> _Entry:
    if isinstance(holder, str):
        holder = Holder(secret=holder)
    hashes = (holder.secret,) if isinstance(holder.secret, str) else tuple(holder.secret)
    expires = None
    if holder.expires:
        expiry = datetime.fromisoformat(holder.expires)
        expires = (expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)).timestamp()
    principal = Principal(id=name, tenant=holder.tenant, scopes=frozenset(holder.scopes))
    return _Entry(principal, hashes, expires)


class TokenHolders:
    """Finds the holder of a token."""

    def __init__(self, holders: Holders) -> None:
        self._by_prefix: dict[bytes, list[tuple[bytes, _Entry]]] = {}
        for name, holder in holders.items():
            known = _read(name, holder)
            for each in known.hashes:
                if not _SHA256.fullmatch(each):
                    raise ValueError(
                        f"the secret of {name!r} is not a SHA-256 in hex: keep hashes, not secrets "
                        "(`dragoman keys token` makes a token and its hash)"
                    )
                digest = bytes.fromhex(each)
                alike = self._by_prefix.setdefault(digest[:_PREFIX_BYTES], [])
                if any(other == digest for other, _ in alike):
                    raise ValueError(f"{name!r} has the same secret as another holder")
                alike.append((digest, known))

    def find(self, token: str) -> Principal:
        """Raises `Unauthenticated`."""
        # The bytes as they came over the wire, in any encoding.
        return self.find_digest(hashlib.sha256(token.encode("latin-1", "replace")).digest())

    def find_digest(self, digest: bytes) -> Principal:
        for other, known in self._by_prefix.get(digest[:_PREFIX_BYTES], ()):
            if hmac.compare_digest(other, digest):
                return known.check_expiry()
        raise Unauthenticated("the credential is not known here")


class PasswordHolders:
    """Checks a name and a password."""

    def __init__(self, holders: Holders) -> None:
        self._known: dict[str, _Entry] = {}
        for name, holder in holders.items():
            known = self._known[name] = _read(name, holder)
            if ":" in name or not all(_is_hash(each) for each in known.hashes):
                raise ValueError(
                    f"the password of {name!r} is not hashed (`dragoman keys password` makes the hash), "
                    "or there is a colon in the name"
                )
        self._unknown_user = (hashed_password(secrets.token_urlsafe()),)
        self._key = secrets.token_bytes(32)
        self._correct: dict[bytes, None] = {}
        self._workers = ThreadPoolExecutor(_MAX_PARALLEL_CHECKS, thread_name_prefix="dragoman-password")
        self._waiting = 0

    async def find(self, name: str, password: str) -> Principal:
        """Raises `Unauthenticated`. An unknown name takes as long as a wrong password."""
        known = self._known.get(name)
        hashes = known.hashes if known is not None else self._unknown_user
        seen = hmac.digest(self._key, f"{name}:{password}".encode(), "sha256")
        if seen not in self._correct:
            if not await self._check(hashes, password) or known is None:
                raise Unauthenticated("the name or the password is wrong")
            if len(self._correct) >= _MAX_CACHED_PASSWORDS:
                self._correct.clear()
            self._correct[seen] = None
        assert known is not None
        return known.check_expiry()

    async def _check(self, hashes: Sequence[str], password: str) -> bool:
        if self._waiting >= _MAX_WAITING_CHECKS:
            raise RateLimited("too many passwords have to be checked at the moment", retry_after=1)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._workers, _matches_any, hashes, password)
        finally:
            self._waiting -= 1


def _is_hash(text: str) -> bool:
    return bool(_SHA256.fullmatch(text)) or (text.startswith("scrypt:") and text.count(":") == 2)


def _matches_any(hashes: Sequence[str], password: str) -> bool:
    return any(_matches(each, password) for each in hashes)


def _matches(stored: str, password: str) -> bool:
    if stored.startswith("scrypt:"):
        _, salt, digest = stored.split(":")
        return hmac.compare_digest(b64decode(digest), _scrypt(password, b64decode(salt)))
    return hmac.compare_digest(stored.lower(), hashed(password))


class ReloadedHolders(Generic[T]):
    """Holders that are given, or read from a file again when it changes; `make` builds the table to look them up in.

    A file that is missing or invalid changes nothing: the last valid content stays in force, and the log says why.
    """

    def __init__(self, holders: Holders | str | Path, make: Callable[[Holders], T]) -> None:
        self._make = make
        self._checked_at = time.monotonic()
        self._path: Path | None = None
        if isinstance(holders, str | Path):
            self._path = Path(holders)
            self._changes = FileChanges(self._path)
            try:
                self._made = make(_read_file(self._path))
            except ValueError as error:
                raise ValueError(f"{self._path.name} cannot be read: {error}") from None
        else:
            self._made = make(holders)

    def current(self) -> T:
        if self._path is not None and time.monotonic() - self._checked_at >= _RELOAD_SECONDS:
            self._checked_at = time.monotonic()
            if self._changes.found():
                self._reload(self._path)
        return self._made

    def _reload(self, path: Path) -> None:
        try:
            self._made = self._make(_read_file(path))
            log.info("%s was reloaded", path.name)
        except (OSError, ValueError) as error:
            log.error("%s cannot be read, so its last valid content stays in force: %s", path.name, error)


def file_stamp(*files: str | Path) -> object:
    """A value that changes when one of the files changes. Raises `OSError`."""
    stats = [Path(file).stat() for file in files]
    return [(each.st_mtime_ns, each.st_size, each.st_ino) for each in stats]


class FileChanges:
    """Notices when one of some files changes. Raises `OSError` if one is not there at first."""

    def __init__(self, *files: str | Path) -> None:
        self._files, self._stamp = files, file_stamp(*files)

    def found(self) -> bool:
        """True if a file has changed since the last call. That a file is missing is a change once."""
        before = self._stamp
        try:
            self._stamp = file_stamp(*self._files)
        except OSError as error:
            self._stamp = str(error)
        return self._stamp != before


def _read_file(path: Path) -> Holders:
    """Raises `OSError` or `ValueError`."""
    shape = '{"NAME": "HASH"} or {"NAME": {"secret": "HASH", "scopes": [...]}}'
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str | Holder])
    except msgspec.ValidationError as error:
        raise ValueError(f"it should be {shape}: {error}") from None
