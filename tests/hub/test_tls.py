"""`dragoman hub --tls-cert`: TLS over HTTP and gRPC, client certificates, and files that change."""

from __future__ import annotations

import operator
import ssl
from functools import partial
from pathlib import Path

import pytest

from dragoman import connect
from dragoman.cli import main
from dragoman.errors import A2AError
from dragoman.hub.settings import InvalidSetting, load_settings
from tests.auth.certificates import Authority
from tests.hub.killing import ADMIN, Process, call
from tests.ports import free_port
from tests.waiting import until


class Files:
    """An authority, and the certificates of a hub and of a client."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, Authority()
        self.ca = self.authority.ca(folder)
        self.certificate, self.key = self.authority.write(folder, "server")
        self.flags = ("--tls-cert", self.certificate, "--tls-key", self.key)

    def trusting(self, *, certified: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if certified:
            context.load_cert_chain(*self.authority.write(self.folder, "client"))
        return context


async def make_tenant(hub: Process, tls: ssl.SSLContext) -> str:
    made = await call(hub.url, ADMIN, "POST", "/v1/admin/tenants", {"name": "acme"}, tls=tls)
    return str(made["token"])


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_hub_with_a_certificate_answers_over_tls(tmp_path: Path, binding: str) -> None:
    pytest.importorskip("grpc")
    files = Files(tmp_path)
    hub = Process(tmp_path, None, *files.flags, "--grpc-port", str(free_port()), tls=files.trusting())
    await hub.start()
    try:
        token = await make_tenant(hub, files.trusting())
        target = f"{hub.url}/v1/a2a/agents/index"
        options = {"tls": files.trusting(), "credentials": token, "binding": binding}
        async with connect(target, timeout=20, **options) as agent:  # type: ignore[arg-type]
            assert all(
                each.url.startswith("https://") or each.protocol_binding == "GRPC"
                for each in agent.card.supported_interfaces
            )
            assert (await agent("over tls")).text.endswith("over tls")
        with pytest.raises(A2AError):  # nobody speaks it in the clear
            await call(hub.url.replace("https:", "http:"), token, "GET", "/v1/agents")
    finally:
        await hub.kill()


async def test_a_hub_with_an_authority_of_clients_refuses_those_without_a_certificate(tmp_path: Path) -> None:
    files = Files(tmp_path)
    certified = files.trusting(certified=True)
    hub = Process(tmp_path, None, *files.flags, "--tls-client-ca", files.ca, tls=certified)
    await hub.start()
    try:
        token = await make_tenant(hub, certified)
        assert "agents" in await call(hub.url, token, "GET", "/v1/agents", tls=certified)
        with pytest.raises(A2AError):
            await call(hub.url, token, "GET", "/v1/agents", tls=files.trusting())
    finally:
        await hub.kill()


async def test_a_hub_notices_its_new_certificate_over_http_and_grpc(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    files, port = Files(tmp_path), free_port()
    hub = Process(tmp_path, None, *files.flags, "--grpc-port", str(port), tls=files.trusting())
    await hub.start()
    try:
        for at in (int(hub.url.rpartition(":")[2]), port):
            before = ssl.get_server_certificate(("127.0.0.1", at))
            files.authority.write(tmp_path, "server")
            await until(partial(ssl.get_server_certificate, ("127.0.0.1", at)), partial(operator.ne, before))
    finally:
        await hub.kill()


def test_files_that_are_no_certificate_are_reported_before_the_hub_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pem").write_text("nonsense")
    flags = ["--data", "d", "--model", "echo", "--tls-cert", "x.pem"]
    with pytest.raises(SystemExit, match=r"^TLS cannot be set up"):
        main(["hub", "--port", "0", *flags])
    assert main(["doctor", *flags]) == 1
    assert "WRONG  TLS cannot be set up" in capsys.readouterr().out


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="need --tls-cert"):
        load_settings({"tls_key": "key.pem"}, environment={})
