"""What the documents and the helps show is code that compiles and commands that are understood."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.catalogue.settings import CatalogueSettings, read_catalogue
from dragoman.cli import VERBS, parser
from dragoman.client.config import AgentEntry, read_agents
from dragoman.hub.settings import Settings, load_settings
from dragoman.server import runtime

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
OTHERS = {"--no-deps", "--persist"}
"""Options of pip, and of a command that agents give."""
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def fenced(text: str) -> Iterator[tuple[str, str]]:
    """The blocks of code on a page: the language, and what is in them."""
    for block in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield block[1], block[2]


def commands(text: str) -> Iterator[str]:
    """Lines of a block that begin with `dragoman`, without prompt and remarks; what is continued is one line."""
    for line in text.replace("\\\n", " ").splitlines():
        found = re.match(r"\s*(?:\$ )?(?:[A-Z]+=\S+ )*(?:.*\| )?(dragoman .*)", line)
        if found:
            yield re.split(r"\s{2,}|\s#|\s<\s", found[1])[0]


def understood(command: str) -> bool:
    try:
        parser().parse_args(shlex.split(command)[1:])
    except SystemExit:
        return False
    return True


SHOWN = sorted(
    {
        (page.name, command)
        for page in PAGES
        for language, block in fenced(page.read_text())
        if language in ("", "sh", "bash", "console")
        for command in commands(block)
    }
    | {
        (page.name, command)
        for page in EXAMPLES
        for command in commands(ast.get_docstring(ast.parse(page.read_text())) or "")
    }
)


def verbs(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def options(of: argparse.ArgumentParser) -> set[str]:
    """Every option of a command and of its verbs."""
    own = {option for action in of._actions for option in action.option_strings}
    return own.union(*(options(verb) for verb in verbs(of).values()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_compiles(page: Path) -> None:
    for language, block in fenced(page.read_text()):
        if language == "python":
            compile(block, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run_as_they_are_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the examples, in order, and without serving. Blocks that await are run by other tests, or only compiled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(runtime, "serve", lambda *agents, **options: None)
    names: dict[str, Any] = {"__name__": page.stem}
    for language, block in fenced(page.read_text()):
        if language == "python":
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(block, page.name, "exec", flags=flags, dont_inherit=True)
            if not code.co_flags & inspect.CO_COROUTINE:
                exec(code, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_of_python_blocks_exist(page: Path) -> None:
    for language, block in fenced(page.read_text()):
        if language == "python":
            for statement in ast.parse(block).body:
                if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("dragoman"):
                    exec(ast.unparse(statement), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", page.read_text()))
    assert named - options(parser()) <= OTHERS


def test_every_option_is_named_on_a_page() -> None:
    """An option of a hub may be named as a setting, without dashes."""
    text = "\n".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")
    named = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
    named |= {f"--{name.replace('_', '-')}" for name in re.findall(r"`([a-z_]+)`", text)}

    def unnamed(of: argparse.ArgumentParser) -> Iterator[str]:
        for action in of._actions:
            if action.option_strings and not named.intersection(action.option_strings):
                yield f"{of.prog} {action.option_strings[-1]}"
        for verb in verbs(of).values():
            yield from unnamed(verb)

    assert sorted(unnamed(parser())) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_the_checkout_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|examples|docs|bench)/[\w/.]+)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_nothing_that_is_printed_names_a_file_of_the_checkout() -> None:
    """Those who installed a wheel have no docs/."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{path.name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and id(node) not in comments
            if isinstance(node.value, str) and re.search(r"docs/[\w-]+\.md", node.value)
        ]
    assert found == []


def test_the_map_has_every_package_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = text[text.index("## What is where") : text.index("## A hub is more")]
    there = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "src" / "dragoman").iterdir()
        if path.name[0] not in "_." and (path.is_dir() or path.suffix == ".py")
    }
    firsts = "".join(re.findall(r"^\| (.*?) \|", rows, re.MULTILINE))
    assert {name for name in there if f"`{name}`" not in rows} == set()
    assert {name for name in re.findall(r"`([\w.]+/?)`", firsts) if name not in there} == set()


def test_every_answer_of_where_do_i_find_is_in_its_file() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| .* \| `([\w/]+\.py)` \| `(\w+)` \|$", text, re.MULTILINE)
    assert len(rows) > 15
    missing = []
    for file, name in rows:
        path = ROOT / "src" / "dragoman" / file
        defines = rf"^\s*(?:async def|def|class) {name}\b|^{name}\b.*="
        if not path.exists() or not re.search(defines, path.read_text(), re.MULTILINE):
            missing.append(f"{file}: {name}")
    assert missing == []


def test_every_name_in_a_step_of_the_three_paths_is_in_a_file_of_that_step() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = text[text.index("### Three questions") : text.index("## Glossary")]
    sources = {path.as_posix(): path.read_text() for path in (ROOT / "src" / "dragoman").rglob("*.py")}
    missing, checked = [], 0
    for step in re.split(r"^\d\. ", paths, flags=re.MULTILINE)[1:]:
        marks = re.findall(r"`([^`]+)`", step.partition("\n\n")[0])
        files = [mark for mark in marks if mark.endswith(".py")]
        words = {
            word
            for path, source in sources.items()
            if any(path.endswith(f"/{file}") for file in files)
            for word in re.findall(r"\w+", source)
        }
        names = {name for mark in marks if mark not in files for name in re.findall(r"\w+", mark)}
        missing += sorted(f"{files[0]}: {name}" for name in names - words)
        checked += len(names)
    assert missing == []
    assert checked > 30


