"""Rewrites programs on a2a-sdk (0.2, 0.3, 1.x) so that they use `dragoman.executor`.

Only imports, and arguments that the engine makes superfluous, are changed; all other code keeps its text. What has no
counterpart keeps its import of the SDK and is reported with what to write instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import dragoman.executor
from dragoman.executor.missing import error_for

OURS = "dragoman.executor"
_LINE_CHARACTERS = 88
_COMMA_AFTER = re.compile(rb"\s*,[ \t]*(?:\r?\n[ \t]*)?")
_COMMA_BEFORE = re.compile(rb",\s*\Z")
_REST_OF_LINE = re.compile(rb"[ \t]*(?:#[^\n]*)?\r?\n")
_DROPPED_ARGUMENTS = {
    "DefaultRequestHandler": ("queue_manager", "request_context_builder"),
    "DefaultRequestHandlerV2": ("queue_manager", "request_context_builder"),
    "LegacyRequestHandler": ("queue_manager", "request_context_builder"),
}
"""Arguments of constructors that the engine makes superfluous, if their values are the SDK's own."""
_DATABASE_STORES = ("DatabaseTaskStore", "VersionedDatabaseTaskStore")
_CLIENT_HINT = (
    "this is a client: `async with dragoman.connect(url) as agent: print(await agent(text))` calls an agent"
)
_STORE_HINT = (
    "tasks are kept in SQLite: the argument is left out. Say where with build(store='sqlite:///tasks.db'), or"
    " 'postgresql://host/database'; tasks in the old database stay there"
)


@dataclass(frozen=True, order=True)
class Remark:
    """Something that a person has to look at."""

    line: int
    text: str


@dataclass
class Ported:
    """A file after its rewriting."""

    text: str
    changed: bool
    remarks: list[Remark] = field(default_factory=list)


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: bytes


def port(source: str) -> Ported:
    """Rewrite one file. Raises `SyntaxError` if it is not Python of this version."""
    return _File(source).port()


