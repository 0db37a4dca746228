"""bridge.toml: what is read, and what is refused with a place and a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.bridge.application import make_bridge
from dragoman.bridge.settings import InvalidBridge, read_bridge
from dragoman.client import connect
from dragoman.server.runtime import running
from tests.bridge.bridging import Crew, crew_app

FULL = """
[auth]
tokens = "tokens.json"

[agents]
plain = "http://plain:9000"

[agents.crew]
urls = ["http://crew-1:9000", "http://crew-2:9000"]
path = "/teams/crew"
mode = "pass"
shared_tasks = true
credentials = "env:CREW_TOKEN"
versions = ["1.0", "0.3"]
timeout = 30
callers = ["alice"]
scopes = ["crew"]

[agents.crew.skills.refund]
scopes = ["refunds"]

[agents.crew.limits]
rate = 5
concurrency = 10

[agents.open]
url = "https://open.example.com"
auth = {}
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "bridge.toml"
    file.write_text(text)
    return file


def test_a_file_has_many_agents_each_with_what_holds_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREW_TOKEN", "t0ken")
    (tmp_path / "tokens.json").write_text('{"alice": "' + "0" * 64 + '"}')
    settings = read_bridge(write(tmp_path, FULL))
    plain, crew, open_ = settings.routes["plain"], settings.routes["crew"], settings.routes["open"]
    assert (plain.path, plain.mode, plain.addresses) == ("/plain", "durable", ("http://plain:9000",))
    assert plain.auth is not None and plain.auth.tokens == str(tmp_path / "tokens.json")
    assert crew.path == "/teams/crew" and len(crew.addresses) == 2
    assert crew.limits is not None and crew.limits.quota.rate == 5
    assert open_.auth is not None and not open_.auth.schemes()
    routes = {route.name: route for route in make_bridge(settings).routes}
    assert routes["crew"].agent.auth and routes["plain"].agent.auth and not routes["open"].agent.auth


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[agents.crew]\nurl='http://crew'\nmodus='pass'", "line 3.*no setting 'modus' in \\[agents.crew\\]: is it 'mode'"),
        ("[agents.crew]\nurl='http://crew'\nmode='both'", "line 3.*mode cannot be 'both': use durable, pass"),
        ("[agents.crew]\nurl='http://crew'\nbinding='SOAP'", "binding is one of JSONRPC, HTTP.JSON, GRPC, not 'SOAP'"),
        ("[agents.crew]\nurl='http://crew'\nversion='4'", "there is no A2A 4; known are 1.0"),
        ("[agents.crew]\nurl='http://crew'\nsigned_by='keys.json'", "signed_by: there is no file .*keys.json"),
        ("[auth]\ntokens='none.json'\n[agents]\ncrew='http://crew'", "auth: .*none.json: No such file or directory$"),
        ("[agents.crew]\nurl='http://crew'\ntimeout=0", "line 3.*timeout must be more than 0"),
        ("[agents.crew.skills.a]\nscope=['x']", "line 2.*no setting 'scope'.*is it 'scopes'"),
        ("[agents.crew]\npath='/x'", "crew needs a url"),
        ("[agents.crew]\nurl='http://crew'\nurls=['http://b']", "not both"),
        ("[agents.crew]\nurl='crew:9000'", "is not a URL"),
        ("[agents.crew]\nurl='http://a:b@crew'", "no password"),
        ("[agents.crew]\nurl='http://crew'\nversions=['2.0']", "versions are some of"),
        ("[agents.crew]\nurl='http://crew'\nscopes=['x']", "needs callers that say who they are"),
        ("[agents.crew]\nurl='http://crew'\npath='x'", "begins with a slash"),
        ("[agents.a]\nurl='http://a'\npath='/x'\n[agents.b]\nurl='http://b'\npath='/x/'", "same path"),
        ("[agent.crew]\nurl='http://crew'", "no setting 'agent'.*is it 'agents'"),
        ("[agents.crew]\nurl='http://crew'\n[agents.crew.auth.tokens]\nalice='env:NOT_THERE'", "NOT_THERE"),
        ("", "there is no agent"),
        ("[agents", "cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_a_place(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidBridge, match=f"(?s)bridge.toml.*{why}"):
        make_bridge(read_bridge(write(tmp_path, text)))


async def test_agents_of_a_file_are_at_their_paths_and_do_not_share_anything(tmp_path: Path) -> None:
    one, two = Crew(), Crew(versions=("0.3",))
    async with running(crew_app(one)) as first, running(crew_app(two)) as second:
        text = f"[agents.one]\nurl='{first}'\n[agents.two]\nurl='{second}'\nmode='pass'\npath='/other/two'\n"
        bridge = make_bridge(read_bridge(write(tmp_path, text)))
        async with running(bridge.app(store="memory:")) as url:
            async with connect(f"{url}/one") as client:
                assert (await client("hi")).text == "HI"
            async with connect(f"{url}/other/two") as client:
                assert (await client("hi")).text == "HI"
    assert len(one.seen) == len(two.seen) == 1
