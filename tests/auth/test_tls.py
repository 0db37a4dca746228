"""TLS and client certificates, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import operator
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Turn
from dragoman.auth import All, Bearer, MutualTLS, hashed
from dragoman.client import ClientCertificate, connect
from dragoman.errors import A2AError, Unauthenticated
from dragoman.server.application import application
from dragoman.server.mount import client_certificate
from dragoman.server.runtime import running
from dragoman.server.tls import ServerTls, server_context
from tests.auth.certificates import Authority
from tests.ports import free_port
from tests.requirements import requirement
from tests.serving import Server
from tests.waiting import until, until_works

TOKEN = "alice-token"


class Files:
    """An authority, a server with its certificate, and clients."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority()
        self.ca = self.authority.ca(directory)
        self.certificate, self.key = self.authority.write(directory, "server")

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)

    def client(self, name: str, authority: Authority | None = None, **more: Any) -> ClientCertificate:
        return ClientCertificate(*(authority or self.authority).write(self.directory, name, **more))

    @asynccontextmanager
    async def serving(self, *auth: Any, required: bool = True, grpc: bool = False) -> AsyncIterator[str]:
        agent = Agent("Who", auth=auth)

        @agent.skill
        async def who(turn: Turn) -> str:
            return turn.principal

        tls = server_context(self.certificate, self.key, client_ca=self.ca, required=required)
        options: dict[str, Any] = {}
        if grpc:
            pair = {"certificate": self.certificate, "key": self.key, "client_ca": self.ca}
            options = {"grpc_port": 0, "grpc_tls": pair}
        async with running(application(agent, store="memory:", **options), tls=tls) as url:
            yield url


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@requirement(21, 69)
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_client_certificate_says_who_is_calling(files: Files, binding: str) -> None:
    async with files.serving(MutualTLS(), grpc=binding == "GRPC") as url:
        options: dict[str, Any] = {
            "tls": files.trusting(),
            "credentials": files.client("ada"),
            "binding": binding,
        }
        async with connect(url, timeout=10, **options) as agent:
            assert (await agent("?")).text == "x509:CN=ada"


async def test_calls_without_a_certificate_of_the_authority_are_refused(files: Files) -> None:
    stranger = files.client("eve", Authority())
    expired = files.client("old", days=-1)
    async with files.serving(MutualTLS()) as url:
        for credential in (None, stranger, expired):
            with pytest.raises((A2AError, OSError)):
                async with connect(url, tls=files.trusting(), credentials=credential, timeout=5) as agent:
                    await agent("?")


async def test_a_certificate_is_optional_if_another_scheme_accepts_the_caller(files: Files) -> None:
    async with files.serving(MutualTLS(), Bearer({"alice": hashed(TOKEN)}), required=False) as url:
        for credential, name in ((files.client("ada"), "x509:CN=ada"), (TOKEN, "alice")):
            async with connect(url, tls=files.trusting(), credentials=credential, timeout=5) as agent:
                assert (await agent("?")).text == name
        with pytest.raises(Unauthenticated):
            async with connect(url, tls=files.trusting(), timeout=5) as agent:
                await agent("?")


async def test_a_certificate_and_a_token_can_both_be_needed(files: Files) -> None:
    async with files.serving(All(MutualTLS(), Bearer({"alice": hashed(TOKEN)})), required=False) as url:
        token: dict[str, Any] = {"headers": {"Authorization": f"Bearer {TOKEN}"}}
        shown: list[dict[str, Any]] = [{"credentials": files.client("ada")}, token]
        for each in shown:
            with pytest.raises(Unauthenticated):
                async with connect(url, tls=files.trusting(), timeout=5, **each) as agent:
                    await agent("?")
        async with connect(url, tls=files.trusting(), timeout=5, **shown[0], **token) as agent:
            assert (await agent("?")).text == "x509:CN=ada"


async def test_a_header_is_not_taken_for_a_certificate(files: Files) -> None:
    """What proxies write about certificates is not believed from just anybody."""
    der, _ = files.authority.issue("ada")
    pem = ssl.DER_cert_to_PEM_cert(der).replace("\n", "")
    forged = dict.fromkeys(("X-Client-Cert", "X-Forwarded-Client-Cert", "SSL-Client-Cert", "X-SSL-Cert"), pem)
    async with files.serving(MutualTLS(), required=False) as url:
        with pytest.raises(Unauthenticated):
            async with connect(url, tls=files.trusting(), headers=forged, timeout=5) as agent:
                await agent("?")


async def test_a_client_refuses_a_server_with_an_unknown_authority(files: Files) -> None:
    async with files.serving(Bearer({"alice": hashed(TOKEN)}), required=False) as url:
        with pytest.raises(A2AError, match="not trusted"):
            async with connect(url, credentials=TOKEN, timeout=5):
                pass


@requirement(209, 219)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_tls_1_2_is_the_oldest_version_and_hsts_is_sent(files: Files) -> None:
    async with files.serving(Bearer({}), required=False) as url:
        host, port = "127.0.0.1", int(url.rpartition(":")[2])
        old = files.trusting()
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError):
            await asyncio.open_connection(host, port, ssl=old)
        reader, writer = await asyncio.open_connection(host, port, ssl=files.trusting())
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        head = await reader.read()
        writer.close()
        assert b"strict-transport-security: max-age=31536000" in head


