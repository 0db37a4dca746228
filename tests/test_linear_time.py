"""Whatever reads foreign text costs as much as the text is long, and no more.

Every regular expression of the package is found by looking (module constants by importing, the others in the syntax tree) and
has to be in the table with the worst text that we know for it. Each is fed a megabyte of that, and twice the text may not
cost more than three times as much. A new expression without a worst case fails here.

How to find a worst case: what the expression has read when it finds out that it does not match, repeated, so that it begins
again at each repetition (`search`, `sub`), or so that it has many ways to divide it (everything).
"""

from __future__ import annotations

import ast
import contextlib
import html
import logging
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import dragoman
from dragoman.dialects.cards import version_of
from dragoman.dialects.v1_0 import _leniently
from dragoman.errors import A2AError
from dragoman.hub.agents.commands import TextFilter, parse
from dragoman.hub.agents.constitution import Advisor, Constitution
from dragoman.hub.agents.routing import agent_for_event, guess
from dragoman.hub.models import ChatMessage, Prompt
from dragoman.hub.models.local import demo_reply as reply
from dragoman.hub.schedules import run_times
from dragoman.hub.tools.advisor import read_verdict as verdict
from dragoman.hub.tools.fetcher import _CODECS, html_text, page_text
from dragoman.model.answers import choice
from dragoman.model.ops import ListTasks
from dragoman.observe.logs import PlainLines, redact
from dragoman.observe.redact import redact_text
from dragoman.observe.terminal import sanitize
from dragoman.server.limits import Limits
from tests import growth
from tests.growth import assert_linear

ROOT = Path(dragoman.__file__).parent
MEGABYTE = 1 << 20

OURS = {
    "postgres._HINT": "our own statements",
    "postgres._PLACEHOLDER": "our own statements",
    "postgres._TABLE": "our own statements",
    "install.NAME": "the operator's own argument",
    "paths._VARIABLE": "our own templates",
    "settings: \\s*\\[([^\\[\\]]+)\\]": "the operator's dragoman.toml",
    "reading: \\w+": "our own names",
    "routes._PARAMETER": "our own routes",
    "openapi: \\W": "the name of a method that the developer's own extension adds",
    "routing: \\w+": "our own list of words",
    "fetcher: \\w+": "our own list of words",
    "openapi: \\{(\\w+)(?:=([^}]*))?\\}": "our own templates",
    "openapi: \\{(\\w+)\\}": "our own templates",
    "api_document._PARAMETER": "our own routes",
    "api_document: \\w+": "our own routes",
    "new: [-.\\s]+": "the developer's command line",
    "tools: (?<=.)@[^/]*$|\\.(py|js|mjs|ts|exe)$": "the operator's command line",
    "tools: ^(mcp-)?server-|-mcp$|-server$|^mcp-": "the operator's command line",
    "tools: [^A-Za-z0-9_-]+": "the operator's command line",
    "new: [-_.]+": "the developer's command line",
    "new: [A-Za-z][A-Za-z0-9._-]{0,60}": "the developer's command line",
    "porting._COMMA_AFTER": "the developer's own files",
    "porting._COMMA_BEFORE": "the developer's own files",
    "porting._REQUIREMENT": "the developer's own files",
    "porting._REST_OF_LINE": "the developer's own files",
    "porting: [A-Za-z][\\w.-]*": "the developer's own files",
    "porting: \\s*": "the developer's own files",
    "porting: \\s*\\Z": "the developer's own files",
    "settings._NAME": "the operator's own file",
    "settings: Object contains unknown field `([^`]*)`": "an error about the operator's own file",
    "settings: [\\w-]+|\\[\\.\\.\\.\\]": "an error about the operator's own file",
    "settings: [^A-Za-z0-9.~-]+": "the operator's own file",
}
"""Expressions that never meet foreign text."""

BUILT = {
    "paths.Path.pattern": "our own templates; what comes of it is in _PLACES",
    "paths.Path.fill_template": "a form of ours: `tasks/*/pushNotificationConfigs/*`",
    "routes.Table.__init__": "our own routes: words, and `[^/]+` between slashes",
}
"""Functions that put an expression together from parts."""

Case = tuple[str, str, str, str]
"""How it is used, and a text: what it begins with, what is repeated, what it ends with."""

