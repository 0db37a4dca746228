"""Encrypt the secrets of push configs in the store.

The keys are Fernet's (`dragoman keys seal` makes one). The first key seals and every key opens, so a new key goes before
the old one until nothing is left that the old one sealed. Without keys, secrets are stored as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from msgspec.structs import replace

from dragoman.errors import InvalidParams, Unavailable
from dragoman.model.ops import PushConfig

_SEALED = "sealed:"


class Seal:
    """Raises `ValueError` if a key is not a Fernet key."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = MultiFernet([Fernet(key) for key in keys]) if keys else None

    def seal(self, config: PushConfig) -> PushConfig:
        """The config as it is stored."""
        return _map_secrets(config, self._seal_text)

    def open(self, config: PushConfig) -> PushConfig:
        """The config as it was given. Raises `Unavailable` if it was sealed with another key."""
        return _map_secrets(config, self._open_text)

    def _seal_text(self, secret: str) -> str:
        if self._keys is not None:
            return _SEALED + self._keys.encrypt(secret.encode()).decode()
        if secret.startswith(_SEALED):  # `open` would take it for a sealed one
            raise InvalidParams(f"the secrets of a push config may not begin with {_SEALED}")
        return secret

    def _open_text(self, secret: str) -> str:
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
            "the key to seal push credentials is not valid: `dragoman keys seal` makes one"
        ) from None
    return keys


def new_key() -> str:
    return Fernet.generate_key().decode()


def _map_secrets(config: PushConfig, change: Callable[[str], str]) -> PushConfig:
    asked = config.authentication
    if asked is not None and asked.credentials:
        asked = replace(asked, credentials=change(asked.credentials))
    return replace(config, token=change(config.token) if config.token else "", authentication=asked)
