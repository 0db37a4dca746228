"""Commands that run only after the caller said yes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.hub.agents.dispatch import MAX_SHOWN_CHARACTERS, needs_approval
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.tenants.policy import DEFAULT_APPROVE
from dragoman.hub.tools import Command
from dragoman.hub.tools.fetcher import Page
from tests.hub.house import Caller, House, events, house, kinds, message
from tests.hub.killing import ADMIN, Process, call, listen
from tests.hub.scripted import by_agent
from tests.waiting import until

ASK: dict[str, Any] = {"approve": DEFAULT_APPROVE}
URL = "https://example.com/search?q=secret"
READER: dict[str, Any] = {"id": "reader", "name": "Reader", "capabilities": ["web", "schedule", "delegation"]}


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("/exec ls", True),
        ("/mcp call files read {}", True),
        ("/mcp tools", False),
        ("/a2a call weather now", True),
        ("/a2a list", False),
        ("/a2a card weather", False),
        ("/schedule tomorrow: look", True),
        ("/schedule resume 1", True),
        ("/schedule list", False),
        ("/schedule", False),
        ("/schedule cancel 1", False),
        ("/fetch https://example.com/page", False),
        (f"/fetch {URL}", True),
        (f"/browse {URL}", True),
        ("/browse https://example.com", False),
        ("/search secrets", False),
        ("/read a?b", False),
    ],
)
def test_commands_that_act_outside_need_an_approval_and_reads_do_not(line: str, asks: bool) -> None:
    name, _, args = line.partition(" ")
    assert needs_approval(Command(name=name, args=args), DEFAULT_APPROVE) is asks
    assert not needs_approval(Command(name=name, args=args), ())


class Pages:
    """Answers every address with the address."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    async def fetch(self, url: str) -> Any:
        self.fetched.append(url)
        return Page(url=url, status=200, media_type="text/plain", text=f"the page {url}")

    async def close(self) -> None:
        pass


@asynccontextmanager
async def reading(replies: Any, **settings: Any) -> AsyncIterator[tuple[House, Caller, Pages]]:
    """A hub whose commands read no real page."""
    pages = Pages()
    async with house(replies, **{**ASK, **settings}) as hub:
        for tool in hub.hub.tools:
            if "/fetch" in tool.names:
                tool._fetcher = pages  # type: ignore[attr-defined]
        acme = await hub.tenant("acme")
        assert (await acme("POST", "/v1/agents", READER)).status == 201
        yield hub, acme, pages


def question_of(received: list[tuple[str, Any]]) -> dict[str, Any]:
    (asked,) = [payload for kind, payload in received if kind == "question"]
    assert received[-1][0] == "done" and received[-1][1]["error_code"] == "input-required"
    return dict(asked)


async def rest(caller: Caller, answered: Any) -> list[tuple[str, Any]]:
    """The events after an answer."""
    path = f"/v1/requests/{answered['request_id']}/events?since_seq={answered['since_seq']}"
    return events(await caller("GET", path))


