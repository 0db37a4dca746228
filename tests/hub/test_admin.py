"""Tenants, tokens and limits."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.agent.agent import Agent
from dragoman.cli import main
from dragoman.engine.turn import Turn
from dragoman.errors import Unauthenticated
from dragoman.hub.agents.programs import StoppableModel, on_behalf_of
from dragoman.hub.models import Prompt
from dragoman.hub.models.calls import respond
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Call, Scope, SendMessage
from tests.hub.house import SCOUT, Caller, events, house, message, place_of
from tests.waiting import until


async def test_the_token_of_a_new_tenant_is_shown_once_and_stored_as_a_hash() -> None:
    async with house(["hi"]) as hub:
        made = await hub.admin("POST", "/v1/admin/tenants", {"name": "acme"})
        token = made.json["token"]
        assert made.status == 201 and token.startswith("atr_") and len(token) == 68
        acme = Caller(hub.app, token)
        assert (await acme("GET", "/v1/agents")).status == 200
        listed = await hub.admin("GET", "/v1/admin/tenants")
        assert token[4:] not in listed.body.decode()
        assert listed.json["tenants"][0]["last_used_at"] > 0
        rows = await hub.hub.database.all("select hash from tokens")
        assert [row[0] for row in rows] == [hashlib.sha256(token.encode()).hexdigest()]
        assert (await hub.admin("POST", "/v1/admin/tenants", {"name": "acme"})).status == 409
        assert (await hub.admin("POST", "/v1/admin/tenants", {"name": ""})).status == 400
        assert (await hub.admin("GET", "/v1/admin/tenants/77")).status == 404


async def test_disabling_a_tenant_stops_what_runs_and_shuts_it_out() -> None:
    hold = asyncio.Event()
    async with house([("thinking", hold), "back"]) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"thinking" in live.body)
        changed = await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}", {"disabled": True})
        assert changed.json["tenant"]["disabled"] is True and changed.json["cancelled"] == 1
        done = events(await live.end())[-1]
        assert done[0] == "done" and done[1]["error_code"] == "cancelled"
        assert (await acme("GET", "/v1/agents")).status == 401
        assert (await acme.rpc("index", "message/send", message("hi"))).status == 401
        assert (await other("GET", "/v1/agents")).status == 200
        await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}", {"disabled": False})
        assert (await acme.ask("again"))[-1][1]["content"] == "back"


async def test_another_token_ends_the_one_before_and_what_runs_under_it() -> None:
    hold = asyncio.Event()
    async with house([("thinking", hold)]) as hub:
        acme = await hub.tenant("acme")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"thinking" in live.body)
        rotated = await hub.admin("POST", f"/v1/admin/tenants/{acme.tenant.id}/rotate-token")
        assert events(await live.end())[-1][1]["ok"] is False
        assert (await acme("GET", "/v1/agents")).status == 401
        assert (await Caller(hub.app, rotated.json["token"])("GET", "/v1/agents")).status == 200


@pytest.mark.parametrize("verb", ["disable", "rotate"])
async def test_a_tenant_shut_out_from_the_shell_is_stopped_though_its_model_says_nothing(
    verb: str, tmp_path: Path
) -> None:
    async with house([("word\n", asyncio.Event()), "fine"], folder=tmp_path) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        assert await asyncio.to_thread(main, ["tenant", verb, "acme", "--data", str(tmp_path)]) == 0
        done = events(await live.end())[-1][1]
        assert done["error_code"] == "cancelled" and len(hub.model.prompts) == 1
        assert (await acme("GET", "/v1/agents")).status == 401
        assert (await other.ask("go"))[-1][1]["content"] == "fine"


async def test_a_task_that_does_not_stop_keeps_no_other_tenant_running() -> None:
    deaf, began, over = (
        Agent("Deaf", description="Does not hear that it should stop"),
        asyncio.Event(),
        asyncio.Event(),
    )

    @deaf.skill
    async def work(what: str) -> str:
        """Work."""
        began.set()
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()
        return "done"

    async with house([("word\n", asyncio.Event())], code=[deaf]) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        working = other.open_rpc("deaf", "message/send", message("go"))
        await began.wait()
        (task,) = hub.hub.quotas.running_tasks(other.tenant.key)
        await hub.hub.tenants.disable(other.tenant, True)  # as another process does
        log = hub.hub.store.scope(Scope(other.tenant.key, "deaf", other.tenant.key))

        async def is_canceled() -> bool:
            return (await log.load(task[1])).canceling is not None

        await until(is_canceled)
        await hub.hub.tenants.disable(acme.tenant, True)
        async with asyncio.timeout(2):
            assert events(await live.end())[-1][1]["error_code"] == "cancelled"
        over.set()
        await working.end()


async def test_a_model_says_no_more_for_a_tenant_that_is_shut_out() -> None:
    async with house(["never said"]) as hub:
        acme = await hub.tenant("acme")
        names, policies, budgets = hub.hub.model_names, hub.hub.policies, hub.hub.budgets
        model = StoppableModel(hub.model, hub.hub.tenants, names=names, policies=policies, budgets=budgets)
        await hub.hub.tenants.disable(acme.tenant, True)
        with on_behalf_of(acme.tenant):
            reply = await respond(model, Prompt(model="", system="", messages=()))
        assert reply.error_code == "unauthorized" and hub.model.prompts == []


async def test_work_for_a_disabled_tenant_does_not_begin() -> None:
    async with house(["never said"]) as hub:
        acme = await hub.tenant("acme")
        await hub.hub.tenants.disable(acme.tenant, True)
        assert (await acme("POST", "/v1/orchestrate", {"message": "go"})).status == 401
        assert hub.model.prompts == []


async def test_a_tenant_has_so_much_running_and_no_more() -> None:
    hold = asyncio.Event()
    async with house([("one", hold), "two"], max_concurrent=1) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"stream_start" in live.body)
        refused = await acme("POST", "/v1/orchestrate", {"message": "more"})
        assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
        assert (
            refused.json["reason"] == "concurrent_request_limit" and refused.json["retry_after_seconds"] >= 1
        )
        over = await acme.rpc("index", "message/send", message("more"))
        assert over.status == 429 and "retry-after" in over.headers
        assert (await other.ask("hello"))[-1][0] == "done"
        hold.set()
        await live.end()
        assert "concurrent_request_limit" in (await hub.nobody("GET", "/v1/metrics")).body.decode()


def old_message(id: str, text: str = "go") -> dict[str, Any]:
    """A call of A2A 0.1, whose callers choose the ids of tasks."""
    return {"id": id, "message": {"role": "user", "parts": [{"type": "text", "text": text}]}}


def waiting(*names: str) -> tuple[list[Agent], dict[str, asyncio.Event]]:
    """Agents that begin, and wait for ever."""
    begun = {name: asyncio.Event() for name in names}

    def make(name: str) -> Agent:
        agent = Agent(name, "Waits.")

        @agent.skill
        async def wait(turn: Turn) -> None:
            begun[name].set()
            await asyncio.Event().wait()

        return agent

    return [make(name) for name in names], begun


async def test_tasks_of_the_same_id_at_different_agents_are_counted_and_stopped_each() -> None:
    code, begun = waiting("a", "b", "c")
    async with house(code=code) as hub:
        acme = await hub.tenant("acme")
        id, path = acme.tenant.id, f"/v1/admin/tenants/{acme.tenant.id}"
        live = {name: acme.open_rpc(name, "tasks/sendSubscribe", old_message("same")) for name in "ab"}
        for name in "ab":
            await begun[name].wait()
        await hub.admin("PATCH", path, {"max_concurrent": 2})
        assert hub.hub.quotas.counts() == {str(id): 2}
        third = await acme.rpc("c", "tasks/send", old_message("same"))
        assert third.status == 429 and not begun["c"].is_set()
        dated = await acme.rpc("b", "tasks/get", {"id": "same"})
        assert dated.json["result"]["metadata"]["x-arbiter.agent_id"] == "b"
        listed = (await acme("GET", "/v1/requests")).json["requests"]
        assert sorted(each["agent_id"] for each in listed) == ["a", "b"]
        stopped = await hub.admin("PATCH", path, {"disabled": True})
        assert stopped.json["cancelled"] == 2
        for each in live.values():
            assert b"canceled" in (await each.end()).body
        assert hub.hub.quotas.counts() == {}


async def test_tasks_that_wait_for_an_answer_count_again_when_they_get_it() -> None:
    agent, hold = Agent("asker", "Asks, and works."), asyncio.Event()

    @agent.skill
    async def ask(turn: Turn) -> None:
        await turn.ask("Which?")
        await hold.wait()

    async with house(code=[agent], max_concurrent=1) as hub:
        acme = await hub.tenant("acme")

        def new_message(id: str, text: str, task: str = "") -> dict[str, Any]:
            return {
                "message": {"messageId": id, "role": "ROLE_USER", "parts": [{"text": text}], "taskId": task}
            }

        parked = [
            (await acme.rpc("asker", "SendMessage", new_message(id, "go"), a2a_version="1.0")).json["result"][
                "task"
            ]["id"]
            for id in ("m1", "m2")
        ]
        live = acme.open_rpc(
            "asker", "SendStreamingMessage", new_message("m3", "this", parked[0]), a2a_version="1.0"
        )
        await live.until(lambda: bool(live.body))
        second = new_message("m4", "that", parked[1])
        assert (await acme.rpc("asker", "SendMessage", second, a2a_version="1.0")).status == 429
        hold.set()
        await live.end()
        answered = await acme.rpc("asker", "SendMessage", second, a2a_version="1.0")
        assert answered.json["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("verb", ["rotate", "disable"])
async def test_work_begun_under_an_old_token_does_not_go_on_after_the_hub_was_down(
    verb: str, tmp_path: Path
) -> None:
    code, begun = waiting("worker")
    asker, asked = Agent("asker", "Has another agent work."), []

    @asker.skill
    async def ask(turn: Turn) -> None:
        asked.append(turn.task_id)
        await turn.call("worker", "go")

    async with house(code=[asker, *code], folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        live = acme.open_rpc("asker", "tasks/sendSubscribe", old_message("mine"))
        await begun["worker"].wait()
        await live.until(lambda: bool(live.body))
        live.gone.set()
    begun["worker"].clear()
    assert await asyncio.to_thread(main, ["tenant", verb, "acme", *place_of(tmp_path)]) == 0
    if verb == "disable":
        assert await asyncio.to_thread(main, ["tenant", "enable", "acme", *place_of(tmp_path)]) == 0
    async with house(code=[asker, *code], folder=tmp_path) as hub:
        tenant, token = await hub.hub.tenants.rotate(acme.tenant)
        again = Caller(hub.app, token, tenant)
        ended = await again.open_rpc("asker", "tasks/resubscribe", {"id": "mine"}).end()
        assert b"failed" in ended.body and b"its token is revoked by now" in ended.body
        children = await again.rpc("worker", "ListTasks", {}, a2a_version="1.0")
        states = [task["status"]["state"] for task in children.json["result"]["tasks"]]
        assert len(states) == 1 and states[0] in ("TASK_STATE_FAILED", "TASK_STATE_CANCELED")
        assert not begun["worker"].is_set() and len(asked) == 1


async def test_a_request_admitted_with_a_token_does_not_start_after_its_rotation() -> None:
    async with house(["never said"]) as hub:
        acme = await hub.tenant("acme")
        await hub.hub.tenants.rotate(acme.tenant)
        for channel in ("native", "a2a"):
            with pytest.raises(Unauthenticated):
                if channel == "native":

                    async def said() -> tuple[Part, ...]:
                        return (Part(text="go"),)

                    await hub.hub.start_request(acme.tenant, "index", said)
                else:
                    key = acme.tenant.key
                    call = Call(scope=Scope(key, "index", key), principal=acme.tenant.principal)
                    said_ = Message(message_id="m", role=Role.USER, parts=(Part(text="go"),))
                    await hub.hub.call(call, SendMessage(message=said_))
        assert hub.model.prompts == []


async def test_a_task_that_waits_for_an_answer_takes_it_from_the_new_token() -> None:
    agent = Agent("asker", "Asks.")

    @agent.skill
    async def ask(turn: Turn) -> str:
        return f"{await turn.ask('Which?')} it is"

    async with house(code=[agent]) as hub:
        acme = await hub.tenant("acme")
        await acme.rpc("asker", "tasks/send", old_message("t"))
        tenant, token = await hub.hub.tenants.rotate(acme.tenant)
        answered = await Caller(hub.app, token, tenant).rpc("asker", "tasks/send", old_message("t", "blue"))
        assert b"blue it is" in answered.body


async def test_agents_that_an_agent_asks_do_not_count_against_the_tenant() -> None:
    replies = ["/agent scout look", "A tree.", "Done."]
    async with house(replies, max_concurrent=1) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        assert (await acme.ask("go"))[-1][1]["content"] == "Done."


async def test_a_tenant_asks_so_often_and_no_more() -> None:
    async with house(["one", "two", "three"], rate_per_min=1, rate_burst=2) as hub:
        acme = await hub.tenant("acme")
        for text in ("one", "two"):
            assert (await acme.ask("go"))[-1][1]["content"] == text
        refused = await acme("POST", "/v1/orchestrate", {"message": "go"})
        assert refused.status == 429 and refused.json["reason"] == "rate_limit"
        await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}", {"rate_per_min": 0})
        assert (await acme.ask("go"))[-1][1]["content"] == "three"


async def test_limits_that_are_changed_at_the_same_moment_are_both_changed() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        path = f"/v1/admin/tenants/{acme.tenant.id}"
        changes = {"max_concurrent": 3}, {"rate_per_min": 5}
        await asyncio.gather(*(hub.admin("PATCH", path, change) for change in changes))
        tenant = (await hub.admin("GET", path)).json["tenant"]
        assert (tenant["max_concurrent"], tenant["rate_per_min"]) == (3, 5)


async def test_actions_of_administrators_are_recorded() -> None:
    async with house() as hub:
        id = (await hub.admin("POST", "/v1/admin/tenants", {"name": "acme"})).json["tenant"]["id"]
        await hub.admin("PATCH", f"/v1/admin/tenants/{id}", {"disabled": True})
        await hub.admin("POST", f"/v1/admin/tenants/{id}/rotate-token")
        entries = (await hub.admin("GET", "/v1/admin/audit")).json["entries"]
        assert [entry["action"] for entry in entries] == [
            "tenant.rotate_token",
            "tenant.disable",
            "tenant.create",
        ]
        older = await hub.admin("GET", f"/v1/admin/audit?before_id={entries[0]['id']}&limit=1")
        assert [entry["action"] for entry in older.json["entries"]] == ["tenant.disable"]
        assert (await hub.admin("PATCH", f"/v1/admin/tenants/{id}", {"colour": "x"})).status == 400


async def test_a_tenant_is_not_called_by_a_number_which_is_anothers() -> None:
    async with house() as hub:
        await hub.tenant("acme")
        refused = await hub.admin("POST", "/v1/admin/tenants", {"name": "1"})
        assert refused.status == 400 and "must not be a number" in refused.json["error"]
        assert (await hub.admin("POST", "/v1/admin/tenants", {"name": "1 and only"})).status == 201


async def test_of_tenants_that_get_the_same_name_at_the_same_moment_one_gets_it() -> None:
    async with house() as hub:
        made = await asyncio.gather(
            *(hub.admin("POST", "/v1/admin/tenants", {"name": "acme"}) for _ in range(5))
        )
        assert sorted(each.status for each in made) == [201, 409, 409, 409, 409]
        tenants = [await hub.tenant(f"t{n}") for n in range(5)]
        renamed = await asyncio.gather(
            *(hub.admin("PATCH", f"/v1/admin/tenants/{each.tenant.id}", {"name": "apex"}) for each in tenants)
        )
        assert sorted(each.status for each in renamed) == [200, 409, 409, 409, 409]
