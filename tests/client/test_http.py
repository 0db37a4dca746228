"""The HTTP/1.1 client: valid and invalid answers, TLS and proxies."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import threading
import tracemalloc
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from dragoman.client import ClientCertificate, connect
from dragoman.client.transport import http1, network
from dragoman.client.transport.network import HttpTransport
from dragoman.client.transport.transport import NotSent, read_at_most, retry_after
from dragoman.errors import Unreachable
from tests.client.certificates import Authority
from tests.client.fakes import card
from tests.requirements import requirement
from tests.waiting import elapse, until

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers every request on every connection with the next of `answers`, and keeps the requests."""

    def __init__(self, *answers: bytes, close: bool = False) -> None:
        self.answers = list(answers)
        self.close = close
        self.requests: list[bytes] = []
        self.connections = self.closed = 0
        self.peers: list[object] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.peers.append(writer.get_extra_info("peercert"))
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line[15:])
                self.requests.append(head + await reader.readexactly(length))
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.close:
                    break
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        self.closed += 1
        writer.close()


@asynccontextmanager
async def serving(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def transport(**options: object) -> AsyncIterator[HttpTransport]:
    made = HttpTransport(**options)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        try:
            yield made
        finally:
            await made.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def get(http: HttpTransport, port: int, path: str = "/", **headers: str) -> bytes:
    return await (await http.request("GET", f"http://127.0.0.1:{port}{path}", headers)).read()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
            % (len(gzip.compress(b"ok", mtime=0)), gzip.compress(b"ok", mtime=0)),
            b"ok",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: GZip\r\nContent-Length: %d\r\n\r\n%b"
            % (len(gzip.compress(b"ok", mtime=0)), gzip.compress(b"ok", mtime=0)),
            b"ok",
        ),
        (b"HTTP/1.1 200 OK\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    ],
)
async def test_a_body_is_read_however_it_is_framed_and_the_connection_is_used_again(
    answer: bytes, body: bytes
) -> None:
    server = Server(answer, OK)
    async with serving(server) as port, transport() as http:
        assert await get(http, port) == body
        assert await get(http, port) == b"ok"
    assert server.connections == 1


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\n\r\nall of it", close=True)
    async with serving(server) as port, transport() as http:
        assert await get(http, port) == b"all of it"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        b"HTTP/1.1 200",
        b"",
        b"\x16\x03\x01\x02\x00 is this TLS?",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    ],
)
async def test_an_answer_that_breaks_off_or_is_none_is_an_unreachable_peer(answer: bytes) -> None:
    server = Server(answer, close=True)
    async with serving(server) as port, transport() as http:
        with pytest.raises(Unreachable) as caught:
            await get(http, port)
    assert not isinstance(caught.value, NotSent)


@pytest.mark.parametrize(
    "again",
    [b"y" * 4096, b"X: y\r\n" * 500, b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" * 50],
    ids=["a value", "headers", "hints"],
)
async def test_a_head_without_an_end_is_not_read_for_ever(again: bytes) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX: " if not again.startswith(b"HTTP") else b"")
        with suppress(ConnectionError):
            while True:
                writer.write(again)
                await writer.drain()
        writer.close()

    async with serving(endless) as port, transport() as http:
        with pytest.raises(Unreachable, match="the head of its answer has no end"):
            await get(http, port)


async def test_trailers_are_not_headers() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Kept: one\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"
    answer = head + b"X-Kept: two\r\n" + b"X-Late: a\r\n" * 5_000 + b"\r\n"
    async with serving(Server(answer)) as port, transport() as http:
        response = await http.request("GET", f"http://127.0.0.1:{port}/", {})
        assert b"".join([chunk async for chunk in response.chunks()]) == b"hello"
        assert response.headers["x-kept"] == "one" and "x-late" not in response.headers


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:port/",
        "http://..../",
        "http://xn--\u00fc/",
        f"http://{'a' * 300}/",
        "file:///etc/passwd",
        "http:///nobody",
    ],
)
async def test_an_invalid_url_is_a_not_sent_error(url: str) -> None:
    async with transport() as http:
        with pytest.raises(NotSent):
            await http.request("GET", url, {})