async def test_a_native_caller_is_asked_and_the_command_runs_after_yes() -> None:
    async with reading([f"/fetch {URL}", "It says so."]) as (hub, acme, pages):
        received = await acme.ask("look", "/v1/agents/reader/chat")
        asked = question_of(received)
        assert asked["approval"] and asked["state"] == "input-required"
        assert asked["details"] == {"agent": "reader", "command": "/fetch", "arguments": URL}
        assert f"/fetch {URL}" in asked["message"] and pages.fetched == []
        id = received[-1][1]["request_id"]
        (listed,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert listed["state"] == "input-required" and URL in listed["question"]
        assert listed["details"] == asked["details"]
        assert hub.hub.quotas.running_tasks(acme.tenant.key) == {}, "it holds no slot while it waits"
        answered = await acme("POST", f"/v1/requests/{id}/answer", {"approved": True})
        assert answered.status == 202
        after = await rest(acme, answered.json)
        assert after[-1][1]["ok"] and after[-1][1]["content"].endswith("It says so.")
        assert pages.fetched == [URL]
        assert [payload["ok"] for kind, payload in after if kind == "tool_call"] == [True]
        whole = await rest(acme, {"request_id": id, "since_seq": 0})
        assert whole[-1][1]["ok"] and kinds(whole).count("question") == 1, "the question is history now"
        again = await acme("POST", f"/v1/requests/{id}/answer", {"approved": True})
        assert again.status == 409 and len(hub.model.prompts) == 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/exec ls", "ERR: commands are disabled on this hub"),
        ("/mcp call files read {}", "ERR: this hub has no MCP servers"),
        ("/a2a call weather now", "ERR: A2A unavailable: this hub has no remote agents"),
        (f"/browse {URL}", "ERR: /browse is not available: this hub has no browser"),
    ],
)
async def test_nobody_is_asked_about_a_command_that_cannot_run(line: str, why: str) -> None:
    async with house([line, "Then not."], **ASK) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", {"id": "doer", "capabilities": ["exec", "mcp", "a2a", "web"]})
        received = await acme.ask("go", "/v1/agents/doer/chat")
        assert received[-1][1]["ok"] and "question" not in kinds(received)
        assert why in hub.model.prompts[-1].messages[-1].content


async def test_the_model_gets_a_refusal_with_its_reason() -> None:
    async with reading([f"/fetch {URL}", "Then not."]) as (hub, acme, pages):
        id = (await acme.ask("look", "/v1/agents/reader/chat"))[-1][1]["request_id"]
        body = {"approved": False, "comment": "it leaks"}
        after = await rest(acme, (await acme("POST", f"/v1/requests/{id}/answer", body)).json)
        assert after[-1][1]["ok"] and pages.fetched == []
        seen = hub.model.prompts[-1].messages[-1].content
        assert "not approved: the user refused this command: it leaks" in seen
        assert [payload["ok"] for kind, payload in after if kind == "tool_call"] == [False]


@pytest.mark.parametrize(
    "answer",
    [[{"kind": "text", "text": "yes"}], [{"kind": "data", "data": {"approved": True}}]],
    ids=["text", "data"],
)
async def test_an_a2a_caller_is_asked_with_input_required(answer: Any) -> None:
    async with reading([f"/fetch {URL}", "It says so."]) as (_, acme, pages):
        sent = (await acme.rpc("reader", "message/send", message("look"))).json["result"]
        assert sent["status"]["state"] == "input-required" and pages.fetched == []
        assert f"/fetch {URL}" in sent["status"]["message"]["parts"][0]["text"]
        reply = {"message": {"role": "user", "messageId": "m-2", "taskId": sent["id"], "parts": answer}}
        done = (await acme.rpc("reader", "message/send", reply)).json["result"]
        assert done["status"]["state"] == "completed", done
        assert pages.fetched == [URL]


async def test_an_answer_that_is_neither_yes_nor_no_is_asked_for_again() -> None:
    async with reading([f"/fetch {URL}", "Fine."]) as (_, acme, pages):
        id = (await acme.ask("look", "/v1/agents/reader/chat"))[-1][1]["request_id"]
        after = await rest(
            acme, (await acme("POST", f"/v1/requests/{id}/answer", {"message": "perhaps"})).json
        )
        assert question_of(after)["approval"] and pages.fetched == []
        after = await rest(acme, (await acme("POST", f"/v1/requests/{id}/answer", {"message": "yes"})).json)
        assert after[-1][1]["ok"] and pages.fetched == [URL]


