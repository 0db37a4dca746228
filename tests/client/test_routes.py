"""The route to an agent whose card is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dragoman.client import Client, Policy, connect, routes
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.client.transport.transport import Response
from dragoman.errors import A2AError, InvalidRequest, MethodNotFound, Unreachable
from dragoman.model.task import TaskState
from tests.client.fakes import Answer, Asked, Site, answer, card, error, old_card, page

BASE, NEW = "http://agent.test", "/.well-known/agent-card.json"
MESSAGE = {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "old"}]}
DONE = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "completed"}}


def reach(site: Any, **options: Any) -> Client:
    return connect(BASE, transport=AsgiTransport(site), policy=Policy(shortest=0.01, longest=0.02), **options)


def methods(site: Site) -> list[str]:
    return [asked.json["method"] for asked in site.asked if asked.method == "POST"]


def speaks(results: Mapping[str, Any], code: int = -32601) -> Callable[[Asked], Answer]:
    """A server that knows these methods and no others."""

    def rpc(asked: Asked) -> Answer:
        result = results.get(asked.json["method"])
        if result is None:
            return error(asked, code)
        return page({"jsonrpc": "2.0", "id": asked.json["id"], "result": result})

    return rpc


@pytest.mark.parametrize("code", [-32601, -32600])
async def test_many_calls_at_once_find_the_version_together(code: int) -> None:
    site = Site({NEW: page(card()), "/rpc": speaks({"message/send": MESSAGE}, code)})
    together = asyncio.Barrier(6)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/rpc" and methods(site).count("SendMessage") < 6:
            await together.wait()  # all of them are under way before the first is refused
        await site(scope, receive, send)

    async with asyncio.timeout(10), reach(app) as agent:
        assert await asyncio.gather(*[agent("hello") for _ in range(6)]) == ["old"] * 6
        assert agent.version == "0.3"


@pytest.mark.parametrize(
    ("method", "ask"),
    [("tasks/get", lambda agent: agent.get("t")), ("tasks/cancel", lambda agent: agent.cancel("t"))],
    ids=["get", "cancel"],
)
async def test_a_question_about_a_task_finds_the_version_as_a_message_does(method: str, ask: Any) -> None:
    site = Site({NEW: page(card()), "/rpc": speaks({method: DONE})})
    async with reach(site) as agent:
        assert (await ask(agent)).state is TaskState.COMPLETED


async def test_a_subscription_finds_the_version_as_a_message_does() -> None:
    site = Site({NEW: page(card()), "/rpc": speaks({"tasks/resubscribe": DONE})})
    async with reach(site) as agent:
        assert [piece.state async for piece in agent.subscribe("t")] == [TaskState.COMPLETED]


@pytest.mark.parametrize(
    ("document", "tried"),
    [
        (old_card(), ["message/send", "tasks/send"]),
        (old_card(protocolVersion="0.3.0"), ["message/send", "tasks/send"]),
        (card(), ["SendMessage", "message/send", "tasks/send"]),
    ],
    ids=["unsaid", "0.3", "1.0"],
)
async def test_older_versions_are_tried_and_1_0_only_where_the_card_has_its_form(
    document: dict[str, Any], tried: list[str]
) -> None:
    site = Site({NEW: page(document), "/rpc": lambda asked: error(asked, -32601)})
    async with reach(site) as agent:
        with pytest.raises(MethodNotFound):
            await agent("hello")
    assert methods(site) == tried


def sample(asked: Asked) -> Answer:
    """A server of 0.1 as most were made: a method that it does not know makes the request no request."""
    if asked.json["method"] != "tasks/send":
        error = {
            "code": -32600,
            "message": "Request payload validation error",
            "data": [{"type": "union_tag"}],
        }
        return page({"jsonrpc": "2.0", "id": None, "error": error}, 400)
    artifact = {"parts": [{"type": "text", "text": "old"}], "index": 0}
    result = {"id": asked.json["params"]["id"], "status": {"state": "completed"}, "artifacts": [artifact]}
    return page({"jsonrpc": "2.0", "id": asked.json["id"], "result": result})


@pytest.mark.parametrize("document", [card(), old_card(), old_card(protocolVersion="0.2.5")])
async def test_invalid_request_makes_the_client_try_another_version(document: dict[str, Any]) -> None:
    site = Site({NEW: page(document), "/rpc": sample})
    async with reach(site) as agent:
        assert await agent("hello") == "old"
        assert agent.version == "0.1"


async def test_invalid_request_is_an_error_once_the_version_is_known() -> None:
    site = Site({NEW: page(card()), "/rpc": answer})
    async with reach(site) as agent:
        assert await agent("hello") == "fine"
        site.pages["/rpc"] = lambda asked: error(asked, -32600)
        with pytest.raises(InvalidRequest):
            await agent("hello")
    assert methods(site) == ["SendMessage", "SendMessage"]


@pytest.mark.parametrize(
    ("document", "headers"),
    [(old_card(protocolVersion="1.0"), {}), (card(), {"dragoman": "1"})],
    ids=["arbiter", "ours"],
)
async def test_invalid_request_is_an_error_where_it_has_another_meaning(
    document: dict[str, Any], headers: dict[str, str]
) -> None:
    """Arbiter says so of a message whose task was canceled; and our own servers know every version."""
    site = Site({NEW: page(document, 200, **headers), "/rpc": lambda asked: error(asked, -32600)})
    async with reach(site) as agent:
        with pytest.raises(InvalidRequest):
            await agent("hello")
    assert len(methods(site)) == 1


async def test_an_operation_that_no_version_knows_raises_the_error_of_the_first() -> None:
    def rpc(asked: Asked) -> Answer:
        return error(asked, -32601, f"no {asked.json['method']} here")

    async with reach(Site({NEW: page(card()), "/rpc": rpc})) as agent:
        with pytest.raises(MethodNotFound, match="no CancelTask here"):
            await agent.cancel("t")
        assert agent.version == "1.0"


async def test_a_new_card_overrides_the_cached_dialect() -> None:
    site = Site({NEW: page(old_card(protocolVersion="0.3.0")), "/rpc": speaks({"message/send": MESSAGE})})
    async with reach(site) as agent:
        assert await agent("hello") == "old"
    site.pages = {NEW: page(card()), "/rpc": answer}
    async with reach(site) as agent:
        assert agent.version == "1.0"


async def test_an_agent_that_changes_its_version_is_followed() -> None:
    site = Site({NEW: page(card()), "/rpc": answer})
    async with reach(site) as agent:
        assert await agent("hello") == "fine"
        site.pages["/rpc"] = speaks({"message/send": MESSAGE})
        assert await agent("hello") == "old"
        assert agent.version == "0.3"
        newest = {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "new"}]}}
        site.pages["/rpc"] = speaks({"SendMessage": newest})
        assert await agent("hello") == "new"
        assert agent.version == "1.0"


@pytest.mark.parametrize("status", [404, 405, 410])
async def test_the_client_tries_the_next_interface_if_one_takes_no_messages(status: int) -> None:
    interfaces = [
        {"url": f"{BASE}/{path}", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        for path in ("gone", "rpc")
    ]
    site = Site(
        {
            NEW: page(card(supportedInterfaces=interfaces)),
            "/gone": (status, {"content-type": "text/html"}, b"<h1>No</h1>"),
            "/rpc": answer,
        }
    )
    async with reach(site) as agent:
        assert await agent("hello") == "fine"
    assert site.paths() == [NEW, "/gone", "/rpc"]


async def test_a_card_with_many_interfaces_that_do_not_work_does_not_cost_time_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "_ROUTES_SECONDS", 0.0)
    interfaces = [
        {"url": f"{BASE}/{n}", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"} for n in range(9)
    ]
    site = Site({NEW: page(card(supportedInterfaces=interfaces))})
    async with reach(site) as agent:
        with pytest.raises(A2AError):
            await agent("hello")
    assert site.paths() == [NEW, "/0"]


@pytest.mark.parametrize("status", [400, 404, 413, 415, 422])
async def test_a_rejected_request_is_not_repeated(status: int) -> None:
    site = Site({NEW: page(card(capabilities={"streaming": True})), "/rpc": (status, {}, b"no")})
    async with reach(site) as agent:
        for ask in (agent.get, agent.send, agent):
            before = len(site.asked)
            with pytest.raises(Unreachable, match=f"HTTP {status}: no"):
                await ask("x")
            assert len(site.asked) == before + 1


class Breaks(AsgiTransport):
    """A site whose endpoint takes a message and breaks off."""

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Any:
        response: Response = await super().request(method, url, headers, body)
        if method == "POST":
            raise Unreachable("the connection broke")
        return response


async def test_a_card_of_a_dragoman_server_says_nothing_about_other_servers() -> None:
    elsewhere = [{"url": "http://other.test/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
    site = Site({NEW: page(card(supportedInterfaces=elsewhere), dragoman="1"), "/rpc": answer})
    policy = Policy(shortest=0.01, longest=0.02)
    async with connect(BASE, transport=Breaks(site), policy=policy) as agent:
        with pytest.raises(Unreachable):
            await agent.send("hello")
    assert methods(site).count("SendMessage") == 1
