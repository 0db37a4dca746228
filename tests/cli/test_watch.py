"""What `dragoman dev` looks at, and what it takes for a change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.cli import watch
from dragoman.cli.watch import FileWatch, folder_of, python_files


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in (
        "pkg/__init__.py",
        "pkg/agent.py",
        "pkg/tools/__init__.py",
        "pkg/tools/rates.py",
        "pkg/notes.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path / "pkg"


def test_a_written_a_new_and_a_removed_file_are_changes(package: Path) -> None:
    looking = FileWatch([package])
    assert looking.find_changes() == []
    (package / "agent.py").write_text("x = 1")
    (package / "new.py").write_text("")
    (package / "tools" / "rates.py").unlink()
    assert looking.find_changes() == [
        package / "agent.py",
        package / "new.py",
        package / "tools" / "rates.py",
    ]
    assert looking.find_changes() == []


def test_a_file_that_is_replaced_by_one_of_the_same_size_is_a_change(package: Path) -> None:
    looking = FileWatch([package])
    other = package / "agent.swp"
    other.write_text("")
    os.utime(other, ns=(1, 1))
    other.rename(package / "agent.py")
    assert looking.find_changes() == [package / "agent.py"]


def test_files_that_are_not_python_count_only_if_they_are_named(package: Path) -> None:
    assert package / "notes.txt" not in list(python_files(package))
    looking = FileWatch([package], [package / "notes.txt"])
    (package / "notes.txt").write_text("new")
    (package / "dragoman.db").write_text("a task")
    assert looking.find_changes() == [package / "notes.txt"]


@pytest.mark.parametrize("folder", [".git", "__pycache__", "node_modules", "venv"])
def test_libraries_and_hidden_folders_are_left_out(package: Path, folder: str) -> None:
    (package / folder).mkdir()
    (package / folder / "module.py").write_text("")
    (package / folder / "pyvenv.cfg").write_text("")
    assert package / folder / "module.py" not in list(python_files(package))


def test_a_folder_with_too_many_files_is_watched_in_part(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MAX_FILES", 2)
    looking = FileWatch([package], [package / "tools" / "rates.py"])
    assert looking.cut
    (package / "tools" / "rates.py").write_text("named, so it is watched all the same")
    assert looking.find_changes() == [package / "tools" / "rates.py"]


def test_the_watched_folder_is_the_topmost_package(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder_of(str(package / "tools" / "rates.py")) == package
    monkeypatch.syspath_prepend(package.parent)
    assert folder_of("pkg.tools.rates") == package
    assert folder_of("no_such_package.agent") is None
    script = package.parent / "hello.py"
    script.write_text("")
    assert folder_of(str(script)) == package.parent
