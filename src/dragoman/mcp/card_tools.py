"""The skills on a card as MCP tools: names, descriptions and schemas that may be shown to a model.

A card is written by somebody else, and the descriptions of tools become part of a model's prompt. So texts are cut to one line, names
have only the characters that every MCP client accepts, and schemas are copied without keywords that could make a client fetch something,
send a header, or refuse the whole list of tools.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from msgspec import Struct

from dragoman.model.card import AgentCard, Skill
from dragoman.model.content import Part, file_part
from dragoman.model.schema import SkillSchema, is_file, schemas_on
from dragoman.observe.terminal import shorten

CHECK, ANSWER, CANCEL = "check_task", "answer_task", "cancel_task"
RESERVED = frozenset({CHECK, ANSWER, CANCEL})
"""Names of this server's own tools. A skill with such an id gets another name."""

MAX_TOOLS = 128
MAX_NAME_CHARACTERS = 48
"""Clients put the name of the server before the name of a tool, and allow 64 characters in all."""
MAX_DESCRIPTION_CHARACTERS = 1_000
MAX_ANNOTATION = 300
"""Characters of a title or a description inside a schema."""
MAX_SCHEMA_BYTES = 32_000
MAX_SCHEMA_DEPTH = 16
MAX_FILE_BYTES = 16 << 20
"""Size of a file argument."""

_TEXT_MODES = ("text", "text/plain", "text/markdown")
_DATA_MODES = ("data", "application/json")
_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SCHEMAS_BY_NAME = ("properties", "$defs", "definitions", "dependentSchemas")
_REMOVED_KEYWORDS = frozenset(
    {"x-mcp-header", "$id", "$schema", "$anchor", "$dynamicRef", "$dynamicAnchor", "$comment", "examples"}
    | {"pattern", "patternProperties"}  # a regular expression from a stranger may take for ever to match
)


class _Unusable(Exception):
    """The schema cannot be shown."""


class SkillTool(Struct, frozen=True, kw_only=True):
    """One skill as a tool."""

    name: str
    title: str
    description: str
    skill: str
    """The id of the skill; empty for an agent without skills."""
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    files: frozenset[str] = frozenset()
    """The arguments that are files."""
    typed: bool = False
    """The arguments are those of the skill. Otherwise they are `text`, `files`, `data` and `context_id`."""

    def read(self, arguments: Mapping[str, Any], roots: Sequence[Path]) -> tuple[tuple[Part, ...], str]:
        """The parts of the message, and the id of the conversation. Raises ValueError for arguments that do not fit."""
        self._check(arguments)
        texts: list[Part] = []
        files: list[Part] = []
        data: dict[str, Any] = {}
        for name, value in arguments.items():
            if name in self.files:
                files += [read_file(each, roots) for each in (value if isinstance(value, list) else [value])]
            elif self.typed:
                data[name] = value
            elif name == "text":
                texts.append(Part(text=str(value)))
            elif name == "data":
                data = value if isinstance(value, dict) else {"value": value}
        context = "" if self.typed else str(arguments.get("context_id") or "")
        parts = (*texts, *files)
        if data or self.typed or not parts:
            parts = (*parts, Part(data=data, media_type="application/json"))
        return parts, context

    def _check(self, arguments: Mapping[str, Any]) -> None:
        known = self.input_schema.get("properties", {})
        if self.input_schema.get("additionalProperties") is False or not self.typed:
            for name in arguments:
                if name not in known:
                    raise ValueError(
                        f"{self.name} has no argument {name!r}: it has {', '.join(known) or 'none'}"
                    )
        if missing := [name for name in self.input_schema.get("required", ()) if name not in arguments]:
            raise ValueError(f"{self.name} needs {', '.join(missing)}")


def tools_of(card: AgentCard, roots: Sequence[Path] = ()) -> dict[str, SkillTool]:
    """The tools of a card, by name. An agent without skills is one tool."""
    schemas = schemas_on(card)
    if not card.skills:
        name = tool_name(card.name) or "ask_agent"
        name = f"ask_{name}"[:MAX_NAME_CHARACTERS] if name in RESERVED else name
        return {name: _plain_tool(name, "", card.name, card.description, card.default_input_modes, roots)}
    tools: dict[str, SkillTool] = {}
    for skill, name in name_skills(card.skills)[:MAX_TOOLS]:
        about = _describe(skill)
        modes = skill.input_modes or card.default_input_modes
        schema = schemas.get(skill.id, SkillSchema())
        tool = _typed_tool(name, skill, about, schema, roots) if schema.input is not None else None
        tools[name] = tool or _plain_tool(name, skill.id, skill.name, about, modes, roots, schema)
    return tools


