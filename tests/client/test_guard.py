"""`connect(..., guard=)`: whatever a card says, no binding connects to an address that the guard did not allow.

The resolver and the dialler are fakes: every connection of these tests ends on loopback, also if the guard is broken.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from dragoman import connect
from dragoman.client import ClientCredentials, Policy
from dragoman.client.content import build_request
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.client.transport.grpc import open_channel
from dragoman.client.transport.transport import AddressBlocked, NotSent
from dragoman.errors import A2AError, Unreachable, UnsupportedOperation
from dragoman.hub.tools.remote_agents import RemoteAgent, RemoteAgents
from dragoman.model.card import AgentCard
from dragoman.model.ops import Call, Request, Scope
from dragoman.server.grpc.server import Grpc as Server
from dragoman.server.grpc.server import Tls
from dragoman.server.mount import Mount
from tests.client.certificates import Authority
from tests.client.fakes import Site, answer, card, page
from tests.ports import free_port
from tests.push.net import PUBLIC, Net
from tests.server.wire import Scripted, reply

OTHER = "93.184.215.15"
ONCE = Policy(attempts=1)
INWARDS = [
    "127.0.0.1", "[::1]", "localhost", "10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.1]", "[fd00:ec2::254]",
    "2130706433", "0x7f.1", "inner.example", "both.example", "unix", "0.0.0.0",
]  # fmt: skip
NAMES = {
    "agent.example": [[PUBLIC]],
    "inner.example": [["10.0.0.1"]],
    "both.example": [[PUBLIC, "127.0.0.1"]],
    "unix": [["127.0.0.1"]],
}


class Channels:
    """Stands in for gRPC's dialler: notes every target, and connects to `port` on loopback instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = free_port()
        self.targets: list[str] = []
        self._plain, self._safe = aio.insecure_channel, aio.secure_channel
        monkeypatch.setattr(aio, "insecure_channel", self._insecure)
        monkeypatch.setattr(aio, "secure_channel", self._secure)

    def _insecure(self, target: str, options: Any) -> aio.Channel:
        self.targets.append(target)
        return self._plain(f"ipv4:127.0.0.1:{self.port}", options=options)

    def _secure(self, target: str, credentials: Any, options: Any) -> aio.Channel:
        self.targets.append(target)
        return self._safe(f"ipv4:127.0.0.1:{self.port}", credentials, options=options)


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> Channels:
    return Channels(monkeypatch)


class Noting(Scripted):
    """Keeps the calls it gets."""

    def __init__(self) -> None:
        super().__init__(result=reply("fine"))
        self.requests: list[Request] = []

    async def call(self, call: Call, request: Request) -> Any:
        self.requests.append(request)
        return await super().call(call, request)


@asynccontextmanager
async def grpc_server(channels: Channels, **options: Any) -> AsyncIterator[Noting]:
    service = Noting()
    server = Server([Mount(service=service, card=AgentCard(name="X"))], **options)
    await server.start()
    channels.port = server.port
    try:
        yield service
    finally:
        await server.stop()


