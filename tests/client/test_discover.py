"""The card of an agent is found by every kind of name, and cached as HTTP allows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Turn
from dragoman.client import Client, Policy, connect, connection, discover
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.client.transport.network import HttpTransport
from dragoman.client.transport.transport import NotSent
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    MethodNotFound,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.client.fakes import Answer, Asked, Site, answer, card, error, old_card, page
from tests.requirements import requirement

BASE = "http://agent.test"
NEW, OLD, BESIDE = "/.well-known/agent-card.json", "/.well-known/agent.json", "/agent-card.json"


def reach(site: Site, target: Any = BASE, **options: Any) -> Client:
    return connect(target, transport=AsgiTransport(site), **options)


@pytest.mark.parametrize(
    ("at", "tried"),
    [(NEW, [NEW]), (OLD, [NEW, OLD]), (BESIDE, [NEW, OLD, BESIDE])],
)
async def test_a_base_url_is_searched_for_the_card(at: str, tried: list[str]) -> None:
    site = Site({at: page(card())})
    async with reach(site) as agent:
        assert agent.card.name == "Fake"
    assert site.paths() == tried


async def test_an_agent_below_a_path_is_looked_for_there_first_and_then_at_the_root() -> None:
    site = Site({NEW: page(card())})
    async with reach(site, f"{BASE}/agents/one"):
        pass
    one = "/agents/one"
    assert site.paths() == [f"{one}{NEW}", f"{one}{OLD}", f"{one}{BESIDE}", one, NEW]


async def test_on_a_dragoman_server_a_wrong_name_does_not_find_the_agent_at_the_root() -> None:
    hello, other = Agent("Hello"), Agent("Other")
    for agent in (hello, other):
        agent.skill(id="echo")(echo)
    async with running(application(hello, other, store="memory:")) as url:
        async with connect(f"{url}/other") as client:
            assert client.card.name == "Other"
        with pytest.raises(Unreachable, match=f"no agent at {url}/othr: at its root is 'Hello', {url}/hello"):
            await connect(f"{url}/othr").open()
    async with running(application(hello, store="memory:")) as url, connect(f"{url}/x") as client:
        assert client.card.name == "Hello"


async def echo(text: str) -> str:
    """Repeats."""
    return text


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("htp://agent.test", "htp: is not a scheme we know: http, https or catalogue"),
        ("no-such-card.json", "there is no file no-such-card.json"),
        ("./agents/no-such-card.json", "there is no file ./agents/no-such-card.json"),
    ],
)
async def test_an_invalid_target_is_an_error_before_any_request(target: str, why: str) -> None:
    site = Site()
    with pytest.raises(NotSent, match=why):
        await reach(site, target).open()
    assert not site.asked


async def test_a_version_that_is_not_a_string_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r'"1\.0"'):
        connect(BASE, version=1.0)  # type: ignore[arg-type]


async def test_the_query_of_a_url_is_part_of_every_card_request() -> None:
    site = Site({NEW: page(card())})
    async with reach(site, f"{BASE}/?code=abc"):
        pass
    assert [asked.query for asked in site.asked] == [{"code": "abc"}]


async def test_a_card_may_have_any_address() -> None:
    site = Site({"/cards/x": page(card(name="The one")), NEW: page(card(name="The house"))})
    async with reach(site, f"{BASE}/cards/x") as agent:
        assert agent.card.name == "The one"


async def test_the_url_of_a_card_is_taken_as_it_is() -> None:
    site = Site({"/cards/x.json": page(card())})
    async with reach(site, f"{BASE}/cards/x.json"):
        pass
    assert site.paths() == ["/cards/x.json"]


@pytest.mark.parametrize("how", ["document", "object", "file", "file name"])
async def test_a_card_at_hand_needs_no_search(how: str, tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card()))
    from dragoman.dialects.cards import read_card

    target = {"document": card(), "object": read_card(card())[0], "file": path, "file name": str(path)}[how]
    site = Site({"/rpc": answer})
    async with reach(site, target) as agent:
        assert await agent("hello") == "fine"
    assert site.paths() == ["/rpc"]


async def test_a_name_is_looked_up_in_dragoman_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dragoman.toml").write_text(f'[agents]\nfake = "{BASE}"\nother = {{ url = "{BASE}/x" }}\n')
    site = Site({NEW: page(card())})
    async with reach(site, "fake") as agent:
        assert agent.card.name == "Fake"
    async with reach(site, "mine", agents={"mine": BASE}) as agent:
        assert agent.card.name == "Fake"
    with pytest.raises(NotSent, match="neither a URL nor a file"):
        await reach(site, "nobody").open()
    with pytest.raises(NotSent, match="did you mean 'other'"):
        await reach(site, "othr").open()


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("127.0.0.1:1/x", "http://127.0.0.1:1/x"),
        ("a.example", "https://a.example"),
    ],
)
def test_a_host_is_reached_over_tls_unless_it_is_this_one(name: str, url: str) -> None:
    assert discover.resolve_target(name, {}) == url


async def test_a_card_is_not_fetched_again_while_it_is_fresh() -> None:
    site = Site({NEW: page(card(), cache_control="public, max-age=60", etag='"1"')})
    for _ in range(2):
        async with reach(site):
            pass
    assert site.paths() == [NEW]


@requirement(19)
async def test_a_stale_card_is_revalidated_with_its_etag() -> None:
    def get(asked: Asked) -> Answer:
        if asked.headers.get("if-none-match") == '"1"':
            return 304, {"cache-control": "max-age=60"}, b""
        return page(card(), etag='"1"')

    site = Site({NEW: get})
    for _ in range(3):
        async with reach(site) as agent:
            assert agent.card.name == "Fake"
    assert [asked.headers.get("if-none-match") for asked in site.asked] == [None, '"1"']


async def test_a_card_that_must_not_be_stored_is_not() -> None:
    site = Site({NEW: page(card(), cache_control="no-store, max-age=60", etag='"1"')})
    for _ in range(2):
        async with reach(site):
            pass
    assert [asked.headers.get("if-none-match") for asked in site.asked] == [None, None]


@requirement(18)
@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ({"cache_control": "No-Store, max-age=60"}, 2),
        ({"cache_control": "no-cache, max-age=60"}, 2),
        ({"cache_control": 'Max-Age="60"'}, 1),
        ({"cache_control": "max-age=" + "9" * 5000}, 1),
        ({"cache_control": "max-age=60", "age": "61"}, 2),
        ({"cache_control": "max-age=60", "age": "old"}, 1),
    ],
    ids=["no-store", "no-cache", "quoted", "forever", "aged", "ageless"],
)
async def test_the_server_decides_how_long_a_card_is_cached(said: dict[str, str], asked: int) -> None:
    site = Site({NEW: page(card(), 200, **said)})
    for _ in range(2):
        async with reach(site):
            pass
    assert len(site.asked) == asked


async def test_a_card_that_was_fetched_with_credentials_is_not_cached() -> None:
    def get(asked: Asked) -> Answer:
        if "authorization" not in asked.headers:
            return page({}, 401)
        return page(card(name=asked.headers["authorization"]), cache_control="max-age=60")

    site = Site({NEW: get})
    for secret in ("one", "two"):
        async with reach(site, credentials=secret) as agent:
            assert agent.card.name == f"Bearer {secret}"
    with pytest.raises(Unauthenticated):
        await reach(site).open()


async def test_the_card_at_the_root_is_not_that_of_an_agent_below_that_does_not_let_us_in() -> None:
    site = Site({"/sub" + NEW: page({}, 401), NEW: page(card(name="The house"))})
    with pytest.raises(Unauthenticated):
        await reach(site, "http://agent/sub", credentials="wrong").open()


async def test_a_card_that_needs_credentials_is_asked_for_once_without_them() -> None:
    def get(asked: Asked) -> Answer:
        return page(card()) if asked.headers.get("authorization") == "Bearer right" else page({}, 401)

    paths = [f"/sub{path}" for path in ("", NEW, OLD, "/agent-card.json")]
    site = Site(dict.fromkeys(paths, get))
    async with reach(site, "http://agent/sub", credentials="right") as agent:
        assert agent.card.name == "Fake"
    assert site.paths() == ["/sub" + NEW] * 2


@pytest.mark.parametrize("credentials", [None, "wrong"])
async def test_the_search_ends_where_a_dragoman_server_asks_for_credentials(credentials: str | None) -> None:
    """It has a private card at one place only."""
    site = Site({"/sub" + NEW: page({}, 401, dragoman="1"), "/sub" + OLD: page({}, 401, dragoman="1")})
    with pytest.raises(Unauthenticated, match=r"http://agent/sub.* needs credentials that it accepts"):
        await reach(site, "http://agent/sub", credentials=credentials).open()
    assert set(site.paths()) == {"/sub" + NEW}


async def test_a_public_card_is_found_though_its_server_asks_for_credentials_everywhere_else() -> None:
    """The key goes where the card says, which is not where a token would go."""
    scheme = {"k": {"apiKeySecurityScheme": {"name": "X-Key", "location": "header"}}}
    public = card(securitySchemes=scheme, securityRequirements=[{"schemes": {"k": {"list": []}}}])
    site = Site({NEW: page({}, 401), OLD: page(public)})
    async with reach(site, credentials="key") as agent:
        assert agent.card.security_schemes
    assert site.paths() == [NEW, NEW, OLD]


async def test_the_error_says_that_there_is_no_card() -> None:
    with pytest.raises(Unreachable, match="there is no agent card at http://agent"):
        await reach(Site()).open()


async def test_the_error_says_that_a_page_is_not_a_card() -> None:
    site = Site({NEW: (200, {}, b"<html>"), OLD: page(["a", "list"])})
    with pytest.raises(InvalidAgentResponse, match="is not a card"):
        await reach(site).open()


async def test_an_endless_card_is_not_read() -> None:
    site = Site({NEW: (200, {}, b" " * (5 << 20) + json.dumps(card()).encode())})
    with pytest.raises(Unreachable, match="more than 4096 KB"):
        await reach(site).open()


async def test_a_card_may_begin_with_a_byte_order_mark() -> None:
    site = Site({NEW: (200, {}, b"\xef\xbb\xbf" + json.dumps(card()).encode())})
    async with reach(site) as agent:
        assert agent.card.name == "Fake"


async def test_a_server_that_is_busy_is_asked_for_its_card_again() -> None:
    busy: list[Answer] = [page({}, 503), page({}, 429, retry_after="0")]
    site = Site({NEW: lambda asked: busy.pop() if busy else page(card())})
    async with reach(site, policy=Policy(shortest=0.01)) as agent:
        assert agent.card.name == "Fake"
    assert site.paths().count(NEW) == 3


class Unsteady(AsgiTransport):
    """A site whose first answers break off."""

    def __init__(self, site: Site, breaks: int) -> None:
        super().__init__(site)
        self.breaks = breaks

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Any:
        response = await super().request(method, url, headers, body)
        if self.breaks > 0:
            self.breaks -= 1
            raise Unreachable(f"{url}: the connection broke")
        return response


async def test_a_card_whose_answer_broke_off_is_asked_for_again_and_no_other_taken_for_it() -> None:
    site = Site({NEW: page(card()), OLD: page(old_card(protocolVersion="0.2.5"))})
    async with connect(BASE, transport=Unsteady(site, 2), policy=Policy(shortest=0.01)) as agent:
        assert agent.version == "1.0"
    assert site.paths() == [NEW, NEW, NEW]


async def test_a_server_that_stays_busy_is_an_error() -> None:
    site = Site({NEW: page({}, 503)})
    with pytest.raises(Unavailable, match="HTTP 503"):
        await reach(site, policy=Policy(shortest=0.01, attempts=2)).open()
    assert site.paths().count(NEW) == 2


async def silent(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await asyncio.Event().wait()


async def test_a_server_that_never_shows_its_card_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutError, match=r"http://agent\.test did not show its card in time"):
        await connect(BASE, transport=AsgiTransport(silent), timeout=0.05).open()
    monkeypatch.setattr(connection, "_CARD_SECONDS", 0.05)
    with pytest.raises(Unreachable, match=r"did not show its card within 0\.05 s"):
        await connect(BASE, transport=AsgiTransport(silent)).open()


class Network(HttpTransport):
    """A network in which `BASE` is a site here."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = AsgiTransport(site)

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Any:
        to = self._site.request if url.startswith(f"{BASE}/") else super().request
        return await to(method, url, headers, body)