def tool_name(text: str) -> str:
    """A text with the characters that tools may have in every client; empty if nothing is left."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_-")[:MAX_NAME_CHARACTERS].strip("_-")


def name_skills(skills: Sequence[Skill]) -> list[tuple[Skill, str]]:
    """Each skill with the name of its tool. The order of the skills does not matter, so a changed card swaps no names.

    If the id of a skill is a valid name, it is the name. Otherwise the id is changed, and gets a hash of the id as a suffix if another
    skill would have the same name.
    """
    by_id = {skill.id: skill for skill in reversed(skills)}  # of two with one id, the first counts
    unique = list(dict.fromkeys(skill.id for skill in skills))
    wanted = {id: tool_name(id) or tool_name(by_id[id].name) or "skill" for id in unique}
    exact = {id for id in unique if wanted[id] == id and id not in RESERVED}
    counts: dict[str, int] = {}
    for id in unique:
        counts[wanted[id].lower()] = counts.get(wanted[id].lower(), 0) + 1
    names = {id: id for id in exact}
    for id in unique:
        if id not in exact:
            name, digest = wanted[id], hashlib.sha256(id.encode()).hexdigest()
            if name in RESERVED or counts[name.lower()] > 1:
                name = f"{name[: MAX_NAME_CHARACTERS - 9]}_{digest[:8]}"
            names[id] = name if name not in names.values() else f"skill_{digest[:40]}"
    return [(by_id[id], names[id]) for id in unique]


def _describe(skill: Skill) -> str:
    about = [skill.description or skill.name]
    if skill.examples:
        about.append("For example: " + "; ".join(shorten(each, 120) for each in skill.examples[:3]))
    return " ".join(about)


def _sentence(name: str, about: str) -> str:
    """The description of a tool. Its first words say that the rest comes from another agent."""
    return shorten(
        f"Skill of another agent, which says about it: {about or name}", MAX_DESCRIPTION_CHARACTERS
    )


def _plain_tool(
    name: str,
    skill: str,
    title: str,
    about: str,
    modes: Sequence[str],
    roots: Sequence[Path],
    schema: SkillSchema | None = None,
) -> SkillTool:
    """A tool that takes a text, and files and data if the modes say so."""
    known = [mode.partition(";")[0].strip().lower() for mode in modes]
    takes_text = not known or any(mode in _TEXT_MODES or mode.startswith("text/") for mode in known)
    takes_files = any(mode not in (*_TEXT_MODES, *_DATA_MODES) for mode in known)
    takes_data = not takes_text and any(mode in _DATA_MODES for mode in known)
    if schema is not None and schema.input is not None:  # one that cannot be shown
        takes_data = True
    properties: dict[str, Any] = {}
    if takes_text or not (takes_files or takes_data):
        properties["text"] = {"type": "string", "description": "What the agent shall do, in words."}
    if takes_files:
        types = ", ".join(shorten(mode, 60) for mode in known[:12] if mode not in _TEXT_MODES)
        properties["files"] = {
            "type": "array",
            "items": file_schema(roots),
            "description": f"Files for the agent. It takes {types}.",
        }
    if takes_data:
        properties["data"] = {"type": "object", "description": "Data for the agent, as JSON."}
    needs_text = "text" in properties and len(properties) == 1
    properties["context_id"] = {
        "type": "string",
        "description": "Continues a conversation: the context_id of an earlier result.",
    }
    return SkillTool(
        name=name,
        title=shorten(title, 80),
        description=_sentence(title, about),
        skill=skill,
        input_schema={
            "type": "object",
            "properties": properties,
            "required": ["text"] if needs_text else [],
            "additionalProperties": False,
        },
        output_schema=_output_schema(schema.output) if schema is not None else None,
        files=frozenset({"files"} if takes_files else ()),
    )


def _typed_tool(
    name: str, skill: Skill, about: str, schema: SkillSchema, roots: Sequence[Path]
) -> SkillTool | None:
    """A tool with the skill's own parameters; None if its schema cannot be shown."""
    assert schema.input is not None
    given = schema.input.get("properties", {})
    if not isinstance(given, dict):
        return None
    files = frozenset(each for each, property_schema in given.items() if is_file(property_schema))
    input_schema = clean_schema(schema.input)
    if input_schema is None:
        return None
    properties = input_schema.setdefault("properties", {})
    for each in files:
        one = file_schema(roots)
        property_schema = properties.get(each, {})
        described = (
            {"description": property_schema["description"]} if "description" in property_schema else {}
        )
        several = is_file(given[each].get("items"))
        properties[each] = {"type": "array", "items": one, **described} if several else {**one, **described}
    return SkillTool(
        name=name,
        title=shorten(skill.name, 80),
        description=_sentence(skill.name, about),
        skill=skill.id,
        input_schema=input_schema,
        output_schema=_output_schema(schema.output),
        files=files,
        typed=True,
    )


def _output_schema(output: dict[str, Any] | None) -> dict[str, Any] | None:
    """The schema of `structured_content`: the state of the task, and what the skill returned once it has."""
    cleaned = clean_schema(output, any_type=True) if output is not None else None
    if cleaned is None:
        return None
    definitions: dict[str, Any] = {
        key: cleaned.pop(key) for key in ("$defs", "definitions") if key in cleaned
    }
    return {
        "type": "object",
        "properties": {
            "state": {
                "type": "string",
                "description": "State of the task: completed, working, input-required, ...",
            },
            "task_id": {"type": "string"},
            "context_id": {"type": "string"},
            "text": {"type": "string", "description": "What the agent says."},
            "note": {"type": "string", "description": "What can be done next."},
            "result": cleaned,
        },
        "required": ["state"],
        **definitions,
    }


