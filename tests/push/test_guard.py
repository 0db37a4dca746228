"""The address guard refuses everything but the public internet."""

from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.client.transport.network import AddressRefused, HttpTransport
from dragoman.client.transport.transport import NotSent
from dragoman.push.guard import Guard, effective_address, is_public
from tests.push.net import PUBLIC, Net
from tests.waiting import until


def _words(text: str) -> list[str]:
    return text.split()


SPECIAL = _words("""
0.0.0.0 0.255.255.255 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.8.8.8
168.63.129.16 169.254.0.1 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1
192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::10.0.0.1 ::ffff:127.0.0.1 ::ffff:a9fe:a9fe ::ffff:10.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::127.0.0.1
64:ff9b::a9fe:a9fe 64:ff9b:1::8.8.8.8 100::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:10::1 2001:20::1
2001:db8::1 2002:7f00:1:: 2002:a9fe:a9fe::1 2002:808:808::1 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0
fec0::1 ff02::1 2a00::5efe:10.0.0.1 2a00::200:5efe:192.168.0.1 4000::1
""")

REACHABLE = _words("""
1.1.1.1 8.8.8.8 93.184.215.14 100.63.255.255 100.128.0.1 126.255.255.255 128.0.0.1 169.253.255.255 169.255.0.1
172.15.255.255 172.32.0.1 192.0.1.1 192.167.255.255 192.169.0.1 198.17.255.255 198.20.0.1 223.255.255.255
2606:4700::1111 2a00:1450:4001::200e ::ffff:8.8.8.8 64:ff9b::8.8.8.8
""")

DISGUISED = _words("""
2130706433 0x7f000001 0x7f.1 0x7F.0.0.1 0177.0.0.1 017700000001 127.1 127.0.1 0 0.0 00000177.1 1.2.3 4294967295
2852039166 0xA9FEA9FE 0251.0376.0251.0376 127.0.0.1. 999999999999
""")


@pytest.mark.parametrize("address", SPECIAL)
async def test_a_special_address_is_refused_as_a_host_and_as_what_a_name_means(address: str) -> None:
    net = Net(names={"hook.example": [[address]]})
    guard = net.guard()
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(AddressRefused):
        guard.check(f"https://{host}/hook")
    for name in (address, "hook.example"):
        with pytest.raises(AddressRefused):
            await guard.dial(name, 443)
    assert net.dialled == []


@pytest.mark.parametrize("address", REACHABLE)
async def test_a_public_address_is_reached(address: str) -> None:
    async with asyncio.timeout(20), _Listening() as port:
        net = Net(port, {"hook.example": [[address]]})
        guard = net.guard()
        guard.check(f"https://[{address}]/hook" if ":" in address else f"https://{address}/hook")
        (await guard.dial("hook.example", 443)).close()
        assert [ip_address(dialled) for dialled in net.dialled] == [ip_address(address)]


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_inside_ipv6_counts_as_ipv4(address) -> None:
    for clothes in (f"::ffff:{address}", f"64:ff9b::{address}"):
        assert effective_address(ip_address(clothes)) == address
        assert is_public(ip_address(clothes)) == is_public(address)
    for tunnel in (f"2002:{int(address) >> 16:x}:{int(address) & 0xFFFF:x}::1", f"::{address}"):
        assert not is_public(ip_address(tunnel))


@given(st.ip_addresses())
def test_addresses_that_python_calls_private_are_refused(address) -> None:
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        assert not is_public(address) or effective_address(address) != address


@pytest.mark.parametrize("host", DISGUISED)
async def test_an_address_in_an_unusual_form_is_refused(host: str) -> None:
    net = Net(names={host: [["127.0.0.1"]]})
    guard = net.guard()
    with pytest.raises(AddressRefused):
        guard.check(f"https://{host}/")
    with pytest.raises(AddressRefused):
        await guard.dial(host, 443)
    assert net.asked == [] and net.dialled == []


