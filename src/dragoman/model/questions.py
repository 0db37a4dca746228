"""Structured questions: what an agent asks, as data beside the text.

The message of an `input-required` status has the questions in its metadata, under the URI of the extension. A caller answers with
text, with a data part that fits the schema, or, if there are several, with a data part that has the answers by key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.model.answers import hint, yes_or_no
from dragoman.model.content import NOTHING, Message, Part, Wire, plain
from dragoman.model.schema import json_schema
from dragoman.model.values import Unfit, answer_as, convert, convert_text

QUESTIONS = "urn:dragoman:extension:questions:v1"
"""The URI of the extension, and the key of its data in metadata. See `docs/extensions.md`."""


class Approval(Wire, frozen=True):
    """The answer to `turn.approve`. It is true if the caller agrees."""

    approved: bool
    comment: str = ""
    """What the caller said beside no."""

    def __bool__(self) -> bool:
        return self.approved


class Ask(msgspec.Struct, frozen=True):
    """One of the questions of `turn.ask_all`. `kind` is what the answer shall be."""

    text: str
    kind: Any = str
    details: Any = None
    """What the question is about: JSON, or a dataclass or model."""


class AskedQuestion(Wire, frozen=True):
    """A question as it is on the wire."""

    key: str = ""
    text: str = ""
    schema: dict[str, Any] | None = None
    """The JSON Schema of the answer; None: any text."""
    approval: bool = False
    """Yes or no is wanted."""
    details: Any = None


def describe(key: str, text: str, kind: Any, details: Any = None) -> AskedQuestion:
    approval = kind is Approval
    schema = json_schema(bool if approval else kind) if kind not in (str, Message, Part) else None
    about = None if details is None else plain(details)
    return AskedQuestion(key=key, text=text, schema=schema, approval=approval, details=about)


def with_questions(message: Message, questions: Sequence[AskedQuestion]) -> Message:
    """The message with `questions` in its metadata."""
    about = {**message.metadata, QUESTIONS: {"questions": msgspec.to_builtins(questions)}}
    extensions = tuple(dict.fromkeys((*message.extensions, QUESTIONS)))
    return replace(message, metadata=about, extensions=extensions)


class _Asked(Wire, frozen=True):
    questions: tuple[AskedQuestion, ...] = ()


def questions_in(metadata: Mapping[str, Any]) -> tuple[AskedQuestion, ...]:
    """The questions that the metadata of a message has."""
    found = metadata.get(QUESTIONS)
    if found is None:
        return ()
    try:
        return msgspec.convert(found, _Asked, strict=False).questions
    except msgspec.ValidationError:
        return ()


# -- answers -------------------------------------------------------------------------------------------------------


def read_answer(kind: Any, message: Message) -> Any:
    """What a message says, as `kind`. Raises `Unfit`."""
    if kind is not Approval:
        return answer_as(kind, message)
    return _approval(message.data if message.data is not None else message.text)


def read_value(kind: Any, value: Any) -> Any:
    """One value of a data part that has several answers, as `kind`. Raises `Unfit`."""
    if kind is Approval:
        return _approval(value)
    if isinstance(value, str) and kind is not str:
        return convert_text(value, kind)
    return value if kind is str and isinstance(value, str) else convert(value, kind)


_CLAUSE = re.compile(r"[,.;:!\n–—-]")


def _approval(value: Any) -> Approval:
    if isinstance(value, bool):
        return Approval(approved=value)
    if isinstance(value, dict):
        return convert(value, Approval)  # type: ignore[no-any-return]
    if isinstance(value, str):
        if (answer := yes_or_no(value)) is not None:
            return Approval(approved=answer)
        first, *rest = (each.strip() for each in _CLAUSE.split(value.strip(), maxsplit=1))
        if rest and yes_or_no(first) is False:  # after yes, the rest may be a condition
            return Approval(approved=False, comment=rest[0])
    raise Unfit("neither yes nor no")


def hint_for(kind: Any, wrong: str = "") -> str:
    """One sentence about which answers fit."""
    return hint(bool if kind is Approval else kind, wrong)


class Answers:
    """The answers to several questions, as messages bring them."""

    def __init__(self, questions: Mapping[str, Ask]) -> None:
        self.questions = questions
        self.values: dict[str, Any] = {}
        self._hints: dict[str, str] = {}

    @property
    def open(self) -> list[str]:
        """The keys of the questions that have no answer yet."""
        return [key for key in self.questions if key not in self.values]

    def take(self, message: Message) -> None:
        """Take a data part as answers by key, anything else as the answer to the first question that has none."""
        self._hints = {}
        data, first = message.data, self.open[0]
        if isinstance(data, dict) and any(key in self.questions for key in data):
            for key in self.open:
                if key in data:
                    self._read(key, lambda kind, value=data[key]: read_value(kind, value))
        else:
            self._read(first, lambda kind: read_answer(kind, message))

    def _read(self, key: str, read: Any) -> None:
        kind = self.questions[key].kind
        try:
            self.values[key] = read(kind)
        except Unfit as error:
            self._hints[key] = hint_for(kind, str(error))

    def message(self) -> Message:
        """What to ask now: the questions without an answer."""
        keys = self.open
        lines = [self._line(key) for key in keys]
        text = lines[0] if len(keys) == 1 else "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1))
        asked = [describe(key, ask.text, ask.kind, ask.details) for key, ask in self._of(keys)]
        details = {key: plain(ask.details) for key, ask in self._of(keys) if ask.details is not None}
        parts = (Part(text=text), *((Part(data=details),) if details else ()))
        return with_questions(Message(message_id="", parts=parts, metadata=NOTHING), asked)

    def _of(self, keys: Sequence[str]) -> list[tuple[str, Ask]]:
        return [(key, self.questions[key]) for key in keys]

    def _line(self, key: str) -> str:
        text = self.questions[key].text
        return f"{text} ({self._hints[key]})" if key in self._hints else text
