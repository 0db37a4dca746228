"""Where credentials may go: to the origin they were given for, and nowhere else.

A `Transport` around another one. It adds the credential, follows redirects (a document may move anywhere, a message
stays on its origin), and on 401 asks the credential for a new proof, once.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urljoin

from dragoman.client.credentials import ClientCertificate, Credential, Outgoing
from dragoman.client.origin import origin_of, within
from dragoman.client.transport.network import AddressGuard
from dragoman.client.transport.transport import NotSent, Response, Transport
from dragoman.errors import InvalidAgentResponse

_MOVED = (301, 302, 303, 307, 308)
_MAX_MOVES = 5


class Authorized:
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
    ) -> None:
        self._transport = transport
        self._elsewhere = elsewhere or transport
        self.credential = credential
        self.origin = origin
        self.tls, self.proxy = tls, proxy
        """Whom to believe, and the way there; for bindings that connect by themselves."""
        self.guard = guard
        """Checks the addresses that those bindings connect to."""
        self.opens_channels = opens_channels
        """Bindings may connect by themselves: nobody gave us a transport that everything has to go through."""
        self._certificate = certificate
        self._also_close: list[Callable[[], Awaitable[object]]] = []

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        moves = 0
        while True:
            response = await self._once(method, url, headers, body)
            there = response.headers.get("location", "") if response.status in _MOVED else ""
            if not there:
                return response
            await response.read()
            there = _joined(url, there)
            if method != "GET" and (response.status == 303 or origin_of(there) != origin_of(url)):
                raise InvalidAgentResponse(
                    f"{url} redirects to {there}; a message does not follow to another origin: "
                    "connect there if you trust it"
                )
            if (moves := moves + 1) > _MAX_MOVES:
                raise InvalidAgentResponse(f"{url} redirects in circles")
            url = there

    async def _once(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Response:
        carrier = self._carrier(url)
        if self.credential is None:
            return await carrier.request(method, url, headers, body)
        plain = Outgoing(url, headers)
        shown = await self.shown(plain)
        response = await carrier.request(method, shown.url, shown.headers, body)
        if response.status != 401 or (again := await self.renewed(plain, shown)) is None:
            return response
        await response.read()
        return await carrier.request(method, again.url, again.headers, body)

    def reaches(self, url: str) -> bool:
        """Whether the credential is shown at `url`."""
        return self.credential is not None and within(url, self.origin)

    async def shown(self, request: Outgoing) -> Outgoing:
        """A request with the credential in it, if it may be."""
        if self.credential is None or not self.reaches(request.url):
            return request
        return await self.credential.apply(request, self._elsewhere)

    async def renewed(self, request: Outgoing, refused: Outgoing) -> Outgoing | None:
        """The request with another proof than the one that was `refused`; None if there is none."""
        if self.credential is None or not self.reaches(request.url):
            return None
        again = await self.credential.apply(request, self._elsewhere)
        if again != refused:
            return again  # another call has renewed it meanwhile
        if not await self.credential.refused(self._elsewhere):
            return None
        return await self.credential.apply(request, self._elsewhere)

    def certificate_for(self, url: str) -> ClientCertificate | None:
        return self._certificate if within(url, self.origin) else None

    def also_close(self, close: Callable[[], Awaitable[object]]) -> None:
        """Close something with this transport."""
        self._also_close.append(close)

    @property
    def plain(self) -> Transport:
        """What carries requests without credentials and follows no redirects."""
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


def _joined(url: str, there: str) -> str:
    try:
        joined = urljoin(url, there)
        origin_of(joined)
    except (ValueError, NotSent) as error:
        raise InvalidAgentResponse(f"{url} redirects to {there!r}, which is not a URL") from error
    return joined