class _File:
    def __init__(self, source: str) -> None:
        self._bytes = source.encode()
        self._tree = ast.parse(source)
        self._lines = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._edits: list[_Edit] = []
        self._remarks: set[Remark] = set()
        self._removed: set[int] = set()
        """Ids of the nodes that are left out."""

    def port(self) -> Ported:
        imports = [node for node in ast.walk(self._tree) if _imports_sdk(node)]
        if not imports:
            return Ported(self._bytes.decode(), changed=False)
        self._drop_arguments()
        used = self._used_names()
        top = [node for node in imports if isinstance(node, ast.ImportFrom) and node in self._tree.body]
        self._port_together(top, used)
        for node in imports:
            if isinstance(node, ast.Import):
                self._port_modules(node)
            elif node not in top:
                assert isinstance(node, ast.ImportFrom)
                self._replace(node, self._statements([node], used) or ["pass"])
        self._find_conversions()
        text = self._apply()
        compile(text, "ported", "exec", dont_inherit=True)
        return Ported(text, True, sorted(self._remarks))

    # -- imports -----------------------------------------------------------------------------------------------

    def _port_together(self, nodes: list[ast.ImportFrom], used: set[str]) -> None:
        """Write one import in the place of several at the top of a file."""
        if not nodes:
            return
        first, *rest = nodes
        lines = self._statements(nodes, used)
        if lines:
            self._replace(first, lines)
        else:
            self._remove_line(first)
        for node in rest:
            self._remove_line(node)

    def _statements(self, nodes: Sequence[ast.ImportFrom], used: set[str]) -> list[str]:
        """The imports that take the place of these."""
        ours: dict[str, str] = {}
        modules: list[str] = []
        unchanged: dict[str, list[str]] = {}
        for node in nodes:
            for alias in node.names:
                bound = alias.asname or alias.name
                if alias.name == "*":
                    ours["*"] = "*"
                elif alias.name in dragoman.executor.__all__:
                    ours[bound] = alias.name
                elif _is_module(node.module or "", alias.name):
                    modules.append(f"import {OURS} as {bound}")
                    self._check_members(bound)
                elif bound in used:
                    unchanged.setdefault(node.module or "", []).append(_with_alias(alias.name, bound))
                    self._keep(node, alias.name)
        lines = [f"from {module} import {', '.join(names)}" for module, names in unchanged.items()]
        lines += dict.fromkeys(modules)
        if "*" in ours:
            lines.append(f"from {OURS} import *")
        elif ours:
            names = sorted((_with_alias(name, bound) for bound, name in ours.items()), key=_import_order)
            line = f"from {OURS} import {', '.join(names)}"
            if len(line) > _LINE_CHARACTERS:
                line = f"from {OURS} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
            lines.append(line)
        return lines

    def _port_modules(self, node: ast.Import) -> None:
        """`import a2a.types as types` and `import a2a.types`."""
        lines = []
        for alias in node.names:
            if not _is_sdk(alias.name):
                lines.append(f"import {_with_alias(alias.name, alias.asname or '')}")
            elif alias.asname:
                lines.append(f"import {OURS} as {alias.asname}")
                self._check_members(alias.asname)
            else:
                lines.append(f"import {OURS}")
                self._port_chains()
        self._replace(node, list(dict.fromkeys(lines)))

    def _port_chains(self) -> None:
        """`a2a.types.Part` becomes `dragoman.executor.Part`."""
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Attribute):
                continue
            dotted = _dotted(node)
            if not dotted.startswith("a2a."):
                continue
            *_, module, name = dotted.split(".")
            if name in dragoman.executor.__all__:
                self._edit(node, f"{OURS}.{name}")
            elif module != "a2a" and name[:1].isupper():
                self._remark(node.lineno, _reason(name))

    def _check_members(self, module: str) -> None:
        """Report `types.X` where there is no X."""
        for node in ast.walk(self._tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == module
                and node.attr not in dragoman.executor.__all__
            ):
                self._remark(node.lineno, _reason(node.attr))

    def _keep(self, node: ast.ImportFrom, name: str) -> None:
        if (node.module or "").startswith("a2a.client"):
            self._remark(node.lineno, f"{name}: {_CLIENT_HINT}")
        else:
            self._remark(node.lineno, _reason(name))

    # -- arguments ---------------------------------------------------------------------------------------------

    def _drop_arguments(self) -> None:
        for call in (node for node in ast.walk(self._tree) if isinstance(node, ast.Call)):
            name = _dotted(call.func).rpartition(".")[2]
            if name not in _DROPPED_ARGUMENTS:
                continue
            for keyword in call.keywords:
                value = keyword.value
                made = _dotted(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
                superfluous = keyword.arg in _DROPPED_ARGUMENTS[name] and made and _is_missing(made)
                if made in _DATABASE_STORES and keyword.arg == "task_store":
                    self._remark(keyword.lineno, _STORE_HINT)
                elif not superfluous:
                    continue
                self._remove_argument(keyword)

    def _remove_argument(self, keyword: ast.keyword) -> None:
        start, end = self._span(keyword)
        after = _COMMA_AFTER.match(self._bytes, end)
        if after is not None:
            end = after.end()
        else:
            before = _COMMA_BEFORE.search(self._bytes[:start])
            start = before.start() if before is not None else start
        self._edits.append(_Edit(start, end, b""))
        self._removed |= {id(node) for node in ast.walk(keyword)}

    def _used_names(self) -> set[str]:
        return {
            node.id
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Name) and id(node) not in self._removed
        }

    # -- what only a person can tell ---------------------------------------------------------------------------

    def _find_conversions(self) -> None:
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Call) or id(node) in self._removed:
                continue
            name = _dotted(node.func).rpartition(".")[2] or getattr(node.func, "attr", "")
            if name in ("model_dump", "model_dump_json"):
                self._remark(
                    node.lineno,
                    f"{name}: if it is called on a value of the SDK, write msgspec.to_builtins(it)",
                )
            elif name in ("MessageToDict", "MessageToJson", "ParseDict", "Parse") and "json_format" in str(
                self._bytes
            ):
                self._remark(
                    node.lineno,
                    f"{name}: values of dragoman.executor are no protobuf messages: use msgspec.to_builtins(it)"
                    " and the type's model_validate",
                )

    # -- text --------------------------------------------------------------------------------------------------

    def _remark(self, line: int, text: str) -> None:
        self._remarks.add(Remark(line, text))

    def _span(self, node: ast.AST) -> tuple[int, int]:
        found: ast.expr = node  # type: ignore[assignment]
        assert found.end_lineno is not None and found.end_col_offset is not None
        return (
            self._lines[found.lineno - 1] + found.col_offset,
            self._lines[found.end_lineno - 1] + found.end_col_offset,
        )

    def _edit(self, node: ast.AST, text: str) -> None:
        start, end = self._span(node)
        self._edits.append(_Edit(start, end, text.encode()))

    def _replace(self, node: ast.stmt, lines: Sequence[str]) -> None:
        text = f"\n{' ' * node.col_offset}".join("\n".join(lines).split("\n"))
        self._edit(node, text)

    def _remove_line(self, node: ast.stmt) -> None:
        """Leave out a statement, with its line if nothing else is on it."""
        start, end = self._span(node)
        rest = _REST_OF_LINE.match(self._bytes, end)
        if rest is not None and start == self._lines[node.lineno - 1]:
            self._edits.append(_Edit(start, rest.end(), b""))
        else:
            self._edits.append(_Edit(start, end, b"pass"))

    def _apply(self) -> str:
        out, at = [], 0
        for edit in sorted(self._edits, key=lambda each: (each.start, -each.end)):
            if edit.start < at:
                continue  # inside of one that is left out
            out += [self._bytes[at : edit.start], edit.text]
            at = edit.end
        return b"".join([*out, self._bytes[at:]]).decode()


