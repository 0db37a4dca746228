"""`connect("catalogue://host/name")` and `dragoman find`: agents are found in a catalogue and called."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from dragoman.catalogue import AgentCatalogue
from dragoman.cli import main
from dragoman.client import connect
from dragoman.client.catalogue import RemoteCatalogue, split_catalogue
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.client.transport.network import HttpTransport
from dragoman.client.transport.transport import NotSent, RequestRejected
from dragoman.errors import A2AError, InvalidAgentResponse, Unauthenticated
from dragoman.server.application import application
from dragoman.server.runtime import running
from dragoman.stores import open_store
from tests.catalogue.elsewhere import CARD, elsewhere, respond
from tests.catalogue.test_published import ADA, BOB, make_agents
from tests.client.fakes import Site, card, page
from tests.serving import in_thread


@asynccontextmanager
async def serving(store: str = "memory:", **agents: str) -> AsyncIterator[str]:
    catalogue = AgentCatalogue(allow_private=True, agents=agents)
    async with running(application(*make_agents(), store=store, catalogue=catalogue)) as url:
        yield url


def place(url: str, name: str) -> str:
    return f"catalogue://{url.removeprefix('http://')}/{name}"


async def test_an_agent_is_called_by_its_name_in_a_catalogue() -> None:
    async with serving() as url, connect(place(url, "refunds")) as agent:
        assert agent.card.name == "Refunds"
        assert (await agent("order 7")).text == "done"


async def test_a_title_and_an_identifier_are_names_too() -> None:
    async with serving() as url:
        for name in ("Refunds", "REFUNDS", quote("urn:air:127.0.0.1:agent:refunds")):
            async with connect(place(url, name)) as agent:
                assert agent.card.name == "Refunds"


async def test_a_private_agent_is_found_with_its_credentials_only() -> None:
    async with serving() as url:
        async with connect(place(url, "payroll"), credentials=ADA) as agent:
            assert (await agent("pay")).text == "paid"
        for given in (None, BOB):
            with pytest.raises(RequestRejected, match="has no agent 'payroll', or does not show it"):
                await connect(place(url, "payroll"), credentials=given).open()


async def test_credentials_stay_at_the_catalogue_when_the_agent_is_elsewhere() -> None:
    async with elsewhere() as site, serving(money=site.url) as url:
        await site.come.wait()
        site.card = {**CARD, "supportedInterfaces": [{**CARD["supportedInterfaces"][0], "url": site.url}]}
        site.status = b"401 Unauthorized"
        with pytest.raises(Unauthenticated):
            await connect(place(url, "money"), credentials="secret-of-the-catalogue").open()
        assert site.heads and not any(b"secret-of-the-catalogue" in head for head in site.heads)


async def test_an_agent_elsewhere_gets_the_credentials_that_are_written_down_for_it() -> None:
    async with elsewhere() as site, serving(money=site.url) as url:
        await site.come.wait()
        site.raw = lambda path: respond(msgspec.json.encode(CARD), b"401 Unauthorized")
        agents = {"money-desk": {"url": site.url, "credentials": "secret-of-money"}}
        with pytest.raises(Unauthenticated):
            await connect(place(url, "money"), agents=agents).open()
        assert any(b"secret-of-money" in head for head in site.heads)


async def test_a_name_of_the_configuration_can_be_a_name_in_a_catalogue() -> None:
    async with serving() as url, connect("ref", agents={"ref": place(url, "refunds")}) as agent:
        assert agent.card.name == "Refunds"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("catalogue://agents.example.com/x", ("https://agents.example.com", "x")),
        ("catalogue://agents.example.com:8443/below/x", ("https://agents.example.com:8443/below", "x")),
        ("catalogue+http://agents.example.com/x", ("http://agents.example.com", "x")),
        ("catalogue://localhost:8000/x%20y", ("http://localhost:8000", "x y")),
        ("catalogue://[::1]:8000/x", ("http://[::1]:8000", "x")),
    ],
)
def test_the_address_of_a_catalogue_is_https_but_on_loopback(target: str, expected: tuple[str, str]) -> None:
    assert split_catalogue(target) == expected


@pytest.mark.parametrize(
    "target",
    ["catalogue://", "catalogue://host", "catalogue://host/", "catalogue:///x", "catalogue://u:p@host/x"],
)
def test_what_is_not_an_address_of_a_catalogue_is_refused(target: str) -> None:
    with pytest.raises(NotSent):
        split_catalogue(target)


# -- catalogues of others ----------------------------------------------------------------------------------------------


def other(document: Any, path: str = "/.well-known/ai-catalog.json") -> RemoteCatalogue:
    return RemoteCatalogue("http://localhost", AsgiTransport(Site({path: page(document)})))


async def test_an_ai_catalog_with_cards_inside_is_read() -> None:
    entry = {
        "identifier": "urn:x:one",
        "mediaType": "application/a2a-agent-card+json",
        "data": card(name="One"),
    }
    found = await other({"specVersion": "1.0", "entries": [entry]}).find("one")
    assert found.card is not None and found.card["name"] == "One"


async def test_a_catalogue_without_a_registry_is_searched_here() -> None:
    entries = [
        {
            "identifier": f"urn:x:{name}",
            "type": "application/a2a-agent-card+json",
            "url": "https://x.example",
            "description": text,
        }
        for name, text in (("one", "Refunds an order"), ("two", "Weather"))
    ]
    catalogue = other(
        {
            "specVersion": "1.0",
            "entries": [
                *entries,
                {
                    "identifier": "urn:x:mcp",
                    "type": "application/mcp-server-card+json",
                    "url": "https://m.example",
                },
            ],
        }
    )
    assert [each.name for each in await catalogue.search("refunds order")] == ["one"]
    assert [each.name for each in await catalogue.list()] == ["one", "two"]


async def test_a_catalogue_of_a_later_version_is_not_misread() -> None:
    entry = {"identifier": "urn:x:one", "type": "application/a2a-agent-card+json", "url": "https://x.example"}
    assert await other({"specVersion": "1.7", "entries": [entry]}).list()
    with pytest.raises(InvalidAgentResponse, match=r"has version 2\.0, and we read 1"):
        await other({"specVersion": "2.0", "entries": [entry]}).list()


async def test_two_agents_of_one_name_are_told_apart_by_their_identifiers() -> None:
    entries = [
        {
            "identifier": f"urn:x:{n}:desk",
            "type": "application/a2a-agent-card+json",
            "url": f"https://{n}.example",
        }
        for n in (1, 2)
    ]
    catalogue = other({"entries": entries})
    with pytest.raises(RequestRejected, match="several"):
        await catalogue.find("desk")
    assert (await catalogue.find("urn:x:2:desk")).url == "https://2.example"


@pytest.mark.parametrize(
    "document",
    [
        [],
        "catalogue",
        {"entries": {}},
        {"entries": [None, 7, "x", {}, {"identifier": 7}, {"identifier": "a", "type": 9, "url": []}]},
        {"entries": [{"identifier": "x", "type": "application/ai-registry+json", "url": "ftp://x"}]},
    ],
)
async def test_a_document_that_is_no_catalogue_has_no_agents(document: Any) -> None:
    with pytest.raises((RequestRejected, InvalidAgentResponse)):
        await other(document).find("x")


@pytest.mark.parametrize("url", ["", "ftp://x.example", "file:///etc/passwd", "catalogue://localhost/x"])
async def test_an_entry_that_names_no_web_address_is_not_connected_to(url: str) -> None:
    entry = {"identifier": "urn:x:one", "type": "application/a2a-agent-card+json", "url": url}
    site = AsgiTransport(Site({"/.well-known/ard.json": page({"entries": [entry]})}))
    with pytest.raises(InvalidAgentResponse, match="does not say where"):
        await connect("catalogue://localhost/one", transport=site).open()


async def test_pages_that_repeat_end_a_search() -> None:
    result = {
        "identifier": "urn:x:one",
        "type": "application/a2a-agent-card+json",
        "url": "https://x.example",
    }
    registry = {
        "identifier": "urn:x:r",
        "type": "application/ai-registry+json",
        "url": "http://localhost/r/search",
    }
    site = Site(
        {
            "/.well-known/ard.json": page({"entries": [registry]}),
            "/r/search": page({"results": [result], "pageToken": "again"}),
        }
    )
    found = await RemoteCatalogue("http://localhost", AsgiTransport(site)).search("x", 50)
    assert len(found) == 2


async def test_where_there_is_no_catalogue_that_is_said() -> None:
    transport = AsgiTransport(Site({}))
    with pytest.raises(RequestRejected, match="there is no catalogue at http://localhost"):
        await RemoteCatalogue("http://localhost", transport).list()


@pytest.mark.parametrize("status", [404, 405, 410])
async def test_a_server_that_refuses_a_path_with_an_error_document_is_asked_for_the_other_one(
    status: int,
) -> None:
    refusal = page({"error": {"code": status, "message": "Not here"}}, status)
    entry = {"identifier": "urn:x:one", "type": "application/a2a-agent-card+json", "url": "https://x.example"}
    site = Site({"/.well-known/ard.json": refusal})
    catalogue = RemoteCatalogue("http://localhost", AsgiTransport(site))
    site.pages["/.well-known/ai-catalog.json"] = page({"entries": [entry]})
    assert [agent.identifier for agent in await catalogue.list()] == ["urn:x:one"]
    site.pages["/.well-known/ai-catalog.json"] = refusal
    with pytest.raises(RequestRejected, match="there is no catalogue at http://localhost"):
        await catalogue.list()


async def test_an_entry_is_retrieved_by_its_encoded_identifier() -> None:
    async with serving() as url:
        transport = HttpTransport()
        path = quote("urn:air:127.0.0.1:agent:refunds", safe="")
        response = await transport.request("GET", f"{url}/catalogue/agents/{path}", {})
        assert response.status == 200
        assert msgspec.json.decode(await response.read())["displayName"] == "Refunds"
        await transport.close()


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("find")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with in_thread(serving(f"sqlite:///{folder}/tasks.db")) as url:
        yield url


Out = pytest.CaptureFixture[str]


def test_find_prints_a_table(url: str, capsys: Out) -> None:
    assert main(["find", "refund", "an", "order", "--catalogue", url]) == 0
    name, version, health, signature, about, where = capsys.readouterr().out.strip().split("\t")
    assert (name, version, health, signature) == ("refunds", "1.4", "up", "unsigned")
    assert about == "Returns money to customers."
    assert where == f"{url}/refunds/.well-known/agent-card.json"


def test_find_prints_json_for_programs(url: str, capsys: Out) -> None:
    assert main(["find", "refund order", "--catalogue", url, "--json"]) == 0
    (agent,) = json.loads(capsys.readouterr().out)["agents"]
    assert agent["name"] == "refunds" and agent["score"] > 50


def test_find_lists_everything_that_the_credentials_show(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_CATALOGUE", url)
    assert main(["find"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["desk", "refunds"]
    assert main(["find", "--bearer", ADA]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == [
        "desk",
        "payroll",
        "refunds",
    ]


def test_find_says_when_nothing_matches(url: str, capsys: Out) -> None:
    assert main(["find", "zeppelins", "--catalogue", url]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and "no agent of" in printed.err


def test_find_says_when_there_is_no_catalogue(capsys: Out) -> None:
    assert main(["find", "x", "--catalogue", "http://127.0.0.1:9"]) == 3
    assert main(["find", "x", "--catalogue", "nonsense"]) == 2


def test_the_catalogue_of_the_configuration_is_searched(
    url: str, capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dragoman.toml").write_text(f'[catalogue]\nurl = "{url}"\n')
    monkeypatch.chdir(tmp_path)
    assert main(["find", "refunds"]) == 0
    assert capsys.readouterr().out.startswith("refunds\t")


def test_commands_call_an_agent_by_its_name_in_a_catalogue(url: str, capsys: Out) -> None:
    assert main(["send", place(url, "refunds"), "order 7"]) == 0
    assert capsys.readouterr().out == "done\n"


def test_the_operator_registers_and_removes_agents_in_the_store_of_a_running_server(
    url: str, folder: Path, capsys: Out
) -> None:
    store = f"sqlite:///{folder}/tasks.db"
    assert main(["find", "--add", f"{url}/refunds", "--name", "twin", "--store", store]) == 0
    assert capsys.readouterr().out == "registered twin: Refunds, up\n"

    async def names() -> list[str]:
        opened = open_store(store)
        await opened.open()
        found = [agent.name for agent in await opened.catalogue.registered()]
        await opened.close()
        return found

    assert asyncio.run(names()) == ["twin"]
    assert main(["find", "--add", f"{url}/refunds", "--name", "twin", "--store", store]) == 1
    assert "another name" in capsys.readouterr().err
    assert main(["find", "--remove", "twin", "--store", store]) == 0
    assert main(["find", "--remove", "twin", "--store", store]) == 1
    assert asyncio.run(names()) == []


def test_only_an_operator_changes_a_catalogue_elsewhere(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAGOMAN_CONSOLE_TOKEN", raising=False)
    assert main(["find", "--add", "https://x.example", "--catalogue", url]) == 2
    assert "DRAGOMAN_CONSOLE_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("DRAGOMAN_CONSOLE_TOKEN", ADA)
    assert main(["find", "--add", "https://x.example", "--catalogue", url]) != 0


@pytest.mark.parametrize(
    "words",
    [
        ["find", "x", "--add", "https://x.example"],
        ["find", "--add", "https://x.example", "--remove", "x"],
        ["find", "x", "--name", "y"],
        ["find", "--add", "https://x.example", "--store", "memory:", "--catalogue", "http://x.example"],
    ],
)
def test_options_that_do_not_belong_together_are_refused(words: list[str], capsys: Out) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_texts_of_a_catalogue_do_not_reach_the_terminal_as_commands(capsys: Out) -> None:
    entry = {
        "identifier": "urn:x:one",
        "type": "application/a2a-agent-card+json",
        "url": "https://x.example/\x1b[2J",
        "description": "two\nlines\x1b]0;title\x07",
        "metadata": {"name": "on\te", "health": "u\np"},
    }

    async def listed() -> Any:
        return await other({"entries": [entry]}).list()

    from dragoman.cli.find import _table

    _table(asyncio.run(listed()), "http://x.example")
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and "\x1b" not in out and len(out.split("\t")) == 6


def test_on_a_terminal_the_table_says_how_to_call_an_agent(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["find", "refund", "--catalogue", url]) == 0
    out = capsys.readouterr().out
    assert f"To call one: dragoman send {place(url, 'refunds')} TEXT" in out
    assert "agent-card.json" not in out


def test_settings_of_the_catalogue_are_checked(tmp_path: Path) -> None:
    from dragoman.catalogue.settings import CatalogueSettings, read_catalogue

    config = tmp_path / "dragoman.toml"
    assert read_catalogue(str(config)) == CatalogueSettings()
    for text, expected in (
        ("[catalogue]\nurls = 'x'", "is it 'url'"),
        ("[catalogue]\ninterval = 0", "line 2: interval must be at least 1"),
        ("[catalogue]\nagents = 'x'", "must be a table"),
        ("[catalogue.agents]\nUpper = 'https://x.example'", "line 2: Upper"),
        ("[catalogue.agents]\nx = 'ftp://x.example'", "line 2: x"),
        ("catalogue = 1", "is not a table"),
    ):
        config.write_text(text)
        with pytest.raises(ValueError, match=expected):
            read_catalogue(str(config))
    config.write_text(
        "[catalogue]\nname = 'Acme'\ninterval = 60\n[catalogue.agents]\nmoney = 'https://m.example'\n"
    )
    assert read_catalogue(str(config)) == CatalogueSettings(
        name="Acme", interval=60, agents={"money": "https://m.example"}
    )


async def test_a_catalogue_that_never_ends_is_cut() -> None:
    async with elsewhere() as site:
        site.raw = lambda path: respond(b'{"entries": [' + b"0," * (5 << 20) + b"0]}")
        transport = HttpTransport()
        with pytest.raises(A2AError, match="more than"):
            await RemoteCatalogue(site.url, transport).list()
        await transport.close()