@requirement(13)
@pytest.mark.parametrize("there", ["http://[::1", "http://127.0.0.1:99999/rpc", "ftp://127.0.0.1/rpc"])
async def test_an_interface_that_leads_nowhere_is_left_for_the_next_one(there: str) -> None:
    interfaces = [
        {"url": there, "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "nobody"},
        {"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "acme"},
    ]
    site = Site({NEW: page(card(supportedInterfaces=interfaces)), "/rpc": answer})
    async with connect(BASE, transport=Network(site)) as agent:
        assert await agent("hello") == "fine"
        assert agent.url == f"{BASE}/rpc"
    assert site.asked[-1].json["params"]["tenant"] == "acme"


async def test_a_card_without_a_reachable_interface_is_an_error() -> None:
    interfaces = [{"url": "http://[::1", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
    site = Site({NEW: page(card(supportedInterfaces=interfaces))})
    async with connect(BASE, transport=Network(site), policy=Policy(shortest=0.01)) as agent:
        with pytest.raises(NotSent, match="is not a URL"):
            await agent("hello")


async def test_versions_we_do_not_speak_are_named() -> None:
    later = [{"url": f"{BASE}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "9.9"}]
    with pytest.raises(UnsupportedOperation, match=r"offers JSONRPC 9\.9; we speak"):
        await reach(Site({NEW: page(card(supportedInterfaces=later))})).open()


@pytest.mark.parametrize("there", ["http://[", "http://agent.test:99999/"])
async def test_a_redirect_to_an_invalid_url_is_an_a2a_error(there: str) -> None:
    with pytest.raises(A2AError, match="is not a URL"):
        await reach(Site({NEW: (302, {"location": there}, b"")})).open()


@pytest.mark.parametrize(
    ("document", "at", "version"),
    [
        (card(), NEW, "1.0"),
        (old_card(protocolVersion="1.0", preferredTransport="JSONRPC"), NEW, "arbiter"),
        (old_card(protocolVersion="0.3.0"), NEW, "0.3"),
        (old_card(protocolVersion="0.2.6"), OLD, "0.2"),
        (old_card(), OLD, "0.2"),
    ],
)
async def test_the_card_decides_the_dialect_and_the_label_alone_never_makes_it_1_0(
    document: dict[str, Any], at: str, version: str
) -> None:
    async with reach(Site({at: page(document)})) as agent:
        assert agent.version == version


def oldest(asked: Asked) -> Answer:
    """A server of 0.1."""
    if asked.json["method"] != "tasks/send":
        return error(asked, -32601)
    artifact = {"parts": [{"type": "text", "text": "old"}], "index": 0}
    result = {"id": asked.json["params"]["id"], "status": {"state": "completed"}, "artifacts": [artifact]}
    return page({"jsonrpc": "2.0", "id": asked.json["id"], "result": result})


async def test_an_agent_that_does_not_know_the_method_gets_an_older_version_which_is_cached() -> None:
    site = Site({OLD: page(old_card()), "/rpc": oldest})
    for _ in range(2):
        async with reach(site) as agent:
            assert await agent("hello") == "old"
            assert agent.version == "0.1"
    methods = [asked.json["method"] for asked in site.asked if asked.path == "/rpc"]
    assert methods == ["message/send", "tasks/send", "tasks/send"]


async def test_a_card_with_a_wrong_version_does_not_stop_the_client() -> None:
    site = Site({NEW: page(card()), "/rpc": oldest})
    async with reach(site) as agent:
        assert await agent("hello") == "old"
    assert [asked.json["method"] for asked in site.asked[1:]] == ["SendMessage", "message/send", "tasks/send"]


@requirement(103)
async def test_a_pinned_version_is_the_only_one_used() -> None:
    site = Site({NEW: page(card()), "/rpc": oldest})
    async with reach(site, version="0.3") as agent:
        assert agent.version == "0.3"
        with pytest.raises(MethodNotFound):
            await agent("hello")
    assert [asked.json["method"] for asked in site.asked[1:]] == ["message/send"]


async def test_an_agent_that_knows_no_method_is_an_error() -> None:
    site = Site({NEW: page(card()), "/rpc": lambda asked: error(asked, -32601, "what?")})
    async with reach(site) as agent:
        with pytest.raises(MethodNotFound, match="what"):
            await agent("hello")
        assert agent.version == "1.0"


async def test_bindings_we_do_not_have_are_named() -> None:
    other = [{"url": "agent.test:50051", "protocolBinding": "GRPC", "protocolVersion": "1.0"}]
    site = Site({NEW: page(card(supportedInterfaces=other))})
    with pytest.raises(UnsupportedOperation, match=r"offers GRPC 1\.0; JSONRPC was asked for$"):
        await reach(site, binding="JSONRPC").open()
    with pytest.raises(
        UnsupportedOperation, match=r"offers GRPC 1\.0; SOAP was asked for, and we speak JSONRPC"
    ):
        await reach(site, binding="soap").open()


async def test_an_operation_that_the_version_lacks_is_refused_with_a_reason() -> None:
    async with reach(Site({NEW: page(old_card(protocolVersion="0.3.0"))})) as agent:
        with pytest.raises(UnsupportedOperation, match=r"speaks A2A 0\.3, which has no ListTasks"):
            async for _ in agent.list():
                pass


@pytest.mark.parametrize("at", ["/rpc/agent/authenticatedExtendedCard", "/agent/authenticatedExtendedCard"])
async def test_the_extended_card_of_0_2_is_a_page(at: str) -> None:
    site = Site({NEW: page(old_card(protocolVersion="0.2.6")), at: page(old_card(name="More"))})
    async with reach(site, credentials="s3cret") as agent:
        assert (await agent.extended_card()).name == "More"
    assert site.asked[-1].headers["authorization"] == "Bearer s3cret"


@pytest.mark.parametrize(
    ("url", "means"),
    [
        ("http://0.0.0.0:8000/a", "http://agent.test:8000/a"),
        ("/a", "http://agent.test/a"),
        ("a", "http://agent.test/a"),
        ("", "http://agent.test/"),
        ("//other.example/a", "http://other.example/a"),
        ("https://other.example/a", "https://other.example/a"),
    ],
)
def test_an_address_in_a_card_is_made_absolute(url: str, means: str) -> None:
    assert discover.absolute_url(url, f"{BASE}{NEW}") == means
    assert discover.absolute_url(url, f"{BASE}{OLD}?code=abc") == means


def test_an_address_beside_a_card_is_relative_to_it() -> None:
    assert discover.absolute_url("rpc", f"{BASE}/agents/one.json") == f"{BASE}/agents/rpc"
    assert discover.absolute_url("rpc", f"{BASE}/agents/one{NEW}") == f"{BASE}/agents/one/rpc"


async def test_a_card_that_is_not_there_is_asked_for_once() -> None:
    site = Site()
    with pytest.raises(Unreachable, match="there is no agent card at"):
        await reach(site).open()
    assert site.paths() == ["/.well-known/agent-card.json", "/.well-known/agent.json", "/agent-card.json"]


async def test_an_agent_that_is_not_on_a_server_of_ours_is_asked_for_once() -> None:
    asked: list[str] = []
    agents = [Agent("Here"), Agent("There")]
    for agent in agents:

        @agent.skill
        async def say(turn: Turn) -> str:
            return "x"

    app = application(*agents, store="memory:")

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        asked.extend([scope["path"]] if scope["type"] == "http" else [])
        await app(scope, receive, send)

    with pytest.raises(Unreachable, match="there is no agent at"):
        await connect("http://agent.test/elsewhere", transport=AsgiTransport(counted)).open()
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(
    "document",
    [
        {"name": "left-pad", "url": "https://x.example", "version": "1"},
        {"name": "x"},
        {"name": "x", "description": "y"},
    ],
)
async def test_any_json_with_a_name_is_not_a_card(document: dict[str, Any]) -> None:
    """It may be the page of something else at that address; the agent's card is at the root."""
    site = Site({"/things/x": page(document), "/.well-known/agent-card.json": page(card()), "/rpc": answer})
    async with reach(site, "http://agent.test/things/x") as agent:
        assert agent.card.name == "Fake"
    site = Site({"/things/x": page(document)})
    with pytest.raises(InvalidAgentResponse, match="/things/x is not a card"):
        await reach(site, "http://agent.test/things/x").open()