@asynccontextmanager
async def http_server(pages: Mapping[str, bytes]) -> AsyncIterator[tuple[int, list[str]]]:
    """Serves whole answers by path on loopback: its port, and the hosts and paths that were asked for."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        host = head.lower().partition("\r\nhost: ")[2].partition("\r\n")[0]
        asked.append(host + path)
        missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        writer.write(pages.get(path, missing))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], asked


def document(body: Any, status: str = "200 OK", head: str = "") -> bytes:
    content = json.dumps(body).encode()
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n%b\r\n%b" % (
        status.encode(),
        len(content),
        head.encode(),
        content,
    )


def offering(binding: str, url: str, **members: Any) -> dict[str, Any]:
    """A card with one interface."""
    where = {"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}
    return card(supportedInterfaces=[where], **members)


@pytest.mark.parametrize("scheme", ["grpc://", "grpcs://", "http://", ""])
@pytest.mark.parametrize("host", INWARDS)
async def test_an_interface_over_grpc_that_leads_inwards_is_not_dialled(
    host: str, scheme: str, channels: Channels
) -> None:
    net = Net(names=NAMES)
    offered = offering("GRPC", f"{scheme}{host}:8443")
    async with connect(offered, guard=net.guard(http=True), policy=ONCE) as agent:
        for ask in (agent.send("hello"), agent("hello")):
            with pytest.raises(NotSent, match=r"cannot reach grpcs?://"):
                await ask
        with pytest.raises(NotSent):
            async for _ in agent.stream("hello"):
                pass
    assert (channels.targets, net.dialled) == ([], [])


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("host", INWARDS)
async def test_an_interface_over_http_that_leads_inwards_is_not_dialled(host: str, binding: str) -> None:
    net = Net(names=NAMES)
    offered = offering(binding, f"http://{host}:8080/")
    async with connect(offered, guard=net.guard(http=True), policy=ONCE) as agent:
        with pytest.raises(NotSent):
            await agent.send("hello")
    assert net.dialled == []


@pytest.mark.parametrize(
    ("binding", "url"), [("JSONRPC", "http://inner.example/"), ("GRPC", "grpc://inner.example:50051")]
)
async def test_a_request_that_the_guard_refuses_is_not_tried_again(
    channels: Channels, binding: str, url: str
) -> None:
    net = Net(names=NAMES)
    async with connect(offering(binding, url), guard=net.guard(http=True)) as agent:
        for ask in (agent.send("hello"), agent.get("t")):
            net.asked.clear()
            with pytest.raises(AddressBlocked, match="its host is not on the internet"):
                await ask
            assert net.asked == ["inner.example"]


async def test_a_card_that_was_found_outside_does_not_lead_inwards_over_grpc(channels: Channels) -> None:
    """The hub's remotes, too."""
    offered = offering("GRPC", "grpc://inner.example:50051")
    async with http_server({"/.well-known/agent-card.json": document(offered)}) as (port, asked):
        net = Net(port, NAMES)
        guard = net.guard(http=True)
        async with connect("http://agent.example", guard=guard, policy=ONCE) as agent:
            with pytest.raises(NotSent, match="its host is not on the internet"):
                await agent.send("hello")
        remotes = RemoteAgents({"weather": RemoteAgent(url="http://agent.example", timeout=5)}, guard=guard)
        service, _ = await remotes.find("a2a:weather", Scope("", "", ""))
        with pytest.raises(A2AError, match="its host is not on the internet"):
            await service.call(Call(), build_request(("hello",), None)[1])
        await remotes.close()
    assert asked and set(asked) == {"agent.example/.well-known/agent-card.json"}
    assert channels.targets == [] and set(net.dialled) == {PUBLIC}


async def test_a_public_server_is_dialled_by_the_address_that_was_checked(channels: Channels) -> None:
    net = Net(names={"agent.example": [[PUBLIC, OTHER], ["127.0.0.1"]]})
    async with grpc_server(channels) as service:
        offered = offering("GRPC", "grpc://agent.example:8443")
        async with connect(offered, guard=net.guard(), policy=ONCE) as agent:
            assert (await agent.send("hello")).text == "fine"
            assert (await agent.send("hello")).text == "fine"
    assert channels.targets == [f"ipv4:{PUBLIC}:8443,{OTHER}:8443"]
    assert net.asked == ["agent.example"]  # once: there is no second look-up that could say something else
    assert len(service.requests) == 2


async def test_addresses_that_do_not_answer_are_looked_up_and_checked_again(
    channels: Channels,
) -> None:
    net = Net(names={"agent.example": [[PUBLIC], ["127.0.0.1"], [OTHER]]})
    offered = offering("GRPC", "grpc://agent.example:8443")
    async with connect(offered, guard=net.guard(), policy=ONCE) as agent:
        with pytest.raises(NotSent, match="failed to connect"):
            await agent.send("hello")
        with pytest.raises(NotSent, match="its host is not on the internet"):
            await agent.send("hello")
        async with grpc_server(channels):
            assert (await agent.send("hello")).text == "fine"
    assert channels.targets == [f"ipv4:{PUBLIC}:8443", f"ipv4:{OTHER}:8443"]


async def test_a_checked_server_shows_the_certificate_of_its_name(channels: Channels, tmp_path: Path) -> None:
    authority = Authority()
    net = Net(names={name: [[PUBLIC]] for name in ("agent.example", "other.example")})
    pem = authority.files("agent.example", tmp_path)
    async with grpc_server(channels, tls=Tls(certificate=pem, key=pem)):
        tls = authority.client()
        offered = offering("GRPC", "grpcs://agent.example:8443")
        async with connect(offered, guard=net.guard(), tls=tls, policy=ONCE) as agent:
            assert (await agent.send("hello")).text == "fine"
        offered = offering("GRPC", "grpcs://other.example:8443")
        async with connect(offered, guard=net.guard(), tls=tls, policy=ONCE) as agent:
            with pytest.raises(Unreachable):
                await agent.send("hello")


