"""`dragoman new`: every template makes a project whose tests pass and whose agent is served."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dragoman import connect
from dragoman.cli import main
from dragoman.cli.new import TEMPLATES, module_name, write_project

ANSWERS = {
    "hello": ("", "world", "Hello, world!"),
    "form": ("", "A room, please", "What is your name?"),
    "delegate": ("/planner", "Rome", "Rome: sun\n"),
    "wrapped": ("", "one two three", "3 words"),
}
"""Where the agent is, what to ask, and what it answers. The model of `llm` needs a key, so only its card is read."""


def needs_framework(template: str) -> None:
    """Frameworks are not in our own environment: tests/interop runs these agents in one that has it."""
    if (name := TEMPLATES[template].framework) and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("new") / f"my-{request.param}"
    write_project(folder, request.param)
    return request.param, folder


def run(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_a_new_project_pass(project: tuple[str, Path]) -> None:
    needs_framework(project[0])
    assert " passed" in run(project[1], "pytest", "-q", "-p", "no:cacheprovider")


def test_the_code_of_a_new_project_is_formatted_and_passes_the_linter(project: tuple[str, Path]) -> None:
    style = ["--no-cache", "--line-length", "120"]
    run(project[1], "ruff", "check", *style, "--select", "E,F,I,UP,B,SIM", ".")
    run(project[1], "ruff", "format", *style, "--check", ".")


def test_the_pyproject_of_a_new_project_names_its_package(project: tuple[str, Path]) -> None:
    template, folder = project
    about = tomllib.loads((folder / "pyproject.toml").read_text())
    assert about["project"]["name"] == folder.name
    assert about["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [f"my_{template}"]
    assert (folder / f"my_{template}" / "agent.py").is_file()


def test_the_readme_of_a_new_project_has_valid_commands(project: tuple[str, Path]) -> None:
    template, folder = project
    readme = (folder / "README.md").read_text()
    assert f"dragoman dev my_{template}.agent" in readme
    assert "{" not in readme and all(line in readme for line in TEMPLATES[template].tries)


async def test_the_agent_of_a_new_project_is_served(project: tuple[str, Path]) -> None:
    template, folder = project
    needs_framework(template)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman.cli", "serve", f"my_{template}.agent", "--port", "0", "--store", "memory:", "-q",
        cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            announced = (await process.stdout.readline()).decode()
        url = "http" + announced.partition("http")[2].strip()
        base = url.rstrip("/").removesuffix("/planner").removesuffix("/weather")
        path, question, answer = ANSWERS.get(template, ("", "", ""))
        async with connect(base + path, timeout=20) as agent:
            assert agent.card.description == TEMPLATES[template].about
            if question:
                assert (await agent(question)).text == answer
    finally:
        process.terminate()
        await process.wait()


def test_the_command_says_what_it_made_and_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "greeter"]) == 0
    shown = capsys.readouterr().out
    assert "made greeter/pyproject.toml" in shown
    assert shown.endswith("next: cd greeter && dragoman dev greeter.agent\n")


def test_a_folder_with_files_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "greeter").mkdir()
    (tmp_path / "greeter" / "notes.txt").write_text("mine")
    assert main(["new", "greeter"]) == 1
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "greeter").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["", "1st", "a b", "class", "json", "dragoman", "../up", 'x"\ny', "x" * 80])
def test_a_name_that_is_no_package_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        module_name(name)


@pytest.mark.parametrize(
    ("name", "module"), [("greeter", "greeter"), ("My-Agent", "my_agent"), ("a.b", "a_b")]
)
def test_the_package_of_a_name(name: str, module: str) -> None:
    assert module_name(name) == module
