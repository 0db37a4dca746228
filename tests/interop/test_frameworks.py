"""One contract for the agents of every framework, with a scripted model and no network.

Each agent runs on its framework, in an environment of its own, behind `dragoman serve`; `frameworks/script.py` says what
its model does.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dragoman import Part, TaskState, connect
from dragoman.client import Client, TaskFailed
from dragoman.model.usage import USAGE
from tests.interop.environments import ROOT, install, python
from tests.serving import Server
from tests.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.asyncio(loop_scope="module")]

PROGRAMS = Path(__file__).parent / "frameworks"
FRAMEWORKS = {
    "langgraph": "langgraph_agent.py",
    "pydantic-ai": "pydantic_ai_agent.py",
    "openai-agents": "openai_agents_agent.py",
    "google-adk": "google_adk_agent.py",
    "agent-framework": "agent_framework_agent.py",
    "strands": "strands_agent.py",
    "llama-index-workflows": "llama_index_workflows_agent.py",
    "llama-index-agent": "llama_index_workflows_more.py",
    "crewai": "crewai_agent.py",
    "smolagents": "smolagents_agent.py",
}
ENVIRONMENTS = {"llama-index-agent": "llama-index-workflows"}
"""Where an agent runs, if not in the environment of its own name."""
IMPOSSIBLE = {
    "crewai": {
        "test_one_message_may_answer_both_pauses": "a flow of CrewAI has one pending question: the second comes after the first",
    },
}
"""What a framework cannot do, and why."""
NO_TELEMETRY = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Nothing leaves this machine."""


class Served:
    """An agent of a framework, the client of it, and the folder where its model and tools leave files."""

    def __init__(self, server: Server, folder: Path, framework: str) -> None:
        self.server, self.folder, self.framework = server, folder, framework
        self.client: Client

    def has_file(self, name: str) -> bool:
        return (self.folder / name).exists()

    @property
    def booked(self) -> list[str]:
        file = self.folder / "booked"
        return sorted(file.read_text().split()) if file.exists() else []

    def forget(self) -> None:
        for file in self.folder.iterdir():
            file.unlink()

    async def crash(self) -> None:
        """`kill -9`, and start again."""
        await self.server.kill()
        await self.server.start()


@asynccontextmanager
async def serve(program: str, framework: str, home: Path, remote: str = "") -> AsyncIterator[Served]:
    install(framework)
    folder = home / "script"
    folder.mkdir()
    env = {
        "REMOTE_URL": remote,
        "SCRIPT_DIR": str(folder),
        "PYTHONWARNINGS": "ignore",
        "OPENAI_API_KEY": "none",
        "HOME": str(home),
        **NO_TELEMETRY,
    }
    server = Server(
        PROGRAMS / program,
        store=home / "tasks.db",
        env=env,
        python=python(framework),
        start_seconds=90,  # some frameworks take seconds to import on an idle machine
    )
    async with server:
        served = Served(server, folder, framework)
        async with connect(server.url) as served.client:
            yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(FRAMEWORKS))
async def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    name = request.param
    environment = ENVIRONMENTS.get(name, name)
    async with serve(FRAMEWORKS[name], environment, tmp_path_factory.mktemp(name)) as each:
        yield each


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    if "served" in request.fixturenames:
        served: Served = request.getfixturevalue("served")
        if why := IMPOSSIBLE.get(served.framework, {}).get(request.function.__name__):
            pytest.skip(why)
        served.forget()


def tool_updates(pieces: list[Any]) -> list[tuple[str, str]]:
    """The names of tools that status updates tell of: `toolCall` or `toolResult`, and the name."""
    found = []
    for piece in pieces:
        metadata = getattr(piece.event, "metadata", {})
        found += [(kind, metadata[kind]["name"]) for kind in ("toolCall", "toolResult") if kind in metadata]
    return found


