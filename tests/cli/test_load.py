"""The file that is given to `dragoman serve`: what it serves, and what is said when it cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli.load import load
from dragoman.server import runtime

AGENT = "from dragoman import Agent, serve\na, b = Agent('A'), Agent('B')\n"


def a_file(folder: Path, text: str, name: str = "agents.py") -> str:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("end", "wanted", "names"),
    [
        ("", "", ["A", "B"]),
        ("", ":b", ["B"]),
        ("b.run(port=9)", "", ["B"]),
        ("b.run(port=9)", ":a", ["A"]),
        ("serve(b, a, port=9)", "", ["B", "A"]),
        ("def main():\n    Agent('C').run()\nmain()", "", ["C"]),
        ("if __name__ == '__main__':\n    b.run()", "", ["A", "B"]),
    ],
)
def test_run_in_a_loaded_file_only_selects_the_agents(
    end: str, wanted: str, names: list[str], tmp_path: Path
) -> None:
    was = runtime.serve
    assert [agent.name for agent in load(a_file(tmp_path, AGENT + end) + wanted)] == names
    assert runtime.serve is was


def test_two_files_with_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    text = """
from __future__ import annotations
from dataclasses import dataclass
from dragoman import Agent
agent = Agent("{0}")
@dataclass
class {0}:
    of: {0} | None = None
@agent.skill
def take(it: {0}) -> None: ...
"""
    one, two = (a_file(tmp_path / each, text.format(each)) for each in ("One", "Two"))
    agents = load(one, two, f"{one}:agent")
    assert [agent.name for agent in agents] == ["One", "Two"]
    for agent in agents:
        [parameter] = agent._skills["take"].parameters
        assert parameter.hint(of=None).of is None and parameter.hint.__name__ == agent.name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "from dragoman import Agent\nagent = Agent('A'\n",
            "agents.py, line 2: '(' was never closed\n    agent",
        ),
        ("def f():\nreturn 1\n", "agents.py, line 2: expected an indented block"),
        ("import broken\n", "broken.py, line 1: invalid syntax\n    1 +\n"),
    ],
)
def test_a_syntax_error_is_reported_with_file_and_line(text: str, sentence: str, tmp_path: Path) -> None:
    a_file(tmp_path, "1 +\n", "broken.py")
    done = subprocess.run(
        [sys.executable, "-m", "dragoman.cli", "serve", a_file(tmp_path, text), "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("dragoman: ") and sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_in_a_file_is_reported_without_frames_of_dragoman(tmp_path: Path) -> None:
    file = a_file(tmp_path, "from dragoman import Agent\nagent = Agent('A', versions=('7',))\n")
    with pytest.raises(SystemExit) as refused:
        load(file)
    received = str(refused.value.code)
    assert (
        'agents.py", line 2' in received
        and "versions are some of" in received
        and "cannot be loaded" in received
    )
    assert "importlib" not in received and "agent/agent.py" not in received


def test_a_missing_agent_is_reported_with_the_existing_ones(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no agent called c; it has a, b"):
        load(a_file(tmp_path, AGENT) + ":c")
    with pytest.raises(SystemExit, match="creates no Agent"):
        load(a_file(tmp_path, "x = 1\n", "empty.py"))


PACKAGE = {
    "mypkg/__init__.py": "",
    "mypkg/util.py": "NAME = 'Packed'\n",
    "mypkg/deep/__init__.py": "",
    "mypkg/deep/agent.py": "from dragoman import Agent\nfrom ..util import NAME\nfrom mypkg.util import NAME as SAME\n"
    "assert NAME is SAME\nagent = Agent(NAME)\nother = Agent('Other')\n",
    "loose/util.py": "NAME = 'Loose'\n",
    "loose/agent.py": "from dragoman import Agent\nfrom loose.util import NAME\nfrom .util import NAME as SAME\n"
    "from beside import ONE\nimport util\nassert NAME == SAME == util.NAME\nagent = Agent(NAME)\n",
    "beside.py": "ONE = 1\n",
    "mypkg/broken.py": "import mypkg.nowhere\n",
}


@pytest.mark.parametrize(
    ("name", "agents"),
    [
        ("mypkg/deep/agent.py", ["Packed", "Other"]),
        ("mypkg/deep/agent.py:other", ["Other"]),
        ("mypkg.deep.agent:agent", ["Packed"]),
        ("mypkg.deep.agent", ["Packed", "Other"]),
        ("loose/agent.py", ["Loose"]),
    ],
)
def test_agents_of_a_real_project_are_loaded(name: str, agents: list[str], tmp_path: Path) -> None:
    done = in_project(tmp_path, f"print([agent.name for agent in load({name!r})])")
    assert (done.stdout, done.stderr) == (f"{agents}\n", "")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mypkg.deep.agnet:agent", "No module named 'mypkg.deep.agnet'"),
        ("nopkg.agent:agent", "nopkg.agent: no such file, and no module nopkg"),
        ("mypkg/deep/agnet.py", "mypkg/deep/agnet.py: no such file"),
        ("mypkg.deep.agent:nobody", "mypkg.deep.agent has no agent called nobody; it has agent, other"),
        ("mypkg/broken.py", "No module named 'mypkg.nowhere'"),
    ],
)
def test_a_missing_file_or_module_is_reported(name: str, sentence: str, tmp_path: Path) -> None:
    done = in_project(tmp_path, f"load({name!r})")
    assert done.returncode == 1 and sentence in done.stderr
    assert "load.py" not in done.stderr


def in_project(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a folder with a package, as a program that is installed elsewhere."""
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    start = (
        "import sys; sys.path[:] = [each for each in sys.path if each]; from dragoman.cli.load import load; "
    )
    return subprocess.run(
        [sys.executable, "-c", start + code], cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_file_has_the_same_module_name_in_each_process(tmp_path: Path) -> None:
    """Frameworks store the classes of a paused agent's state by their module."""
    file = tmp_path / "named.py"
    file.write_text("from dragoman import Agent\nagent = Agent('a')\nprint(__name__)\n")
    load = f"from dragoman.cli.load import load; load({str(file)!r})"
    said = {
        subprocess.run(
            [sys.executable, "-c", load],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_a_package_in_this_folder_is_loaded_by_its_name(tmp_path: Path) -> None:
    a_file(tmp_path / "shop", "from dragoman import Agent\nagent = Agent('Shop')\n", "__init__.py")
    done = in_project(tmp_path, "print([agent.name for agent in load('shop')])")
    assert (done.stdout, done.stderr) == ("['Shop']\n", "")
