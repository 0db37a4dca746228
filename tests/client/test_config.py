"""`[agents]` of `dragoman.toml`: every client sends the credentials of the table to that agent."""

from __future__ import annotations

import io
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Turn, connect
from dragoman.auth import Bearer
from dragoman.cli import main
from dragoman.client.connection import Options, apply_config
from dragoman.client.credentials import ClientCertificate
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.client.fakes import Site, answer, card, page
from tests.serving import in_thread

BASE = "http://agent.test"
NEW = "/.well-known/agent-card.json"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DRAGOMAN_TOKEN", "DRAGOMAN_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def table(text: str) -> None:
    Path("dragoman.toml").write_text(text)


FAKE = f'[agents.fake]\nurl = "{BASE}"\ncredentials = "s3cret"\nheaders = {{ X-Team = "a" }}\n'


async def headers_sent(target: str, **options: Any) -> dict[str, str]:
    site = Site({NEW: page(card()), "/below" + NEW: page(card()), "/rpc": answer})
    async with connect(target, transport=AsgiTransport(site), **options) as agent:
        await agent.send("hello")
    return site.asked[-1].headers


@pytest.mark.parametrize("target", ["fake", BASE, f"{BASE}/", f"{BASE}/below"])
async def test_credentials_of_the_table_are_sent_to_the_agent(target: str) -> None:
    table(FAKE)
    headers = await headers_sent(target)
    assert (headers.get("authorization"), headers.get("x-team")) == ("Bearer s3cret", "a")


async def test_options_of_connect_override_the_table() -> None:
    table(FAKE)
    headers = await headers_sent("fake", credentials="other", headers={"X-Team": "b"})
    assert (headers.get("authorization"), headers.get("x-team")) == ("Bearer other", "b")


async def test_credentials_of_the_table_are_not_sent_to_other_agents() -> None:
    table(f'[agents.elsewhere]\nurl = "{BASE}/agents/x"\ncredentials = "s3cret"\n[agents]\nfake = "{BASE}"\n')
    for target in ("fake", BASE, f"{BASE}/below"):
        assert "authorization" not in await headers_sent(target)
    assert "authorization" not in await headers_sent(BASE, agents={})


async def test_a_table_can_be_given() -> None:
    agents = {"mine": {"url": BASE, "credentials": "s3cret"}, "other": BASE}
    assert (await headers_sent("mine", agents=agents))["authorization"] == "Bearer s3cret"


def test_every_form_of_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    table(
        f'[agents.a]\nurl = "{BASE}"\ncredentials = ["ada", "pw"]\nversion = "0.3"\nbinding = "GRPC"\norigin = "x"\n'
        f'[agents.b]\nurl = "https://b.example"\ncertificate = "me.pem"\n'
        f'[agents.c]\nurl = "https://c.example"\ncredentials = {{ key = "k" }}\n'
    )
    where, options = apply_config("a", Options(version="1.0"))
    assert (where, options.credentials, options.version) == (BASE, ("ada", "pw"), "1.0")
    assert (options.binding, options.origin) == ("GRPC", "x")
    assert apply_config("b", Options())[1].credentials == ClientCertificate("me.pem")
    assert apply_config("c", Options())[1].credentials == {"key": "k"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            f'[agents.fake]\nurl = "{BASE}"\ncredential = "x"',
            r"dragoman.toml, line 3: .*credential",
        ),
        ('[agents.fake]\ncredentials = "x"', r"dragoman.toml, line 1: .*url"),
        ("[agents]\nfake = 7", r"dragoman.toml, line 2: fake"),
        ("agents = 7", r"dragoman.toml, line 1: \[agents\] is not a table"),
        (
            f'[agents.fake]\nurl = "{BASE}"\ncredentials = "x"\ncertificate = "y"',
            "both a certificate and credentials",
        ),
        ("[agents\n", r"dragoman.toml cannot be read: .*line 1"),
    ],
)
async def test_the_error_says_what_is_wrong_with_the_table(
    text: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    table(text)
    with pytest.raises(ValueError, match=why):
        await connect("fake").open()
    await headers_sent(BASE)  # a URL needs no table
    assert "so no credentials are taken from it" in caplog.text


# --- by everybody

locked = Agent(
    "Locked", description="Lets in who has the word", auth=[Bearer({"ada": sha256(b"w0rd").hexdigest()})]
)


@locked.skill
async def say(turn: Turn) -> str:
    """Says it again."""
    return turn.text.upper()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with in_thread(running(application(locked, store="memory:"))) as url:
        yield url


def test_every_command_sends_the_credentials_of_the_table(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "w0rd")
    table(f'[agents.locked]\nurl = "{url}"\ncredentials = "env:WORD"\n')
    assert main(["send", "locked", "hello"]) == 0
    assert "HELLO" in capsys.readouterr().out
    assert main(["send", url, "hello"]) == 0
    assert main(["tasks", "locked"]) == 0
    task = capsys.readouterr().out.splitlines()[-1].split("\t")[0].split()[0]
    assert main(["task", "get", "locked", task]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("good day\n"))
    assert main(["chat", "locked"]) == 0
    assert "GOOD DAY" in capsys.readouterr().out
    monkeypatch.setenv("WORD", "wrong")
    assert main(["send", "locked", "hello"]) == 4


@pytest.mark.parametrize("by", ["url", "localhost", "name"])
def test_send_shows_the_token_of_the_hub(
    url: str, by: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table(f'[agents]\nlocked = "{url}"\n')
    target = {"url": url, "localhost": url.replace("127.0.0.1", "localhost"), "name": "locked"}[by]
    monkeypatch.setenv("DRAGOMAN_TOKEN", "w0rd")
    assert main(["send", target, "hello"]) == 4  # it is not the hub
    assert (
        "DRAGOMAN_TOKEN is only for the hub at http://127.0.0.1:8080: set DRAGOMAN_URL"
        in capsys.readouterr().err
    )
    monkeypatch.setenv("DRAGOMAN_URL", url)
    assert main(["send", target, "hello"]) == 0
    table(f'[agents.locked]\nurl = "{url}"\ncredentials = "wrong"\n')  # which says more
    assert main(["send", target, "hello"]) == (4 if by != "localhost" else 0)


async def test_turn_call_sends_the_credentials_of_the_table(url: str) -> None:
    table(f'[agents.locked]\nurl = "{url}"\ncredentials = "w0rd"\n')
    caller = Agent("Caller", description="Calls")

    @caller.skill
    async def ask(turn: Turn) -> str:
        """Asks another agent."""
        return (await turn.call("locked", "by name")).text + (await turn.call(url, ", by address")).text

    async with connect(caller) as agent:
        assert await agent("go") == "BY NAME, BY ADDRESS"
