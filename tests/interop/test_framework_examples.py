"""The examples of three frameworks: with a model that has OpenAI's API, and with a small model in their own process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dragoman import TaskState, connect
from dragoman.cli.new import TEMPLATES, write_project
from dragoman.hub.models.local import find_weights
from tests.interop.environments import install, python
from tests.serving import Server

pytestmark = pytest.mark.interop

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "frameworks"
FILES = {
    "langgraph": "langgraph_trip.py",
    "pydantic-ai": "pydantic_ai_desk.py",
    "openai-agents": "openai_agents_team.py",
}


class Model(BaseHTTPRequestHandler):
    """OpenAI's API. At the word "tools" it calls each tool that it has not called yet; then it says what the last one said."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == "Bearer k" and self.path == "/v1/chat/completions"
        messages = request["messages"]
        called = {
            call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()
        }
        said = " ".join(str(message["content"]) for message in messages if message["role"] == "user")
        fresh = [
            tool["function"] for tool in request.get("tools", ()) if tool["function"]["name"] not in called
        ]
        if "tools" in said and fresh:
            kinds = fresh[0]["parameters"].get("properties", {})
            arguments = {name: 5 if kind.get("type") == "number" else "Rome" for name, kind in kinds.items()}
            function = {"name": fresh[0]["name"], "arguments": json.dumps(arguments)}
            call = {"id": f"call-{len(messages)}", "type": "function", "index": 0, "function": function}
            message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
        else:
            last = messages[-1]
            text = f"done: {last['content']}" if last["role"] == "tool" else "Hello from the model"
            message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        head = {
            "id": "r",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "usage": usage,
        }
        reason = "tool_calls" if "tool_calls" in message else "stop"
        self.send_response(200)
        if request.get("stream"):
            chunk = {**head, "object": "chat.completion.chunk"}
            choice = {"index": 0, "delta": message, "finish_reason": None}
            chunks = [
                {**chunk, "usage": None, "choices": [choice]},
                {**chunk, "usage": None, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
                {**chunk, "choices": []},
            ]
            body = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"
            kind = "text/event-stream"
        else:
            body = json.dumps(
                {**head, "choices": [{"index": 0, "message": message, "finish_reason": reason}]}
            )
            kind = "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("framework", FILES)
async def test_an_example_answers_and_asks_before_its_tool_runs(
    framework: str, model: str, tmp_path: Path
) -> None:
    install(framework)
    env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": model, "MODEL": "scripted", "PYTHONWARNINGS": "ignore"}
    example = Server(
        EXAMPLES / FILES[framework], store=tmp_path / "tasks.db", env=env, python=python(framework)
    )
    async with example, connect(example.url) as agent:
        assert str(await agent("hello")) == "Hello from the model"
        question = await agent("use your tools")
        assert question.state is TaskState.INPUT_REQUIRED and "Rome" in str(question)
        await example.kill()
        await example.start()
        reply = await agent("yes", task=question.id)
        assert reply.state is TaskState.COMPLETED
        assert str(reply).startswith("done: ") and "Rome" in str(reply)


RUN_TESTS = """
import asyncio
from tests import test_agent
ran = [asyncio.run(test()) for name, test in vars(test_agent).items() if name.startswith("test_")]
print(len(ran), "passed")
"""
"""The tests of a new project need no pytest, which is not in the environments of frameworks."""


@pytest.mark.parametrize("template", [name for name, each in TEMPLATES.items() if each.framework])
async def test_a_new_project_with_a_framework_passes_its_tests_and_asks_after_a_kill(
    template: str, tmp_path: Path
) -> None:
    framework = TEMPLATES[template].framework
    install(framework)
    project = tmp_path / "trips"
    write_project(project, template)
    done = await asyncio.create_subprocess_exec(
        str(python(framework)), "-W", "ignore", "-c", RUN_TESTS, cwd=project, stdout=asyncio.subprocess.PIPE
    )
    assert b"2 passed" in (await done.communicate())[0]
    served = Server(
        project / "trips" / "agent.py",
        store=tmp_path / "tasks.db",
        env={"PYTHONWARNINGS": "ignore"},
        python=python(framework),
    )
    async with served, connect(served.url) as agent:
        question = await agent("Rome")
        await served.kill()
        await served.start()
        question = await agent("Monday", task=question.id)
        assert str(question) == "Book Rome on Monday?"
        await served.kill()
        await served.start()
        assert str(await agent("yes", task=question.id)) == "Booked Rome on Monday."


@pytest.mark.timeout(400)
@pytest.mark.parametrize("framework", FILES)
async def test_an_example_answers_with_a_real_model_in_its_process(framework: str, tmp_path: Path) -> None:
    if (file := find_weights()) is None:
        pytest.skip("there is no small model: make model")
    install(framework)
    env = {"OPENAI_API_KEY": "", "MODEL_FILE": str(file), "PYTHONWARNINGS": "ignore"}
    example = Server(
        EXAMPLES / FILES[framework], store=tmp_path / "tasks.db", env=env, python=python(framework)
    )
    async with example, connect(example.url, timeout=300) as agent:
        reply = await agent("Say hello to Ada.")
        assert reply.state in (TaskState.COMPLETED, TaskState.INPUT_REQUIRED) and str(reply).strip()
        assert reply.usage is not None and reply.usage.output_tokens > 0
