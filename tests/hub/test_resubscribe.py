"""Subscriptions to a task over A2A: what a reader gets that comes late, or comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn
from tests.hub.house import Caller, events, house, message
from tests.requirements import older
from tests.server.wire import Answer


async def late(acme: Caller, until: bytes, agent: str = "index") -> tuple[Answer, Answer, str]:
    """A stream that got so far, a subscription to its task that did too, and the id of the task."""
    first = acme.open_rpc(agent, "message/stream", message("hi"))
    await first.until(lambda: until in first.body)
    id = first.results()[0]["taskId"]
    second = acme.open_rpc(agent, "tasks/resubscribe", {"id": id})
    await second.until(lambda: until in second.body)
    return first, second, id


async def test_a_subscriber_that_comes_back_gets_only_what_it_missed() -> None:
    async with house(["one two three"]) as hub:
        acme = await hub.tenant("acme")
        frames = (await acme.rpc("index", "message/stream", message("go"))).frames()
        id = msgspec.json.decode(frames[0].data)["result"]["taskId"]
        assert len(frames) > 3
        for seen in frames[1:-1]:
            again = await acme.rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=seen.id)
            missed = [frame for frame in frames if int(frame.id) > int(seen.id)]
            assert [frame for frame in again.frames() if frame.id and b"-meta-" not in frame.data] == missed


async def test_a_resubscription_names_its_last_event_in_the_params_or_a_header(acme: Caller) -> None:
    first = await acme.rpc("index", "message/stream", message("hi"))
    id, seen = first.results()[0]["taskId"], first.frames()[1].id
    by_header = await acme.rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=seen)
    by_params = await acme.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": int(seen)})
    assert by_params.body == by_header.body
    updates = [each for each in by_params.results() if each["kind"] == "artifact-update"]
    missed = [each for each in updates if "-meta-" not in each["artifact"]["artifactId"]]
    assert missed == [each for each in first.results()[2:] if each["kind"] == "artifact-update"]
    for wrong in ("7", -1, 1.5, True):
        refused = await acme.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": wrong})
        assert refused.json["error"]["code"] == -32602


def frame_kinds(results: list[Any]) -> list[str]:
    """What each frame of a stream is: the state of a status, else the end of the artifact's id, or its name for a note."""
    out = []
    for each in results:
        if each["kind"] == "status-update":
            out.append(each["status"]["state"])
        elif "-meta-" in each["artifact"]["artifactId"]:
            out.append(each["artifact"]["name"])
        else:
            out.append(each["artifact"]["artifactId"].partition("-")[2])
    return out


@older("X34")
async def test_a_resubscription_replays_the_log_event_by_event_with_the_notes_between() -> None:
    hold = asyncio.Event()
    async with house(["one\n/mem write note\n/write a.txt\nfile\n/endwrite", ("two ", hold, "three")]) as hub:
        acme = await hub.tenant("acme")
        first, second, id = await late(acme, b"two")
        hold.set()
        received, heard = (await second.end()).results(), (await first.end()).results()
        kinds = frame_kinds(received)
        notes = {"stream_start", "token_usage", "stream_end"}
        assert [kind for kind in kinds if kind not in notes] == frame_kinds(heard), (
            "the same events, in order"
        )
        assert kinds[:2] == ["working", "stream_start"]
        used = kinds.index("token_usage")
        assert kinds.index("text-0") < used < kinds.index("tool-0"), (
            "the tokens of the first reply come after its text"
        )
        assert kinds[-2:] == ["stream_end", "completed"] or kinds[-3:-1] == ["stream_end", "text-0"]
        live = [each for each in received if each["kind"] == "artifact-update" and "-meta-" not in str(each)]
        assert live == [each for each in heard if each["kind"] == "artifact-update"], (
            "piece by piece, not as one"
        )
        numbers = [int(frame.id) for frame in second.frames() if frame.id]
        assert numbers == sorted(set(numbers)), "each event has a place of its own"
        (part,) = received[used]["artifact"]["parts"]
        assert part["metadata"] == {"x-arbiter.token_usage": True} and part["data"]["output_tokens"] > 0
        native = [kind for kind, _ in events(await acme("GET", f"/v1/requests/{id}/events"))]
        shown = [kind for kind in native if kind in notes]
        assert shown == [kind for kind in kinds if kind in notes], "the same as the native API"
        (only,) = (await acme.rpc("index", "tasks/resubscribe", {"id": id})).results()
        assert only["final"] is True, "of a task that has ended, the end alone"
        assert only["status"]["message"]["parts"][0]["text"] == "two three"


