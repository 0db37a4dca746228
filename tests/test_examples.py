"""Each example as a process of its own, talked to over its port."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman import TaskState, connect
from dragoman.client import TaskFailed
from dragoman.model.content import Part
from tests import raw
from tests.ports import free_port
from tests.serving import WAIT, Server

EXAMPLES = Path(__file__).parent.parent / "examples"

AS_MAIN = """
import functools, runpy, sys
from dragoman import Agent
Agent.run = functools.partialmethod(Agent.run, port=int(sys.argv[2]), store="memory:")
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs an example as `python examples/x.py` does, on a port that is free."""


@pytest.mark.parametrize("name", ["hello", "booking", "currency", "files", "notes", "report", "secure"])
async def test_an_example_serves_itself(name: str, tmp_path: Path) -> None:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AS_MAIN, str(EXAMPLES / f"{name}.py"), str(port),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT):
            announced = await process.stdout.readline()
            assert f"http://127.0.0.1:{port}" in announced.decode()
            card = await raw.get(f"http://127.0.0.1:{port}/.well-known/agent-card.json")
            assert card["skills"] and card["supportedInterfaces"]
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_hello_greets_in_every_version() -> None:
    async with Server(EXAMPLES / "hello.py") as server:
        for version in ("1.0", "0.3", "0.2", "0.1", "draft", "arbiter"):
            async with connect(server.url, version=version) as agent:
                assert await agent("world") == "Hello, world!"


async def test_notes_are_kept_by_an_mcp_server() -> None:
    assert (EXAMPLES / "notes_server.py").exists()
    async with Server(EXAMPLES / "notes.py") as server, connect(server.url) as agent:
        assert await agent("buy milk") == "Written down as note 1."
        assert (await agent("milk", skill="find")).data == ["buy milk"]


async def test_currency_reports_progress_and_answers() -> None:
    async with Server(EXAMPLES / "currency.py") as server, connect(server.url) as agent:
        async with agent.stream("how much is 10 USD in INR?") as stream:
            pieces = [piece async for piece in stream]
        progress = [piece.status for piece in pieces if piece.status]
        assert progress == ["Looking up the exchange rates...", "Processing the exchange rates.."]
        assert "".join(piece.text for piece in pieces) == "10 USD is 832.50 INR"


async def test_currency_asks_for_what_is_missing_and_goes_on_with_the_same_task(tmp_path: Path) -> None:
    server = Server(EXAMPLES / "currency.py", store=tmp_path / "tasks.db")
    async with server, connect(server.url) as agent:
        reply = await agent("how much is 100 USD?")
        assert reply.asks and reply == "To which currency would you like to convert?"
        await server.kill()
        await server.start()  # a question outlives the process that asked it
        again = await reply.answer("I do not know")
        assert again.asks and again.id == reply.id
        done = await again.answer("in GBP")
        assert done == "100 USD is 79.00 GBP" and done.id == reply.id


async def test_currency_rejects_what_it_does_not_understand() -> None:
    async with Server(EXAMPLES / "currency.py") as server, connect(server.url) as agent:
        with pytest.raises(TaskFailed) as failed:
            await agent("what is the meaning of life?")
        assert failed.value.task.state is TaskState.REJECTED


async def test_files_takes_a_file_and_gives_a_file_and_data() -> None:
    async with Server(EXAMPLES / "files.py") as server, connect(server.url) as agent:
        notes = Part(raw=b"to be or\nnot to be", filename="notes.txt", media_type="text/plain")
        reply = await agent("count, please", files=[notes])
        (table,) = reply.files
        assert table.filename == "words.csv" and table.media_type == "text/csv" and table.raw is not None
        assert table.raw.decode().splitlines()[:3] == ["word,count", "to,2", "be,2"]
        assert reply.data == {
            "name": "notes.txt",
            "lines": 2,
            "words": 6,
            "most_common": {"to": 2, "be": 2, "or": 1},
        }


async def test_files_says_what_it_cannot_read() -> None:
    async with Server(EXAMPLES / "files.py") as server, connect(server.url) as agent:
        noise = Part(raw=b"\xff\xfe\x00", filename="noise", media_type="application/octet-stream")
        with pytest.raises(TaskFailed, match="not a text file"):
            await agent("count", files=[noise])


async def test_a_report_that_is_killed_halfway_goes_on_where_it_was(tmp_path: Path) -> None:
    server = Server(EXAMPLES / "report.py", store=tmp_path / "tasks.db", env={"REPORT_PACE": "0.1"})
    async with server, asyncio.TaskGroup() as group, connect(server.url) as agent:
        pieces: list[str] = []
        progress: list[str] = []
        async with agent.stream("the history of tea") as stream:
            async for piece in stream:
                pieces.append(piece.text)
                progress += [piece.status] if piece.status else []
                if piece.status.startswith("Chapter 3") and server.lives == 1:
                    group.create_task(restart(server))
        assert server.lives == 2
        reply = stream.reply
        assert reply.state is TaskState.COMPLETED
        assert [word.split(":")[0] for word in progress] == [f"Chapter {i} of 5" for i in range(1, 6)]
        assert "".join(pieces) == reply.artifacts[0].text
        assert [line for line in reply.artifacts[0].text.splitlines() if line.startswith("#")] == [
            "# the history of tea", "## 1. Origins", "## 2. Trade", "## 3. Ceremony", "## 4. Industry", "## 5. Today",
        ]  # fmt: skip


async def restart(server: Server) -> None:
    await server.kill()
    await server.start()


async def test_travel_asks_two_other_agents() -> None:
    async with Server(EXAMPLES / "currency.py", EXAMPLES / "travel.py") as server:
        async with connect(f"{server.url}/travel") as agent:
            reply = await agent("3 days in Mumbai for 300 USD")
    assert "hot and humid" in reply and "300 USD is 24975.00 INR" in reply


async def test_the_client_example_prints_what_the_agent_says() -> None:
    async with Server(EXAMPLES / "currency.py") as server:
        lines = [line async for line in printed("client.py", server.url)]
    assert lines[:2] == ["Currency, A2A 1.0", "10 USD is 832.50 INR"]
    assert "  agent: To which currency would you like to convert?" in lines
    assert lines[-1] == "1 CHF is 1.05 EUR"


async def printed(name: str, *args: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / name), *args, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(WAIT):
        async for line in process.stdout:
            yield line.decode().rstrip()
        assert await process.wait() == 0


async def test_all_examples_are_served_together_as_make_agents_does() -> None:
    files = [EXAMPLES / f"{name}.py" for name in ("hello", "currency", "files", "report")]
    async with Server(*files) as server:
        for path, name in (
            ("hello", "Hello"),
            ("currency", "Currency"),
            ("files", "Files"),
            ("report", "Report"),
        ):
            async with connect(f"{server.url}/{path}") as agent:
                assert agent.card.name == name
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}).encode()
        async with raw.post(f"{server.url}/hello/", body, {"A2A-Version": "1.0"}) as response:
            assert response.status == 200


async def test_booking_streams_asks_for_an_approval_and_survives_kills(tmp_path: Path) -> None:
    server = Server(EXAMPLES / "booking.py", store=tmp_path / "tasks.db")
    async with server, connect(server.url, timeout=30) as agent:
        assert (await agent.skills.price(city="Rome", days=2)).data == {"city": "Rome", "days": 2, "eur": 220}
        async with agent.stream("a trip, please") as stream:
            pieces = [piece async for piece in stream]
        assert "".join(piece.text for piece in pieces if piece.artifact).startswith("I can do that.")
        reply = stream.reply
        assert [each.key for each in reply.questions] == ["city", "days", "by"]
        await server.kill()
        await server.start()
        reply = await reply.answer(data={"city": "Rome", "days": 2, "by": "plane"})
        assert reply == "Pay 340 EUR?" and reply.questions[0].approval
        await server.kill()
        await server.start()
        done = await reply.answer("ja, gerne")
        assert done.data == {"city": "Rome", "receipt": "paid 340 EUR"}
        assert done.usage is not None and done.usage.calls == 1 and done.usage.input_tokens == 3
        again = await agent("another trip", context=done)
        assert again.asks and "(I remember 6 earlier messages.)" in again.artifacts[0].text
        with pytest.raises(TaskFailed, match="too far"):
            await (await again.answer(data={"city": "Oslo", "days": 1, "by": "train"})).answer("no, too far")


async def test_the_bridge_leads_to_hello_in_both_modes(tmp_path: Path) -> None:
    async with Server(EXAMPLES / "hello.py") as hello:
        file = tmp_path / "bridge.toml"
        file.write_text((EXAMPLES / "bridge.toml").read_text().replace("http://127.0.0.1:9000", hello.url))
        bridge = Server()
        bridge.command[bridge.command.index("serve")] = "bridge"
        bridge.command.insert(bridge.command.index("bridge") + 1, str(file))
        async with bridge:
            for path in ("hello", "plain"):
                async with connect(f"{bridge.url}/{path}") as client:
                    assert "Ada" in (await client("Ada")).text
