"""The HTTP client of MCP connections: a guard checks addresses, and answers have a size limit.

It is imported for the first server with a URL, because it needs the library's HTTP client.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp.client import streamable_http

from dragoman.client.transport.network import AddressGuard, AddressRefused
from dragoman.mcp.connection import NOT_ANSWERED, NOT_SENT

for name in ("httpx2", "mcp.client.streamable_http"):
    if (library_logger := logging.getLogger(name)).level == logging.NOTSET:
        library_logger.setLevel(logging.WARNING)  # they log URLs, which may have a secret in them


def open_http(headers: dict[str, str], guard: AddressGuard | None, limit: int) -> httpx2.AsyncClient:
    """A client that sends `headers` with every request. Without a guard every address is allowed."""
    usual = streamable_http.create_mcp_http_client()
    return httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=usual.timeout,
        follow_redirects=False,
        transport=_Transport(guard, limit),
    )


class _Transport(httpx2.AsyncHTTPTransport):  # type: ignore[misc]
    """Connects to an address that the guard has checked, and stops reading answers that are too long or compressed."""

    def __init__(self, guard: AddressGuard | None, limit: int) -> None:
        super().__init__()
        self._guard, self._limit = guard, limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer to a request. If a POST gets none, an error response instead: for an exception, the library would end the whole
        connection, and with it other calls."""
        try:
            return await self._exchange(request)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            not_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
            return _error_answer(NOT_SENT if not_sent else NOT_ANSWERED, str(error) or type(error).__name__)

    async def _exchange(self, request: httpx2.Request) -> httpx2.Response:
        if self._guard is not None:
            request = await self._to_checked_address(request, self._guard)
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError(
                "the answer is compressed, although the request does not allow that"
            )
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _LimitedBody(response.stream, self._limit)
        return response

    async def _to_checked_address(self, request: httpx2.Request, guard: AddressGuard) -> httpx2.Request:
        """The same request, to one of the host's addresses. The name stays in `Host` and in TLS."""
        url = request.url
        try:
            if (check := getattr(guard, "check", None)) is not None:
                check(str(url))
            found = await guard.addresses(url.host, url.port or (443 if url.scheme == "https" else 80))
        except AddressRefused as error:
            raise httpx2.ConnectError(f"the address is refused: {error}") from error
        except OSError as error:
            raise httpx2.ConnectError(f"the name cannot be resolved: {error}") from error
        return httpx2.Request(
            request.method,
            url.copy_with(host=found[0]),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": url.host},
        )


def _error_answer(code: int, message: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(502, json=error)


class _LimitedBody(httpx2.AsyncByteStream):  # type: ignore[misc]
    """The body of an answer, up to a limit."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream, self._left = stream, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._stream:
                self._left -= len(piece)
                if self._left < 0:
                    raise httpx2.StreamError("the answer is too long")
                yield piece
        except httpx2.TransportError as error:  # for a `StreamError`, the library fails only this request
            raise httpx2.StreamError(f"the answer broke off: {error}") from error

    async def aclose(self) -> None:
        await self._stream.aclose()
