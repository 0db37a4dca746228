"""What is true of the NATS bus beyond the seam: its server goes, and comes back; and others speak there, too."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import Agent
from dragoman.buses import open_bus
from dragoman.errors import Unavailable
from dragoman.server.runtime import serve
from tests import nats
from tests.auth.certificates import Authority
from tests.conformance.test_buses import Listener

if not nats.available():
    pytest.skip("there is no NATS here", allow_module_level=True)

from nats.aio.client import Client

from dragoman.buses.nats import NatsBus
from tests.waiting import until


@pytest.fixture
def server() -> Iterator[nats.Nats]:
    """One that may die."""
    made = nats.Nats()
    yield made
    made.kill()


async def test_all_listeners_wake_when_the_server_is_back(
    server: nats.Nats, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = open_bus(server.url), open_bus(server.url)
    await here.open()
    await there.open()
    own, listener = Listener(), Listener()
    with here.listen("a", own), there.listen("b", listener):
        await asyncio.to_thread(server.kill)
        here.wake("b")
        await asyncio.to_thread(server.start)
        await own.once()
        await listener.once()
        here.wake("b")
        await listener.once()
    await here.close()
    await there.close()
    assert [r.levelno for r in caplog.records if r.name == "dragoman.buses"].count(logging.WARNING) == 2


async def test_a_bus_without_a_server_does_not_open_and_shows_no_secret() -> None:
    with pytest.raises(Unavailable, match="cannot connect") as refused:
        await NatsBus("nats://me:secret@127.0.0.1:1/x", connect_timeout=0.2).open()
    assert "secret" not in str(refused.value)


async def test_a_bus_whose_password_is_refused_does_not_open() -> None:
    server = nats.Nats("--user", "me", "--pass", "secret")
    try:
        with pytest.raises(Unavailable, match=r"Authorization|reset"):  # whichever comes first
            await NatsBus(server.url, connect_timeout=0.5).open()
        bus = NatsBus(f"nats://me:secret@127.0.0.1:{server.port}")
        await bus.open()
        await bus.close()
    finally:
        server.kill()


def test_a_server_reports_a_missing_bus_before_it_announces_its_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(NatsBus.__init__, "__kwdefaults__", {"connect_timeout": 0.1})
    with pytest.raises(SystemExit, match=r"dragoman: the bus cannot connect to NATS: \[Errno"):
        serve(Agent("Echo"), port=0, store="memory:", bus="nats://me:secret@127.0.0.1:1")
    assert capsys.readouterr() == ("", "")


async def test_a_bus_waits_for_a_server_that_is_being_started(server: nats.Nats) -> None:
    server.kill()
    bus = open_bus(server.url)
    opening = asyncio.create_task(bus.open())
    await asyncio.to_thread(server.start)
    await opening
    await bus.close()


async def test_one_of_several_servers_is_enough() -> None:
    bus = open_bus(f"nats://127.0.0.1:1,127.0.0.1:{nats.server().port}")
    await bus.open()
    await bus.close()


async def test_two_installations_on_different_subjects_do_not_wake_each_other() -> None:
    here, there, ours = (open_bus(f"{nats.server().url}/{name}") for name in ("shop", "bank", "shop"))
    for bus in (here, there, ours):
        await bus.open()
    theirs, listener = Listener(), Listener()
    with there.listen("a", theirs), ours.listen("a", listener):
        here.wake("a")
        await listener.once()
    assert theirs.heard == []
    for bus in (here, there, ours):
        await bus.close()


async def test_messages_of_other_programs_on_the_subject_are_ignored() -> None:
    bus, stranger, listener = open_bus(nats.server().url), Client(), Listener()
    await bus.open()
    await stranger.connect(nats.server().url)
    with bus.listen("a", listener):
        for said in (b"", b"hello", b"{}", b"[1]", b'"a"', b"\xff", b'["a"]'):
            await stranger.publish("dragoman", said)
        await listener.once()
    assert listener.heard == [()]
    await stranger.close()
    await bus.close()


async def test_a_user_and_password_are_used_for_all_servers_and_may_have_any_characters() -> None:
    server = nats.Nats("--user", "m,e", "--pass", "p@s:s/%")
    try:
        for servers in (
            f"127.0.0.1:1,127.0.0.1:{server.port}",
            f"127.0.0.1:1,m%2Ce:p%40s%3As%2F%25@127.0.0.1:{server.port}",
        ):
            bus = NatsBus(f"nats://m%2Ce:p%40s%3As%2F%25@{servers}")
            await bus.open()
            await bus.close()
    finally:
        server.kill()


async def test_a_user_without_a_password_is_a_token() -> None:
    server = nats.Nats("--auth", "s3/cret")
    try:
        bus = NatsBus(f"nats://s3%2Fcret@127.0.0.1:{server.port}")
        await bus.open()
        await bus.close()
    finally:
        server.kill()


async def test_a_bus_that_the_server_refused_connects_when_it_is_accepted_again(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    letting = 'authorization { user: me, password: "secret" }'
    config.write_text(letting)
    server = nats.Nats("-c", str(config))
    url = f"nats://me:secret@127.0.0.1:{server.port}"
    here, there = open_bus(url), open_bus(url)
    await here.open()
    await there.open()
    own, listener = Listener(), Listener()
    try:
        with here.listen("a", own), there.listen("b", listener):
            config.write_text(letting.replace("me", "somebody"))
            server.reload()
            await until(lambda: not here._client.is_connected and not there._client.is_connected)  # type: ignore[attr-defined]
            config.write_text(letting)
            server.reload()
            await own.once()
            await listener.once()
            here.wake("b")
            await listener.once()
    finally:
        await here.close()
        await there.close()
        server.kill()


async def test_a_bus_without_permission_to_subscribe_does_not_open(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("""authorization { users: [
        { user: me, password: secret, permissions: { publish: ">", subscribe: "other" } }
    ] }""")
    server = nats.Nats("-c", str(config))
    try:
        with pytest.raises(Unavailable, match=r"(?i)permissions violation"):
            await NatsBus(f"nats://me:secret@127.0.0.1:{server.port}").open()
    finally:
        server.kill()


async def test_a_bus_without_permission_to_publish_logs_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("""authorization { users: [
        { user: me, password: secret, permissions: { publish: "other", subscribe: ">" } }
    ] }""")
    server = nats.Nats("-c", str(config))
    bus = NatsBus(f"nats://me:secret@127.0.0.1:{server.port}")
    await bus.open()
    try:
        for _ in range(3):
            bus.wake("a")
            while bus._pending:
                await asyncio.sleep(0)
        await bus._client.flush()
        await bus._client.flush()
    finally:
        await bus.close()
        server.kill()
    assert [r.levelno for r in caplog.records if r.name == "dragoman.buses"] == [logging.WARNING]


async def test_a_bus_that_dropped_messages_wakes_all_its_listeners() -> None:
    bus, listener = NatsBus(nats.server().url), Listener()
    await bus.open()
    stranger = Client()
    await stranger.connect(nats.server().url)
    (subscription,) = bus._client._subs.values()
    subscription._pending_bytes_limit = 10
    with bus.listen("a", listener):
        for _ in range(100):
            await stranger.publish("dragoman", b'["b"]')
        await stranger.flush()
        await listener.once()
    await stranger.close()
    await bus.close()


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def encrypted(authority: Authority, tmp_path: Path) -> Iterator[nats.Nats]:
    certificate, key = authority.write(tmp_path, "server")
    made = nats.Nats("--tls", "--tlscert", certificate, "--tlskey", key)
    yield made
    made.kill()


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_a_tls_server_needs_a_certificate_that_we_trust(
    encrypted: nats.Nats, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await NatsBus(f"{scheme}://127.0.0.1:{encrypted.port}", connect_timeout=0.5).open()
    known = tmp_path / "authority.pem"
    known.write_text(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(known))
    bus = NatsBus(f"{scheme}://127.0.0.1:{encrypted.port}")
    await bus.open()
    await bus.close()
    with pytest.raises(
        Unavailable, match="CERTIFICATE_VERIFY_FAILED"
    ):  # it is for the address, not for the name
        await NatsBus(f"{scheme}://localhost:{encrypted.port}", connect_timeout=0.5).open()


async def test_a_tls_url_sends_no_password_to_a_server_without_tls() -> None:
    received = b""

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        writer.write(
            b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"auth_required":true}\r\n'
        )
        received += await reader.read(1000)
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Unavailable, match="does not speak TLS"):
        await NatsBus(f"tls://me:secret@127.0.0.1:{port}", connect_timeout=0.5).open()
    server.close()
    assert received == b""


def test_a_credentials_file_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.buses.nats.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=re.escape("nats-py[nkeys]")):
        open_bus("nats://h?credentials=/my.creds")


@pytest.mark.parametrize(
    "url",
    [
        "nats://", "nats:///x", "nats://h/a b", "nats://h/a.*", "nats://h/a..b", "nats://h?x=1", "nuts://h",
        "nats://me:secret@", "nats://me:secret@h,", "nats://me:secret@h:99999", "nats://me:secret@h:abc", "nats://me:secret@[h",
        "nats://me:secret\u2100@h", "nats://me:sec#ret@h",
    ],
)  # fmt: skip
def test_the_error_for_a_wrong_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"nats://host") as refused:
        open_bus(url)
    assert "sec" not in str(refused.value)


def test_two_users_for_one_bus_are_refused() -> None:
    with pytest.raises(ValueError, match="same user and password"):
        open_bus("nats://me:secret@a,you:secret@b")
