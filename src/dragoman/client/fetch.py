"""Fetch small public documents that authentication depends on, such as the keys of an issuer.

Only over https (or from loopback). Redirects are not followed. Size and time of an answer are limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from dragoman.client.transport.network import LOOPBACK_HOSTS, HttpTransport
from dragoman.client.transport.transport import Transport, read_at_most
from dragoman.errors import Unreachable

MAX_DOCUMENT_BYTES = 256 << 10
TIMEOUT_SECONDS = 10.0


class Fetcher:
    def __init__(self, transport: Transport | None = None, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self._transport, self._timeout = transport, timeout

    async def __call__(
        self, url: str, form: Mapping[str, str] | None = None, authorization: str = ""
    ) -> bytes:
        """GET `url`, or POST `form` to it. Raises `Unreachable`."""
        try:
            parts = urlsplit(url)
            plain = parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS
        except ValueError:
            raise Unreachable(f"{url[:200]!r} is not a URL") from None
        if (parts.scheme != "https" and not plain) or parts.username or parts.password:
            raise Unreachable(f"{url[:200]!r} is not an https URL without a login")
        if self._transport is None:
            self._transport = HttpTransport()
        try:
            async with asyncio.timeout(self._timeout):
                return await self._read(self._transport, url, form, authorization)
        except TimeoutError:
            raise Unreachable(f"{url} did not answer within {self._timeout:g} s") from None

    async def _read(
        self, transport: Transport, url: str, form: Mapping[str, str] | None, authorization: str
    ) -> bytes:
        headers = {"Accept": "application/json"}
        if authorization:
            headers["Authorization"] = authorization
        if form is None:
            response = await transport.request("GET", url, headers)
        else:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            response = await transport.request("POST", url, headers, urlencode(form).encode())
        try:
            if response.status != 200:
                raise Unreachable(f"{url} answered HTTP {response.status}")
            return await read_at_most(response, MAX_DOCUMENT_BYTES, url)
        finally:
            await response.close()

    async def close(self) -> None:
        if self._transport is not None:
            transport, self._transport = self._transport, None
            await transport.close()