WORST: dict[str, tuple[Case, ...]] = {
    "card_tools._PROPERTY": (("fullmatch", "", "a", "!"),),
    "card_tools: [^A-Za-z0-9_-]+": (("sub", "", " ", "a"), ("sub", "", " a", "")),
    "install: \\n([ \\t]+)\\S": (
        ("search", "\n", " ", "\n"),
        ("search", "", "\n ", ""),
        ("search", "", "\n", ""),
    ),
    "findings._MEDIA_TYPE": (
        ("fullmatch", "", "a", "!/"),
        ("fullmatch", "a/a", " ", ""),
        ("fullmatch", "a/a;", "a", "\n"),
    ),
    "publish._IDENTIFIER": (
        ("fullmatch", "", "urn:air:", ""),
        ("fullmatch", "urn:air:", "a", "!"),
        ("fullmatch", "urn:air:a", ":a", "!"),
    ),
    "publish._SEGMENT": (("sub", "", " ", "a"), ("sub", "", " a", "")),
    "publish._TERM": (
        ("fullmatch", "", " ", ""),
        ("fullmatch", "", "a", ""),
        ("fullmatch", "a", " ", ""),
        ("fullmatch", "a='", "a", ""),
        ("fullmatch", "a=''", " ", "!"),
    ),
    "publish: \\bAND\\b": (("split", "", "AND ", ""), ("split", "", "A", "")),
    "registered._NAME": (("fullmatch", "", "a", "!"),),
    "registered: [^a-z0-9]+": (("sub", "", "-", ""), ("sub", "", "-a", "")),
    "search_words._CAMEL": (("sub", "", "aA", ""), ("sub", "", "a", "")),
    "search_words._WORD": (
        ("findall", "", "a", ""),
        ("findall", "", "a ", ""),
        ("findall", "", "\u4e00", ""),
    ),
    "memory._ENDING": (("sub", "", "a", "!"), ("sub", "", "es", "!")),
    "oauth._TOKEN_LIKE": (("sub", "", "a", ""), ("sub", "", "aaaaaaaa ", "")),
    "smolagents: (?:\\\\u[dD][89abAB][0-9a-fA-F]{2})$": (("sub", "", "\\ud8ff", "!"),),
    'smolagents: \\s*\\{\\s*"answer"\\s*:\\s*"((?:[^"\\\\]|\\\\u[0-9a-fA-F]{4}|\\\\[^u])*)': (
        ("match", "", " ", ""),
        ("match", '{"answer":"', "a", ""),
        ("match", '{"answer":"', "\\\\", ""),
    ),
    "findings._GRPC_ADDRESS": (
        ("fullmatch", "", "a", "!"),
        ("fullmatch", "[", ":", ""),
    ),
    "findings._HTML": (("search", "<", " ", ""), ("search", "", "< ", "")),
    "findings: \\W": (("sub", "", "-", ""),),
    "findings: \\d+\\.\\d+\\.\\w+": (("fullmatch", "", "1", ""), ("fullmatch", "1.1.", "a", "!")),
    "findings: _([a-z0-9])": (("sub", "", "_", ""),),
    "questions._CLAUSE": (("split", "", " ", ""), ("split", "", "a ", "")),
    "access._HOST": (
        ("fullmatch", "", "a", "!"),
        ("fullmatch", "[", ":", ""),
        ("fullmatch", "[:]:", "1", ""),
    ),
    "redact._NAMES": (
        ("match", "", "-", ""),
        ("match", "", "token-", ""),
        ("match", "", "aA", ""),
        ("match", "", "token", "\n"),
    ),
    "redact._TEXTS": (
        ("sub", "", "eyJ-", ""),
        ("sub", "", "aeyJ", ""),
        ("sub", "", "-eyJ", "!"),
        ("sub", "", "eyJaaaaaaaa.", "!"),
        ("sub", "", "Bearer ", ""),
        ("sub", "Bearer", " ", ""),
        ("sub", "", "a://", ""),
        ("sub", "", "-----BEGIN A ", ""),
        ("sub", "", "-----BEGIN PRIVATE KEY-----", ""),
        ("sub", "", "sk-", ""),
    ),
    "remote_agent: \\W+": (("sub", "", "-", "a"), ("sub", "", "-a", "")),
    "tasks._TEXT": (("search", "", '"text":', ""), ("search", '"text":"', "\\\\", "")),
    "turn: v?(\\d+(?:\\.\\d+)*)(.*)": (("match", "", "1", ""), ("match", "", "1.", "")),
    "webhooks._ID": (("fullmatch", "", "a", ""),),
    "wire._FRAME_END": (("search", "", "\n ", ""), ("search", "", "\r\n ", "")),
    "wire._PAIR": (("sub", "", "a", ""), ("sub", "", "&a", ""), ("sub", "", "a=", ""), ("sub", "", "&", "")),
    "wire._MEMBER": (
        ("sub", "", '"a" ', ""),
        ("sub", '"a"', " ", ""),
        ("sub", '"a":"', "a", ""),
        ("sub", "", '"a":"', "\\"),
        ("sub", '"a":"', "\\\\", ""),
    ),
    "agent: [A-Za-z0-9._~-]+": (("fullmatch", "", "a", "/"),),
    "agent: [^a-z0-9]+": (("sub", "", "-", "a"), ("sub", "", "-a", "")),
    "guard: [^ !#-\\[\\]-~]": (("sub", "", '"', ""),),
    "jose._BASE64URL": (("fullmatch", "", "a", "!"),),
    "keys._FILE": (("fullmatch", "", "a", ".jso"),),
    "schemes.TOKEN": (("fullmatch", "", "a", " "),),
    "secrets._SHA256": (("fullmatch", "", "a", "x"),),
    "address._HOST": (("fullmatch", "", "a.", ":"), ("fullmatch", "[", ":", "")),
    "address._PREFIX": (("fullmatch", "", "/a", "/"), ("fullmatch", "/", "a", " ")),
    "address._URL": (("fullmatch", "http://h", "/a", "/"), ("fullmatch", "http://", "a", "/")),
    "address._PAIR": (
        ("match", "", " ", "a"),
        ("match", "", "a", ""),
        ("match", "a", " ", "b"),
        ("match", 'a="', "\\a", ""),
        ("match", "a=", " ", '"'),
    ),
    "address: \\\\(.)": (("sub", "", "\\", ""),),
    "pipeline._TRACEPARENT": (
        ("fullmatch", "01-" + "a" * 32 + "-" + "b" * 16 + "-00-", "a", "\n"),
        ("fullmatch", "", "0", ""),
    ),
    "pipeline._PRINTABLE": (("fullmatch", "", "a", "\n"),),
    "cors._ORIGIN": (("fullmatch", "", "a", ""), ("fullmatch", "a://", "a", " ")),
    "cors._NAMES": (
        ("fullmatch", "a", " ", ""),
        ("fullmatch", "", "a ,", ""),
        ("fullmatch", "", "a\t,\t", "("),
    ),
    "app._KEPT_ESCAPES": (("split", "", "%2", ""), ("split", "", "%2F", "")),
    "mount._QUOTED": (("sub", "", '"', ""),),
    "rest._WHOLE": (("fullmatch", "-", "1", ""),),
    "rest._WEIGHT": (("search", ";", " ", "q"), ("search", "", ";q=", ""), ("search", "", "; ", "")),
    "nats_address: [\\w-]+(\\.[\\w-]+)*": (("fullmatch", "", "a.", ""), ("fullmatch", "", "a", " ")),
    "reach: (\\d+(?:\\.\\d+)?)(ms|s|m|h|)": (("fullmatch", "", "1", "."), ("fullmatch", "1.", "1", "x")),
    "network._find_line_break": (("search", "", "a", ""),),
    "cards: v?(\\d+)(?:\\.(\\d+|x))?(?:\\.\\w+)*": (
        ("fullmatch", "1", ".1", "."),
        ("fullmatch", "v", "1", "!"),
        ("fullmatch", "1.1.", "a", "!"),
    ),
    "cards: [^a-z0-9]+": (("sub", "", "-", "a"), ("sub", "", "-a", "")),
    "paths._PLACES": (
        ("fullmatch", "/tasks/", "a", ":cance"),
        ("fullmatch", "/tasks/", ":", "/"),
        ("fullmatch", "/v1/tasks/", ":cancel", "/"),
        ("fullmatch", "/tasks/a/pushNotificationConfigs/", "a", "/"),
    ),
    "select._TASK_ID": (("search", "", '"taskId"', ""), ("search", '"taskId"', " ", "")),
    "select._FILE_DATA": (
        ("search", '"file":{', '"data" ', ""),
        ("search", "", '"file":{', ""),
        ("search", "", '"file" : ', ""),
        ("search", '"file":{"data"', " ", "}"),
    ),
    "select._TYPE": (("search", "", '"type"', ""), ("search", '"type"', " ", "")),
    "reading.SNAKE_MEMBER": (
        ("search", "", '_id"', ""),
        ("search", "", "_", ""),
        ("search", '_id"', " ", ""),
    ),
    "reading: [A-Z]": (("sub", "", "A", ""),),
    "v1_0._EXPECTED": (
        ("match", "Expected `", "a", "!"),
        ("match", "Expected `a`, got `", "a", "!"),
    ),
    "v1_0._SENTENCES": (
        ("match", "Invalid enum value ", "a", "\n\n"),
        ("match", "Invalid base64", "a", "\n\n"),
        ("sub", "Invalid enum value ", "\n", ""),
    ),
    "v1_0: ^Object missing required field `(.*)`$": (
        ("match", "Object missing required field `", "`", ""),
        ("match", "Object missing required field `", "a", ""),
    ),
    "missing._SHAPES": (("fullmatch", "A", "Request", "!"), ("fullmatch", "ClientA", "a", "!")),
    "execution._RANDOM": (("match", "", "a", ""), ("match", "", "aaaaaaaa-", "")),
    "files: [0-9a-f]{64}": (("findall", "", "a" * 63 + "-", ""), ("findall", "", "a", "")),
    "artifacts._DEVICE_NAME": (("fullmatch", "con.", ".", "\n"),),
    "artifacts._MIME": (("fullmatch", "a/b", ";a=b", "!"), ("fullmatch", "", "a", "/")),
    "artifacts: /+": (("sub", "", "/", "a"), ("sub", "", "/a", "")),
    "model._SURROGATE": (("search", "", "é", ""),),
    "model._HIGH_SURROGATE": (("search", "", "\ud800", "a"),),
    "commands._FENCE": (
        ("fullmatch", "", " ", "a"),
        ("fullmatch", "", "`", "a`"),
        ("fullmatch", "```", "a", "`"),
        ("fullmatch", "", "~", "\n"),
    ),
    "commands._FRAME_END": (("fullmatch", "[END ", "A ", ""),),
    "commands._FRAME_END_SO_FAR": (("fullmatch", "[END ", "A ", "a"),),
    "commands._FRAME_START": (("match", "[/", "a", ""),),
    "constitution.ID": (("fullmatch", "", "a", ""),),
    "constitution: ^[A-Za-z0-9_-]{1,64}(?!\\n)$": (("search", "", "a", "\n"),),
    "blobs._KEY": (("fullmatch", "t", "1", ""), ("fullmatch", "t1/", "0", "")),
    "quote._LINE_BREAK": (("sub", "", "\r", "a"), ("sub", "", "a\u2028", "")),
    "quote._INVISIBLE": (("sub", "", "\x00", "a"), ("sub", "", "a", ""), ("sub", "", "\ufe00", "")),
    "quote._JOINER_RUN": (
        ("sub", "", "\u200d", "a"),
        ("sub", "", "a\ufe0f", ""),
        ("sub", "", "\ufe0f\u200d", ""),
    ),
    "quote._UNSEEN": (("sub", "", "\u200d", "a"), ("sub", "", "\r", "a"), ("sub", "", "a\x00", "")),
    "quote._CONTROL_TOKEN": (
        ("sub", "", "<", ""),
        ("sub", "", "[/TOOL_CALLS", ""),
        ("sub", "", "<</", ""),
        ("sub", "", "<start_of_turn", ""),
    ),
    "quote._SPACE": (("sub", "", " ", "a"), ("sub", "", " a", "")),
    "dispatch._CHILD_FAILED": (
        ("search", "", "[child 1/1 — /agent ", "]"),
        ("search", "", "[child 1/1 — /agent ]]]]]\n", ""),
        ("search", "", "\n", ""),
        ("search", "[child ", "1", ""),
    ),
    "fetcher._CHARSET": (("search", "", "charset=", ""), ("search", "", "charset='", "")),
    "advisor._SIGNAL": (
        ("search", "", "<signal>", ""),
        ("search", "<signal>", "a", ""),
        ("search", "<signal>", " ", ""),
        ("search", "<signal>a", " ", ""),
        ("search", "", "<signal>a ", ""),
    ),
    "routing._OBJECT": (
        ("search", "", "{", ""),
        ("search", "", "{a", ""),
        ("search", "{", "a", ""),
    ),
    "routing: @([A-Za-z0-9_-]+)": (("findall", "", "@", ""), ("findall", "", "@a", "")),
    "routing: [^\\W_]{3,}": (("findall", "", "aa_", ""), ("findall", "", "a", "")),
    "routing: (ing|ers?|ed|es|s|e|y|ies)$": (("sub", "", "e", "a"), ("sub", "", "ing", "a")),
    "fetcher._NAME": (("match", "", "a", "!"),),
    "fetcher._END": (
        ("search", "", "</", ""),
        ("search", "", "</scrip", ""),
        ("search", "", "</scripts", ""),
    ),
    "fetcher._LONG_NUMBER": (
        ("sub", "", "&#", ""),
        ("sub", "", "&#1111111111", ""),
        ("sub", "&#", "1", ""),
    ),
    "fetcher: \\n{3,}": (("sub", "", "\n\na", ""), ("sub", "", "\n", "")),
    "local._AGENT_WORDS": (
        ("search", "", "US", ""),
        ("search", "", "hello t", ""),
        ("search", "", "report", ""),
    ),
    "local._RESULT": (
        ("search", "", "[/agent a]b\n", ""),
        ("search", "", "[/agent ", ""),
        ("search", "[/agent ", "a", ""),
        ("search", "[/agent a", "]", "b"),
    ),
    "local._NAME_LINE": (("search", "", "NAME: ", "\n"), ("search", "", "NAME:\n", "")),
    "run_times._ZONE": (("fullmatch", "", "a", ""), ("fullmatch", "a", "/", "!")),
    "run_times._FORMS": (
        ("fullmatch", "in ", "1", ""),
        ("fullmatch", "every ", "day ", ""),
        ("fullmatch", "", "every ", ""),
    ),
    "memory_search: \\w+": (("findall", "", "a", ""), ("findall", "", "a ", "")),
    "models.IMAGE_TYPE": (("fullmatch", "image/", "a", ""),),
    "tokens.NAME": (("fullmatch", "", "a ", ""),),
    "mcp._ADDRESS": (("match", "", "a", ""),),
    "tools: [^A-Za-z0-9_-]": (("sub", "", "!", ""), ("sub", "", "a!", "")),
    "files: #(\\d{1,15})(?:\\s+via=mem:#?(\\d{1,15}))?": (
        ("fullmatch", "#1", " ", "v"),
        ("fullmatch", "#", "1", ""),
    ),
    "memory: depth=(\\d)": (("search", "", "depth=", ""),),
    "memory: \\s--artifact\\s+#?(\\d+)": (
        ("search", "", " ", ""),
        ("search", "", " --artifact", ""),
        ("search", " --artifact", " ", "a"),
        ("search", " --artifact ", "1", ""),
    ),
    "memory: \\s--supersedes\\s+([#\\d,\\s]+)": (
        ("search", "", " ", ""),
        ("search", "", " --supersedes", ""),
        ("search", " --supersedes", " ", "a"),
    ),
    "memory: \\d+": (("findall", "", "1", ""), ("findall", "", "1 ", "")),
    "memory: [,\\s]+": (("split", "", " ", "a"), ("split", "", ",a", "")),
    "web._TAG": (("sub", "", "<", ""), ("sub", "", "<a", ""), ("sub", "<", "a", "")),
    "answers._MISSING": (
        ("search", "", "; ", ""),
        ("search", "", "a", ""),
        ("search", "", "; a", ": Field"),
        ("search", "missing required field `", "a", ""),
        ("search", "", "missing required field `", ""),
    ),
    "answers._OWN": (
        ("search", "", "Value error, ", ""),
        ("search", "", "a", ";"),
        ("search", "", " - at ", ";"),
        ("search", "", "a.", ""),
    ),
    "answers._TURNS": (
        ("search", "", ";", "a"),
        ("search", ";", " ", "a"),
        ("search", "", "- ", "a"),
        ("search", "-", " ", "a"),
        ("search", "", " ", "a"),
    ),
    "protocol._HOST": (
        ("fullmatch", "", "a", " "),
        ("fullmatch", "[", ":", "a"),
        ("fullmatch", "a:", "1", "a"),
    ),
    "answers._PLACE": (
        ("search", "", "at `$.", ""),
        ("search", "", "a", ""),
        ("search", "at `$.", "a", ""),
    ),
    "answers: [^\\w'\\U0001F300-\\U0001FAFF\\u2705\\u2714\\u274C\\u2716\\u0300-\\u036F\\u0900-\\u0DFF\\u0E00-\\u0E7F]+|"
    "[\\U0001F3FB-\\U0001F3FF]": (("sub", "", ".", "a"), ("sub", "", ".a", "")),
    "redact._IN_LINE": (
        ("sub", "", "eyJ-", ""),
        ("sub", "", "cookie", ""),
        ("sub", "cookie", '"', ""),
        ("sub", "", "cookie=\n", ""),
        ("sub", "cookie=", "\n", ""),
        ("sub", "", "token= ", ""),
        ("sub", "token=", " ", '"'),
        ("sub", "token=", '"', ""),
        ("sub", "", 'token"=abc', '"'),
        ("sub", "", "bearer ", ""),
        ("sub", "bearer", " ", ""),
        ("sub", "token=bearer", " ", ""),
        ("sub", "", "://", ""),
        ("sub", "://a:", ":", "/"),
        ("sub", "", "://a:b", ""),
        ("sub", "", "sk-", " "),
        ("sub", "", "dgm_a ", ""),
        ("sub", "", "adm_", " "),
        ("sub", "", "-----BEGIN PRIVATE ", ""),
        ("sub", "", "-", ""),
        ("sub", "-----BEGIN ", "A", ""),
        ("sub", "-----BEGIN PRIVATE KEY-----", "-----EN", ""),
    ),
    "redact._JWT_IN_LINE": (
        ("sub", "", "eyJ-", ""),
        ("sub", "", "eyJ", ""),
        ("sub", "", "aeyJ", ""),
        ("sub", "", "a", "eyJ"),
        ("sub", "", "-eyJ", "!"),
        ("sub", "", "eyJ-eyJ.", ""),
        ("sub", "", "eyJ ", ""),
        ("sub", "", "-", ""),
        ("sub", "", "eyJa.", "!"),
    ),
    "logs._KEY_IN_WORDS": (
        ("sub", "", "key ", ""),
        ("sub", "", "key:", ""),
        ("sub", "", "key: ", ""),
    ),
    "logs._CONTROL": (("sub", "", "\x1b", ""),),
    "logs._PLAIN": (("fullmatch", "", "a", " "),),
    "terminal._SEQUENCES": (
        ("sub", "", "\x1b", ""),
        ("sub", "", "\x1b[", ""),
        ("sub", "\x1b[", "0", "\x00"),
        ("sub", "\x1b[", " ", "\x00"),
        ("sub", "", "\x1b]a", ""),
        ("sub", "\x9b", "0", "\x00"),
        ("sub", "\x1b", " ", "\x00"),
    ),
    "credentials._VISIBLE": (("fullmatch", "a", " ", ""), ("fullmatch", "a", "b ", "")),
    "credentials._HTTP_TOKEN": (("fullmatch", "", "a", ""),),
    "config: \\w+": (("findall", "", "a", ""), ("findall", "", "a.", "")),
    "config._EXPECTED": (
        ("fullmatch", "Expected `", "a", "!"),
        ("fullmatch", "Expected `a`, got `", "a", "!"),
        ("fullmatch", "Expected `a` > ", "1", " "),
    ),
    "config: Invalid enum value (.*)": (("fullmatch", "Invalid enum value ", "a", "\n"),),
    "config: ([^=#]+)=": (("match", "", "a", ""), ("match", "", " ", "#")),
    "notification._RESERVED_HEADERS": (
        ("fullmatch", "content-", "a", "\n"),
        ("fullmatch", "", "x-a2a-", "\n"),
    ),
    "credentials: [^a-z]": (("sub", "", "-", ""),),
    "guard._NAME": (
        ("fullmatch", "", "a", ""),
        ("fullmatch", "", "a.", "-"),
        ("fullmatch", "", "a" * 63 + ".", "!"),
        ("fullmatch", "", "-", ""),
    ),
    "guard._NUMERIC": (
        ("fullmatch", "", "0", "!"),
        ("fullmatch", "", "0.", "!"),
        ("fullmatch", "0x", "0", "!"),
    ),
    "webhook._TOKEN": (("fullmatch", "", "a", ""),),
}


