"""Origins: what a credential is bound to."""

from __future__ import annotations

from urllib.parse import urlsplit

from dragoman.client.transport.transport import NotSent

_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """`https://Agents.example/x` -> `https://agents.example:443`. Raises `NotSent` for what is no URL."""
    try:
        parts = urlsplit(url)
        scheme, port = parts.scheme.lower(), parts.port
    except ValueError as error:
        raise NotSent(f"{url!r} is not a URL: {error}") from error
    return f"{scheme}://{(parts.hostname or '').lower()}:{port or _PORTS.get(scheme, 0)}"


def within(url: str, origin: str) -> bool:
    """Whether what is meant for `origin` may go to `url`: the same origin, or gRPC on its host and no less safe.

    gRPC has a port of its own, and a host that gets a credential on one port could pass it to any other.
    """
    if origin_of(url) == origin:
        return True
    there, here = urlsplit(url), urlsplit(origin)
    return (
        there.scheme in ("grpc", "grpcs")
        and (there.hostname or "").lower() == here.hostname
        and (there.scheme == "grpcs" or here.scheme == "http")
    )
