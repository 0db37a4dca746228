"""How push notifications are sent, and where to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """The first group decides which addresses are allowed; see `push/guard.py`."""

    allow_private: bool = False
    only: tuple[str, ...] = ()
    trust: tuple[str, ...] = ()
    http: bool = False
    ports: tuple[int, ...] = ()

    challenge: bool = False
    """A webhook must first answer `GET url?validationToken=x` with x."""
    secret: str = field(default="", repr=False)
    """Signs every notification (HMAC), besides what a config asks for."""
    seal: tuple[str, ...] = field(default=(), repr=False)
    """Keys that seal the secrets of configs in the store; see `push/seal.py`."""
    issuer: str = ""
    """The issuer in our signed tokens; by default the public URL of the server."""
    every_status: bool = False
    """Versions before 1.0 get every change of status, not only ends and questions."""

    timeout: float = 15.0
    """Seconds for one attempt, from connecting to the end of the answer."""
    pause: float = 1.0
    """Seconds before the second attempt; each further pause is twice as long, give or take."""
    longest_pause: float = 1800.0
    max_attempts: int = 60
    give_up_after: float = 86_400.0
    """Seconds since the first of these attempts."""
    concurrency: int = 64
    """Requests at the same time."""
    per_origin: int = 8
    """Of these, to the same host and port."""


DEFAULTS = PushOptions()
