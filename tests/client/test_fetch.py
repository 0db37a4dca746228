"""Documents of issuers: fetched only from the given URL, with limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dragoman.client.fetch import MAX_DOCUMENT_BYTES, Fetcher
from dragoman.errors import Unreachable
from tests.requirements import requirement
from tests.waiting import forever


@asynccontextmanager
async def answering(
    answer: bytes | Callable[[asyncio.StreamWriter], object],
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that says one thing, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if callable(answer):
            await answer(writer)  # type: ignore[misc]
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys", asked


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def fetched(url: str, *, timeout: float = 5.0) -> bytes:
    fetcher = Fetcher(timeout=timeout)
    try:
        return await fetcher(url)
    finally:
        await fetcher.close()


async def test_a_document_is_fetched_without_credentials() -> None:
    async with answering(http(b"{}")) as (url, asked):
        assert await fetched(url) == b"{}"
    assert asked[0].startswith(b"GET /keys HTTP/1.1\r\n") and b"uthorization" not in asked[0]


@pytest.mark.parametrize(
    "status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"]
)
async def test_a_redirect_is_not_followed(status: str) -> None:
    async with (
        answering(http(b"{}")) as (there, elsewhere),
        answering(http(b"", status, f"Location: {there}")) as (url, _),
    ):
        with pytest.raises(Unreachable, match=status[:3]):
            await fetched(url)
        assert elsewhere == []


@pytest.mark.parametrize("status", ["204 No Content", "404 Not Found", "500 Oops", "206 Partial Content"])
async def test_only_200_is_an_answer(status: str) -> None:
    async with answering(http(b"", status)) as (url, _):
        with pytest.raises(Unreachable, match=status[:3]):
            await fetched(url)


async def test_a_document_that_does_not_end_is_given_up() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                await writer.drain()
        except OSError:
            pass

    async with answering(endless) as (url, _):
        with pytest.raises(Unreachable, match=f"more than {MAX_DOCUMENT_BYTES >> 10} KB"):
            await fetched(url)


async def test_a_document_that_never_begins_is_given_up() -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await forever()

    async with answering(silent) as (url, _):
        with pytest.raises(Unreachable, match="did not answer"):
            await fetched(url, timeout=0.05)


@requirement(34)
@pytest.mark.parametrize(
    "url",
    [
        "http://keys.example/jwks.json",
        "http://127.0.0.1.example/",
        "http://user:pass@127.0.0.1/",
        "https://user@keys.example/",
        "file:///etc/passwd",
        "ftp://keys.example/",
        "//keys.example/jwks.json",
        "keys.json",
        "",
        "https://[::1",
        "gopher://127.0.0.1:70/",
    ],
)
async def test_anything_but_https_is_refused(url: str) -> None:
    with pytest.raises(Unreachable):
        await fetched(url)