def test_every_source_file_that_the_architecture_names_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z_]+/[\w/]+\.py)`", text)) - set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert [name for name in sorted(named) if not (ROOT / "src" / "dragoman" / name).exists()] == []


def test_every_file_in_the_row_of_a_package_is_in_that_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    missing = []
    for parent, begin, end in (
        ("", "## What is where", "## A hub is more"),
        ("hub/", "## A hub is more", "## Who may import"),
    ):
        rows = text[text.index(begin) : text.index(end)]
        for package, row in re.findall(r"^\| `(\w+/)` \| (.*) \|$", rows, re.MULTILINE):
            folder = ROOT / "src" / "dragoman" / parent / package
            names = re.findall(r"`(\w+\.py)`", row)
            missing += [f"{parent}{package}{name}" for name in names if not any(folder.rglob(name))]
    assert missing == []


def test_every_name_in_the_architecture_is_in_the_source() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    sources = [path.read_text() for path in (ROOT / "src" / "dragoman").rglob("*.py")]
    words = {word for source in sources for word in re.findall(r"\w+", source)}
    classes = {
        node.name: set(re.findall(r"\w+", ast.get_source_segment(source, node) or ""))
        for source in sources
        if any(f"class {name}" in source for name in re.findall(r"`([A-Z]\w+)\.\w+`", text))
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }
    names = set(re.findall(r"`([A-Za-z_]\w*)`", text))
    assert sorted(names - words) == []
    members = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", text))
    assert [f"{owner}.{name}" for owner, name in sorted(members) if name not in classes[owner]] == []


def test_every_source_file_that_a_docstring_names_exists() -> None:
    folder = ROOT / "src" / "dragoman"
    places = (folder, ROOT / "tests", ROOT / "bench")
    files = {f"/{path.as_posix()}" for place in places for path in place.rglob("*.*")}
    for path in folder.rglob("*.py"):
        for named in re.findall(r"`((?:\w+/)*\w+\.(?:py|sql))`", path.read_text()):
            assert any(file.endswith(f"/{named}") for file in files), (
                f"{path.relative_to(ROOT)} names {named}"
            )


def test_the_glossary_has_at_most_25_nouns() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    glossary = text[text.index("## Glossary") : text.index("## The records of a log")]
    assert 15 <= len(re.findall(r"^\| [a-z ]+ \|", glossary, re.MULTILINE)) - 1 <= 25


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_section_leads_to_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    missing = [
        f"{file}#{section}"
        for file, section in links
        if section not in anchors(page.parent / file if file else page)
    ]
    assert missing == []


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_every_command_of_the_documents_is_understood(page: str, command: str) -> None:
    assert understood(command)


def test_the_documents_show_every_verb_but_the_plainest() -> None:
    shown = {command.split()[1] for _, command in SHOWN}
    assert set(VERBS) - shown <= {"sign", "version"}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_examples_that_are_understood(verb: str) -> None:
    examples = list(commands(verbs(parser())[verb].format_help().replace("example: ", "")))
    assert any(example.split()[1] == verb for example in examples)
    assert [example for example in examples if not understood(example)] == []


def test_a_command_that_is_wrong_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    (wrong,) = commands("$ dragoman serve hello.py --prot 9000   # a slip")
    assert wrong == "dragoman serve hello.py --prot 9000"
    assert not understood(wrong)


def test_the_page_of_the_configuration_has_every_setting_with_its_default(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    agents, hub, catalogue = [block for language, block in fenced(page) if language == "toml"]
    entries = read_agents(tomllib.loads(agents)["agents"])
    written = {
        name
        for entry in tomllib.loads(agents)["agents"].values()
        if isinstance(entry, dict)
        for name in entry
    }
    assert len(entries) == 4 and written == set(AgentEntry.__struct_fields__)
    assert {*tomllib.loads(hub)["hub"], "grpc_port"} == set(Settings.__struct_fields__)
    config = tmp_path / "dragoman.toml"
    config.write_text(hub)
    assert load_settings(environment={}, config=str(config)) == Settings()
    config.write_text(catalogue)
    assert set(tomllib.loads(catalogue)["catalogue"]) == set(CatalogueSettings.__struct_fields__)
    assert replace(read_catalogue(str(config)), agents=None) == CatalogueSettings()


def test_every_page_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in readme] == []


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_examples.py"))
    assert [page.name for page in EXAMPLES if not re.search(rf'"{page.stem}(\.py)?"', tests)] == []


def test_every_module_that_the_makefile_imports_is_there() -> None:
    imports = re.findall(r"from (dragoman[\w.]*) import (\w+)", (ROOT / "Makefile").read_text())
    assert imports
    for module, name in imports:
        assert hasattr(import_module(module), name), f"{module}.{name}"
