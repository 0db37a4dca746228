"""What a push config lets us show, sealed while it is kept: who reads the database cannot be us.

The keys are Fernet's (`dragoman keys seal` makes one). The first seals and every one opens, so a new key goes before the
old one until nothing is left that the old one sealed. Without keys, credentials are kept as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from msgspec.structs import replace

from dragoman.errors import InvalidParams, Unavailable
from dragoman.model.ops import PushConfig

_SEALED = "sealed:"


class Seal:
    """Raises `ValueError` for what is no key."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = MultiFernet([Fernet(key) for key in keys]) if keys else None

    def close(self, config: PushConfig) -> PushConfig:
        """As it is kept."""
        return _secrets(config, self._close)

    def open(self, config: PushConfig) -> PushConfig:
        """As it came. Raises `Unavailable` if it was sealed with a key that we do not have."""
        return _secrets(config, self._open)

    def _close(self, secret: str) -> str:
        if self._keys is not None:
            return _SEALED + self._keys.encrypt(secret.encode()).decode()
        if secret.startswith(_SEALED):  # we would take it for one that we cannot open
            raise InvalidParams(f"the secrets of a push config may not begin with {_SEALED}")
        return secret

    def _open(self, secret: str) -> str:
        if not secret.startswith(_SEALED):
            return secret
        try:
            if self._keys is None:
                raise InvalidToken
            return self._keys.decrypt(secret.removeprefix(_SEALED)).decode()
        except InvalidToken:
            raise Unavailable("the push config is sealed with a key that is not here") from None


def read_keys(text: str) -> tuple[str, ...]:
    """The keys in a setting, with commas between them. Raises `ValueError`."""
    keys = tuple(key.strip() for key in text.split(",") if key.strip())
    try:
        Seal(keys)
    except ValueError:
        raise ValueError(
            "what is to seal push credentials is no key: `dragoman keys seal` makes one"
        ) from None
    return keys


def new_key() -> str:
    return Fernet.generate_key().decode()


def _secrets(config: PushConfig, change: Callable[[str], str]) -> PushConfig:
    asked = config.authentication
    if asked is not None and asked.credentials:
        asked = replace(asked, credentials=change(asked.credentials))
    return replace(config, token=change(config.token) if config.token else "", authentication=asked)
