"""Valid answers in unusual forms."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.client import Client, connect
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.client.transport.gzip_body import Inflater
from dragoman.client.transport.transport import AnswerTooLarge
from dragoman.errors import A2AError, TaskNotFound, Unreachable
from tests.client.fakes import Answer, Asked, Site, answer, card, page

SSE = {"content-type": "text/event-stream"}


def reach(rpc: Any, binding: str = "JSONRPC") -> Client:
    interface = {"url": "http://agent.test/rpc", "protocolBinding": binding, "protocolVersion": "1.0"}
    shown = card(supportedInterfaces=[interface], capabilities={"streaming": True})
    site = Site({"/card.json": page(shown), "/rpc": rpc, "/rpc/message:send": rpc})
    return connect("http://agent.test/card.json", transport=AsgiTransport(site))


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_an_answer_may_begin_with_a_byte_order_mark(binding: str) -> None:
    def rpc(asked: Asked) -> Answer:
        if binding == "JSONRPC":
            status, headers, body = answer(asked)
        else:
            message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "fine"}]}
            status, headers, body = page({"message": message})
        return status, headers, b"\xef\xbb\xbf" + body

    async with reach(rpc, binding) as agent:
        assert await agent.send("hello") == "fine"


@pytest.mark.parametrize("id", ["9" * 5000, "-1", "1e3", "\u0663", "a b"])
async def test_the_number_of_an_event_is_any_text(id: str) -> None:
    def rpc(asked: Asked) -> Answer:
        body = b"id: " + id.encode() + b"\ndata: " + answer(asked)[2] + b"\n\n"
        return 200, SSE, body

    async with reach(rpc) as agent:
        assert await agent("hello") == "fine"


async def test_a_refusal_may_begin_with_a_byte_order_mark() -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -32001, "message": "gone"}}).encode()
    async with reach((404, {}, b"\xef\xbb\xbf" + body)) as agent:
        with pytest.raises(A2AError, match=r"^gone"):
            await agent.get("t")


@pytest.mark.parametrize("operation", ["send", "stream", "get"])
async def test_an_answer_with_a_result_and_an_error_is_an_error(operation: str) -> None:
    def rpc(asked: Asked) -> Answer:
        task = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}
        result = task if operation == "get" else {"task": task}
        document = {
            "jsonrpc": "2.0",
            "id": asked.json["id"],
            "result": result,
            "error": {"code": -32001, "message": "gone"},
        }
        body = json.dumps(document).encode()
        return (200, SSE, b"data: " + body + b"\n\n") if operation == "stream" else (200, {}, body)

    async with reach(rpc) as agent:
        with pytest.raises(TaskNotFound, match=r"^gone"):
            if operation == "stream":
                async for _ in agent.stream("hello"):
                    pass
            else:
                await getattr(agent, operation)("t")


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


TEXT = b"so much to say, " * 100


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(TEXT, mtime=0)),
        ("x-gzip", gzip.compress(TEXT[:7], mtime=0) + gzip.compress(TEXT[7:], mtime=0)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", raw_deflate(TEXT)),
        ("gzip, identity", gzip.compress(TEXT, mtime=0)),
        ("identity", TEXT),
    ],
    ids=["gzip", "members", "zlib", "raw", "list", "none"],
)
@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_a_compressed_body_is_read_at_any_chunk_boundaries(encoding: str, packed: bytes, size: int) -> None:
    inflater = Inflater(encoding, "it")
    pieces = [out for at in range(0, len(packed), size) for out in inflater.feed(packed[at : at + size])]
    assert b"".join(pieces) == TEXT


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, br", "gzip, gzip"])
def test_an_unknown_compression_is_named_in_the_error(encoding: str) -> None:
    with pytest.raises(Unreachable, match="it compressed its answer with"):
        Inflater(encoding, "it")


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_a_large_decompressed_body_comes_in_small_pieces(pack: Callable[[bytes], bytes]) -> None:
    """A reader that has enough leaves the rest packed."""
    size = 8 << 20
    unpacked = [len(piece) for piece in Inflater("gzip", "it").feed(pack(bytes(size)))]
    assert sum(unpacked) == size and max(unpacked) <= 256 << 10


def test_a_body_of_very_many_members_is_refused() -> None:
    with pytest.raises(Unreachable, match="more than 4096 gzip members"):
        list(Inflater("gzip", "it").feed(gzip.compress(b"", mtime=0) * 5000))


@pytest.mark.parametrize("answered", [{}, {"result": None}, {"result": {}}, {"result": None, "error": None}])
async def test_a_deletion_needs_no_result(answered: dict[str, Any]) -> None:
    rpc = page({"jsonrpc": "2.0", "id": 1, **answered})
    site = Site({"/card.json": page(card()), "/rpc": rpc})
    async with connect("http://agent.test/card.json", transport=AsgiTransport(site)) as agent:
        await agent.delete_push("t", "p")


@pytest.mark.parametrize("answered", [{}, {"jsonrpc": "2.0", "error": {"code": -32001, "message": "no"}}])
async def test_a_deletion_that_failed_is_an_error(answered: dict[str, Any]) -> None:
    site = Site({"/card.json": page(card()), "/rpc": page(answered)})
    async with connect("http://agent.test/card.json", transport=AsgiTransport(site)) as agent:
        with pytest.raises(A2AError):
            await agent.delete_push("t", "p")


@pytest.mark.parametrize("streams", [True, False])
async def test_an_answer_that_is_too_large_is_not_asked_for_again(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.client.transport.asgi.MAX_BODY_BYTES", 1000)
    asked: list[str] = []

    def rpc(request: Asked) -> Answer:
        asked.append(request.json["method"])
        return 200, {"content-type": "application/json", "dragoman": "1"}, b" " * 1001

    async with reach(rpc) as agent:
        with pytest.raises(AnswerTooLarge):
            await agent.get("t")
        assert asked == ["GetTask"]
        asked.clear()
        with pytest.raises(AnswerTooLarge):
            if streams:
                async for _ in agent.stream("hello"):
                    pass
            else:
                await agent.send("hello")
        assert asked == ["SendStreamingMessage" if streams else "SendMessage"]