def test_the_certificate_is_read_from_the_asgi_tls_extension() -> None:
    der, _ = Authority().issue("ada")
    scope: dict[str, Any]
    chain = [ssl.DER_cert_to_PEM_cert(der)]
    assert client_certificate({"extensions": {"tls": {"client_cert_chain": chain}}}) == der
    for scope in (
        {},
        {"extensions": None},
        {"extensions": {"tls": {}}},
        {"extensions": {"tls": {"client_cert_chain": []}}},
    ):
        assert client_certificate(scope) == b""


def handshake_certificate(context: ssl.SSLContext, files: Files) -> bytes:
    """The certificate that a server with `context` shows, in a handshake without a network."""
    ours, theirs, back, forth = files.trusting(), context, ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(back, forth, server_hostname="127.0.0.1")
    server = theirs.wrap_bio(forth, back, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    certificate = client.getpeercert(binary_form=True)
    assert certificate
    return certificate


def test_a_new_certificate_is_shown_without_a_restart(files: Files) -> None:
    tls = ServerTls(files.certificate, files.key)
    before = handshake_certificate(tls.context, files)
    tls.renew()
    assert handshake_certificate(tls.context, files) == before
    files.authority.write(files.directory, "server")
    tls.renew()
    assert handshake_certificate(tls.context, files) != before


def showing(credential: ClientCertificate, files: Files) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=files.authority.pem)
    context.load_cert_chain(credential.certificate, credential.key)
    return context


def shake(
    tls: ServerTls, ours: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSession | None:
    """A handshake with a client that shows a certificate, without a network. Raises `SSLError` if it is refused."""
    back, forth = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(back, forth, server_hostname="127.0.0.1", session=session)
    server = tls.context.wrap_bio(forth, back, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    server.write(b"x")
    client.read(1)
    assert server.getpeercert()
    return client.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_the_authority_of_clients_can_be_replaced_without_a_restart(
    files: Files, version: ssl.TLSVersion
) -> None:
    theirs = Authority("Another")
    old, new = showing(files.client("old"), files), showing(files.client("new", theirs), files)
    old.maximum_version = new.maximum_version = version
    tls = ServerTls(files.certificate, files.key, client_ca=files.ca)
    session = shake(tls, old)
    with pytest.raises(ssl.SSLError):
        shake(tls, new)
    theirs.ca(files.directory)  # in the place of ours
    tls.renew()
    shake(tls, new)
    for each in (None, session):
        with pytest.raises(ssl.SSLError):
            shake(tls, old, each)


def test_an_authority_that_cannot_be_read_changes_nothing_and_is_logged_once(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    client = showing(files.client("ada"), files)
    tls = ServerTls(files.certificate, files.key, client_ca=files.ca)
    Path(files.ca).unlink()
    for _ in range(3):
        tls.renew()
    shake(tls, client)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("broken", ["half", "nonsense", "gone"])
def test_a_pair_that_does_not_go_together_is_not_shown(files: Files, broken: str) -> None:
    tls = ServerTls(files.certificate, files.key)
    before = handshake_certificate(tls.context, files)
    if broken == "half":
        other, _ = files.authority.write(files.directory, "other")
        Path(other).replace(files.certificate)
    elif broken == "gone":
        Path(files.key).unlink()
    else:
        Path(files.certificate).write_text("nonsense")
    tls.renew()
    assert handshake_certificate(tls.context, files) == before


async def test_a_server_notices_its_new_certificate_over_http_and_grpc(tmp_path: Path) -> None:
    files = Files(tmp_path)
    file = tmp_path / "agent.py"
    file.write_text(
        "from dragoman import Agent\nagent = Agent('A')\n@agent.skill\ndef a(x: str) -> str: return x\n"
    )
    tls, port = ("--tls-cert", files.certificate, "--tls-key", files.key), free_port()
    server = Server(file, options=(*tls, "--grpc-port", str(port)))
    server.url = server.url.replace("http:", "https:")
    async with server:
        for at in (server.port, port):
            before = ssl.get_server_certificate(("127.0.0.1", at))
            files.authority.write(files.directory, "server")
            await until(partial(ssl.get_server_certificate, ("127.0.0.1", at)), partial(operator.ne, before))
        before = ssl.get_server_certificate(("127.0.0.1", port))
        other, _ = files.authority.write(files.directory, "other")
        Path(other).replace(files.certificate)  # and its key is still on its way
        assert ssl.get_server_certificate(("127.0.0.1", port)) == before


async def test_a_server_notices_a_new_authority_of_clients(tmp_path: Path) -> None:
    files = Files(tmp_path)
    server_ca = files.authority.pem
    file = tmp_path / "agent.py"
    file.write_text(
        "from dragoman import Agent\nfrom dragoman.auth import MutualTLS\nagent = Agent('A', auth=[MutualTLS()])\n"
        "@agent.skill\ndef a(x: str) -> str: return x\n"
    )
    server = Server(
        file, options=("--tls-cert", files.certificate, "--tls-key", files.key, "--tls-client-ca", files.ca)
    )
    server.url = server.url.replace("http:", "https:")
    theirs = Authority("Another")
    credential = files.client("new", theirs)
    async with server:
        theirs.ca(files.directory)
        trusting = ssl.create_default_context(cadata=server_ca)
        options: dict[str, Any] = {"tls": trusting, "credentials": credential, "binding": "JSONRPC"}

        async def ask() -> str:
            async with connect(server.url, timeout=10, **options) as agent:
                return (await agent("?")).text

        assert await until_works(ask, A2AError) == "?"
