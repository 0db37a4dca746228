"""Credentials go only to the origin that they were given for.

`AuthorizedTransport` wraps another transport. It adds the credential, follows redirects (a document may move anywhere, a
message stays on its origin), and on 401 asks the credential for a new value, once.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urljoin, urlsplit

from dragoman.client.credentials import ClientCertificate, Credential, Outgoing
from dragoman.client.transport.network import AddressGuard
from dragoman.client.transport.tap import Tap
from dragoman.client.transport.transport import NotSent, Response, Transport
from dragoman.errors import InvalidAgentResponse

_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """`https://Agents.example/x` -> `https://agents.example:443`. Raises `NotSent` if `url` is not a URL."""
    try:
        parts = urlsplit(url)
        scheme, port = parts.scheme.lower(), parts.port
    except ValueError as error:
        raise NotSent(f"{url!r} is not a URL: {error}") from error
    return f"{scheme}://{(parts.hostname or '').lower()}:{port or _PORTS.get(scheme, 0)}"


def is_within_origin(url: str, origin: str) -> bool:
    """True if a credential for `origin` may go to `url`: the same origin, or gRPC on its host and no less secure.

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


class AuthorizedTransport:
    """Sends `credential` with requests to `origin`. `elsewhere` carries the others, if they need another transport."""

    def __init__(
        self,
        transport: Transport,
        credential: Credential | None = None,
        origin: str = "",
        *,
        elsewhere: Transport | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        certificate: ClientCertificate | None = None,
        guard: AddressGuard | None = None,
        opens_channels: bool = False,
        tap: Tap | None = None,
    ) -> None:
        self._transport = transport
        self._elsewhere = elsewhere or transport
        self.credential = credential
        self.origin = origin
        self.tls, self.proxy = tls, proxy
        """For bindings that open their own connections (gRPC)."""
        self.guard = guard
        """Checks the addresses that those bindings connect to."""
        self.opens_channels = opens_channels
        """Bindings may open their own connections: the user gave no transport that everything has to go through."""
        self.tap = tap
        """Sees what those bindings send and receive."""
        self._certificate = certificate
        self._also_close: list[Callable[[], Awaitable[object]]] = []

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        redirects = 0
        while True:
            response = await self._request_once(method, url, headers, body)
            target = response.headers.get("location", "") if response.status in _REDIRECTS else ""
            if not target:
                return response
            await response.read()
            target = _join_redirect(url, target)
            if method != "GET" and origin_of(target) != origin_of(url):
                raise InvalidAgentResponse(
                    f"{url} redirects to {target}; a message does not follow to another origin: "
                    "connect there if you trust it"
                )
            if method != "GET" and response.status == 303:
                raise InvalidAgentResponse(f"{url} took the request, and shows its answer only at {target}")
            if (redirects := redirects + 1) > _MAX_REDIRECTS:
                raise InvalidAgentResponse(f"{url} redirects in circles")
            url = target

    async def _request_once(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Response:
        carrier = self._carrier(url)
        if self.credential is None:
            return await carrier.request(method, url, headers, body)
        plain = Outgoing(url, headers)
        sent = await self.add_credential(plain)
        response = await carrier.request(method, sent.url, sent.headers, body)
        if response.status != 401 or (again := await self.renew_credential(plain, sent)) is None:
            return response
        await response.read()
        return await carrier.request(method, again.url, again.headers, body)

    def sends_credential_to(self, url: str) -> bool:
        return self.credential is not None and is_within_origin(url, self.origin)

    async def add_credential(self, request: Outgoing) -> Outgoing:
        """The request with the credential, if its URL may get it."""
        if self.credential is None or not self.sends_credential_to(request.url):
            return request
        return await self.credential.apply(request, self._elsewhere)

    async def renew_credential(self, request: Outgoing, refused: Outgoing) -> Outgoing | None:
        """The request with another credential than the `refused` one. None if there is none."""
        if self.credential is None or not self.sends_credential_to(request.url):
            return None
        again = await self.credential.apply(request, self._elsewhere)
        if again != refused:
            return again  # another call has renewed it meanwhile
        if not await self.credential.refused(self._elsewhere):
            return None
        return await self.credential.apply(request, self._elsewhere)

    def certificate_for(self, url: str) -> ClientCertificate | None:
        return self._certificate if is_within_origin(url, self.origin) else None

    def also_close(self, close: Callable[[], Awaitable[object]]) -> None:
        """Call `close` when this transport is closed."""
        self._also_close.append(close)

    @property
    def without_credentials(self) -> Transport:
        """A transport that sends no credentials and follows no redirects."""
        return self._elsewhere

    def _carrier(self, url: str) -> Transport:
        if self._elsewhere is self._transport or origin_of(url) == self.origin:
            return self._transport
        return self._elsewhere

    async def close(self) -> None:
        for close in self._also_close:
            await close()
        await self._transport.close()
        if self._elsewhere is not self._transport:
            await self._elsewhere.close()


def _join_redirect(url: str, target: str) -> str:
    try:
        joined = urljoin(url, target)
        origin_of(joined)
    except (ValueError, NotSent) as error:
        raise InvalidAgentResponse(f"{url} redirects to {target!r}, which is not a URL") from error
    return joined
