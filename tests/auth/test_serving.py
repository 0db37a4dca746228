"""`dragoman serve` and `dragoman keys` with authentication."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Turn, connect, executor
from dragoman.auth import Bearer, MutualTLS, hashed
from dragoman.auth.keys import KeyRing
from dragoman.cli import main
from dragoman.cli.load import load
from dragoman.errors import Forbidden, Unauthenticated
from dragoman.model.card import AgentCard
from dragoman.model.task import TaskState
from dragoman.server.runtime import serve
from tests.auth.certificates import Authority
from tests.auth.test_canonical import CARD
from tests.requirements import requirement
from tests.serving import Server

SECURE = """
from dragoman import Agent, Turn
from dragoman.auth import Bearer, hashed
agent = Agent("Who", auth=[Bearer({"alice": hashed("alice-token")})])
@agent.skill
async def who(turn: Turn) -> str:
    return turn.principal
"""


@requirement(194)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "agents.example", ""])
def test_a_public_address_without_authentication_is_refused(host: str) -> None:
    open_to_all, closed = Agent("Open"), Agent("Closed", auth=[Bearer({})])
    for agents in ([open_to_all], [closed, open_to_all]):
        with pytest.raises(SystemExit, match=r"Open.*auth=.*--insecure"):
            serve(*agents, host=host, port=0)


class Stopped(Exception):
    pass


def stop(url: str) -> None:
    raise Stopped(url)


@pytest.mark.parametrize(
    ("host", "options", "agent"),
    [
        ("0.0.0.0", {}, Agent("Closed", auth=[Bearer({})])),
        ("0.0.0.0", {"insecure": True}, Agent("Open")),
        ("127.0.0.1", {}, Agent("Open")),
        ("localhost", {}, Agent("Open")),
    ],
)
def test_a_public_address_is_served_with_authentication_or_insecure(
    host: str, options: Any, agent: Agent
) -> None:
    with pytest.raises(Stopped):
        serve(agent, host=host, port=0, announce=stop, **options)


def test_an_agent_that_asks_for_certificates_needs_an_authority(tmp_path: Path) -> None:
    certificate, key = Authority().write(tmp_path, "server")
    some: list[dict[str, Any]] = [{}, {"tls_cert": certificate, "tls_key": key}]
    for options in some:
        with pytest.raises(SystemExit, match="--tls-client-ca"):
            serve(Agent("A", auth=[MutualTLS()]), port=0, announce=stop, **options)


def test_invalid_tls_files_are_an_error_before_the_server_starts(tmp_path: Path) -> None:
    certificate, _ = Authority().write(tmp_path, "server")
    _, other = Authority().write(tmp_path, "other")
    some: list[dict[str, Any]] = [
        {"tls_key": other},
        {"tls_client_ca": certificate},
        {"tls_cert": certificate, "tls_key": other},
        {"tls_cert": str(tmp_path / "missing")},
        {"tls_cert": certificate},
    ]
    for options in some:
        with pytest.raises(SystemExit, match=r"TLS|--tls"):
            serve(Agent("A"), port=0, announce=stop, **options)


@requirement(208)
async def test_everything_together_in_a_process_of_its_own(tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = authority.write(tmp_path, "server")
    ca = authority.ca(tmp_path)
    file = tmp_path / "secure.py"
    file.write_text(SECURE)
    assert main(["keys", "new", "--dir", str(tmp_path / "keys")]) == 0
    server = Server(
        file, options=["--tls-cert", certificate, "--tls-key", key, "--keys", str(tmp_path / "keys")]
    )
    server.url = server.url.replace("http:", "https:")
    async with server:
        tls = ssl.create_default_context(cafile=ca)
        signed_by = f"{server.url}/.well-known/jwks.json"
        async with connect(server.url, credentials="alice-token", tls=tls, signed_by=signed_by) as agent:
            assert (await agent("?")).text == "alice"
            assert agent.card.supported_interfaces[0].url == f"{server.url}/"


# --- the shell


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_keys_are_created_rotated_and_listed_in_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--dir", str(tmp_path / "keys"))
    code, first, _ = run_command(capsys, "keys", "new", *where)
    assert code == 0
    second = run_command(capsys, "keys", "rotate", "--alg", "EdDSA", *where)[1]
    listed = json.loads(run_command(capsys, "keys", "list", "--json", *where)[1])
    assert [(key["kid"], key["alg"]) for key in listed] == [
        (second.strip(), "EdDSA"),
        (first.strip(), "ES256"),
    ]
    assert listed[0]["state"] == "signs" and listed[1]["state"].startswith("published until")
    assert first.strip() in run_command(capsys, "keys", "list", *where)[1]
    public = run_command(capsys, "keys", "public", *where)[1]
    assert len(json.loads(public)["keys"]) == 2 and '"d"' not in public


def test_a_token_from_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_command(capsys, "keys", "token")[1].split()
    assert lines[0] == "token" and lines[2] == "hash" and hashed(lines[1]) == lines[3]


def test_an_error_of_keys_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    os.chmod(tmp_path / "x.json", 0o600)
    code, _, error = run_command(capsys, "keys", "list", "--dir", str(tmp_path))
    assert code == 1 and error.startswith("dragoman: ") and "x.json" in error


def test_a_card_is_signed_and_verified_from_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, card, out, trusted = (
        str(tmp_path / name) for name in ("keys", "card.json", "signed.json", "jwks.json")
    )
    Path(card).write_text(json.dumps({**CARD, "url": "https://legacy.example"}))
    code, _, error = run_command(capsys, "sign", card, "--keys", keys, "--output", out)
    assert code == 1 and "keys new" in error
    kid = run_command(capsys, "keys", "new", "--dir", keys)[1].strip()
    code, _, error = run_command(capsys, "sign", card, "--keys", keys, "--output", out)
    assert code == 0 and "url" in error and "url" not in json.loads(Path(out).read_text())
    Path(trusted).write_text(run_command(capsys, "keys", "public", "--dir", keys)[1])
    code, shown, _ = run_command(capsys, "card", out, "--verify", "--trust", trusted)
    assert code == 0 and f"signed by  {kid} (ES256)" in shown
    run_command(capsys, "sign", out, "--keys", keys, "--output", out)
    assert (
        len(json.loads(Path(out).read_text())["signatures"]) == 2
    )  # ours replaced, not added to: spec and SDK form
    forged = {**json.loads(Path(out).read_text()), "name": "Evil"}
    Path(out).write_text(json.dumps(forged))
    code, shown, error = run_command(capsys, "card", out, "--trust", trusted)
    assert code == 1 and not shown and "trusted key" in error
    assert run_command(capsys, "card", card, "--trust", trusted)[0] == 1


def test_a_file_that_is_not_a_card_is_not_signed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_command(capsys, "keys", "new", "--dir", str(tmp_path / "keys"))
    file = tmp_path / "card.json"
    for content in (
        "",
        "[]",
        "{}",
        '{"name": "Old", "url": "https://a.example", "protocolVersion": "0.3.0"}',
    ):
        file.write_text(content)
        code, shown, error = run_command(capsys, "sign", str(file), "--keys", str(tmp_path / "keys"))
        assert code == 1 and not shown and error.startswith("dragoman: ")


# --- inside a task


async def test_a_task_that_needs_authorisation_waits_for_it_and_goes_on() -> None:
    agent = Agent("Bank", auth=[Bearer({"alice": hashed("t"), "eve": hashed("e")})])

    @agent.skill
    async def pay(turn: Turn) -> str:
        await turn.need_auth("Log in at https://bank.example/login")
        return f"paid for {turn.principal}"

    app = agent.app(store="memory:")
    async with connect(app, credentials="t") as alice:
        asked = await alice.send("pay")
        assert asked.state is TaskState.AUTH_REQUIRED and "bank.example" in asked.text
        done = await alice.send("I have", task=asked.id)
        assert done.state is TaskState.COMPLETED and done.text == "paid for alice"


async def test_the_example_lets_everybody_do_what_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA", hashed("ada"))
    monkeypatch.setenv("BOB", hashed("bob"))
    [agent] = load(str(Path(__file__).parent.parent.parent / "examples" / "secure.py"))
    async with agent.test(credentials="ada") as ada:
        asked = await ada("100 to Bob")
        assert asked.text == "ada, shall I pay 100 to Bob?"
        assert (await ada("yes", task=asked.id)).text == "Paid 100 to Bob."
        assert (await ada.extended_card()).skills[-1].id == "limits"
    async with agent.test(credentials="bob") as bob:
        with pytest.raises(Forbidden, match="pay"):
            await bob("100 to me")
        assert (await bob("?", skill="balance")).text == "bob has 42."
        assert [skill.id for skill in (await bob.extended_card()).skills] == ["pay", "balance"]


async def test_an_agent_that_signs_can_be_tested_in_process(tmp_path: Path) -> None:
    KeyRing(tmp_path).add()
    async with Agent("A").test(keys=tmp_path) as client:
        assert client.card.name == "A"


async def test_code_written_for_the_sdk_sees_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    class Echo(executor.AgentExecutor):
        async def execute(self, context: Any, event_queue: Any) -> None:
            await event_queue.enqueue_event(executor.new_agent_text_message(context.get_user_input()))

        async def cancel(self, context: Any, event_queue: Any) -> None: ...

    card = AgentCard(name="Echo", description="Echoes", version="1")
    agent = executor.ExecutorAgent(Echo(), card, auth=[Bearer({"ada": hashed("t")})])
    assert list(agent.card.security_schemes) == ["bearer"]
    async with agent.test(credentials="t") as client:
        assert (await client("hi")).text == "hi"
    with pytest.raises(Unauthenticated):
        async with agent.test() as stranger:
            await stranger("hi")
    executor.ExecutorAgent(Echo(), agent.card)
    assert "nobody checks" in caplog.text