def clean_schema(schema: Any, *, any_type: bool = False) -> dict[str, Any] | None:
    """A copy that is safe for clients and models. None if it is too large, or not the schema of an object."""
    try:
        cleaned = _clean(schema, 0)
        if not isinstance(cleaned, dict):
            return None
        if not any_type:
            if cleaned.get("type", "object") != "object":
                return None
            cleaned["type"] = "object"
        if len(msgspec.json.encode(cleaned)) > MAX_SCHEMA_BYTES:
            return None
        Draft202012Validator.check_schema(cleaned)
    except (_Unusable, SchemaError, TypeError, ValueError, RecursionError):
        return None
    return cleaned


def _clean(schema: Any, depth: int) -> Any:
    if depth > MAX_SCHEMA_DEPTH:
        raise _Unusable
    if isinstance(schema, list):
        return [_clean(each, depth + 1) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    cleaned: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _REMOVED_KEYWORDS:
            continue
        if key in _SCHEMAS_BY_NAME:
            if not isinstance(value, Mapping) or not all(_PROPERTY.fullmatch(str(name)) for name in value):
                raise _Unusable  # models refuse a list of tools with other names
            cleaned[key] = {name: _clean(each, depth + 1) for name, each in value.items()}
        elif key in ("title", "description"):
            cleaned[key] = shorten(str(value), MAX_ANNOTATION)
        elif key == "$ref":
            if not isinstance(value, str) or not value.startswith("#/"):
                raise _Unusable  # a client could fetch it
            cleaned[key] = value
        elif key in ("enum", "const", "default", "required"):
            cleaned[key] = value
        else:
            cleaned[key] = _clean(value, depth + 1)
    return cleaned


# -- files -----------------------------------------------------------------------------------------------------------


def file_schema(roots: Sequence[Path]) -> dict[str, Any]:
    """The schema of a file argument."""
    properties: dict[str, Any] = {
        "name": {"type": "string", "description": "Its name, such as report.pdf."},
        "media_type": {"type": "string"},
        "text": {"type": "string", "description": "Its content, if it is text."},
        "base64": {"type": "string", "description": "Its content in base64."},
        "url": {"type": "string", "description": "Where the agent can fetch it."},
    }
    ways = "text, base64 or url"
    if roots:
        places = ", ".join(map(str, roots))
        properties["path"] = {"type": "string", "description": f"Path of a file below {places}."}
        ways = "text, base64, url or path"
    return {
        "type": "object",
        "description": f"A file: give one of {ways}.",
        "properties": properties,
        "additionalProperties": False,
    }


def read_file(value: Any, roots: Sequence[Path]) -> Part:
    """A file argument as a part. Raises ValueError."""
    if isinstance(value, str):
        if value.startswith("data:"):
            return _data_url(value)
        value = {"url": value} if "://" in value else {"path": value}
    if not isinstance(value, Mapping):
        raise ValueError("a file is an object with one of text, base64 and url")
    given = [key for key in ("text", "base64", "url", "path") if value.get(key) is not None]
    if len(given) != 1:
        raise ValueError("a file has exactly one of text, base64 and url" + (" and path" if roots else ""))
    name, media_type = str(value.get("name") or ""), str(value.get("media_type") or "")
    content = str(value[given[0]])
    match given[0]:
        case "text":
            return file_part(
                content.encode(), name=name, media_type=media_type or ("" if name else "text/plain")
            )
        case "base64":
            try:
                return file_part(b64decode(content, validate=True), name=name, media_type=media_type)
            except ValueError:
                raise ValueError("the file's base64 cannot be decoded") from None
        case "url":
            if not content.startswith(("http://", "https://")):
                raise ValueError("the url of a file begins with https:// or http://")
            return file_part(content, name=name, media_type=media_type)
    return file_part(_allowed_path(content, roots), name=name, media_type=media_type)


def _allowed_path(text: str, roots: Sequence[Path]) -> Path:
    """A file below one of the folders that the user allowed: a prompt injection may ask for a private file. Raises ValueError."""
    if not roots:
        raise ValueError(
            "files are not read from this machine: give text or base64, or start with --files FOLDER"
        )
    path = Path(text).expanduser()
    for root in roots:
        real = (path if path.is_absolute() else root / path).resolve()
        if real.is_relative_to(root.resolve()) and real.is_file():
            if real.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"{real.name} is larger than {MAX_FILE_BYTES >> 20} MiB")
            return real
    raise ValueError(f"there is no file {text!r} below {', '.join(map(str, roots))}")


def _data_url(url: str) -> Part:
    head, comma, body = url.removeprefix("data:").partition(",")
    if not comma:
        raise ValueError("a data: URL needs a comma")
    media_type = head.removesuffix(";base64")
    try:
        raw = (
            b64decode(unquote_to_bytes(body), validate=True)
            if head.endswith(";base64")
            else unquote_to_bytes(body)
        )
    except ValueError:
        raise ValueError("the file's base64 cannot be decoded") from None
    return file_part(raw, media_type=media_type or "text/plain")
