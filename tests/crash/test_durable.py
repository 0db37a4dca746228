"""Killed while it streams, asks or calls, and started again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Task, TaskFailed, Turn, connect
from dragoman.client import TimestampClient
from tests.ports import free_port
from tests.serving import Server
from tests.waiting import until

AGENT = Path(__file__).parent / "durable.py"


async def test_a_stream_that_is_killed_is_replaced_and_one_that_ended_is_replayed(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    server = Server(AGENT, store=tmp_path / "tasks.db", env={"CALLS": str(calls), "HANG": "1"})
    async with server, connect(f"{server.url}/durable", timeout=30) as client:
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


def caller(url: str, **options: Any) -> Agent:
    agent = Agent("caller")

    @agent.skill
    async def ask(turn: Turn) -> str:
        answer = await turn.call(url, "2", skill="stream", **options)
        assert isinstance(answer, Task)
        return f"{answer.state.word} {answer.artifacts[0].text}"

    return agent


async def test_a_call_waits_for_an_agent_that_is_not_up_yet_or_dies_while_it_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = {"CALLS": str(tmp_path / "calls"), "HANG": "1"}
    server = Server(AGENT, store=tmp_path / "tasks.db", env=env)
    try:
        async with caller(f"{server.url}/durable").test(timeout=30) as client:
            asked = asyncio.create_task(client("go"))
            await until(lambda: "waiting up to 30 s" in caplog.text)
            await server.start()
            await until(lambda: (tmp_path / "calls").exists())
            await server.kill()
            del server.env["HANG"]
            await server.start()
            answer = await asked
        assert answer.text == f"input-required I am {server.pid}-0 {server.pid}-1 "
    finally:
        await server.kill()


async def test_a_call_that_may_not_wait_fails_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with caller(f"http://127.0.0.1:{free_port()}", wait=0).test() as client:
        with pytest.raises(TaskFailed, match="could not do its part"):
            await client("go")
    assert "waiting" not in caplog.text


async def test_questions_pass_up_two_levels_and_answers_down_while_the_server_is_killed_in_between(
    tmp_path: Path,
) -> None:
    calls = tmp_path / "calls"
    server = Server(AGENT, store=tmp_path / "tasks.db", env={"CALLS": str(calls)})
    async with server, connect(f"{server.url}/top", timeout=30) as client:

        async def restart() -> None:
            await server.kill()
            await server.start()

        reply = await client("a trip")
        assert reply.text == "Where to?"
        (question,) = reply.questions
        assert question.schema is not None and question.schema["required"] == ["city"]
        await restart()
        reply = await reply.answer(data={"city": "Rome"})
        assert [each.key for each in reply.questions] == ["seat", "pay"]
        await restart()
        reply = await reply.answer("12A")
        assert [each.key for each in reply.questions] == ["pay"] and reply.text == "Pay 300 EUR?"
        await restart()
        done = await reply.answer("no, too expensive")
        assert done.text == "Rome 3 12A False"
    assert calls.read_text().splitlines() == ["asked Rome"] * 3 + ["booked Rome"]


async def test_a_turn_that_waits_while_the_code_is_replaced_keeps_its_version_and_extensions(
    tmp_path: Path,
) -> None:
    server = Server(AGENT, store=tmp_path / "tasks.db", env={"CALLS": str(tmp_path / "calls")})
    async with server, connect(f"{server.url}/durable", timeout=30) as client:
        times = TimestampClient()
        waiting = await client("go", skill="versions", extensions=[times.uri])
        await server.kill()
        server.env["VERSION"] = "2.0.0"
        await server.start()
        done = await waiting.answer("yes")
        assert done.text == "yes 1.0.0 True"
        assert times.time_of(done.artifacts[0]), "the message that began the turn asked for it"
        assert (await (await client("go", skill="versions")).answer("yes")).text == "yes 2.0.0 False"