@pytest.mark.parametrize("whole", [True, False])
async def test_a_compressed_body_is_decompressed_only_up_to_the_limit(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.client.transport.http1.MAX_BODY_BYTES", 1 << 20)
    bomb = gzip.compress(b"0" * (32 << 20), mtime=0)
    assert len(bomb) < 64 << 10
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(bomb), bomb)
    async with serving(Server(answer, answer)) as port, transport() as http:
        response = await http.request("GET", f"http://127.0.0.1:{port}/", {})
        with pytest.raises(Unreachable, match="more than"):
            await (response.read() if whole else read_at_most(response, 1 << 20, "it"))
        response = await http.request("GET", f"http://127.0.0.1:{port}/", {})
        async for piece in response.chunks():  # a stream has no end, and its pieces are small
            assert len(piece) <= 1 << 18


async def test_a_connection_the_server_closed_is_not_used_again() -> None:
    server = Server(OK, OK, close=True)
    async with serving(server) as port, transport() as http:
        assert await get(http, port) == b"ok"
        await until(lambda: not (any(connection.usable for connection in http._open)))
        assert await get(http, port) == b"ok"
    assert server.connections == 2


async def test_a_connection_with_an_unread_response_is_not_reused() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", OK)
    async with serving(server) as port, transport() as http:
        response = await http.request("GET", f"http://127.0.0.1:{port}/", {})
        await response.close()
        server.answers = [OK]
        assert await get(http, port) == b"ok"
    assert server.connections == 2


async def test_a_connection_the_server_is_just_closing_is_not_used_again() -> None:
    """Servers without patience for idle connections do not say so, and no message shall be lost to them."""
    closed = threading.Event()

    def serve(listener: socket.socket) -> None:
        for _ in range(3):
            peer, _ = listener.accept()
            while b"\r\n\r\n" not in peer.recv(1 << 16):
                pass
            peer.sendall(OK)
            peer.close()
            closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        async with transport() as http:
            for _ in range(3):
                assert await get(http, listener.getsockname()[1]) == b"ok"
                closed.wait()  # the kernel knows, and the loop could not yet look
                closed.clear()
        thread.join()


