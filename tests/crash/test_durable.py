"""Killed while it streams, asks or calls, and started again."""

from __future__ import annotations

from pathlib import Path

from dragoman import connect
from tests.serving import Server

AGENT = Path(__file__).parent / "durable.py"


async def test_a_stream_that_is_killed_is_replaced_and_one_that_ended_is_replayed(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    server = Server(AGENT, store=tmp_path / "tasks.db", env={"CALLS": str(calls), "HANG": "1"})
    async with server, connect(server.url, timeout=30) as client:
        del server.env["HANG"]  # the next life comes to an end
        text, replaced, pids = "", 0, [server.pid]
        stream = client.stream("3", skill="stream")
        async for piece in stream:
            if piece.replaces:
                text, replaced = "", replaced + 1
            if piece.artifact is not None:
                text += piece.text
            if text.endswith("-2 ") and not replaced:
                await server.kill()
                await server.start()
                pids.append(server.pid)
        reply = stream.reply
        assert reply.asks and reply.text == "And then?"
        assert text == "I am " + "".join(f"{pids[1]}-{n} " for n in range(3)) and replaced == 1
        await server.kill()  # while it waits
        await server.start()
        done = await reply.answer("the end")
        assert done.artifacts[0].text == text + "the end" and done.data == {"text": text}
    assert calls.read_text().split() == ["recite", "recite"]