async def test_a_resubscription_shows_a_note_before_the_next_event_of_a2a_comes() -> None:
    hold = asyncio.Event()
    async with house(["one\n/mem read", (hold, "two")]) as hub:
        acme = await hub.tenant("acme")
        first = acme.open_rpc("index", "message/stream", message("hi"))
        await first.until(lambda: b"tool_call" in first.body)
        second = acme.open_rpc("index", "tasks/resubscribe", {"id": first.results()[0]["taskId"]})
        await second.until(lambda: b"x-arbiter.token_usage" in second.body)  # the second reply has not begun
        hold.set()
        assert (await second.end()).results()[-1]["final"] is True
        await first.end()


@pytest.mark.parametrize("ended", [False, True])
async def test_a_resubscription_after_any_event_replays_the_rest_with_the_notes_between(ended: bool) -> None:
    hold = asyncio.Event()
    async with house(["one\n/mem write note", ("two ", hold, "three")]) as hub:
        acme = await hub.tenant("acme")
        first, whole, id = await late(acme, b"two")
        cursors = [frame.id for frame in whole.frames() if frame.id]
        if ended:
            hold.set()
            await whole.end()
        rest = {n: acme.open_rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=n) for n in cursors}
        hold.set()
        frames = (await whole.end()).frames()
        assert {"stream_start", "token_usage", "stream_end"} <= set(frame_kinds(whole.results()))
        for seen, stream in rest.items():
            place = next(n for n, frame in enumerate(frames) if frame.id == seen)
            received = (await stream.end()).frames()
            assert received[0].id == "" and b'"working"' in received[0].data
            assert received[1:] == frames[place + 1 :], f"after {seen}"
        assert cursors == sorted(cursors, key=int)
        again = await acme.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": 0})
        assert again.frames() == frames, "the whole of a task that has ended"
        ahead = await acme.rpc("index", "tasks/resubscribe", {"id": id}, last_event_id="999999")
        assert [each["final"] for each in ahead.results()] == [True], "an event that never was is none"
        await first.end()


async def test_a_resubscription_after_a_restart_has_the_same_notes_between(tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with house(["one\n/mem write note", ("two ", hold)], folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        _, whole, id = await late(acme, b"two")
        before = [frame for frame in whole.frames() if frame.id and b"-meta-" in frame.data]
    async with house(["two three"], folder=tmp_path) as hub:
        acme = Caller(hub.app, acme.token, acme.tenant)
        rest = await acme.rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=before[0].id)
        again = await acme.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": 0})
        notes = [frame for frame in again.frames() if frame.id and b"-meta-" in frame.data]
        assert notes[: len(before)] == before and rest.results()[-1]["status"]["state"] == "completed"
        assert [frame for frame in rest.frames() if b"-meta-" in frame.data] == notes[1:]
        native = events(await acme("GET", f"/v1/requests/{id}/events?since_seq={before[0].id}"))
        shown = [kind for kind, _ in native if kind in ("stream_start", "token_usage", "stream_end")]
        assert shown == [each for each in frame_kinds(rest.results()) if each in shown]


async def test_a_resubscription_after_the_question_of_a_task_has_the_notes_after_the_answer() -> None:
    async with house(["/schedule tomorrow: look", "done"], approve=("/schedule",)) as hub:
        acme = await hub.tenant("acme")
        asked = await acme.rpc("index", "message/stream", message("hi"))
        id, seen = asked.results()[0]["taskId"], asked.frames()[-1].id
        assert asked.results()[-1]["status"]["state"] == "input-required"
        await acme.rpc("index", "message/send", message("no", "m-2", taskId=id))
        rest = await acme.rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=seen)
        whole = await acme.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": 0})
        shown = [frame for frame in whole.frames() if frame.id and int(frame.id) > int(seen)]
        assert [frame for frame in rest.frames() if frame.id] == shown
        assert frame_kinds(rest.results())[:2] == ["working", "tool-0"], "it works again after the answer"
        assert "token_usage" in frame_kinds(rest.results())


async def test_a_resubscription_to_an_agent_that_is_code_ends_with_its_answer() -> None:
    hold = asyncio.Event()
    agent = Agent("Coder", id="coder")

    @agent.skill
    async def work(turn: Turn) -> None:
        out = turn.artifact("words")
        await out.write("half ")
        await hold.wait()
        await out.write("done")

    async with house(code=[agent]) as hub:
        acme = await hub.tenant("acme")
        first, second, id = await late(acme, b"half", "coder")
        seen = next(frame.id for frame in first.frames() if b"half" in frame.data)
        hold.set()
        received, heard = (await second.end()).results(), (await first.end()).results()
        assert received == heard
        rest = await acme.rpc("coder", "tasks/resubscribe", {"id": id}, last_event_id=seen)
        assert rest.results()[-1] == heard[-1], "also after an event"