async def test_text_goes_out_while_the_model_still_writes(served: Served) -> None:
    texts = []
    stream = served.client.stream("stream")
    async for piece in stream:
        if piece.text:
            texts.append(piece.text)
            (served.folder / "gate").touch()  # not before the first piece is here
    assert texts[0] == "one "
    assert str(stream.reply) == "one two three"
    assert stream.reply.state is TaskState.COMPLETED


async def test_a_tool_call_is_progress_and_the_model_gets_its_result(served: Served) -> None:
    stream = served.client.stream("tool")
    pieces = [piece async for piece in stream]
    assert tool_updates(pieces) == [("toolCall", "weather"), ("toolResult", "weather")]
    assert str(stream.reply) == "sunny in Rome"


async def test_usage_counts_every_answer_of_the_model(served: Served) -> None:
    reply = await served.client("tool")
    assert reply.task is not None
    usage = reply.task.metadata[USAGE]
    assert (usage["inputTokens"], usage["outputTokens"], usage["calls"]) == (20, 10, 2)


async def test_a_pause_asks_and_continues_with_the_answer_after_a_kill(served: Served) -> None:
    reply = await served.client("pause")
    assert reply.state is TaskState.INPUT_REQUIRED
    assert "Rome" in str(reply)
    assert served.booked == []
    await served.crash()
    reply = await served.client("yes", task=reply.id)
    assert reply.state is TaskState.COMPLETED
    assert str(reply) == "booked Rome"
    assert served.booked == ["Rome"]


async def test_a_refusal_reaches_the_tool_or_the_model(served: Served) -> None:
    reply = await served.client("pause")
    reply = await reply.answer("no")
    assert reply.state is TaskState.COMPLETED
    assert "booked Rome" not in str(reply)
    assert served.booked == []


async def test_of_two_pauses_at_once_each_gets_its_own_answer(served: Served) -> None:
    reply = await served.client("two")
    assert reply.state is TaskState.INPUT_REQUIRED
    given = []
    for n in range(2):
        city = "Paris" if "Paris" in str(reply) else "Rome"
        given.append(city)
        if n:
            await served.crash()
        reply = await served.client("yes" if city == "Paris" else "no", task=reply.id)
    assert sorted(given) == ["Paris", "Rome"]
    assert reply.state is TaskState.COMPLETED
    assert "booked Paris" in str(reply)
    assert served.booked == ["Paris"]


async def test_one_message_may_answer_both_pauses(served: Served) -> None:
    reply = await served.client("two")
    answers = {each.key: "yes" if "Paris" in each.text else "no" for each in reply.questions}
    assert sorted(answers.values()) == ["no", "yes"]
    reply = await reply.answer(Part(data=answers))
    assert reply.state is TaskState.COMPLETED
    assert served.booked == ["Paris"]


async def test_a_kill_in_the_middle_of_the_answer_does_not_double_it(served: Served) -> None:
    stream = served.client.stream("stream")
    async for piece in stream:
        if piece.text:
            break
    assert stream.task is not None
    await served.crash()
    (served.folder / "gate").touch()
    reply = await served.client.wait(stream.task.id)
    assert str(reply) == "one two three"


async def test_an_answer_that_is_another_after_a_kill_replaces_what_was_sent(served: Served) -> None:
    stream = served.client.stream("other")
    async for piece in stream:
        if piece.text:
            break
    assert stream.task is not None
    await served.crash()
    (served.folder / "gate").touch()
    reply = await served.client.wait(stream.task.id)
    assert str(reply) == "uno due tre"


async def test_a_tool_that_has_answered_before_a_kill_does_not_run_again(served: Served) -> None:
    sent = await served.client.send("once", wait=False)
    await until(lambda: served.has_file("waits"))
    await served.crash()
    (served.folder / "gate").touch()
    reply = await served.client.wait(sent.id)
    assert str(reply) == "sunny in Oslo"
    assert (served.folder / "asked").read_text().split() == ["Oslo"]


