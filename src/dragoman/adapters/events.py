"""What an adapter reports of a run: events, the questions of a pause, and their answers."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dragoman.model.usage import TokenUsage


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Something that happened in a run."""


class Text(Event, frozen=True):
    """A piece of the answer. A new `message` replaces the text of the one before it: only the last is the answer."""

    text: str
    message: str = ""


class ToolCall(Event, frozen=True):
    id: str
    name: str
    arguments: Any = None


class ToolResult(Event, frozen=True):
    id: str
    name: str = ""
    result: Any = None
    failed: bool = False


class Progress(Event, frozen=True):
    """Something to report that is not the answer."""

    text: str = ""
    metadata: dict[str, Any] = {}


class File(Event, frozen=True):
    """A file that was made: its bytes or its address."""

    name: str = ""
    raw: bytes | None = None
    url: str = ""
    media_type: str = ""


class Data(Event, frozen=True):
    """The answer as JSON."""

    value: Any


class Used(Event, frozen=True):
    """What calls of models used, as it is recorded. Adapters yield the `TokenUsage` itself."""

    usage: TokenUsage


class Saved(Event, frozen=True):
    """The run can continue from here if the process dies."""

    state: Any


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a paused run wants to know. `approval`: yes or no."""

    id: str
    text: str
    approval: bool = False
    details: Any = None
    schema: Any = None
    auth: bool = False
    """The caller has to authorise something, not to answer."""


class Paused(Event, frozen=True):
    """The run waits for answers, and needs this state to continue."""

    questions: tuple[Question, ...]
    state: Any


class Finished(Event, frozen=True):
    """The run is over. The next message of the context begins with this state."""

    state: Any
    failed: str = ""
    """Why it did not succeed, in a sentence for the caller."""


RecordedEvent = Text | ToolCall | ToolResult | Progress | File | Data | Used | Saved | Paused | Finished
AnyEvent = RecordedEvent | TokenUsage


class Answer(Struct, frozen=True, kw_only=True):
    """An answer to a question."""

    text: str
    value: Any
    """Its data, else its text. For an approval: whether it was given."""
    reason: str = ""
    """Why an approval was refused, if the answer says so."""
