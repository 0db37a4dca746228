"""Origins: what a credential is bound to."""

from __future__ import annotations

from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """`https://Agents.example/x` -> `https://agents.example:443`."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return f"{scheme}://{(parts.hostname or '').lower()}:{parts.port or _PORTS.get(scheme, 0)}"
