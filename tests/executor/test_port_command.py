"""`dragoman port` on programs as people write them for a2a-sdk: what it writes runs here, without the SDK.

The samples run on the SDK, too: hello on 0.2.5, rates on 0.2.8, writer on 0.3.26, echo and desk on 1.3.0. The notes need a
database there.
"""

from __future__ import annotations

import ast
import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import TaskState, connect
from dragoman.cli import main
from dragoman.executor.porting import port, port_requirements

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture
def ported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    """Imports a sample after it was ported; all imports of it are forgotten in the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORE", "memory:")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)

    def import_ported(name: str, needs_person: bool = False) -> Any:
        source = SAMPLES / name.partition(".")[0]
        if source.is_dir():
            shutil.copytree(source, tmp_path / source.name)
        else:
            source = source.with_suffix(".py")
            shutil.copy(source, tmp_path)
        assert main(["port", source.name]) == (2 if needs_person else 0), capsys.readouterr().out
        files = list(tmp_path.rglob("*.py"))
        assert files
        for file in files:
            assert "a2a" not in file.read_text().replace("a2a-sdk", "").replace("add_a2a_routes", "")
        return importlib.import_module(name)

    yield import_ported
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


async def test_the_greeter_of_0_2_runs(ported: Any) -> None:
    async with connect(ported("hello_0_2").app) as client:
        assert await client("world") == "Hello world"
        assert (client.card.name, client.card.skills[0].examples) == ("Hello", ("hi",))


async def test_the_currency_converter_of_0_2_asks_and_answers(ported: Any) -> None:
    async with connect(ported("rates_0_2").app) as client:
        question = await client("10 USD?")
        assert (question.state, question) == (TaskState.INPUT_REQUIRED, "To which currency?")
        assert await question.answer("EUR") == "10 USD are 5 EUR"


async def test_the_writer_of_0_3_streams_its_chunks(ported: Any) -> None:
    async with connect(ported("writer_0_3").app) as client:
        stream = client.stream("one two")
        assert [piece.text async for piece in stream if piece.text] == ["ONE ", "TWO "]
        assert stream.reply.state is TaskState.COMPLETED


async def test_the_package_of_0_3_runs_without_its_database(ported: Any) -> None:
    async with connect(ported("notes_0_3.__main__", needs_person=True).app) as client:
        await client("milk")
        assert await client(data={"note": "bread"}) == "milk, bread"
    assert Path("notes_0_3/requirements.txt").read_text() == "# what it needs\ndragoman\nuvicorn>=0.30\n"


async def test_the_echo_of_1_0_runs_as_routes(ported: Any) -> None:
    async with connect(ported("echo_1_0").app) as client:
        assert await client("hi") == "you said hi"


async def test_the_desk_of_1_0_asks_and_sends_a_file(ported: Any) -> None:
    async with connect(ported("desk_1_0").app) as client:
        question = await client("help")
        assert question == "Which form?"
        done = await question.answer("the form")
        assert (done, done.files[0].raw) == ("Here it is", b"a form")


def test_changes_for_a_person_are_listed_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(shutil.copy(SAMPLES / "caller_0_3.py", tmp_path))
    assert main(["port", str(file)]) == 2
    said = capsys.readouterr().out
    text = file.read_text()
    assert "from a2a.client import A2ACardResolver, ClientConfig, ClientFactory\n" in text
    assert "from a2a.server.request_handlers import GrpcHandler\n" in text
    for line, words in ((6, "this is a client"), (9, "GrpcHandler: gRPC is served"), (21, "model_dump_json")):
        assert f"look at {file}:{line}: " in said and words in said


def test_diff_shows_the_change_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(shutil.copy(SAMPLES / "hello_0_2.py", tmp_path))
    before = file.read_text()
    assert main(["port", str(tmp_path), "--diff"]) == 0
    said = capsys.readouterr().out
    assert "-from a2a.types import AgentCapabilities, AgentCard, AgentSkill\n" in said
    assert "+from dragoman.executor import (\n" in said
    assert file.read_text() == before


def test_a_project_that_is_ported_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(shutil.copy(SAMPLES / "hello_0_2.py", tmp_path))
    main(["port", str(file)])
    once = file.read_text()
    assert main(["port", str(file)]) == 0
    assert file.read_text() == once
    assert "nothing in" in capsys.readouterr().out


def test_environments_and_hidden_folders_are_left_alone(tmp_path: Path) -> None:
    for folder in (".venv/lib", "env/lib", "node_modules"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.py").write_text("import a2a.types\n")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    assert main(["port", str(tmp_path)]) == 0
    assert [file.read_text() for file in tmp_path.rglob("x.py")] == ["import a2a.types\n"] * 3


def test_a_file_that_cannot_be_read_is_reported_and_the_others_are_ported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text("print 'a2a'\n")
    (tmp_path / "good.py").write_text("from a2a.types import Part\n")
    assert main(["port", str(tmp_path)]) == 2
    assert (tmp_path / "good.py").read_text() == "from dragoman.executor import Part\n"
    assert "bad.py: not read" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from a2a.types import Part as P; x = 1\n", "from dragoman.executor import Part as P; x = 1\n"),
        ("from a2a.types import *\n", "from dragoman.executor import *\n"),
        ("import a2a.types\np = a2a.types.Part\n", "import dragoman.executor\np = dragoman.executor.Part\n"),
        ("import os, a2a.types as t\n", "import os\nimport dragoman.executor as t\n"),
        (
            "def f():\n    from a2a.types import Part  # why\n    return Part\n",
            "def f():\n    from dragoman.executor import Part  # why\n    return Part\n",
        ),
        (
            "try:\n    from a2a.server.events import InMemoryQueueManager\nexcept ImportError:\n    pass\n",
            "try:\n    pass\nexcept ImportError:\n    pass\n",
        ),
        ("# ä\nfrom a2a.types import Part\nprint('ä', Part)\n", "# ä\nfrom dragoman.executor import Part\nprint('ä', Part)\n"),
        ("import a2achat\n", "import a2achat\n"),
    ],
)  # fmt: skip
def test_imports_of_every_form_are_changed(before: str, after: str) -> None:
    assert port(before).text == after
    ast.parse(after)


def test_requirements_get_what_came_with_the_sdk_and_is_used() -> None:
    project = 'dependencies = [\n    "a2a-sdk[http-server]>=0.3.0",\n    "click",\n]\n'
    assert port_requirements(project, {"httpx", "click"}, keep_sdk=False) == (
        'dependencies = [\n    "dragoman",\n    "httpx",\n    "click",\n]\n'
    )
    inline = "dependencies = ['a2a-sdk', 'httpx']\n"
    assert port_requirements(inline, {"httpx"}, keep_sdk=True) == (
        "dependencies = ['dragoman', 'a2a-sdk', 'httpx']\n"
    )
