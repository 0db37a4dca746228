"""Web search: the three engines against servers that answer as they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dragoman.client.transport.network import AddressRefused
from dragoman.errors import A2AError
from dragoman.hub.settings import InvalidSetting, Settings, load_settings
from dragoman.hub.tools.web import MAX_ANSWER_BYTES, SearchEngine
from dragoman.push.guard import Guard
from tests.hub.house import house

BRAVE = {
    "web": {"results": [{"title": "<b>Tea</b>", "url": "https://tea.example", "description": "a  drink"}]}
}
OTHERS = {"results": [{"title": "Tea", "url": "https://tea.example", "content": "a drink", "score": 0.9}]}


class FakeEngine:
    def __init__(self, answer: bytes, status: int) -> None:
        self._answer, self._status = answer, status
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        """Of each request: its first line, its headers and its body."""
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.asked.append((head[0], headers, body))
        start = (
            f"HTTP/1.1 {self._status} X\r\nConnection: close\r\nContent-Length: {len(self._answer)}\r\n\r\n"
        )
        writer.write(start.encode() + self._answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def fake_engine(answer: Any, status: int = 200) -> AsyncIterator[FakeEngine]:
    raw = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    engine = FakeEngine(raw, status)
    server = await asyncio.start_server(engine.answer, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield engine


async def search(engine: str, url: str, **options: Any) -> list[Any]:
    found = SearchEngine(engine, url=url, key="k-1", **options)
    try:
        return list(await found.search("green tea", 5))
    finally:
        await found.close()


@pytest.mark.parametrize(("engine", "answer"), [("brave", BRAVE), ("searxng", OTHERS), ("tavily", OTHERS)])
async def test_each_engine_is_asked_and_read_in_its_own_way(engine: str, answer: Any) -> None:
    async with fake_engine(answer) as fake:
        (hit,) = await search(engine, fake.url)
        assert (hit.title, hit.url, hit.snippet) == ("Tea", "https://tea.example", "a drink")
        ((line, headers, body),) = fake.asked
        if engine == "brave":
            assert line == "GET /?q=green+tea&count=5 HTTP/1.1" and headers["x-subscription-token"] == "k-1"
        elif engine == "searxng":
            assert line == "GET /search?q=green+tea&format=json HTTP/1.1"
        else:
            assert line == "POST / HTTP/1.1" and headers["authorization"] == "Bearer k-1"
            assert msgspec.json.decode(body) == {"query": "green tea", "max_results": 5}


async def test_an_agent_searches_with_the_engine_of_the_hub() -> None:
    async with fake_engine(OTHERS) as fake:
        engine: dict[str, Any] = {
            "search_engine": "searxng",
            "search_url": f"{fake.url}/search",
            "search_private": True,
        }
        async with house(["/search green tea top=2", "Done."], **engine) as hub:
            acme = await hub.tenant("acme")
            received = await acme.ask("look it up")
            assert received[-1][1]["ok"]
            assert (
                "| 1. Tea — a drink\n|    https://tea.example" in hub.model.prompts[-1].messages[-1].content
            )


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        (b"<html>", 200, "could not be read"),
        ({"results": ["tea"]}, 200, "could not be read"),
        ({"results": {"title": 1}}, 200, "could not be read"),
        (b"\xff\xfe", 200, "could not be read"),
        (b"", 403, "`json` in search.formats"),
        (b"", 500, "HTTP 500"),
        (b" " * (MAX_ANSWER_BYTES + 1), 200, "more than 4096 KB"),
    ],
)
async def test_an_answer_that_is_none_is_an_error_in_a_sentence(answer: Any, status: int, why: str) -> None:
    async with fake_engine(answer, status) as fake:
        with pytest.raises(A2AError, match=why):
            await search("searxng", fake.url)


async def test_an_engine_without_results_or_with_empty_ones_finds_nothing() -> None:
    async with fake_engine({}) as fake:
        assert await search("searxng", fake.url) == []
    async with fake_engine({"results": [{"title": None, "url": "https://x.example"}]}) as fake:
        assert [hit.url for hit in await search("tavily", fake.url)] == ["https://x.example"]


async def test_an_engine_at_a_private_address_is_asked_only_if_the_operator_says_so() -> None:
    async with fake_engine(OTHERS) as fake:
        with pytest.raises((A2AError, AddressRefused)):
            await search("searxng", fake.url, dial=Guard(http=True).dial)
        assert fake.asked == []
    with pytest.raises(ValueError, match="address of the search engine is refused"):
        async with house(search_engine="searxng", search_url="http://127.0.0.1:8888"):
            pass


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"search_engine": "searxng"}, "needs the address"),
        ({"search_engine": "tavily"}, "needs a key"),
        ({"search_url": "https://search.example"}, "needs --search-engine"),
        ({"search_engine": "altavista"}, "search-engine"),
    ],
)
def test_an_engine_that_cannot_work_is_refused_before_the_hub_starts(given: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        load_settings(given, environment={})


def test_a_key_alone_means_the_engine_of_before() -> None:
    assert Settings(search_key="k").search == "brave" and Settings().search == ""