def _modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] != "__main__":
            yield ".".join(part for part in parts if part != "__init__"), path


def _parsed(part: str) -> Iterator[tuple[str, ast.Module]]:
    """Modules with this in their text."""
    for name, path in _modules():
        if part in (text := path.read_text(encoding="utf-8")):
            yield name, ast.parse(text)


def _file(module: str) -> str:
    """What an expression is listed under: a file keeps its name when it moves."""
    return module.rpartition(".")[2]


@cache
def constants() -> dict[str, list[re.Pattern[Any]]]:
    """The compiled expressions that modules hold, also in their tables."""
    found: dict[str, list[re.Pattern[Any]]] = {}
    for name, path in _modules():
        body = ast.parse(path.read_text(encoding="utf-8")).body
        targets = [
            node.targets if isinstance(node, ast.Assign) else [node.target]
            for node in body
            if isinstance(node, ast.Assign | ast.AnnAssign)
        ]
        for constant in [target.id for each in targets for target in each if isinstance(target, ast.Name)]:
            try:
                module = import_module(f"dragoman.{name}".rstrip("."))
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("dragoman"):
                    raise
                continue  # an adapter for a framework that is not installed
            value = getattr(module, constant, None)
            for pattern in _patterns(value):
                found.setdefault(f"{_file(name)}.{constant}", []).append(pattern)
    return found