@pytest.mark.parametrize(
    "url",
    [
        "http://hook.example/",
        "ftp://hook.example/",
        "file:///etc/passwd",
        "gopher://hook.example/",
        "//hook.example/",
        "hook.example",
        "",
        "https://",
        "https:///path",
        "https://user@hook.example/",
        "https://user:secret@hook.example/",
        "https://hook.example@127.0.0.1/",
        "https://hook.example\\@127.0.0.1/",
        "https://127.0.0.1\\.hook.example/",
        "https://hook.example/#fragment",
        "https://hook.example:0/",
        "https://hook.example:22/",
        "https://hook.example:25/",
        "https://hook.example:99999/",
        "https://hook.example:abc/",
        "https://hook.example /",
        "https://hook.example/a b",
        "https://hook.example/\r\nHost: other",
        "https://hook.example/\x00",
        "https://localhost/",
        "https://LOCALHOST./",
        "https://db.localhost/",
        "https://127。0。0。1/",
        "https://①②⑦.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[fe80::1%25eth0]/",
        "https://[::1",
        "https://-bad-.example/",
        "https://bad..example/",
        "https://" + "a" * 64 + ".example/",
        "https://hook.example/" + "a" * 2048,
    ],
)
async def test_a_url_that_is_not_plain_https_to_a_named_host_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused):
        Guard().check(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://hook.example/",
        "https://hook.example:8443/a/b?token=x%20y&z=1",
        "https://xn--mnchen-3ya.example/",
        "https://a_b.hook.example./x",
        "HTTPS://Hook.Example/",
    ],
)
async def test_a_plain_https_url_is_fine(url: str) -> None:
    Guard().check(url)


async def test_a_name_with_one_bad_address_among_good_ones_is_refused() -> None:
    net = Net(names={"hook.example": [[PUBLIC, "10.0.0.1"]]})
    with pytest.raises(AddressRefused):
        await net.guard().dial("hook.example", 443)
    assert net.dialled == []


async def test_the_checked_address_is_dialled_though_the_name_resolves_differently_later() -> None:
    """DNS rebinding: the first answer is good, every other one is not."""
    async with asyncio.timeout(20), _Listening() as port:
        net = Net(port, {"hook.example": [[PUBLIC], ["169.254.169.254"], ["127.0.0.1"]]})
        guard = net.guard()
        guard.check("https://hook.example/")
        (await guard.dial("hook.example", 443)).close()
        assert net.asked == ["hook.example"] and net.dialled == [PUBLIC]
        for _ in range(2):
            with pytest.raises(AddressRefused):
                await guard.dial("hook.example", 443)
        assert net.dialled == [PUBLIC]


async def test_a_connection_that_ends_up_elsewhere_is_not_used() -> None:
    async with asyncio.timeout(20), _Listening() as port:
        net = Net(port, {"hook.example": [[PUBLIC]]})
        net.elsewhere = "169.254.169.254"
        with pytest.raises(AddressRefused):
            await net.guard().dial("hook.example", 443)


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with asyncio.timeout(20), _Listening() as port:
        net = Net(port, {"hook.example": [["2606:4700::1", PUBLIC]]})
        real = net.connect

        async def connect(address: str, port: int):
            if ":" in address:
                net.dialled.append(address)
                raise OSError("unreachable")
            return await real(address, port)

        guard = Guard(resolve=net.resolve, connect=connect)
        (await guard.dial("hook.example", 443)).close()
        assert net.dialled == ["2606:4700::1", PUBLIC]


async def test_an_operator_may_name_the_only_hosts() -> None:
    guard = Guard(only=("hooks.example", "*.partner.example"))
    guard.check("https://hooks.example/")
    guard.check("https://HOOKS.example./")
    guard.check("https://eu.partner.example/")
    for host in (
        "other.example",
        "partner.example",
        "evilhooks.example",
        "hooks.example.evil.example",
        "1.1.1.1",
    ):
        with pytest.raises(AddressRefused):
            guard.check(f"https://{host}/")
        with pytest.raises(AddressRefused):
            await guard.dial(host, 443)