async def test_an_approval_is_for_one_command() -> None:
    other = URL + "2"
    async with reading([f"/fetch {URL}\n/fetch {other}", "Both."]) as (_, acme, pages):
        sent = (await acme.rpc("reader", "message/send", message("look"))).json["result"]
        yes = {"role": "user", "taskId": sent["id"], "parts": [{"kind": "text", "text": "yes"}]}
        first = (await acme.rpc("reader", "message/send", {"message": {**yes, "messageId": "a"}})).json[
            "result"
        ]
        assert first["status"]["state"] == "input-required" and pages.fetched == [URL]
        assert other in first["status"]["message"]["parts"][0]["text"]
        second = (await acme.rpc("reader", "message/send", {"message": {**yes, "messageId": "b"}})).json[
            "result"
        ]
        assert second["status"]["state"] == "completed" and pages.fetched == [URL, other]


async def test_a_yes_that_was_sent_twice_does_not_approve_the_next_command() -> None:
    hold, other = asyncio.Event(), URL + "2"
    replies = [f"/fetch {URL}", ("well\n", hold, f"/fetch {other}"), "Done."]
    async with reading(replies) as (hub, acme, pages):
        sent = (await acme.rpc("reader", "message/send", message("look"))).json["result"]
        yes = {"role": "user", "taskId": sent["id"], "parts": [{"kind": "text", "text": "yes"}]}
        params = {"message": {**yes, "messageId": "a"}}
        waiting = acme.open_rpc("reader", "message/send", params)
        await until(lambda: _true(len(hub.model.prompts) == 2))
        late = acme.open_rpc("reader", "message/send", {"message": {**yes, "messageId": "b"}})

        async def delivered() -> bool:
            found = await hub.hub.find(acme.tenant, sent["id"])
            return len((await hub.hub.snapshot(acme.tenant, found)).mails) == 3

        await until(delivered)
        hold.set()
        await asyncio.gather(waiting.end(), late.end())
        assert pages.fetched == [URL]
        (listed,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert listed["state"] == "input-required" and other in listed["question"]


async def _true(value: bool) -> bool:
    return value


async def test_what_a_delegated_agent_needs_is_asked_of_the_caller() -> None:
    scripts = {"Index": ["/agent reader look", "Reader says so."], "Reader": [f"/fetch {URL}", "So it is."]}
    async with reading(by_agent(scripts)) as (hub, acme, pages):  # type: ignore[arg-type]
        received = await acme.ask("look")
        asked = question_of(received)
        assert asked["details"]["agent"] == "reader" and pages.fetched == []
        id = received[-1][1]["request_id"]
        after = await rest(acme, (await acme("POST", f"/v1/requests/{id}/answer", {"approved": True})).json)
        assert after[-1][1]["ok"] and after[-1][1]["content"] == "Reader says so."
        assert pages.fetched == [URL] and len(hub.model.prompts) == 4
        assert [payload["content"] for kind, payload in after if kind == "sub_agent_response"] == [
            "So it is."
        ]


async def test_parallel_agents_ask_one_after_another() -> None:
    block = "/parallel\n/agent one look\n/agent two look\n/agent three look\n/endparallel"
    scripts: dict[str, Any] = {
        "Index": [block, "All done."],
        "One": [f"/fetch {URL}1", "one read"],
        "Two": ["two needs nothing"],
        "Three": [f"/fetch {URL}3", "three does not"],
    }
    async with reading(by_agent(scripts)) as (hub, acme, pages):
        for id in ("one", "two", "three"):
            await acme("POST", "/v1/agents", {**READER, "id": id, "name": id.title()})
        received = await acme.ask("look")
        id = received[-1][1]["request_id"]
        assert question_of(received)["details"]["agent"] == "one"
        after = await rest(acme, (await acme("POST", f"/v1/requests/{id}/answer", {"approved": True})).json)
        assert question_of(after)["details"]["agent"] == "three"
        after = await rest(acme, (await acme("POST", f"/v1/requests/{id}/answer", {"approved": False})).json)
        assert after[-1][1]["ok"] and after[-1][1]["content"] == "All done."
        assert pages.fetched == [f"{URL}1"]
        seen = hub.model.prompts[-1].messages[-1].content
        assert "one read" in seen and "two needs nothing" in seen and "three does not" in seen


async def test_the_operator_decides_for_which_commands_each_tenant_is_asked() -> None:
    async with reading(
        lambda prompt: "Fine." if "TOOL RESULTS" in prompt.messages[-1].content else f"/fetch {URL}"
    ) as (
        hub,
        acme,
        pages,
    ):
        path = f"/v1/admin/tenants/{acme.tenant.id}/policy"
        assert (await hub.admin("PATCH", path, {"approve": []})).status == 200
        assert (await acme.ask("look", "/v1/agents/reader/chat"))[-1][1]["ok"] and pages.fetched == [URL]
        assert (await hub.admin("PATCH", path, {"approve": ["/fetch"]})).status == 200
        question_of(await acme.ask("look", "/v1/agents/reader/chat"))


async def test_a_no_counts_although_the_operator_stops_asking_meanwhile() -> None:
    async with reading([f"/fetch {URL}", "Then not."]) as (hub, acme, pages):
        request = (await acme.ask("look", "/v1/agents/reader/chat"))[-1][1]["request_id"]
        policy = f"/v1/admin/tenants/{acme.tenant.id}/policy"
        assert (await hub.admin("PATCH", policy, {"approve": []})).status == 200
        answered = await acme("POST", f"/v1/requests/{request}/answer", {"approved": False})
        after = await rest(acme, answered.json)
        assert [payload["ok"] for kind, payload in after if kind in ("tool_call", "done")] == [False, True]
        assert "ERR: not approved" in hub.model.prompts[-1].messages[-1].content and pages.fetched == []


async def test_a_scheduled_run_that_needs_an_approval_waits_and_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading([f"/fetch {URL}", "Looked."]) as (hub, acme, pages):
        now = [1_900_000_000.0]
        scheduler = Scheduler(hub.hub, Schedules(hub.hub.database, clock=lambda: now[0]))
        await scheduler.schedules.add(acme.tenant.id, "reader", "every hour", "look")
        now[0] += 3600

        async def state(wanted: str) -> bool:
            await scheduler.run_due()
            runs = (await acme("GET", "/v1/runs")).json["runs"]
            return len(runs) == 1 and runs[0]["status"] == wanted

        await until(lambda: state("input-required"))
        (run,) = (await acme("GET", "/v1/runs")).json["runs"]
        assert URL in run["result_summary"]
        received = await scheduler.schedules.notifications(acme.tenant.id, 0)
        assert [said["kind"] for _, said in received] == ["run.started", "run.waiting"]
        now[0] += 7200

        async def read_all(*_: object) -> None:
            pytest.fail("the log of a run that waits, which may be long, is read at each check")

        with monkeypatch.context() as patch:
            patch.setattr(hub.hub, "snapshot", read_all)
            await scheduler.run_due()
        assert len((await acme("GET", "/v1/runs")).json["runs"]) == 1, (
            "it does not begin again while it waits"
        )
        path = f"/v1/requests/{run['request_id']}/answer"
        assert (await acme("POST", path, {"approved": True})).status == 202
        await hub.hub.requests.list(acme.tenant.id, 1)
        hub.model._replies = iter(["Looked.", f"/fetch {URL}"])

        async def over() -> bool:
            await scheduler.run_due()
            runs = (await acme("GET", "/v1/runs")).json["runs"]
            return runs[-1]["status"] == "succeeded" and runs[-1]["result_summary"] == "Looked."

        await until(over)
        assert pages.fetched == [URL]


async def test_a_question_and_its_answer_survive_kill_9(tmp_path: Path) -> None:
    script = {"replies": {"Index": ["/schedule tomorrow at 09:00: look again", "It is planned."]}}
    hub = Process(tmp_path, script)
    hub.environment = {"DRAGOMAN_APPROVE": "/schedule"}
    await hub.start()
    try:
        token = (await call(hub.url, ADMIN, "POST", "/v1/admin/tenants", {"name": "acme"}))["token"]
        heard = await listen(hub.url, token, "POST", "/v1/orchestrate", {"message": "plan"}, "", 1000)
        assert [frame.event for frame in heard][-1] == "done" and "question" in [
            frame.event for frame in heard
        ]
        (waits,) = (await call(hub.url, token, "GET", "/v1/requests"))["requests"]
        assert waits["state"] == "input-required"
        await hub.kill()
        await hub.start()
        (still,) = (await call(hub.url, token, "GET", "/v1/requests"))["requests"]
        assert still["state"] == "input-required" and still["question"] == waits["question"]
        assert (await call(hub.url, token, "GET", "/v1/schedules"))["schedules"] == []
        path = f"/v1/requests/{waits['request_id']}"
        answered = await call(hub.url, token, "POST", f"{path}/answer", {"approved": True})
        heard = await listen(hub.url, token, "GET", f"{path}/events", None, str(answered["since_seq"]), 1000)
        assert b'"ok":true' in heard[-1].data and b"It is planned." in heard[-1].data
        assert len((await call(hub.url, token, "GET", "/v1/schedules"))["schedules"]) == 1
    finally:
        await hub.kill()


async def test_a_command_runs_at_most_once_if_the_hub_is_killed_after_the_yes(tmp_path: Path) -> None:
    script = {"replies": {"Index": ["/exec echo ran >> ran.txt", "Done."]}}
    hub = Process(tmp_path, script, "--allow-exec", "--exec-unconfined")
    hub.environment = {"DRAGOMAN_APPROVE": "/exec"}
    await hub.start()
    try:
        token = (await call(hub.url, ADMIN, "POST", "/v1/admin/tenants", {"name": "acme"}))["token"]
        certain = asked = 0
        for _ in range(4):
            asked += 1
            await listen(hub.url, token, "POST", "/v1/orchestrate", {"message": "go"}, "", 1000)
            waits = (await call(hub.url, token, "GET", "/v1/requests"))["requests"][0]
            path = f"/v1/requests/{waits['request_id']}"
            await call(hub.url, token, "POST", f"{path}/answer", {"approved": True})
            await hub.kill()
            await hub.start()
            heard = await listen(hub.url, token, "GET", f"{path}/events", None, "", 1000)
            assert b'"ok":true' in heard[-1].data and b"Done." in heard[-1].data
            (ran,) = [frame.data for frame in heard if frame.event == "tool_call"]
            certain += b"interrupted" not in ran
        (done,) = (tmp_path / "workspaces").glob("*/ran.txt") if certain else (tmp_path / "none",)
        lines = done.read_text().split() if done.exists() else []
        assert certain <= len(lines) <= asked
    finally:
        await hub.kill()


async def test_a_turn_that_runs_again_after_its_approved_command_reports_no_difference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hold, plan = asyncio.Event(), '/schedule "in 1 hour" index: look'
    async with house([plan, ("word\n", hold)], folder=tmp_path, approve=DEFAULT_APPROVE) as hub:
        acme = await hub.tenant("acme")
        id = (await acme.ask("plan it"))[-1][1]["request_id"]
        answered = await acme("POST", f"/v1/requests/{id}/answer", {"approved": True})
        live = acme.open("GET", f"/v1/requests/{id}/events?since_seq={answered.json['since_seq']}")
        await live.until(lambda: b"word" in live.body)
    async with house(["Planned."], folder=tmp_path, approve=DEFAULT_APPROVE) as hub:
        after = await rest(Caller(hub.app, acme.token, acme.tenant), answered.json)
        assert after[-1][1]["ok"] and after[-1][1]["content"].endswith("Planned.")
    assert "an answer to" not in caplog.text


async def test_an_answer_with_the_last_seq_of_its_question_never_meets_the_next_one() -> None:
    async with reading([f"/fetch {URL}", f"/fetch {URL}2", "Done."]) as (_, acme, pages):
        id = (await acme.ask("look", "/v1/agents/reader/chat"))[-1][1]["request_id"]
        (seen,) = (await acme("GET", "/v1/requests")).json["requests"]
        path, yes = f"/v1/requests/{id}/answer", {"approved": True, "last_seq": seen["last_seq"]}
        first, second = await asyncio.gather(acme("POST", path, yes), acme("POST", path, yes))
        assert {first.status, second.status} <= {202, 409} and 202 in (first.status, second.status)
        await rest(acme, {"request_id": id, "since_seq": seen["last_seq"]})
        late = await acme("POST", path, yes)
        assert (
            late.status == 409
            and "does not wait for an answer to this question any more" in late.json["error"]
        )
        assert pages.fetched == [URL]
        (listed,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert listed["state"] == "input-required" and listed["details"]["arguments"] == f"{URL}2"


async def test_one_of_two_answers_at_the_same_moment_decides_and_the_other_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading([f"/fetch {URL}", "Done."]) as (hub, acme, pages):
        id = (await acme.ask("look", "/v1/agents/reader/chat"))[-1][1]["request_id"]
        both, load = asyncio.Barrier(2), hub.hub.snapshot

        async def load_together(*values: Any) -> Any:
            snapshot = await load(*values)
            await both.wait()
            return snapshot

        path = f"/v1/requests/{id}/answer"
        with monkeypatch.context() as patched:
            patched.setattr(hub.hub, "snapshot", load_together)
            answers = await asyncio.gather(
                acme("POST", path, {"approved": True}), acme("POST", path, {"approved": False})
            )
        assert sorted(answer.status for answer in answers) == [202, 409]
        approved, refused = answers
        decided, late = (approved, refused) if approved.status == 202 else (refused, approved)
        assert "does not wait for an answer to this question any more" in late.json["error"]
        assert (await rest(acme, decided.json))[-1][1]["content"] == "Done."
        assert pages.fetched == ([URL] if decided is approved else [])


async def test_the_question_shows_all_of_a_command_or_the_command_does_not_run() -> None:
    shown, hidden = f"{URL}&{'a' * 20_000}&end", f"{URL}&{'a' * MAX_SHOWN_CHARACTERS}&end"
    async with reading([f"/fetch {hidden}", f"/fetch {shown}", "Done."]) as (hub, acme, pages):
        asked = question_of(await acme.ask("look", "/v1/agents/reader/chat"))
        assert asked["details"]["arguments"] == shown and asked["message"].endswith(f"/fetch {shown}")
        assert pages.fetched == []
        assert "a person has to read this command" in hub.model.prompts[-1].messages[-1].content


async def test_the_question_shows_characters_that_nobody_sees() -> None:
    async with reading([f"/fetch {URL}\u202egpj.tac\u200b\r\x1b[2K"]) as (_, acme, _pages):
        asked = question_of(await acme.ask("look", "/v1/agents/reader/chat"))
        assert asked["details"]["arguments"] == rf"{URL}\u202egpj.tac\u200b\r\x1b[2K"
        assert asked["message"].endswith(asked["details"]["arguments"])


@pytest.mark.parametrize(
    "body", [{}, {"approved": True, "message": "yes"}, {"message": " "}, {"yes": True}, []]
)
async def test_an_answer_that_says_nothing_is_refused(body: Any) -> None:
    async with reading([f"/fetch {URL}"]) as (_, acme, _pages):
        id = (await acme.ask("look", "/v1/agents/reader/chat"))[-1][1]["request_id"]
        assert (await acme("POST", f"/v1/requests/{id}/answer", body)).status == 400
        assert (await acme("POST", "/v1/requests/nothing/answer", {"approved": True})).status == 404