async def test_cancel_stops_the_model_call(served: Served) -> None:
    sent = await served.client.send("hang", wait=False)
    await until(lambda: served.has_file("started"))
    await served.client.cancel(sent.id)
    await until(lambda: served.has_file("stopped"))
    task = await served.client.get(sent.id)
    assert task.state is TaskState.CANCELED


async def test_the_next_message_of_a_context_remembers_the_last_after_a_kill(served: Served) -> None:
    first = await served.client("my name is Ada")
    assert str(first) == "Hello Ada"
    await served.crash()
    second = await served.client("who am I", context=first.context_id)
    assert (str(second), second.context_id) == ("Ada", first.context_id)
    assert second.id != first.id
    assert str(await served.client("who am I")) == "unknown"


async def test_a_graph_with_two_interrupts_gets_the_right_answer_to_each(tmp_path: Path) -> None:
    answers = {"Which city?": "Rome", "First day?": "Monday", "Monday, and last day?": "Friday"}
    async with serve("langgraph_interrupts.py", "langgraph", tmp_path) as served:
        reply = await served.client("a trip")
        asked = []
        while reply.asks:
            asked.append(str(reply))
            await served.crash()
            reply = await served.client(answers[str(reply)], task=reply.id)
        assert sorted(asked) == sorted(answers)
        assert str(reply) == "city=Rome; from Monday to Friday"