async def test_a_guarded_client_uses_no_proxy(channels: Channels, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    net = Net(names=NAMES)
    async with grpc_server(channels):
        offered = offering("GRPC", "grpc://agent.example:8443")
        async with connect(offered, guard=net.guard(), policy=ONCE) as agent:
            assert (await agent.send("hello")).text == "fine"


def _redirecting(net: Net) -> Any:
    return connect("http://agent.example", guard=net.guard(http=True), policy=ONCE)


def _logging_in(net: Net) -> Any:
    login = ClientCredentials("id", "secret", token_url="http://inner.example:8080/token")
    offered = offering("JSONRPC", "http://agent.example/rpc")
    return connect(offered, guard=net.guard(http=True), credentials=login, policy=ONCE)


def _checking_keys(net: Net) -> Any:
    offered = offering(
        "JSONRPC", "http://agent.example/rpc", signatures=[{"protected": "e30", "signature": "AA"}]
    )
    keys = "https://inner.example/keys.json"
    return connect(offered, guard=net.guard(http=True), signed_by=keys, policy=ONCE)


@pytest.mark.parametrize("client", [_redirecting, _logging_in, _checking_keys])
async def test_the_guard_applies_to_redirects_tokens_and_keys(client: Callable[[Net], Any]) -> None:
    """A redirect of the card, the endpoint of a token, the keys of a signature."""
    moved = document({}, "302 Found", "Location: http://inner.example:8080/card.json\r\n")
    async with http_server({"/.well-known/agent-card.json": moved}) as (port, _):
        net = Net(port, NAMES)
        with pytest.raises(A2AError):
            async with client(net) as agent:
                await agent.send("hello")
    assert "10.0.0.1" not in net.dialled and (client is not _redirecting or net.dialled)


async def test_grpc_is_not_used_beside_a_given_transport(channels: Channels) -> None:
    both = [
        {"url": "grpc://agent.test:80", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
        {"url": "http://agent.test/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
    ]
    site = Site({"/card.json": page(card(supportedInterfaces=both)), "/rpc": answer})
    async with connect("http://agent.test/card.json", transport=AsgiTransport(site)) as agent:
        assert (await agent.send("hello")).text == "fine"
    with pytest.raises(UnsupportedOperation, match="gRPC does not go through a transport"):
        await connect("http://agent.test/card.json", transport=AsgiTransport(site), binding="GRPC").open()
    assert channels.targets == []


async def test_a_guard_without_a_remote_target_is_a_type_error() -> None:
    guard = Net().guard()
    given = AsgiTransport(Site())
    for client in (connect(Site(), guard=guard), connect("http://agent.test", guard=guard, transport=given)):
        with pytest.raises(TypeError, match="guard= is for connections to other machines"):
            await client.open()


@pytest.mark.parametrize(
    ("url", "addresses", "target"),
    [
        ("grpc://agent.example:80", (), "dns:///agent.example:80"),
        ("grpc://unix:80", (), "dns:///unix:80"),
        ("grpc://[2a00::1]:80", (), "dns:///[2a00::1]:80"),
        ("grpc://agent.example:80", (PUBLIC, OTHER), f"ipv4:{PUBLIC}:80,{OTHER}:80"),
        ("grpc://agent.example:80", ("2a00::1",), "ipv6:[2a00::1]:80"),
        ("grpc://agent.example:80", ("2a00::1", PUBLIC), f"ipv6:[2a00::1]:80,[::ffff:{PUBLIC}]:80"),
    ],
)
async def test_a_channel_looks_up_a_name_or_nothing(
    url: str, addresses: tuple[str, ...], target: str, channels: Channels
) -> None:
    await open_channel(url, addresses=addresses).close()
    assert channels.targets == [target]


async def test_a_server_is_reached_among_addresses_of_both_families() -> None:
    service = Noting()
    server = Server([Mount(service=service, card=AgentCard(name="X"))])
    await server.start()
    channel = open_channel(f"grpc://agent.example:{server.port}", addresses=("::1", "127.0.0.1"))
    async with asyncio.timeout(10):
        await channel.channel_ready()
    await channel.close()
    await server.stop()
