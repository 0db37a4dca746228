"""The questions of MCP servers (elicitation), as questions of a turn to its caller.

A form becomes a structured question with the form's schema: the caller answers with data, or, if the form has one field, with text.
A URL to visit becomes `auth-required`. "decline" and "cancel" are answers, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dragoman.engine.recorded import Recorded
from dragoman.mcp.schema import check_value
from dragoman.model.answers import yes_or_no
from dragoman.model.content import Message
from dragoman.model.task import TaskState
from dragoman.observe.terminal import one_line, sanitize

MAX_QUESTION_CHARACTERS = 4000
MAX_FIELDS = 100
_DECLINE = {"decline": "decline", "declined": "decline", "refuse": "decline", "cancel": "cancel"}


class ElicitAnswer(Struct, frozen=True):
    """The answer to a question of a server."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


async def ask_caller(record: Recorded, params: dict[str, Any], key: str, server: str) -> ElicitAnswer:
    """Ask the caller what a server wants to know. Raises `Parked`."""
    message = sanitize(str(params.get("message", "")))[:MAX_QUESTION_CHARACTERS] or f"{server} asks"
    if params.get("mode") == "url":
        url = one_line(str(params.get("url", "")))[:2000]
        if not url.startswith(("https://", "http://")):
            return ElicitAnswer(action="cancel")
        text = f"{message}\n{url}"
        reply = await record.ask(TaskState.AUTH_REQUIRED, text, Message, key, {})
        answer_text = reply.text.strip().lower()
        refused = _DECLINE.get(answer_text) or ("decline" if yes_or_no(answer_text) is False else "")
        return ElicitAnswer(action=refused or "accept")  # type: ignore[arg-type]
    schema = params.get("requestedSchema") or {}
    fields = list(_fields(schema))
    if fields:
        message = "\n".join([message, *fields])
    answer: ElicitAnswer = await record.ask(TaskState.INPUT_REQUIRED, message, form_of(schema), key, {})
    return answer


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    """A line for each field of a form that has several."""
    properties = schema.get("properties") or {}
    if len(properties) < 2:
        return
    required = schema.get("required") or ()
    for name, about in list(properties.items())[:MAX_FIELDS]:
        about = about if isinstance(about, dict) else {}
        words = [one_line(str(about.get("description") or about.get("title") or ""))[:200]]
        if choices := about.get("enum"):
            words.append("one of " + ", ".join(one_line(str(each)) for each in choices[:50])[:500])
        if name not in required:
            words.append("optional")
        detail = ", ".join(filter(None, words))
        yield f"- {one_line(name)[:100]}{f': {detail}' if detail else ''}"


def form_of(schema: dict[str, Any]) -> Any:
    """A type whose JSON Schema is that of a form, for `turn.ask`: an answer that fits is an `ElicitAnswer`."""
    properties: dict[str, Any] = schema.get("properties") or {}

    class Form:
        model_fields = properties

        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return schema

        @classmethod
        def model_validate(cls, value: Any) -> ElicitAnswer:
            """Raises `ValueError`, and the question is asked again."""
            if isinstance(value, str) and (action := _DECLINE.get(value.strip().lower())):
                return ElicitAnswer(action=action)  # type: ignore[arg-type]
            if isinstance(value, dict) and "action" in value and "action" not in properties:
                return msgspec.convert(value, ElicitAnswer)
            content = value if isinstance(value, dict) else _only_field(value)
            if wrong := check_value(schema, content):
                raise ValueError(wrong)
            return ElicitAnswer(action="accept", content=content)

    def _only_field(value: Any) -> dict[str, Any]:
        """A value without a field name as the form's content, if it can only be for one field."""
        if not properties:
            answer_text = yes_or_no(value) if isinstance(value, str) else value
            if answer_text is True:
                return {}
            raise ValueError("answer yes, or decline")
        required = [name for name in properties if name in (schema.get("required") or ())]
        names = required if len(required) == 1 else list(properties)
        if len(names) != 1:
            raise ValueError("send data with the fields")
        kind = properties[names[0]].get("type") if isinstance(properties[names[0]], dict) else None
        if kind == "boolean" and isinstance(value, str) and (answer_text := yes_or_no(value)) is not None:
            value = answer_text
        elif kind == "string" and not isinstance(value, str):  # `12345` was read as a number
            value = msgspec.json.encode(value).decode()
        return {names[0]: value}

    return Form