@pytest.mark.parametrize(
    ("framework", "module", "function"),
    [
        ("langgraph", "langgraph", "content_of"),
        ("pydantic-ai", "pydantic_ai", "prompt_of"),
        ("openai-agents", "openai_agents", "items_of"),
        ("google-adk", "google_adk", "content_of"),
        ("agent-framework", "agent_framework", "chat_message_of"),
        ("strands", "strands", "prompt_of"),
        ("smolagents", "smolagents", "task_of"),
    ],
)
async def test_text_files_links_and_data_of_a_message_reach_the_framework(
    framework: str, module: str, function: str
) -> None:
    install(framework)
    process = await asyncio.create_subprocess_exec(
        python(framework),
        "-W",
        "ignore",
        str(PROGRAMS / "files.py"),
        module,
        function,
        stdout=asyncio.subprocess.PIPE,
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0
    assert (
        "look" in said
        and "image" in said
        and "https://files.example.com/a.pdf" in said
        and '"a"' in said.replace("\\", "")
    )


async def test_other_features_of_langgraph_pause_and_continue_after_a_kill(tmp_path: Path) -> None:
    async with serve("langgraph_more.py", "langgraph", tmp_path) as served:
        url = served.server.url
        async with (
            connect(f"{url}/approves") as approves,
            connect(f"{url}/breakpoints") as breakpoints,
            connect(f"{url}/functional") as functional,
            connect(f"{url}/nested") as nested,
        ):
            middleware = await approves("two")
            assert str(middleware) == "Allow book(city='Rome')?"
            stopped = await breakpoints("hello")
            assert str(stopped) == "The graph stopped before send. Continue?"
            refused = await breakpoints("hello")
            function = await functional("Rome")
            assert (str(function), served.booked) == ("sunny in Rome. Go?", ["looked"])
            inside = await nested("hi")
            assert str(inside) == "From inside?"
            served.forget()
            await served.crash()
            middleware = await approves("no, too far", task=middleware.id)
            assert str(middleware) == "Allow book(city='Paris')?"
            middleware = await approves("yes", task=middleware.id)
            assert "too far, booked Paris" in str(middleware)
            assert served.booked == ["Paris"]
            assert str(await breakpoints("yes", task=stopped.id)) == "sent: Dear reader, hello"
            with pytest.raises(TaskFailed, match="The caller stopped it"):
                await breakpoints("no", task=refused.id)
            assert (await functional("sure", task=function.id)).data == {
                "weather": "sunny in Rome",
                "go": "sure",
            }
            assert str(await nested("ok", task=inside.id)) == "inside said ok"
        async with connect(f"{url}/side-by-side") as side_by_side:
            assert str(await side_by_side("talk")) == "b1 b2 b3 b4 "  # the last message of the state


async def test_pydantic_ai_answers_with_data_and_has_others_run_tools(tmp_path: Path) -> None:
    async with serve("pydantic_ai_more.py", "pydantic-ai", tmp_path) as served:
        url = served.server.url
        async with (
            connect(f"{url}/structured") as structured,
            connect(f"{url}/external") as external,
            connect(f"{url}/deps") as deps,
        ):
            assert (await structured("plan")).data == {"city": "Rome", "days": 3}
            question = await external("measure it")
            assert str(question) == "How long is the river?"
            await served.crash()
            assert str(await external("5 km", task=question.id)) == "it is 5 km"
            assert str(await deps("hi", metadata={"team": "sales"})) == "task of sales"


async def test_openai_agents_hand_over_and_guardrails_let_nothing_out(tmp_path: Path) -> None:
    async with serve("openai_agents_more.py", "openai-agents", tmp_path) as served:
        url = served.server.url
        async with (
            connect(f"{url}/team") as team,
            connect(f"{url}/structured") as structured,
            connect(f"{url}/guarded") as guarded,
        ):
            assert str(await team("hello")) == "reception here"
            first = await team("writer")
            assert str(first) == "writer here"
            await served.crash()
            second = await team("hello", context=first.context_id)
            assert str(second) == "writer here"  # the context goes on with the agent that it was handed to
            reply = await structured("plan")
            assert (str(reply), reply.data) == ("", {"city": "Rome"})
            assert str(await guarded("my name is Ada")) == "Hello Ada"
            for said, state in (("politics", TaskState.REJECTED), ("my name is secret", TaskState.FAILED)):
                stream = guarded.stream(said)
                texts = [piece.text async for piece in stream if piece.artifact is not None]
                assert (texts, stream.reply.state) == ([], state)


async def test_google_adk_asks_for_input_credentials_and_confirmations_of_tools(tmp_path: Path) -> None:
    async with serve("google_adk_more.py", "google-adk", tmp_path) as served:
        url = served.server.url
        async with (
            connect(f"{url}/dynamic") as dynamic,
            connect(f"{url}/asks") as asks,
            connect(f"{url}/measures") as measures,
            connect(f"{url}/mails") as mails,
        ):
            needs = await mails("go")
            assert (str(needs), needs.state) == ("Credentials are needed.", TaskState.AUTH_REQUIRED)
            assert needs.questions[0].details["authConfig"]["authScheme"]["type"] == "apiKey"
            confirmation, question, measured = await dynamic("two"), await asks("go"), await measures("go")
            assert str(confirmation) == "Allow book(city='Rome')?"
            assert str(question) == "Which day?"
            assert str(measured) == "measure(what='the river')?"
            await served.crash()
            confirmation = await dynamic("no", task=confirmation.id)
            assert str(await dynamic("yes", task=confirmation.id)) == "not booked, booked Paris"
            assert str(await asks("Monday", task=question.id)) == "['Monday']"
            assert str(await measures("5 km", task=measured.id)) == "['5 km']"
            assert str(await mails("k-123", task=needs.id)) == "['sent to Ada with k-123']"
            assert served.booked == ["Ada", "Paris"]


async def test_workflows_of_agent_framework_ask_and_continue_after_a_kill(tmp_path: Path) -> None:
    async with serve("agent_framework_more.py", "agent-framework", tmp_path) as served:
        url = served.server.url
        for name in ("trips", "shared"):
            served.forget()
            async with connect(f"{url}/{name}") as trips:
                reply = await trips("go")
                assert sorted(each.text for each in reply.questions) == ["Book Paris?", "Book Rome?"]
                await served.crash()
                answers = {each.key: "yes" if "Paris" in each.text else "no" for each in reply.questions}
                sent = await trips.send(Part(data=answers), task=reply.id, wait=False)
                await until(lambda: served.has_file("waits"))
                await served.crash()  # after the superstep that booked
                (served.folder / "gate").touch()
                done = await trips.wait(sent.id)
                assert str(done) == "1: booked Paris, did not book Rome"
                assert served.booked == ["Paris"]
                again = await trips("go", context=done.context_id)
                again = await again.answer(Part(data={each.key: "no" for each in again.questions}))
                assert str(again) == "2: did not book Paris, did not book Rome"
                other = await trips("go")
                other = await other.answer(Part(data={each.key: "no" for each in other.questions}))
                assert str(other).startswith("1: ")
        served.forget()
        async with connect(f"{url}/team") as team:
            stream = team.stream("tool")
            pieces = [piece async for piece in stream]
            assert tool_updates(pieces) == [("toolCall", "weather"), ("toolResult", "weather")]
            assert (str(stream.reply), stream.reply.usage and stream.reply.usage.calls) == (
                "sunny in Rome",
                2,
            )
            reply = await team("pause")
            assert str(reply) == "Allow book(city='Rome')?"
            await served.crash()
            assert str(await team("yes", task=reply.id)) == "booked Rome"
            first = await team("my name is Ada")
            assert str(await team("who am I", context=first.context_id)) == "Ada"


async def test_code_of_smolagents_asks_and_keeps_its_variables_after_a_kill(tmp_path: Path) -> None:
    async with serve("smolagents_more.py", "smolagents", tmp_path) as served:
        url = served.server.url
        async with connect(f"{url}/coder") as coder, connect(f"{url}/whole") as whole:
            question = await coder("go")
            assert str(question) == "How many days?"
            assert (served.folder / "asked").read_text().split() == ["Rome"]
            await served.crash()
            reply = await coder("3", task=question.id)
            assert reply.data == {"city": "Rome", "days": 3, "weather": "sunny in Rome"}
            assert (served.folder / "asked").read_text().split() == ["Rome"]
            assert reply.usage is not None and reply.usage.calls == 2
            assert str(await whole("my name is Ada")) == "Hello Ada"


async def test_crews_run_and_other_questions_of_flows_continue_after_a_kill(tmp_path: Path) -> None:
    async with serve("crewai_more.py", "crewai", tmp_path) as served:
        url = served.server.url
        async with (
            connect(f"{url}/crew") as crew,
            connect(f"{url}/planner") as planner,
            connect(f"{url}/letters") as letters,
        ):
            stream = crew.stream("tool")
            pieces = [piece async for piece in stream]
            assert tool_updates(pieces) == [("toolCall", "weather"), ("toolResult", "weather")]
            assert (str(stream.reply), stream.reply.usage and stream.reply.usage.calls) == (
                "sunny in Rome",
                2,
            )
            first = await crew("my name is Ada")
            trip, letter, other = await planner("Rome"), await letters("hello"), await letters("hello")
            assert (str(trip), str(letter)) == ("How many days?", "Send it?\n\nDear reader, hello")
            assert letter.questions[0].details["outcomes"] == ["approved", "rejected"]
            await served.crash()
            assert str(await crew("who am I", context=first.context_id)) == "Ada"
            trip = await planner("3", task=trip.id)
            assert str(trip) == "Which hotel?"
            assert str(await planner("the old one", task=trip.id)) == "3 days in Rome, the old one"
            assert (await letters("fine", task=letter.id)).data == {"sent": "Dear reader, hello"}
            assert str(await letters("too short", task=other.id)) == "not sent: too short"


@pytest.mark.parametrize("framework", ["wrapped-a2a-sdk-1", "wrapped-a2a-sdk-0.3"])
async def test_an_executor_of_the_sdk_runs_as_it_is(framework: str, tmp_path: Path) -> None:
    async with serve("a2a_sdk_executor.py", framework, tmp_path) as served:
        client = served.client
        assert str(await client("hello")) == "you said hello"
        message = await client("message")
        assert (str(message), message.task) == ("just a message", None)
        question = await client("ask")
        assert (str(question), question.state) == ("Which city?", TaskState.INPUT_REQUIRED)
        await served.crash()
        reply = await client("Rome", task=question.id)
        assert str(reply).startswith("you said Rome after ")
        with pytest.raises(TaskFailed, match="not here"):
            await client("refuse")
        sent = await client.send("hang", wait=False)
        await until(lambda: served.has_file("started"))
        await client.cancel(sent.id)
        assert served.has_file("stopped")


DESK = """
from pathlib import Path
from dragoman import Agent, Turn

agent = Agent("Desk", "Sells tickets")

@agent.skill
async def sell(turn: Turn) -> str:
    with Path(__file__).with_name("asked").open("a") as file:
        file.write(f"{turn.task_id}\\n")
    turn.usage("desk", input_tokens=7, output_tokens=1)
    if turn.text == "fail":
        raise RuntimeError("as it was told")
    day = await turn.ask("Which day?") if "ticket" in turn.text else "any day"
    if "seat" in turn.text:
        day += ", " + await turn.ask("Which seat?")
    return f"{turn.text} for {day}"
"""


@pytest.mark.parametrize("framework", ["langgraph", "pydantic-ai", "openai-agents"])
async def test_the_question_of_an_agent_that_is_a_tool_passes_up_and_the_answer_down(
    framework: str, tmp_path: Path
) -> None:
    (tmp_path / "desk.py").write_text(DESK)
    async with Server(tmp_path / "desk.py", store=tmp_path / "desk.db") as desk:
        async with serve(FRAMEWORKS[framework], framework, tmp_path, remote=desk.url) as served:
            reply = await served.client("remote hello")
            assert str(reply) == "hello for any day"
            assert reply.usage is not None and reply.usage.children is not None
            assert (reply.usage.input_tokens, reply.usage.children.input_tokens) == (20, 7)
            reply = await served.client("remote a ticket")
            assert (str(reply), reply.state) == ("Which day?", TaskState.INPUT_REQUIRED)
            await served.crash()
            await desk.kill()
            await desk.start()
            reply = await served.client("Monday", task=reply.id)
            assert (str(reply), reply.state) == ("a ticket for Monday", TaskState.COMPLETED)
            tasks = set((tmp_path / "asked").read_text().split())
            assert len(tasks) == 2  # one for each message: none was begun twice
            assert "could not do it" in str(await served.client("remote fail"))
            reply = await served.client("remote a ticket with a seat")
            assert str(reply) == "Which day?"
            reply = await served.client("Monday", task=reply.id)
            assert (str(reply), reply.state) == ("Which seat?", TaskState.INPUT_REQUIRED)
            await served.crash()
            reply = await served.client("5B", task=reply.id)
            assert str(reply) == "a ticket with a seat for Monday, 5B"
            reply = await served.client("both")
            days = {each.key: day for each, day in zip(reply.questions, ("Monday", "Friday"), strict=True)}
            await served.crash()
            reply = await served.client(Part(data=days), task=reply.id)
            said = str(reply)
            assert reply.state is TaskState.COMPLETED
            assert "another ticket for" in said and "Monday" in said and "Friday" in said


async def test_openai_agents_forget_calls_of_other_agents_that_were_left_open(tmp_path: Path) -> None:
    install("openai-agents")
    program = "tests.interop.frameworks.openai_agents_open_calls"
    env = {**os.environ, "SCRIPT_DIR": str(tmp_path), "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        [python("openai-agents"), "-m", program], env=env, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"fail_between_two_calls": 0, "ask_without_an_answer": 4}
