"""What the operator lets tenants use: models, budgets of tokens and money; and who may change that."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import pytest

from dragoman import connect
from dragoman.agent.agent import Agent
from dragoman.client.retry import Policy as RetryPolicy
from dragoman.engine.turn import Turn
from dragoman.errors import A2AError, StoreUnavailable, TaskNotFound
from dragoman.hub.assembly import model_names
from dragoman.hub.models import ModelTraits, Usage, local
from dragoman.hub.models.prices import Price, Prices
from dragoman.hub.settings import InvalidSetting, Settings, load_settings
from dragoman.hub.store.spending import BudgetAlert
from dragoman.hub.tenants import budgets
from dragoman.hub.tenants.policy import Policy
from dragoman.model.card import AgentCard, Interface
from tests import postgres
from tests.hub.house import SCOUT, Caller, House, house, message
from tests.hub.scripted import ScriptedModel, by_agent
from tests.hub.test_several_hubs import at, hubs
from tests.waiting import until

HUNDRED = Usage(input_tokens=90, output_tokens=10)
SAFE: dict[str, Any] = {
    "models": (),
    "model_aliases": {"fast": "openai/small"},
    "index_model": "openai/default",
}


def uses(*models: str) -> dict[str, Any]:
    """A constitution that names models: its own, its advisor's, its router's."""
    own, advisor, intent = (*models, "", "")[:3]
    doc: dict[str, Any] = {"id": "scout", "model": own}
    if advisor:
        doc["advisor"] = {"model": advisor}
    return {**doc, "intent": {"mode": "llm", "model": intent}} if intent else doc


async def change(hub: House, caller: Caller, **policy: Any) -> Any:
    answer = await hub.admin("PATCH", f"/v1/admin/tenants/{caller.tenant.id}/policy", policy)
    assert answer.status == 200, answer.body
    return answer.json


# -- models --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constitution", "wrong"),
    [
        pytest.param(uses("openai/large"), ["model"], id="its own"),
        pytest.param(uses("fast", "anthropic/wise"), ["advisor.model"], id="its advisor's"),
        pytest.param(uses("", "", "p/router"), ["intent.model"], id="its router's"),
        pytest.param(uses("a/b", "c/d", "e/f"), ["model", "advisor.model", "intent.model"], id="all"),
    ],
)
async def test_a_model_that_the_operator_does_not_allow_is_refused_when_an_agent_is_applied(
    constitution: dict[str, Any], wrong: list[str]
) -> None:
    async with house(["no"], **SAFE) as hub:
        acme = await hub.tenant("acme")
        inline = {"message": "hi", "agent_def": constitution}
        for method, path, body in (
            ("POST", "/v1/agents", constitution),
            ("PUT", "/v1/agents/scout", constitution),
            ("POST", "/v1/orchestrate", inline),
            ("POST", "/v1/conversations", {"agent_def": constitution}),
        ):
            refused = await acme(method, path, body)
            assert refused.status == 400, (path, refused.body)
            assert [each["field"] for each in refused.json["fields"]] == wrong
            assert "may not use" in refused.json["error"] and "openai/default" in refused.json["error"]
        checked = (await acme("POST", "/v1/constitutions/validate", constitution)).json
        assert not checked["ok"] and [each["field"] for each in checked["fields"]] == wrong
        assert hub.model.prompts == []


@pytest.mark.parametrize("named", ["", "fast", "openai/default"])
async def test_the_models_of_the_hub_and_their_aliases_may_be_named(named: str) -> None:
    async with house(["hello"], **SAFE) as hub:
        acme = await hub.tenant("acme")
        assert (await acme("POST", "/v1/agents", uses(named))).status == 201
        received = await acme.ask("hi", "/v1/agents/scout/chat")
        assert received[-1][1]["ok"]
        assert hub.model.prompts[0].model == {"fast": "openai/small"}.get(named, named)


async def test_a_model_that_is_no_longer_allowed_is_not_called(caplog: Any) -> None:
    async with house(["one", "two"], **SAFE) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        await change(hub, acme, models=["openai/*"])
        assert (await acme("POST", "/v1/agents", uses("openai/large"))).status == 201
        assert (await other("POST", "/v1/agents", uses("openai/large"))).status == 400
        assert (await acme.ask("hi", "/v1/agents/scout/chat"))[-1][1]["ok"]
        await change(hub, acme, models=None)
        done = (await acme.ask("hi", "/v1/agents/scout/chat"))[-1][1]
        assert not done["ok"] and done["error_code"] == "model_not_allowed"
        assert "'openai/large'" in done["error"]
        sent = (await acme.rpc("scout", "message/send", message("hi"))).json["result"]
        assert sent["status"]["state"] == "failed"
        assert "may not use" in sent["status"]["message"]["parts"][0]["text"]
        assert len(hub.model.prompts) == 1


async def test_the_gate_asks_only_models_that_the_tenant_may_name() -> None:
    async with house(["<signal>continue</signal>"], **SAFE) as hub:
        acme = await hub.tenant("acme")
        body = {"advisor_model": "p/wise", "original_task": "t", "terminating_text": "x"}
        refused = await acme("POST", "/v1/advise/gate", body)
        assert refused.status == 400 and refused.json["fields"][0]["field"] == "advisor_model"
        assert (await acme("POST", "/v1/advise/gate", {**body, "advisor_model": "fast"})).status == 200
        used = (await acme("GET", "/v1/usage")).json["usage"]
        assert [(row["model"], row["calls"]) for row in used] == [("openai/small", 1)]


async def test_tenants_see_the_models_that_they_may_name() -> None:
    async with house([], **SAFE) as hub:
        listed = (await (await hub.tenant("acme"))("GET", "/v1/models")).json["models"]
        assert {"openai/default", "fast"} <= {each["id"] for each in listed}


@pytest.mark.parametrize(
    ("given", "may_be_named"),
    [({"model": "openai/default"}, False), ({"model": "embedded"}, True), ({}, True)],
)
def test_the_model_in_the_process_may_be_named_if_it_is_the_hubs(
    given: dict[str, Any], may_be_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "available", lambda: True)
    names = model_names(Settings(**given))
    assert names.allows(Policy(), local.EMBEDDED_NAME) is may_be_named


def test_a_refusal_does_not_show_files_of_the_operator() -> None:
    names = model_names(Settings(model="scripted:/srv/replies.json"))
    assert "/srv" not in names.refusal(Policy(), "openai/large")


def test_aliases_and_prices_are_read_from_the_environment_and_from_flags() -> None:
    given = load_settings(
        {"prices": ["openai/small=0.15/0.6"], "approve": ["none"]},
        environment={
            "DRAGOMAN_MODEL_ALIASES": "fast=openai/small, wise = anthropic/big",
            "DRAGOMAN_MODELS": "a/*,b",
        },
        config="/nonexistent/dragoman.toml",
    )
    assert given.model_aliases == {"fast": "openai/small", "wise": "anthropic/big"}
    assert given.prices == {"openai/small": Price(input=0.15, output=0.6)}
    assert given.models == ("a/*", "b") and given.policy.approve == ()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"model_aliases": ["fast"]}, "NAME=VALUE"),
        ({"approve": ["/read"]}, "/read"),
        ({"prices": ["m=cheap/1"]}, "prices"),
        ({"admin_token": "secret", "host": "0.0.0.0"}, "guessed"),
    ],
)
def test_an_invalid_setting_is_refused(flags: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        load_settings(flags, environment={}, config="/nonexistent/dragoman.toml")


def test_the_settings_and_the_policy_of_the_hub_have_the_same_defaults() -> None:
    assert Settings().policy == Policy()


# -- the policy of a tenant ------------------------------------------------------------------------------------------------


async def test_an_operator_changes_the_policy_of_one_tenant_and_a_tenant_reads_its_own() -> None:
    async with house([]) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        changed = await change(hub, acme, tokens_per_day=7, max_memories=3)
        assert changed["own"] == {"tokens_per_day": 7, "max_memories": 3}
        mine = (await acme("GET", "/v1/policy")).json
        assert mine["policy"]["tokens_per_day"] == 7 and mine["today"] == {"tokens": 0, "cost": 0.0}
        assert mine["stored"]["memories"] == 0
        assert (await other("GET", "/v1/policy")).json["policy"]["tokens_per_day"] == 10_000_000
        assert (await change(hub, acme, tokens_per_day=None))["own"] == {"max_memories": 3}
        audit = (await hub.admin("GET", "/v1/admin/audit")).json["entries"]
        assert [each["action"] for each in audit[:2]] == ["tenant.policy"] * 2
        assert (await hub.admin("GET", "/v1/admin/policy")).json["policy"]["max_memories"] == 5000
        path = f"/v1/admin/tenants/{acme.tenant.id}/policy"
        assert (await acme("PATCH", path, {"max_memories": 0})).status == 401


@pytest.mark.parametrize(
    "body", [{"tokens": 1}, {"tokens_per_day": -1}, {"models": "openai"}, {"approve": ["/read"]}, [1]]
)
async def test_an_invalid_policy_is_refused(body: Any) -> None:
    async with house([]) as hub:
        acme = await hub.tenant("acme")
        answer = await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}/policy", body)
        assert answer.status == 400 and "`" not in answer.json["error"]
        assert [each["field"] for each in answer.json.get("fields", [])] == list(
            body if isinstance(body, dict) else []
        )
        assert (await hub.admin("GET", f"/v1/admin/tenants/{acme.tenant.id}/policy")).json["own"] == {}


async def test_a_member_that_a_policy_does_not_have_is_answered_with_the_nearest_one() -> None:
    async with house([]) as hub:
        acme = await hub.tenant("acme")
        answer = await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}/policy", {"max_todo": 1})
        assert answer.json["error"] == "a policy has no 'max_todo': did you mean 'max_todos'?"


# -- budgets ---------------------------------------------------------------------------------------------------------------


async def test_a_tenant_that_has_used_its_tokens_is_refused_in_the_dialect_of_the_caller() -> None:
    async with house(lambda prompt: ("ok", HUNDRED), tokens_per_day=200) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        for _ in range(2):
            assert (await acme.ask("hi"))[-1][1]["ok"]
        native = await acme("POST", "/v1/orchestrate", {"message": "hi"})
        assert native.status == 429 and native.json["reason"] == "tokens_budget"
        assert "200 of 200 tokens" in native.json["error"] and "00:00 UTC" in native.json["error"]
        assert 0 < native.json["retry_after_seconds"] <= 86_400
        arbiter = (await acme.rpc("index", "message/send", message("hi"))).json["error"]
        assert arbiter["code"] == -32000 and "200 of 200 tokens" in arbiter["message"]
        v1 = {"message": {"role": "ROLE_USER", "messageId": "m", "parts": [{"text": "hi"}]}}
        newest = (await acme.rpc("index", "SendMessage", v1, a2a_version="1.0")).json["error"]
        assert newest["code"] == -32000 and "200 of 200 tokens" in newest["message"]
        gate = {"advisor_model": "w", "original_task": "t", "terminating_text": "x"}
        assert (await acme("POST", "/v1/advise/gate", gate)).status == 429
        assert len(hub.model.prompts) == 2
        assert (await other.ask("hi"))[-1][1]["ok"]
        await change(hub, acme, tokens_per_day=1000)
        assert (await acme.ask("hi"))[-1][1]["ok"]


async def test_work_that_is_running_calls_no_model_after_the_budget_is_used_up() -> None:
    scripts: dict[str, Any] = {
        "Index": [("/agent scout look", HUNDRED), ("never", HUNDRED)],
        "Scout": [("found", HUNDRED)],
    }
    async with house(by_agent(scripts), tokens_per_day=200) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        done = (await acme.ask("hi"))[-1][1]
        assert not done["ok"] and done["error_code"] == "budget_exhausted"
        assert "200 of 200 tokens" in done["error"]
        assert (await acme("GET", "/v1/policy")).json["today"]["tokens"] == 200
        used = (await acme("GET", "/v1/usage")).json["usage"]
        assert sorted((row["agent"], row["calls"]) for row in used) == [("index", 1), ("scout", 1)], (
            "a call that the hub refuses is no call"
        )


async def test_advisors_summaries_and_delegated_agents_count() -> None:
    scripts: dict[str, Any] = {
        "Index": [("/agent scout look", HUNDRED), ("/advise sure?", HUNDRED), ("done", HUNDRED)],
        "Scout": [("found", HUNDRED)],
    }
    agents = by_agent(scripts)

    def reply(prompt: Any) -> Any:
        return ("yes", HUNDRED) if "You advise" in prompt.system else agents(prompt)

    async with house(reply) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        boss = {
            "id": "boss",
            "name": "Index",
            "advisor": {"model": "w"},
            "capabilities": ["delegation", "advise"],
        }
        assert (await acme("POST", "/v1/agents", boss)).status == 201
        assert (await acme.ask("hi", agent="boss"))[-1][1]["ok"]
        assert (await acme("GET", "/v1/policy")).json["today"]["tokens"] == 500


async def test_an_alert_is_raised_once_at_eighty_percent_and_once_at_the_end(caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "dragoman.hub")
    async with house(lambda prompt: ("ok", HUNDRED), tokens_per_day=500) as hub:
        acme = await hub.tenant("acme")
        for n in range(5):
            assert (await acme.ask("hi"))[-1][1]["ok"], n
        received = [
            record.getMessage() for record in caplog.records if "% of the tokens" in record.getMessage()
        ]
        assert [line.split(" of ")[0].rpartition(":")[2].strip() for line in received] == ["80 %", "100 %"]
        metrics = hub.hub.metrics_text().decode()
        for percent in (80, 100):
            line = f'dragoman_hub_budget_alerts_total{{budget="tokens",percent="{percent}",tenant="{acme.tenant.id}"}} 1'
            assert line in metrics
        entries = (await hub.admin("GET", "/v1/admin/audit")).json["entries"]
        assert [each["action"] for each in entries[:2]] == ["budget.alert"] * 2
        again = acme.open("GET", "/v1/notifications/stream", last_event_id="0")
        await again.until(lambda: again.body.count(b"budget.alert") == 2)
        again.gone.set()


@pytest.mark.parametrize(
    ("budget", "used", "limit", "end"),
    [
        ("tokens", 8_000_123, 10_000_000, "8000123 of 10000000"),
        ("cost", 1234567.891, 1500000.0, "1234567.89 of 1500000.00"),
    ],
)
def test_an_alert_names_the_sums_with_all_their_digits(
    budget: str, used: float, limit: float, end: str
) -> None:
    alert = BudgetAlert(tenant_id=1, day="2030-01-07", budget=budget, percent=80, used=used, limit=limit)
    assert alert.text == f"80 % of the {budget} of 2030-01-07 are used: {end}"


async def test_money_is_counted_by_the_prices_of_the_settings() -> None:
    prices = {"scripted": Price(input=1_000.0, output=10_000.0)}  # the hundred tokens cost 0.19
    async with house(lambda prompt: ("ok", HUNDRED), prices=prices, cost_per_day=0.3, currency="EUR") as hub:
        acme = await hub.tenant("acme")
        for _ in range(2):
            assert (await acme.ask("hi"))[-1][1]["ok"]
        refused = await acme("POST", "/v1/orchestrate", {"message": "hi"})
        assert refused.status == 429 and refused.json["reason"] == "cost_budget"
        assert "0.38 of 0.30 EUR" in refused.json["error"]
        (used,) = (await acme("GET", "/v1/usage")).json["usage"]
        assert used["cost"] == pytest.approx(0.38) and used["currency"] == "EUR"


class Priceless(ScriptedModel):
    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name=name or "openai/new")


async def test_a_hub_that_limits_money_calls_no_model_whose_price_it_does_not_know() -> None:
    async with house(model=Priceless(["no"]), cost_per_day=5.0) as hub:
        acme = await hub.tenant("acme")
        done = (await acme.ask("hi"))[-1][1]
        assert not done["ok"] and done["error_code"] == "price_unknown" and "'openai/new'" in done["error"]
        assert hub.model.prompts == []


def test_a_name_goes_before_a_pattern_and_a_model_of_this_process_is_free() -> None:
    cheap, dear = Price(input=1, output=1), Price(input=9, output=9, cached=3)
    prices = Prices({"openai/*": cheap, "openai/large": dear})
    assert prices.find("openai/large") is dear and prices.find("openai/small") is cheap
    assert prices.find("anthropic/x") is None
    used = Usage(input_tokens=2_000_000, cache_read_tokens=1_000_000)
    assert prices.cost("openai/large", used) == 12.0 and prices.cost("embedded:x.gguf", used) == 0.0
    assert prices.find("echo") is not None


async def test_what_an_agent_that_is_code_reports_counts() -> None:
    agent = Agent("meter", description="uses tokens")

    @agent.skill
    async def use(text: str, turn: Turn) -> str:
        turn.usage("its/own", input_tokens=150, cost=1.5)
        return "used"

    async with house([], code=[agent], tokens_per_day=100) as hub:
        acme = await hub.tenant("acme")
        assert (await acme.ask("hi", agent="meter"))[-1][1]["ok"]

        async def counted() -> bool:
            return (await acme("GET", "/v1/policy")).json["today"] == {"tokens": 150, "cost": 1.5}

        await until(counted)
        assert (await acme("POST", "/v1/orchestrate", {"message": "hi", "agent": "meter"})).status == 429


async def test_an_interrupted_reply_counts() -> None:
    hold = asyncio.Event()
    async with house([("one two three four", hold)]) as hub:
        acme = await hub.tenant("acme")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"request_received" in live.body and bool(hub.model.prompts))
        (asked,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert (await acme("POST", f"/v1/requests/{asked['request_id']}/cancel")).status == 200
        await live.end()
        assert (await acme("GET", "/v1/policy")).json["today"]["tokens"] > 0


async def test_what_is_used_while_the_database_is_away_counts_when_it_is_back(monkeypatch: Any) -> None:
    monkeypatch.setattr(budgets, "COUNT_RETRY_SECONDS", 0.0)
    async with house([("ok", HUNDRED), ("ok", HUNDRED)]) as hub:
        acme, spending, away = await hub.tenant("acme"), hub.hub.spending, [StoreUnavailable("away")] * 3
        add = spending.add

        async def add_later(*what: Any) -> Any:
            if away:
                raise away.pop()
            return await add(*what)

        monkeypatch.setattr(spending, "add", add_later)
        assert (await acme.ask("one"))[-1][1]["ok"] and (await acme.ask("two"))[-1][1]["ok"]

        async def tokens() -> Any:
            return (await acme("GET", "/v1/policy")).json["today"]["tokens"]

        assert await until(tokens, lambda n: n >= 200) == 200


async def test_what_is_used_while_the_database_is_away_is_added_up_when_it_is_back(monkeypatch: Any) -> None:
    async with house([("ok", HUNDRED), ("ok", HUNDRED)]) as hub:
        acme, database, away = await hub.tenant("acme"), hub.hub.usages._db, [StoreUnavailable("away")]
        run, refused = database.run, asyncio.Event()

        async def run_later(work: Any, **options: Any) -> Any:
            if away and work.__qualname__.startswith("Usages."):
                refused.set()
                raise away.pop()
            return await run(work, **options)

        monkeypatch.setattr(database, "run", run_later)
        assert (await acme.ask("one"))[-1][1]["ok"]
        await refused.wait()
        assert (await acme.ask("two"))[-1][1]["ok"]
        assert sum(each.calls for each in await hub.hub.usages.since(1)) == 2


@pytest.mark.skipif(not postgres.available(), reason="PostgreSQL is not installed")
async def test_a_budget_and_its_alerts_hold_over_all_hubs(tmp_path: Any) -> None:
    async with hubs(lambda prompt: ("ok", HUNDRED), folder=tmp_path, tokens_per_day=1000) as (one, two):
        acme = await one.tenant("acme")
        for n in range(10):
            assert (await at((one, two)[n % 2], acme).ask(f"hi {n}"))[-1][1]["ok"]
        for each in (one, two):
            assert (await at(each, acme)("POST", "/v1/orchestrate", {"message": "x"})).status == 429
        raised = await one.hub.database.all("select percent from budget_alerts order by percent")
        assert [row["percent"] for row in raised] == [80, 100]
        audit = (await two.admin("GET", "/v1/admin/audit")).json["entries"]
        assert [each["action"] for each in audit].count("budget.alert") == 2
        await change(one, acme, tokens_per_day=5000)
        assert (await at(two, acme).ask("again"))[-1][1]["ok"]


# -- what a tenant sees ------------------------------------------------------------------------------------------------------

REMOTES = '{"agents": {"weather": {"url": "http://127.0.0.1:9/a", "allow_private": true}, "bank": {"url": "http://127.0.0.1:9/b", "allow_private": true}}}'
SERVERS = '{"servers": {"files": {"command": "/nonexistent/files"}, "tickets": {"command": "/nonexistent/tickets"}}}'


async def test_a_tenant_sees_only_the_remotes_and_mcp_servers_of_its_policy(tmp_path: Any) -> None:
    (tmp_path / "a2a_agents.json").write_text(REMOTES)
    (tmp_path / "mcp_servers.json").write_text(SERVERS)
    commands = "/a2a list\n/a2a card bank\n/a2a call bank pay\n/mcp tools\n/mcp call tickets close {}"

    def reply(prompt: Any) -> str:
        return "done" if "TOOL RESULTS" in prompt.messages[-1].content else commands

    async with house(reply, folder=tmp_path, remotes=("weather",), mcp_servers=("files",)) as hub:
        acme, rich = await hub.tenant("acme"), await hub.tenant("rich")
        await change(hub, rich, remotes=["*"], mcp_servers=["*"])
        assert (await acme.ask("go"))[-1][1]["ok"]
        seen = hub.model.prompts[-1].messages[-1].content
        assert "weather" in seen and "no remote agent named 'bank'" in seen
        assert "files: " in seen and "tickets: " not in seen
        assert "no MCP server 'tickets' configured. Available: files" in seen
        assert (await rich.ask("go"))[-1][1]["ok"]
        seen = hub.model.prompts[-1].messages[-1].content
        assert "bank  (card unavailable" in seen and "no remote agent" not in seen
        assert "tickets: " in seen and "Available" not in seen
        await change(hub, acme, remotes=[], mcp_servers=[])
        assert (await acme.ask("go"))[-1][1]["ok"]
        seen = hub.model.prompts[-1].messages[-1].content
        assert "this hub has no remote agents" in seen and "this hub has no MCP servers" in seen


async def test_a_browser_that_a_tenant_may_not_use_is_none_for_it(tmp_path: Any) -> None:
    (tmp_path / "mcp_servers.json").write_text('{"servers": {"playwright": {"command": "none"}}}')

    def reply(prompt: Any) -> str:
        return "done" if "TOOL RESULTS" in prompt.messages[-1].content else "/browse https://example.com/"

    async with house(reply, folder=tmp_path, mcp_servers=("files",)) as hub:
        acme = await hub.tenant("acme")
        assert (await acme.ask("go"))[-1][1]["ok"]
        seen = hub.model.prompts[-1].messages[-1].content
        assert "/browse is not available: this hub has no browser" in seen


# -- open requests ---------------------------------------------------------------------------------------------------------


async def test_a_tenant_has_so_many_requests_open_and_leaves_connections_to_others() -> None:
    async with house(lambda prompt: "ok", max_open_requests=2) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        streams = [acme.open("GET", "/v1/notifications/stream") for _ in range(2)]
        for stream in streams:
            await stream.until(partial(_has_begun, stream))
        refused = await acme("GET", "/v1/agents")
        assert refused.status == 429 and refused.json["reason"] == "open_request_limit"
        assert refused.headers["connection"] == "close"
        assert (await acme.rpc("index", "message/send", message("hi"))).status == 429
        assert (await acme("POST", "/v1/orchestrate", {"message": "hi"})).status == 429
        assert (await other("GET", "/v1/agents")).status == 200
        assert (await hub.admin("GET", "/v1/admin/tenants")).status == 200
        streams[0].gone.set()
        await streams[0].end()
        assert (await acme("GET", "/v1/nothing")).status == 404
        assert "result" in (await acme.rpc("index", "message/send", message("hi"))).json
        await change(hub, acme, max_open_requests=0)
        streams.append(acme.open("GET", "/v1/notifications/stream"))
        await streams[-1].until(partial(_has_begun, streams[-1]))
        assert (await acme("GET", "/v1/agents")).status == 200
        for stream in streams[1:]:
            stream.gone.set()
            await stream.end()


async def test_calls_over_grpc_count_as_open_requests_until_they_end() -> None:
    pytest.importorskip("grpc")
    hold = asyncio.Event()

    async with house(
        lambda prompt: ("wait\n", hold), grpc_port=0, public_url="http://127.0.0.1", max_open_requests=2
    ) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        card = (await acme("GET", "/v1/a2a/agents/index/agent-card.json", a2a_version="1.0")).json
        (way,) = [each for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"]
        where = Interface(url=way["url"], protocol_binding="GRPC", protocol_version="1.0", tenant="index")
        index = AgentCard(name="index", supported_interfaces=(where,))
        async with (
            connect(index, credentials=acme.token, policy=RetryPolicy(attempts=1)) as agent,
            connect(index, credentials=other.token) as others,
        ):
            waiting = [asyncio.create_task(agent.send("hi")) for _ in range(2)]
            await until(lambda: _true(len(hub.model.prompts) == 2))
            with pytest.raises(A2AError, match="2 requests of this tenant are open already"):
                await agent.get("nothing")
            with pytest.raises(A2AError, match="2 requests of this tenant are open already"):
                await agent.send("hi")
            assert (await acme("GET", "/v1/agents")).status == 429, "with those over HTTP"
            with pytest.raises(TaskNotFound):
                await others.get("nothing")
            hold.set()
            await asyncio.gather(*waiting)
            with pytest.raises(TaskNotFound):
                await agent.get("nothing")


async def _true(value: bool) -> bool:
    return value


def _has_begun(stream: Any) -> bool:
    return bool(stream.body)


# -- reads -----------------------------------------------------------------------------------------------------------------


async def test_reads_have_a_limit_of_their_own_over_both_apis() -> None:
    async with house(lambda prompt: "ok", reads_per_min=6) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        sent = (await acme.rpc("index", "message/send", message("hi"))).json["result"]["id"]
        for path in ("/v1/requests", "/v1/agents", "/v1/a2a/agents/index/agent-card.json", "/v1/nothing"):
            assert (await acme("GET", path)).status in (200, 404)
        assert "result" in (await acme.rpc("index", "tasks/get", {"id": sent})).json
        assert (await acme("POST", "/v1/todos", {"subject": "x"})).status == 201
        refused = await acme("GET", "/v1/requests")
        assert refused.status == 429 and refused.json["reason"] == "read_limit"
        assert 1 <= refused.json["retry_after_seconds"] <= 10
        assert (await acme.rpc("index", "tasks/get", {"id": sent})).json["error"]["code"] == -32000
        assert (await acme("GET", "/v1/a2a/agents/index/agent-card.json")).status == 429
        assert (await acme.ask("a request is not a read"))[-1][1]["ok"]
        assert (await other("GET", "/v1/requests")).status == 200
        assert (
            f'rate_limited_total{{reason="read_limit",tenant="{acme.tenant.id}"}} 3'
            in hub.hub.metrics_text().decode()
        )
        await change(hub, acme, reads_per_min=0)
        assert (await acme("GET", "/v1/requests")).status == 200


@pytest.mark.skipif(not postgres.available(), reason="PostgreSQL is not installed")
async def test_a_request_that_is_repeated_with_its_key_counts_as_a_read() -> None:
    async with house(lambda prompt: "ok", reads_per_min=2, rate_per_min=1) as hub:
        acme = await hub.tenant("acme")
        asked = [
            await acme("POST", "/v1/orchestrate", {"message": "hi"}, idempotency_key="k") for _ in range(4)
        ]
        assert [each.status for each in asked] == [200, 200, 200, 429]
        assert asked[3].json["reason"] == "read_limit"


async def test_the_limit_of_reads_holds_over_all_hubs(tmp_path: Any) -> None:
    async with hubs([], folder=tmp_path, reads_per_min=6) as (one, two):
        acme = await one.tenant("acme")
        reads = [at((one, two)[n % 2], acme)("GET", "/v1/agents") for n in range(20)]
        states = [answer.status for answer in await asyncio.gather(*reads)]
        assert 1 <= states.count(200) <= 6 and states.count(429) == 20 - states.count(200)


# -- storage -----------------------------------------------------------------------------------------------------------------


async def filled(caller: Caller, path: str, make: Any, most: int, method: str = "POST") -> Any:
    """Make things until the hub refuses; there are exactly `most`. Returns the refusal."""
    for n in range(most):
        made = await caller(method, path.format(n=n), make(n))
        assert made.status in (200, 201), (n, made.body)
    refused = await caller(method, path.format(n=most), make(most))
    assert refused.status == 413 and refused.json["reason"] == "storage_limit", refused.body
    assert str(most) in refused.json["error"]
    return refused.json["error"]


CAPS: dict[str, Any] = {
    "max_agents": 3,
    "max_conversations": 3,
    "max_messages": 4,
    "max_memories": 3,
    "max_artifacts": 3,
    "max_artifact_mb": 1,
    "max_scratchpads": 2,
    "max_todos": 3,
    "max_schedules": 3,
}


async def test_storage_has_limits_and_another_tenant_has_its_own() -> None:
    async with house(lambda prompt: "ok", **CAPS) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        for caller in (acme, other):
            await filled(caller, "/v1/agents", lambda n: {"id": f"a{n}"}, 3)
            await filled(caller, "/v1/conversations", lambda n: {"title": f"c{n}"}, 3)
            await filled(caller, "/v1/memory/entries", lambda n: {"type": "user", "title": f"m{n}"}, 3)
            await filled(caller, "/v1/todos", lambda n: {"subject": f"t{n}"}, 3)
            await filled(caller, "/v1/schedules", lambda n: {"schedule": "in 2 hours", "message": f"s{n}"}, 3)
            talk = (await caller("GET", "/v1/conversations")).json["conversations"][0]["id"]
            files = f"/v1/conversations/{talk}/artifacts"
            await filled(caller, files, lambda n: {"path": f"f{n}", "content": "x"}, 3)
            large = await caller("POST", files, {"path": "f0", "content": "x" * (1 << 20)})
            assert large.status == 413 and "bytes are used" in large.json["error"]
            assert (await caller("POST", files, {"path": "f0", "content": "y"})).status == 200
        stored = (await acme("GET", "/v1/policy")).json["stored"]
        assert {
            name: stored[name] for name in ("agents", "conversations", "memories", "artifacts", "todos")
        } == {
            "agents": 3,
            "conversations": 3,
            "memories": 3,
            "artifacts": 3,
            "todos": 3,
        }
        await change(hub, acme, max_memories=0)
        assert (await acme("POST", "/v1/memory/entries", {"type": "user", "title": "more"})).status == 201
        assert (await acme("DELETE", "/v1/agents/a0")).status == 204
        assert (await acme("POST", "/v1/agents", {"id": "a9"})).status == 201


async def test_a_conversation_has_so_many_messages_and_so_much_text() -> None:
    async with house(lambda prompt: "ok", **CAPS, max_conversation_mb=1) as hub:
        acme = await hub.tenant("acme")
        talk = (await acme("POST", "/v1/conversations", {})).json["id"]
        path = f"/v1/conversations/{talk}/messages"
        large = await acme("POST", path, {"message": "x" * ((1 << 20) + 1)})
        assert large.status == 413 and "begin another one" in large.json["error"]
        for _ in range(2):
            assert (await acme.ask("hi", path))[-1][1]["ok"]
        refused = await acme("POST", path, {"message": "hi"})
        assert refused.status == 413 and "has 4 messages, and may have 4" in refused.json["error"]
        assert len((await acme("GET", path)).json["messages"]) == 4
        assert hub.hub.quotas.running_tasks(acme.tenant.key) == {}


async def test_answers_that_are_still_to_come_count_as_messages_of_their_conversation() -> None:
    hold = asyncio.Event()
    async with house(lambda prompt: ("ok", hold), **CAPS) as hub:
        acme = await hub.tenant("acme")
        talk = (await acme("POST", "/v1/conversations", {})).json["id"]
        path = f"/v1/conversations/{talk}/messages"
        asked = [acme.open("POST", path, {"message": "hi"}) for _ in range(2)]
        for each in asked:
            await each.until(partial(_has_begun, each))
        assert (await acme("POST", path, {"message": "hi"})).status == 413
        hold.set()
        for each in asked:
            await each.end()
        assert len((await acme("GET", path)).json["messages"]) == 4


async def test_the_requests_of_a_tenant_have_so_much_room_and_another_tenant_has_its_own() -> None:
    async with house(lambda prompt: "ok", max_request_mb=1) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        large = "x" * 200_000
        for _ in range(2):
            assert (await acme.ask(large))[-1][1]["ok"]
        refused = await acme("POST", "/v1/orchestrate", {"message": large})
        assert refused.status == 413 and refused.json["reason"] == "storage_limit"
        assert "MB of requests, and may store 1" in refused.json["error"]
        over_a2a = await acme.rpc("index", "message/send", message(large))
        assert "max_request_mb" in over_a2a.json["error"]["message"]
        assert over_a2a.json["error"]["code"] == -32000, "a limit of the caller, not an error of the hub"
        v1 = {"message": {"role": "ROLE_USER", "messageId": "m", "parts": [{"text": large}]}}
        newest = (await acme.rpc("index", "SendMessage", v1, a2a_version="1.0")).json["error"]
        assert newest["code"] == -32000 and newest["data"][0]["reason"] == "QUOTA_EXCEEDED"
        rest = await acme("POST", "/v1/a2a/agents/index/message:send", v1, a2a_version="1.0")
        assert (rest.status, rest.json["error"]["status"]) == (413, "RESOURCE_EXHAUSTED")
        assert (await acme.ask("small"))[-1][1]["ok"]
        assert 800_000 < (await acme("GET", "/v1/policy")).json["stored"]["request_bytes"] < 1 << 20
        assert (await other.ask(large))[-1][1]["ok"]
        assert hub.hub.quotas.running_tasks(acme.tenant.key) == {}
        await change(hub, acme, max_request_mb=0)
        assert (await acme.ask(large))[-1][1]["ok"]


async def test_push_configs_have_room_with_the_requests_of_their_tenant() -> None:
    async with house(lambda prompt: "ok", max_request_mb=1, push=True, allow_private=True) as hub:
        acme = await hub.tenant("acme")
        tasks = [(await acme.ask("hi"))[-1][1]["request_id"] for _ in range(10)]
        before = (await acme("GET", "/v1/policy")).json["stored"]["request_bytes"]
        url, credentials = "https://203.0.113.7/hook", "x" * 8000

        async def hook(task: str, n: int) -> Any:
            config = {
                "url": url,
                "id": f"{n}",
                "authentication": {"schemes": ["Bearer"], "credentials": credentials},
            }
            params = {"taskId": task, "pushNotificationConfig": config}
            return (await acme.rpc("index", "tasks/pushNotificationConfig/set", params)).json

        for n in range(6):
            assert "result" in await hook(tasks[0], n)
        stored = (await acme("GET", "/v1/policy")).json["stored"]["request_bytes"]
        assert stored > before + 6 * 8000
        answers = [await hook(task, n) for task in tasks for n in range(16)]
        assert "max_request_mb" in answers[-1]["error"]["message"]
        with_config = message("hi")
        with_config["configuration"] = {
            "pushNotificationConfig": {
                "url": url,
                "authentication": {"schemes": ["Bearer"], "credentials": credentials},
            }
        }
        refused = (await acme.rpc("index", "message/send", with_config)).json
        assert "max_request_mb" in refused["error"]["message"]
        assert (await acme("GET", "/v1/policy")).json["stored"]["request_bytes"] < 1 << 20


async def test_a_command_that_finds_no_room_tells_the_model() -> None:
    replies = ["/mem add entry user Likes tea\nx\n/endmem\n/mem write note", "noted"]

    async with house(replies, max_memories=1, max_scratchpads=1) as hub:
        acme = await hub.tenant("acme")
        await hub.hub.scratchpads.add(acme.tenant.id, "another", "x")
        await acme("POST", "/v1/memory/entries", {"type": "user", "title": "first"})
        assert (await acme.ask("remember"))[-1][1]["ok"]
        seen = hub.model.prompts[-1].messages[-1].content
        assert "ERR: this tenant has 1 entries in its memory, and may have 1" in seen
        assert "ERR: this tenant has 1 scratchpads, and may have 1" in seen


async def test_old_versions_of_an_agent_are_deleted_unless_a_request_needs_them() -> None:
    async with house(lambda prompt: "ok", max_versions=3) as hub:
        acme = await hub.tenant("acme")
        for n in range(1, 8):
            assert (await acme("PUT", "/v1/agents/scout", {**SCOUT, "goal": f"goal {n}"})).status in (
                200,
                201,
            )
            if n == 2:
                assert (await acme.ask("hi", agent="scout"))[-1][1]["ok"]
        listed = (await acme("GET", "/v1/agents/scout/versions")).json["versions"]
        assert [each["version"] for each in listed] == [7, 6, 5, 2]


async def test_the_same_inline_agent_is_stored_once_and_those_of_ended_requests_make_room(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("dragoman.hub.store.catalogue._STARTING_SECONDS", -1)
    async with house(lambda prompt: "ok", max_versions=1) as hub:  # twenty of all agents
        acme = await hub.tenant("acme")
        for _ in range(3):
            assert (await acme.ask("hi", agent_def={"id": "once", "goal": "g"}))[-1][1]["ok"]
        assert (await acme("GET", "/v1/policy")).json["stored"]["versions"] == 1
        for n in range(25):
            assert (await acme.ask("hi", agent_def={"id": f"a{n}", "goal": "g"}))[-1][1]["ok"], n
        assert (await acme("GET", "/v1/policy")).json["stored"]["versions"] <= 20


async def test_versions_of_requests_that_wait_are_kept_and_the_next_one_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr("dragoman.hub.store.catalogue.VERSIONS_FACTOR", 2)
    hold = asyncio.Event()
    async with house(lambda prompt: ("word\n", hold), max_versions=1) as hub:
        acme = await hub.tenant("acme")
        live = [
            acme.open("POST", "/v1/orchestrate", {"message": "go", "agent_def": {"id": f"a{n}"}})
            for n in range(2)
        ]
        for each in live:
            await each.until(lambda each=each: b"word" in each.body)  # type: ignore[misc]
        refused = await acme("POST", "/v1/orchestrate", {"message": "go", "agent_def": {"id": "a3"}})
        assert (
            refused.status == 413 and "versions of agents, which requests still use" in refused.json["error"]
        )
        hold.set()
        for each in live:
            assert b'"ok":true' in (await each.end()).body