def _imports_sdk(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(_is_sdk(alias.name) for alias in node.names)
    return isinstance(node, ast.ImportFrom) and not node.level and _is_sdk(node.module or "")


def _is_sdk(module: str) -> bool:
    return module == "a2a" or module.startswith("a2a.")


_MODULES = {
    "types",
    "utils",
    "helpers",
    "server",
    "apps",
    "errors",
    "tasks",
    "events",
    "routes",
    "agent_execution",
}


def _is_module(module: str, name: str) -> bool:
    """Whether `from module import name` imports a module of the SDK."""
    return name in _MODULES and module.split(".")[-1] not in ("types",)


def _is_missing(name: str) -> bool:
    return name not in dragoman.executor.__all__ and isinstance(error_for(name), ImportError)


def _reason(name: str) -> str:
    """What to write instead of a name of the SDK."""
    error = error_for(name)
    if isinstance(error, ImportError):
        return f"{name}: {str(error).partition(': ')[2]}"
    return f"{name}: there is nothing like it in {OURS}"


def _dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def _with_alias(name: str, bound: str) -> str:
    return name if not bound or bound == name else f"{name} as {bound}"


def _import_order(name: str) -> tuple[int, str]:
    """Constants, classes, functions: as import sorters have them."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


# -- dependencies --------------------------------------------------------------------------------------------------

_REQUIREMENT = re.compile(r"a2a[-_.]sdk(\[[^\]]*\])?[^\"'\n;#]*", re.IGNORECASE)
_BROUGHT = ("fastapi", "httpx", "pydantic", "protobuf", "starlette", "sse-starlette")
"""What a2a-sdk installs and we do not."""


def port_requirements(text: str, imported: set[str], *, keep_sdk: bool) -> str:
    """A requirements file, or a list of requirements in `pyproject.toml`, with us in the place of a2a-sdk.

    `imported`: packages that the project's code imports. What came with a2a-sdk and is imported, but not listed, is added.
    """
    found = _REQUIREMENT.search(text)
    if found is None:
        return text
    quote = text[found.start() - 1] if found.start() and text[found.start() - 1] in "\"'" else ""
    listed = {name.lower().replace("_", "-") for name in re.findall(r"[A-Za-z][\w.-]*", text)}
    missing = [name for name in _BROUGHT if name.replace("-", "_") in imported and name not in listed]
    new = (
        ["dragoman" if "dragoman" not in listed else ""] + missing + ([found[0].strip()] if keep_sdk else [])
    )
    new = [name for name in new if name]
    line_start = text.rfind("\n", 0, found.start()) + 1
    indent = re.match(r"\s*", text[line_start:])
    alone = text[line_start : found.start()].strip(" \t" + quote) == ""
    between = f"{quote}, {quote}" if quote else "\n"
    if quote and alone:
        between = f"{quote},\n{indent[0] if indent else ''}{quote}"
    tail = "" if quote else re.search(r"\s*\Z", found[0])[0]  # type: ignore[index]
    return text[: found.start()] + between.join(new) + tail + text[found.end() :]


def imported_packages(source: str) -> Iterator[str]:
    """The packages that a file imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]
