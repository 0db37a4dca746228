"""Our own keys: a directory with one file per key, readable by its owner alone.

    keys/<kid>.json        {"created": ..., "retired": ..., "jwk": {...}}

Every key that is not retired signs. A retired key is still published for a while, so that its signatures can be checked.
The id of a key is its fingerprint (RFC 7638). Key ids from outside are only compared with these ids, and never become part
of a path.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey, import_key
from msgspec import Struct

from dragoman.auth.signing import sign_card
from dragoman.model.card import Signature

log = logging.getLogger(__name__)

ALGORITHMS: dict[str, Callable[[], Key]] = {
    "ES256": lambda: ECKey.generate_key("P-256"),
    "EdDSA": lambda: OKPKey.generate_key("Ed25519"),
    "RS256": lambda: RSAKey.generate_key(3072),
}
RETIRED_SECONDS = 30 * 86_400.0
"""How long a retired key is published."""

_FILE = re.compile(r"[A-Za-z0-9_-]{1,128}\.json")
_RELOAD_SECONDS = 1.0
"""How often the directory is checked for changes."""


class _Stored(Struct, kw_only=True, omit_defaults=True):
    created: float
    retired: float = 0.0
    """When it stops being published; 0 while it signs."""
    jwk: dict[str, Any]


class OurKey(Struct, frozen=True):
    kid: str
    algorithm: str
    key: Key
    created: float
    retired: float = 0.0

    @property
    def signs(self) -> bool:
        return not self.retired

    @property
    def published(self) -> bool:
        return not self.retired or time.time() < self.retired

    def public(self) -> dict[str, Any]:
        members: dict[str, Any] = {**self.key.as_dict(private=False)}
        return {**members, "kid": self.kid, "alg": self.algorithm, "use": "sig"}


def new_key(algorithm: str = "ES256") -> OurKey:
    if algorithm not in ALGORITHMS:
        raise ValueError(f"we sign with {', '.join(ALGORITHMS)}, not with {algorithm!r}")
    key = ALGORITHMS[algorithm]()
    return OurKey(key.thumbprint(), algorithm, key, time.time())


class KeyRing:
    """The keys in a directory, or those given. Changes of the directory are noticed without a restart.

    `jku` is put into signatures: where others find the public keys.
    """

    def __init__(self, where: str | Path | Sequence[OurKey], *, jku: str = "") -> None:
        self._path = Path(where) if isinstance(where, str | Path) else None
        self.jku = jku
        self._keys: tuple[OurKey, ...] = () if isinstance(where, str | Path) else tuple(where)
        self._changed, self._wrong = 0, ""
        self._checked_at = float("-inf")
        if self._path is not None and self._path.exists() and not self._path.is_dir():
            raise ValueError(f"{self._path} is not a directory")

    @property
    def stamp(self) -> object:
        """Changes when the signing or published keys change."""
        return tuple((key.kid, key.signs) for key in self.keys if key.published)

    @property
    def keys(self) -> tuple[OurKey, ...]:
        """Newest first."""
        if self._path is not None and time.monotonic() - self._checked_at >= _RELOAD_SECONDS:
            self._checked_at = time.monotonic()
            self._reload(self._path)
        return self._keys

    def _reload(self, path: Path) -> None:
        """Raises `ValueError` if a file is not a key, unless there are keys already; those stay."""
        changed = path.stat().st_mtime_ns if path.is_dir() else 0
        if changed == self._changed:
            return
        try:
            found = sorted(_load(path), key=lambda key: -key.created)
        except (OSError, ValueError) as error:
            if not self._keys:
                raise
            if str(error) != self._wrong:
                self._wrong = str(error)
                log.error("the keys have changed and cannot be read, so the old ones stay in use: %s", error)
        else:
            self._keys, self._changed, self._wrong = tuple(found), changed, ""

    def sign(self, document: Mapping[str, Any]) -> Sequence[Signature]:
        """The signatures for a card, from the document that is served: by every key that signs."""
        return [
            signature
            for key in self.keys
            if key.signs
            for signature in sign_card(document, key.key, key.algorithm, key.kid, jku=self.jku)
        ]

    def public(self) -> dict[str, Any]:
        """The JWK set for others to check our signatures with."""
        return {"keys": [key.public() for key in self.keys if key.published]}

    # -- changing what is there --------------------------------------------------------------------------------

    def add(self, algorithm: str = "ES256") -> OurKey:
        """A new key, which signs from now on."""
        key = new_key(algorithm)
        self._write(key)
        return key

    def rotate(self, algorithm: str = "ES256", *, keep: float = RETIRED_SECONDS) -> OurKey:
        """A new key instead of those that sign; they are published for `keep` more seconds. Older ones are deleted."""
        before = self.keys
        key = self.add(algorithm)
        for old in before:
            if old.signs:
                self._write(msgspec.structs.replace(old, retired=time.time() + keep))
            elif not old.published and self._path is not None:
                (self._path / f"{old.kid}.json").unlink(missing_ok=True)
        return key

    def _write(self, key: OurKey) -> None:
        if self._path is None:
            raise ValueError("these keys are not in a directory")
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        stored = _Stored(
            created=key.created,
            retired=key.retired,
            jwk={**key.key.as_dict(private=True), "kid": key.kid, "alg": key.algorithm},
        )
        path = self._path / f"{key.kid}.json"
        beside = path.with_suffix(".new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(stored), indent=2))
        beside.replace(path)
        self._checked_at = float("-inf")


def _load(path: Path) -> list[OurKey]:
    found = []
    for file in sorted(path.iterdir()):
        if not _FILE.fullmatch(file.name):
            continue
        if os.name == "posix" and file.stat().st_mode & 0o077:
            raise ValueError(f"{file} can be read by others: chmod 600 {file}")
        try:
            stored = msgspec.json.decode(file.read_bytes(), type=_Stored)
            key = import_key(stored.jwk)
        except (msgspec.DecodeError, JoseError, ValueError) as error:
            raise ValueError(f"{file} is not a key: {error}") from error
        algorithm = stored.jwk.get("alg", "")
        if algorithm not in ALGORITHMS or not key.is_private:
            raise ValueError(f"{file} is not a private key for {', '.join(ALGORITHMS)}")
        found.append(OurKey(key.thumbprint(), algorithm, key, stored.created, stored.retired))
    return found
