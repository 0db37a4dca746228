"""The inspector: card, findings, signature, choice and resume test of an agent elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Turn
from dragoman.auth.keys import KeyRing
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.client.fakes import Site, answer, card, old_card, page
from tests.console.calls import inspector, serve
from tests.console.conftest import Operator
from tests.console.oauth_server import oauth_server
from tests.ports import free_port
from tests.waiting import elapse


def slow() -> Agent:
    """Says something, waits for somebody who resumes, and says the rest."""
    agent = Agent("Slow", description="Takes its time")

    @agent.skill
    async def speak(text: str, turn: Turn) -> AsyncIterator[str]:
        """Speaks slowly."""
        yield "one "
        await elapse(0.3)
        yield "two"

    return agent


async def inspect(operator: Operator, url: str, **more: Any) -> dict[str, Any]:
    answered = await operator("POST", "/inspect", {"url": url, **more})
    assert answered.status == 200, answered.body
    found: dict[str, Any] = answered.json
    return found


async def test_an_agent_of_ours_has_no_errors_and_says_how_it_is_called() -> None:
    async with running(application(slow(), store="memory:")) as url, inspector() as operator:
        found = await inspect(operator, url)
    assert found["card"]["name"] == "Slow"
    assert [each for each in found["findings"] if each["severity"] == "error"] == []
    assert found["found"]["path"] == "/.well-known/agent-card.json" and found["found"]["status"] == 200
    assert found["found"]["version"] == "1.0" and found["found"]["bytes"] > 100
    assert (found["chosen"]["version"], found["chosen"]["binding"]) == ("1.0", "JSONRPC")
    assert [each["protocolBinding"] for each in found["interfaces"] if each["chosen"]] == ["JSONRPC"]
    assert found["signature"]["state"] == "unsigned" and found["problem"] == ""


async def test_a_signed_card_is_verified_with_the_keys_of_its_host(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    ring.add()
    port = free_port()
    app = application(slow(), store="memory:", keys=ring, public_url=f"http://127.0.0.1:{port}")
    async with running(app, port=port) as url, inspector() as operator:
        found = await inspect(operator, url)
    assert found["signature"]["state"] == "valid" and found["signature"]["form"] == "1.0"


@pytest.mark.parametrize("kind", ["forged", "nobody's"])
async def test_a_signature_that_does_not_fit_is_not_valid(tmp_path: Path, kind: str) -> None:
    ring = KeyRing(tmp_path)
    ring.add()
    document = card()
    document["signatures"] = [
        {"protected": each.protected, "signature": each.signature} for each in ring.sign(document)
    ]
    document["name"] = "Somebody else"
    site = Site({"/.well-known/agent-card.json": page(document)})
    if kind == "forged":
        site.pages["/.well-known/jwks.json"] = page(ring.public())
    server, url = await serve(site)
    try:
        async with inspector() as operator:
            found = await inspect(operator, url)
    finally:
        await server.stop()
    assert found["signature"]["state"] == ("invalid" if kind == "forged" else "unknown")


@pytest.mark.parametrize("version", ["0.3", "0.2"])
async def test_a_card_of_an_older_version_is_checked_by_its_rules(version: str) -> None:
    path = "/.well-known/agent-card.json" if version == "0.3" else "/.well-known/agent.json"
    document = old_card(protocolVersion=f"{version}.0")
    del document["description"]
    server, url = await serve(Site({path: page(document)}))
    try:
        async with inspector() as operator:
            found = await inspect(operator, url)
    finally:
        await server.stop()
    assert found["found"]["version"] == version == found["chosen"]["version"]
    assert "/description" in [
        each["pointer"] for each in found["findings"] if each["rule"] == "card.required"
    ]


@pytest.mark.parametrize(
    "document", [{"name": 7, "skills": {}, "capabilities": 1}, card(supportedInterfaces=[])]
)
async def test_a_card_that_cannot_be_used_still_has_findings(document: Any) -> None:
    server, url = await serve(Site({"/.well-known/agent-card.json": page(document)}))
    try:
        async with inspector() as operator:
            found = await inspect(operator, url)
    finally:
        await server.stop()
    assert found["problem"] and found["chosen"] is None
    assert any(each["severity"] == "error" for each in found["findings"])


async def test_an_address_without_an_agent_is_an_error_with_the_urls_that_were_tried() -> None:
    server, url = await serve(Site({"/": page({"hello": "world"})}))
    try:
        async with inspector() as operator:
            answered = await operator("POST", "/inspect", {"url": url})
    finally:
        await server.stop()
    assert answered.status >= 400 and "no agent card" in answered.json["error"]["message"]


async def test_a_private_address_is_refused_unless_it_is_allowed() -> None:
    site = Site({"/.well-known/agent-card.json": page(card())})
    server, url = await serve(site)
    try:
        async with inspector(allow_private=False) as operator:
            answered = await operator("POST", "/inspect", {"url": url})
            assert "not on the internet" in answered.json["error"]["message"]
            assert (await operator("POST", "/inspect/resume", {"url": url})).status >= 400
    finally:
        await server.stop()
    assert site.asked == []


async def test_the_ways_to_log_in_are_listed_for_a_form() -> None:
    async with oauth_server() as site, inspector() as operator:
        found = await inspect(operator, site.base)
    (scheme,) = found["schemes"]
    assert scheme["kind"] == "oauth2"
    assert scheme["flows"][0]["kind"] == "authorizationCode" and scheme["flows"][0]["tokenUrl"].endswith(
        "/token"
    )


async def test_the_named_agent_is_told_to_the_page() -> None:
    async with inspector(url="https://a.test") as operator:
        assert await operator.get("/inspect") == {"url": "https://a.test", "credentials": None}


# -- resume --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_our_streams_go_on_after_the_last_event(binding: str) -> None:
    async with (
        running(application(slow(), store="memory:", grpc_port=free_port())) as url,
        inspector() as operator,
    ):
        answered = await operator("POST", "/inspect/resume", {"url": url, "binding": binding})
    result = answered.json
    assert result["ok"] and result["method"] == "last-event-id", result
    assert (result["missed"], result["twice"]) == (0, 0) and len(result["steps"]) == 3 and result["task"]


async def test_an_agent_without_streaming_has_nothing_to_resume() -> None:
    site = Site({"/.well-known/agent-card.json": page(card())})
    server, url = await serve(site)
    site.pages["/rpc"] = answer
    try:
        async with inspector() as operator:
            result = (await operator("POST", "/inspect/resume", {"url": url})).json
    finally:
        await server.stop()
    assert not result["ok"] and "does not offer streaming" in result["message"]


async def test_an_agent_that_refuses_a_subscription_has_to_be_polled() -> None:
    status = {"state": "TASK_STATE_WORKING"}
    task = {"id": "t1", "contextId": "c1", "status": status}

    def rpc(asked: Any) -> Any:
        method = asked.json["method"]
        if method == "SendStreamingMessage":
            import json

            first = json.dumps({"jsonrpc": "2.0", "id": asked.json["id"], "result": {"task": task}})
            return 200, {"content-type": "text/event-stream"}, f"data: {first}\n\n".encode()
        if method == "GetTask":
            return page({"jsonrpc": "2.0", "id": asked.json["id"], "result": task})
        return page({"jsonrpc": "2.0", "id": asked.json["id"], "error": {"code": -32004, "message": "no"}})

    site = Site({"/rpc": rpc})
    server, url = await serve(site)
    interface = {"url": f"{url}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    site.pages["/.well-known/agent-card.json"] = page(
        card(capabilities={"streaming": True}, supportedInterfaces=[interface])
    )
    try:
        async with inspector() as operator:
            result = (await operator("POST", "/inspect/resume", {"url": url})).json
    finally:
        await server.stop()
    assert not result["ok"] and result["method"] == "poll" and result["task"] == "t1"