@pytest.mark.parametrize("header", ["", "Keep-Alive: timeout=999999999\r\n"])
async def test_idle_connections_are_closed_though_nobody_asks_their_hosts_again(
    header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may lead to any number of hosts, which leave their connections open and say that this is fine for ever."""
    monkeypatch.setattr(network, "_IDLE_SECONDS", 0.05)
    monkeypatch.setattr(http1, "_MAX_KEEP_ALIVE_SECONDS", 0.05)
    answer = OK.replace(b"\r\n\r\n", f"\r\n{header}\r\n".encode())
    server = Server(*[answer] * 99)
    async with serving(server) as port, transport(dial=lambda *_: to_loopback(port)) as http:
        for n in range(20):
            assert await (await http.request("GET", f"http://h{n}.example/", {})).read() == b"ok"
        assert server.connections == 20
        await until(lambda: server.closed == 20)
        assert not http._idle and http._sweeper is None


async def test_a_number_of_connections_stay_idle_the_latest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_MAX_IDLE_CONNECTIONS", 3)
    server = Server(*[OK] * 99)
    async with serving(server) as port, transport(dial=lambda *_: to_loopback(port)) as http:
        for n in (0, 1, 2, 0, 3, 4):
            assert await (await http.request("GET", f"http://h{n}.example/", {})).read() == b"ok"
        await until(lambda: server.closed == 2)
        assert server.connections == 5
        for n in (0, 3, 4):
            assert await (await http.request("GET", f"http://h{n}.example/", {})).read() == b"ok"
        assert server.connections == 5, "those of 1 and 2 are closed"


async def to_loopback(port: int) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    return made


async def test_a_transport_that_was_closed_opens_nothing() -> None:
    server = Server(OK, OK)
    async with serving(server) as port, transport() as http:
        assert await get(http, port) == b"ok"
        await http.close()
        with pytest.raises(RuntimeError, match="the client was closed"):
            await get(http, port)
    assert server.connections == 1


async def test_calls_at_the_same_time_have_connections_of_their_own() -> None:
    server = Server(*[OK] * 8)
    async with serving(server) as port, transport() as http:
        assert await asyncio.gather(*(get(http, port) for _ in range(8))) == [b"ok"] * 8
    assert server.connections == 8


async def test_a_slow_reader_slows_the_server_down() -> None:
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while written < 200 << 20:
            writer.write(b"x" * 65536)
            written += 65536
            await writer.drain()

    async with serving(flood) as port, transport() as http:
        response = await http.request("GET", f"http://127.0.0.1:{port}/", {})
        before = -1
        while before != written:  # the server stands still
            before = written
            await elapse(0.05)
        assert written < 100 << 20
        await response.close()


async def test_a_header_cannot_be_smuggled_into_a_request() -> None:
    server = Server(OK, OK)
    async with serving(server) as port, transport() as http:
        await get(http, port)
        with pytest.raises(ValueError, match="line break"):
            await get(http, port, authorization="x\r\nX-Admin: yes")
        with pytest.raises(ValueError, match="line break"):
            await get(http, port, **{"x\rX-Admin": "yes"})
        with pytest.raises(ValueError, match="does not fit into a header"):
            await get(http, port, key="\u043a\u043b\u044e\u0447")
        await get(http, port)
    assert server.connections == 1  # which none of them took away


async def test_paths_are_escaped_and_credentials_in_a_url_are_not_sent() -> None:
    server = Server(OK)
    async with serving(server) as port, transport() as http:
        await (await http.request("GET", f"http://ada:pw@127.0.0.1:{port}/a b/ü?q=x y", {})).read()
    head = server.requests[0].decode()
    assert head.startswith("GET /a%20b/%C3%BC?q=x%20y HTTP/1.1\r\n")
    assert "ada" not in head and "pw" not in head


@requirement(210)
@pytest.mark.parametrize(
    "url", ["http://ada:hidden@127.0.0.1:1/x?key=hidden", "ftp://hidden@host/x", "http://a:hidden@h:99999/"]
)
async def test_an_error_shows_no_password_and_no_key_of_a_url(url: str) -> None:
    async with transport() as http:
        with pytest.raises(Unreachable) as refused:
            await http.request("GET", url, {})
    assert "hidden" not in refused.value.message and "://" in refused.value.message


async def test_long_addresses_of_strangers_do_not_stay_in_memory() -> None:
    server = Server(*[OK] * 21)
    async with serving(server) as port, transport() as http:
        await get(http, port)
        tracemalloc.start()
        try:
            for n in range(20):
                await get(http, port, f"/{n}/" + "a" * 40_000)
                server.requests.clear()
            urllib.parse.clear_cache()  # type: ignore[attr-defined]  # it keeps up to 128
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < 500_000


async def test_tls_is_verified() -> None:
    authority = Authority()
    server = Server(OK, OK)
    async with serving(server, authority.server("localhost")) as port:
        url = f"https://localhost:{port}/"
        async with transport(tls=authority.client()) as http:
            assert await (await http.request("GET", url, {})).read() == b"ok"
        async with transport() as http:
            with pytest.raises(NotSent, match="certificate is not trusted"):
                await http.request("GET", url, {})
        async with transport(tls=authority.client()) as http:
            with pytest.raises(NotSent, match="certificate is not trusted"):
                await http.request("GET", f"https://127.0.0.1:{port}/", {})


async def test_the_error_of_a_server_without_tls_says_so() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with serving(plain) as port, transport() as http:
        with pytest.raises(NotSent, match=r"TLS failed: .* it may be http:// there"):
            await http.request("GET", f"https://127.0.0.1:{port}/", {})


async def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    authority = Authority()
    server = Server(OK)
    certificate = authority.files("a client", tmp_path)
    context = ClientCertificate(certificate).context(authority.client())
    async with (
        serving(server, authority.server("localhost", ask=True)) as port,
        transport(tls=context) as http,
    ):
        assert await (await http.request("GET", f"https://localhost:{port}/", {})).read() == b"ok"
    assert "a client" in str(server.peers[0])


async def test_a_client_certificate_is_shown_to_the_origin_it_was_given_for_and_no_other(
    tmp_path: Path,
) -> None:
    authority = Authority()
    certificate = ClientCertificate(authority.files("a client", tmp_path))
    message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "fine"}]}
    elsewhere = Server(_json({"jsonrpc": "2.0", "id": "1", "result": {"message": message}}))
    asking = authority.server("localhost", ask=True, insist=False)
    async with serving(elsewhere, asking) as there:
        interface = {
            "url": f"https://localhost:{there}/",
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        }
        named = Server(_json(card(supportedInterfaces=[interface])))
        async with (
            serving(named, asking) as here,
            connect(
                f"https://localhost:{here}/card.json", tls=authority.client(), credentials=certificate
            ) as agent,
        ):
            assert await agent("hello") == "fine"
    assert "a client" in str(named.peers[0])
    assert elsewhere.peers == [{}] or elsewhere.peers == [None]


def _json(document: object) -> bytes:
    body = json.dumps(document).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


class Proxy:
    """Takes CONNECT, and nothing else."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.heads: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        if "localhost" not in self.heads[-1]:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        there = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(relay(reader, there[1]), relay(there[0], writer))


async def test_https_goes_through_a_proxy_in_a_tunnel() -> None:
    authority = Authority()
    server = Server(OK, OK)
    async with serving(server, authority.server("localhost")) as port:
        proxy = Proxy(port)
        async with serving(proxy) as there:
            async with transport(tls=authority.client(), proxy=f"http://ada:pw@127.0.0.1:{there}") as http:
                for _ in range(2):
                    assert await (await http.request("GET", f"https://localhost:{port}/", {})).read() == b"ok"
                with pytest.raises(NotSent, match="refused with HTTP 403"):
                    await http.request("GET", "https://elsewhere.test/", {})
    assert proxy.heads[0].startswith(f"CONNECT localhost:{port} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic YWRhOnB3" in proxy.heads[0]
    assert len(proxy.heads) == 2
    assert b"Proxy-Authorization" not in server.requests[0]


async def test_http_is_asked_of_a_proxy_by_its_whole_address() -> None:
    proxy = Server(OK)
    async with serving(proxy) as port, transport(proxy=f"http://127.0.0.1:{port}") as http:
        assert await (await http.request("GET", "http://agent.test/x?y=1", {})).read() == b"ok"
    assert proxy.requests[0].startswith(b"GET http://agent.test/x?y=1 HTTP/1.1\r\nHost: agent.test\r\n")


async def test_the_environment_names_a_proxy_but_never_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy, server = Server(OK), Server(OK)
    async with serving(proxy) as there, serving(server) as port, transport() as http:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{there}")
        monkeypatch.delenv("no_proxy", raising=False)
        await (await http.request("GET", "http://agent.test/", {})).read()
        await get(http, port)
    assert len(proxy.requests) == len(server.requests) == 1


@pytest.mark.parametrize(
    ("value", "seconds"), [("", None), ("7", 7.0), ("soon", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)]
)
def test_retry_after_is_a_number_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after(value) == seconds
