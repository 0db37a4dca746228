"""A question of an agent as an MCP form, and the filled-in form as the answer.

A form of MCP is flat: each field is a text, a number, a yes or no, or a choice. A question whose answer has another shape
becomes a field for JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.mcp.card_tools import MAX_ANNOTATION, clean_schema
from dragoman.model.content import Part
from dragoman.model.questions import AskedQuestion
from dragoman.observe.terminal import sanitize, shorten

MAX_QUESTION_CHARACTERS, MAX_APPROVAL_CHARACTERS = 2_000, 200_000
"""Characters of a question, and of a question for an approval, which a person has to see completely."""
MAX_FIELDS = 20
_FORMATS = ("email", "uri", "date", "date-time")
_LIMITS = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
}


class Form(Struct, frozen=True, kw_only=True):
    """A form for the user, and how its content becomes the answer."""

    message: str
    schema: dict[str, Any]
    json: frozenset[str] = frozenset()
    """Fields whose text is JSON."""
    kind: str = "text"
    """`text`: the field `answer` is the answer. `value`: the same, as data. `object`: the fields are."""

    def read(self, content: Mapping[str, Any] | None) -> tuple[Part, ...]:
        """The answer as parts of a message."""
        given = {name: value for name, value in (content or {}).items() if value is not None}
        for name in self.json & given.keys():
            try:
                given[name] = msgspec.json.decode(str(given[name]).encode())
            except msgspec.DecodeError:
                given[name] = str(given[name])  # not JSON: the agent refuses it and says what it needs
        match self.kind:
            case "text":
                return (Part(text=str(given.get("answer", ""))),)
            case "value":
                value = given.get("answer")
                return (Part(text=value),) if isinstance(value, str) else (Part(data=value),)
            case "approval":
                return (Part(data={"comment": "", **given}),)
        return (Part(data=given, media_type="application/json"),)


def form_for(text: str, questions: Sequence[AskedQuestion]) -> Form:
    """The form of a question. `text` is what the agent says; `questions` are the structured form, if it has one."""
    message = _message(text, questions) or "The agent asks for input."
    if len(questions) > 1:
        return _form_of_several(message, questions[:MAX_FIELDS])
    question = questions[0] if questions else AskedQuestion()
    if question.approval:
        fields: dict[str, Any] = {
            "approved": {"type": "boolean", "title": "Approve"},
            "comment": {"type": "string", "title": "Comment"},
        }
        return Form(message=message, schema=_object(fields, ["approved"]), kind="approval")
    if question.schema is None:
        return Form(
            message=message, schema=_object({"answer": {"type": "string", "title": "Answer"}}, ["answer"])
        )
    schema = clean_schema(question.schema, any_type=True) or {}
    root = _resolve(schema, schema)
    if root.get("type") == "object" and (flat := _flat_fields(root, schema)) is not None:
        required = [name for name in root.get("required", ()) if name in flat]
        return Form(message=message, schema=_object(flat, required), kind="object")
    field = _field(root, schema)
    if field is not None:
        return Form(
            message=message,
            schema=_object({"answer": {"title": "Answer", **field}}, ["answer"]),
            kind="value",
        )
    return Form(
        message=message,
        schema=_object({"answer": _json_field(schema, "Answer")}, ["answer"]),
        json=frozenset({"answer"}),
        kind="value",
    )


def _form_of_several(message: str, questions: Sequence[AskedQuestion]) -> Form:
    fields: dict[str, Any] = {}
    as_json = set()
    for question in questions:
        schema = clean_schema(question.schema, any_type=True) if question.schema is not None else None
        label = shorten(question.text, MAX_ANNOTATION)
        field: dict[str, Any] | None = {"type": "string"}
        if question.approval:
            field = {"type": "boolean"}
        elif schema is not None:
            field = _field(_resolve(schema, schema), schema)
        if field is None:
            as_json.add(question.key)
            field = _json_field(schema or {}, label)
        fields[question.key] = {"title": shorten(question.key, 80), **field, "description": label}
    return Form(message=message, schema=_object(fields, list(fields)), json=frozenset(as_json), kind="object")


def _object(fields: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": required}


def _flat_fields(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any] | None:
    """The properties of an object as fields; None if one of them cannot be a field."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties or len(properties) > MAX_FIELDS:
        return None
    fields = {name: _field(_resolve(each, root), root) for name, each in properties.items()}
    return None if None in fields.values() else fields


def _field(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any] | None:
    """A schema as a field of a form; None if it cannot be one."""
    for choice in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(choice), list):
            real = [_resolve(each, root) for each in options if _resolve(each, root).get("type") != "null"]
            return _field({**real[0], **_texts(schema)}, root) if len(real) == 1 else None
    enum = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if enum is not None:
        if not all(isinstance(each, str) for each in enum):
            return None
        return {"type": "string", "enum": enum, **_texts(schema)}
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _LIMITS:
        return None
    field = {"type": kind, **_texts(schema)}
    for limit in _LIMITS[kind]:
        if isinstance(schema.get(limit), int | float):
            field[limit] = schema[limit]
    if kind == "string" and schema.get("format") in _FORMATS:
        field["format"] = schema["format"]
    if isinstance(schema.get("default"), str | int | float | bool):
        field["default"] = schema["default"]
    return field


def _json_field(schema: dict[str, Any], label: str) -> dict[str, Any]:
    shape = shorten(msgspec.json.encode(schema).decode(), 1_000)
    return {"type": "string", "title": label, "description": f"JSON that fits {shape}"}


def _texts(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in ("title", "description") if isinstance(schema.get(key), str)}


def _resolve(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Follow references inside the schema, a few steps."""
    for _ in range(8):
        if not isinstance(schema, dict):
            return {}
        if not isinstance(ref := schema.get("$ref"), str):
            return schema
        found: Any = root
        for step in ref.removeprefix("#/").split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        schema = {**found, **_texts(schema)} if isinstance(found, dict) else {}
    return {}


def _message(text: str, questions: Sequence[AskedQuestion]) -> str:
    """The text of a form. It keeps its lines, because a user reads it in a window that says who asks.

    For an approval it includes the details of the question. If it is cut, it says so.
    """
    text, limit = sanitize(text).strip(), MAX_QUESTION_CHARACTERS
    for question in questions:
        if question.approval:
            limit = MAX_APPROVAL_CHARACTERS
            text += "" if question.details is None else f"\n\n{_show(question.details)}"
    if len(text) <= limit:
        return text
    note = f"… (the question has {len(text)} characters; the rest is not shown)"
    return text[: limit - len(note)] + note


def _show(details: Any) -> str:
    """Details as JSON, with invisible characters as escapes."""
    text = msgspec.json.format(msgspec.json.encode(details), indent=2).decode()
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