def _patterns(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _patterns(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _patterns(each)
    elif isinstance(method := getattr(value, "__self__", None), re.Pattern):
        yield method  # _break = re.compile(...).search


@cache
def inline() -> tuple[dict[str, list[re.Pattern[Any]]], set[str]]:
    """Expressions that are written where they are used; and the functions that put one together."""
    written: dict[str, list[re.Pattern[Any]]] = {}
    built: set[str] = set()
    for name, tree in _parsed("re."):
        for scope, call in _calls(tree, name):
            given = call.args[0]
            if isinstance(given, ast.Constant) and not (scope == name and _method(call) == "compile"):
                text = given.value.decode("latin-1") if isinstance(given.value, bytes) else given.value
                written.setdefault(f"{_file(name)}: {text}", []).append(re.compile(given.value))
            elif not isinstance(given, ast.Constant) and scope != name:
                built.add(_file(name) + scope.removeprefix(name))
    for key in _schema_patterns():
        written.setdefault(key, []).append(re.compile(key.partition(": ")[2]))
    return written, built


def _calls(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner = scope
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{child.name}"
        if isinstance(child, ast.Call) and _method(child):
            yield inner, child
        yield from _calls(child, inner)


def _schema_patterns() -> Iterator[str]:
    """Expressions that msgspec is given: `Meta(pattern=...)`."""
    for name, tree in _parsed("pattern="):
        for node in ast.walk(tree):
            value = node.value if isinstance(node, ast.keyword) and node.arg == "pattern" else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield f"{_file(name)}: {value.value}"


def _method(call: ast.Call) -> str:
    function = call.func
    of_re = (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
    )
    name = function.attr if of_re and isinstance(function, ast.Attribute) else ""
    return (
        name
        if name in ("compile", "match", "fullmatch", "search", "sub", "subn", "findall", "finditer", "split")
        else ""
    )


@cache
def listed() -> tuple[dict[str, list[re.Pattern[Any]]], set[str]]:
    """The expressions by the name that the tables have for them, and those that are in none.

    A file may get another name: what only one entry and one expression can mean is found all the same.
    """
    every = constants() | inline()[0]
    names = {*WORST, *OURS}
    out = {name: every[name] for name in names & every.keys()}
    moved: dict[str, list[str]] = {}
    for found in every.keys() - names:
        moved.setdefault(_own_name(found), []).append(found)
    unknown: set[str] = set()
    for own, found_there in moved.items():
        free = [name for name in names - out.keys() if _own_name(name) == own]
        if len(free) == len(found_there) == 1:
            out[free[0]] = every[found_there[0]]
        else:
            unknown.update(found_there)
    return out, unknown


def _own_name(key: str) -> str:
    """Without the file: the constant, or the expression itself."""
    return key.partition(": ")[2] or key.rpartition(".")[2]


class ClockOfWork:
    """A clock that goes only when work is done, so that what is measured is what was done."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def thread_time(self) -> float:
        return self.seconds

    def work(self, cost_of: Callable[[int], float]) -> Callable[[int], None]:
        def run(n: int) -> None:
            self.seconds += cost_of(n) * 1e-6

        return run


def test_quadratic_growth_is_distinguished_from_linear_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ClockOfWork()
    monkeypatch.setattr(growth, "time", clock)

    def n_itself(n: int) -> int:
        return n

    for linear in (lambda n: n, lambda n: 5000 + n, lambda n: 7, lambda n: n * (2 if n > 1 << 16 else 1)):
        assert_linear(clock.work(linear), n_itself)
    for steeper in (lambda n: n * n, lambda n: n * n / 1000, lambda n: n**3, lambda n: 5000 + n * n / 10):
        with pytest.raises(AssertionError, match="cost"):
            assert_linear(clock.work(steeper), n_itself, 1 << 14)


def test_every_expression_has_a_worst_case() -> None:
    known, unknown = listed()
    assert unknown == set(), "say in WORST what is the worst text for these, or in OURS why nobody writes it"
    assert {*WORST, *OURS} - set(known) == set(), "these are gone"
    built = {each.partition(".")[2] for each in inline()[1]}
    assert built == {each.partition(".")[2] for each in BUILT}


@pytest.mark.parametrize(
    ("key", "case"),
    [
        pytest.param(key, case, id=f"{key}-{n}")
        for key, cases in WORST.items()
        for n, case in enumerate(cases)
    ],
)
def test_an_expression_costs_as_much_as_its_text_is_long(key: str, case: Case) -> None:
    how, begin, again, end = case
    for pattern in listed()[0][key]:
        binary = isinstance(pattern.pattern, bytes)
        use = partial(pattern.sub, b"" if binary else "") if how == "sub" else getattr(pattern, how)

        def text(n: int, binary: bool = binary) -> str | bytes:
            whole = begin + again * (n // len(again)) + end
            return whole.encode() if binary else whole

        assert_linear(use, text, MEGABYTE // 4)


def _record(message: str) -> Any:
    return logging.LogRecord("dragoman.x", logging.WARNING, "f", 1, "%s", (message,), None)


def _streamed(text: str) -> None:
    filter = TextFilter(["/fetch", "/write"])
    for at in range(0, len(text), 16):
        filter.feed(text[at : at + 16])
    filter.close()


def _wrong_enum(text: str) -> None:
    with contextlib.suppress(A2AError):
        _leniently(msgspec.json.encode({"tenant": {}, "status": text}), ListTasks)


_AGENTS = [
    Constitution(id="a", event_types=(pattern,))
    for pattern in ("*" + "a" * 198 + "b", "*a" * 99 + "b", "?" * 199)
]

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "a log line": (lambda text: PlainLines().format(_record(text)), ("eyJ-", "\x1b", "token=", "://a:")),
    "redact": (redact, ("eyJ-", "a ", "-----BEGIN ")),
    "redact_text": (
        redact_text,
        (
            "Bearer ",
            "Bearer x",
            "eyJ",
            "eyJx",
            "https://",
            "sk-",
            "a.",
            "AKIA",
            "-----BEGIN PRIVATE KEY-----",
        ),
    ),
    "sanitize": (sanitize, ("\x1b[", "\u202e", "\x1b]0;", "\ud800")),
    "html_text": (
        html_text,
        (
            "<",
            "<!",
            "<!--",
            "<![CDATA[",
            "<?",
            "<a ",
            "<a x=",
            "<a b='",
            "<a>",
            "</a",
            "<p>",
            "&",
            "&#",
            "&#1",
            "&#x1",
            "&a",
            "&amp;",
            "<svg>",
            "<head>",
            "<script>",
            "</",
            "\n",
            "a ",
        ),
    ),
    "html.unescape": (html.unescape, ("&", "&#", "&a", "&notit;", "&#x110000;")),
    "limits": (
        lambda text: Limits(max_depth=3).exceeded_by(text.encode()),
        ("[", "{}", '"', '"["', "\\", '\\"[', "[]"),
    ),
    "commands.parse": (
        lambda text: parse(text, ["/fetch", "/write"]),
        ("/fetch\n", "/write\n", "```\n", "[/", "[END ", "/", " \n", "a"),
    ),
    "commands as they stream": (
        _streamed,
        ("/fetch\n", "/write a\n", "```\n", "[/", "/", " ", "\n", "[END A"),
    ),
    "run_times.parse": (
        lambda text: _refused(run_times.parse, text, 0.0),
        ("* ", "1,", " in ", "in a", "*/2,", "@", "cron ", "in ", "every ", " ", "1"),
    ),
    "intent.guess": (lambda text: guess(text, [Constitution(id="a")]), ("@a", "aaa ", "ing", "İ")),
    "matches_glob": (lambda text: agent_for_event(text, _AGENTS), ("a", "b", "[")),
    "the sentence of a wrong member": (_wrong_enum, ("a", " - at `", "`", "\n")),
    "answers.choice": (
        lambda text: choice("a" + text, Literal["red", "green"]),
        ("\u0315\u0300", "a", ". "),
    ),
    "the demo's model": (
        lambda text: reply(Prompt(model="", system="", messages=(ChatMessage(role="user", content=text),))),
        ("[/agent a]\n", "[/agent ", "\n[END AGENT]", "[/agent a]\n[END AGENT]\n", "QUERY: "),
    ),
    "gate.verdict": (lambda text: verdict(text, Advisor(model="m")), ("<signal>", "<signal>a", " ")),
    "version_of": (version_of, ("1", "1.", "v")),
}
"""Functions that read foreign text, and what is repeated in it."""


def _refused(work: Callable[..., Any], *given: Any) -> None:
    with contextlib.suppress(A2AError):
        work(*given)


@pytest.mark.parametrize(
    ("work", "again"),
    [
        pytest.param(work, again, id=f"{name}-{again!a}")
        for name, (work, units) in FUNCTIONS.items()
        for again in units
    ],
)
def test_a_function_costs_as_much_as_its_text_is_long(work: Callable[[Any], Any], again: str) -> None:
    assert_linear(work, lambda n: again * (n // len(again)), MEGABYTE // 2)
    assert_linear(work, lambda n: again * (n // len(again)) + ">\n/endwrite", MEGABYTE // 8)


@pytest.mark.parametrize("codec", sorted(set(_CODECS.values())))
@pytest.mark.parametrize("again", [b"\xff", b"\x81", b"\x1b$B", b"\xd8\x00"], ids=repr)
def test_a_codec_costs_as_much_as_its_bytes_are_many(codec: str, again: bytes) -> None:
    def work(body: bytes) -> str:
        return page_text(body, "text/plain", f"charset={codec}")

    assert_linear(work, lambda n: again * (n // len(again)), MEGABYTE // 4)


@pytest.mark.parametrize(
    "label",
    ["punycode", "idna", "utf-7", "unicode_escape", "raw_unicode_escape", "zlib", "rot13", "x" * 9999],
)
def test_a_page_chooses_no_codec_that_is_not_of_the_web(label: str) -> None:
    body = "später".encode() * 1000
    assert page_text(body, "text/plain", f"charset={label}") == body.decode()

    def work(body: bytes) -> str:
        return page_text(body, "text/html", f"charset={label}")

    assert_linear(work, lambda n: b"a" * n, MEGABYTE // 2)
