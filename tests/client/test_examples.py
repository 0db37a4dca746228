"""The examples of talking to agents do what they say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from dragoman import Agent, Task, TaskState, Turn, connect
from dragoman.model.content import Message
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.requirements import requirement

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def example(name: str) -> dict[str, Agent]:
    found = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")
    return {value.id: value for value in found.values() if isinstance(value, Agent)}


async def test_the_travel_agent_asks_two_others() -> None:
    agents = {**example("currency"), **example("travel")}
    app = application(*agents.values(), store="memory:")
    async with connect(app, url="http://localhost/travel") as travel:
        assert await travel("3 days in Mumbai for 300 USD") == (
            "# A trip to Mumbai\n\nExpect it to be hot and humid.\nYour budget: 300 USD is 24975.00 INR.\n"
        )
        asked = await travel("somewhere warm")
        assert asked.asks
        assert (await asked.answer("Tokyo")).endswith("Expect it to be clear and cold.\n")


async def test_the_client_example_runs_against_the_currency_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (currency,) = example("currency").values()
    async with running(application(currency, store="memory:")) as url:
        monkeypatch.setattr(sys, "argv", ["client.py", url])
        main = runpy.run_path(str(EXAMPLES / "client.py"), run_name="example")["main"]
        await main()
    out = capsys.readouterr().out
    assert "10 USD is 832.50 INR" in out
    assert "agent: To which currency would you like to convert?\n100 USD is 79.00 GBP" in out


@requirement(192)
async def test_a_question_of_an_agent_we_called_is_passed_on_and_answered() -> None:
    (currency,) = example("currency").values()
    broker = Agent("Broker", description="Asks for you")

    @broker.skill
    async def ask(turn: Turn) -> str:
        """Asks the currency agent, and asks you what that asks."""
        worth: Task | Message = await turn.call("currency", turn.text)
        while isinstance(worth, Task) and worth.state is TaskState.INPUT_REQUIRED:
            assert worth.status.message is not None
            answer = await turn.ask(worth.status.message.text)
            worth = await turn.call("currency", answer, task=worth.id)
        return worth.text

    app = application(broker, currency, store="memory:")
    async with connect(app, url="http://localhost/broker") as it:
        question = await it("how much is 100 USD?")
        assert question == "To which currency would you like to convert?"
        assert await question.answer("in GBP") == "100 USD is 79.00 GBP"