async def test_an_operator_may_trust_a_network_and_no_other() -> None:
    async with asyncio.timeout(20), _Listening() as port:
        net = Net(port, {"in.example": [["10.1.2.3"]], "out.example": [["10.2.2.3"]]})
        guard = net.guard(trust=["10.1.0.0/16"])
        (await guard.dial("in.example", 443)).close()
        guard.check("https://10.1.0.1/")
        with pytest.raises(AddressRefused):
            await guard.dial("out.example", 443)


async def test_ports_can_be_narrowed() -> None:
    guard = Guard(ports=(443,))
    guard.check("https://hook.example/")
    with pytest.raises(AddressRefused):
        guard.check("https://hook.example:8443/")


async def test_a_developer_may_allow_loopback_and_plain_http() -> None:
    guard = Guard(allow_private=True)
    for url in (
        "http://127.0.0.1:5000/",
        "http://localhost:81/hook",
        "https://[::1]:8443/",
        "http://10.0.0.1/",
    ):
        guard.check(url)
    for url in ("ftp://127.0.0.1/", "http://user@127.0.0.1/", "http://2130706433/"):
        with pytest.raises(AddressRefused):
            guard.check(url)


# Through the client


async def test_the_guarded_transport_does_not_follow_redirects() -> None:
    head = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/meta-data\r\nContent-Length: 0\r\n\r\n"
    async with asyncio.timeout(20), _Listening(head) as port:
        net = Net(port, {"hook.example": [[PUBLIC]]})
        transport = HttpTransport(dial=net.guard(http=True).dial)
        response = await transport.request("POST", "http://hook.example/hook", {}, b"{}")
        assert response.status == 302
        await response.close()
        await transport.close()
        assert net.asked == ["hook.example"] and net.dialled == [PUBLIC]


async def test_a_refused_address_is_a_request_that_was_not_sent() -> None:
    net = Net(names={"hook.example": [["127.0.0.1"]]})
    transport = HttpTransport(dial=net.guard(http=True).dial)
    with pytest.raises(NotSent, match="not on the internet"):
        await transport.request("POST", "http://hook.example/hook", {}, b"{}")
    assert net.dialled == []


async def test_the_proxy_of_the_environment_is_not_used_with_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://10.0.0.9:3128")
    async with asyncio.timeout(20), _Listening(b"HTTP/1.1 204 No Content\r\n\r\n") as port:
        net = Net(port, {"hook.example": [[PUBLIC]]})
        transport = HttpTransport(dial=net.guard(http=True).dial)
        assert (await transport.request("GET", "http://hook.example/", {})).status == 204
        await transport.close()
        assert net.dialled == [PUBLIC]


class _Listening:
    """A server on loopback that says the same to everybody."""

    def __init__(self, answer: bytes = b"") -> None:
        self._answer = answer

    async def __aenter__(self) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._answer:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer)
            await reader.read()
            writer.close()

        self._server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


async def test_names_that_take_long_to_resolve_delay_no_other_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server of a stranger may not answer for half a minute."""
    over, begun = threading.Event(), []
    real = socket.getaddrinfo

    def look(host: str, *given: Any, **options: Any) -> Any:
        if host != "127.0.0.1":
            begun.append(host)
            over.wait()
        return real("127.0.0.1", *given, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look)
    slow, other = Guard(allow_private=True), Guard(allow_private=True)
    waiting = [asyncio.create_task(slow.addresses(f"{n}.example", 80)) for n in range(50)]
    try:
        await until(lambda: len(begun) == 32)
        async with asyncio.timeout(10):
            assert await other.addresses("127.0.0.1", 80) == ["127.0.0.1"]
        assert not any(each.done() for each in waiting)
    finally:
        over.set()
    assert await asyncio.gather(*waiting) == [["127.0.0.1"]] * 50
