"""Parts, messages and tasks as code written against the SDK reads them.

Versions of the SDK differ in how members are spelled (`contextId`, `context_id`), in how parts are wrapped
(`Part(root=TextPart(...))`, `part.root.text`) and in how they are told apart. All of it is understood.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import UNSET

from dragoman.model import content, task
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskStatus

T = TypeVar("T")

_OPAQUE = ("data", "metadata")
"""Members that are JSON, and nothing of ours."""


class Spoken:
    """A value whose members can be read as the SDK spells them."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        kind, snake = type(self).__name__.removeprefix("Spoken"), snaked(name)
        if name.startswith("model_"):
            raise AttributeError(
                f"{kind} is no pydantic model: its JSON is `msgspec.to_builtins(it)`", name=name
            )
        if snake == name:
            raise AttributeError(f"{kind} has no {name}", name=name)
        return getattr(self, snake)

    def HasField(self, name: str) -> bool:
        """As protobuf's messages are asked."""
        return getattr(self, name) not in (None, UNSET, "", ())


class SpokenPart(content.Part, Spoken, frozen=True):
    """A part that is also the `root` of itself, and its own `file`."""

    def HasField(self, name: str) -> bool:
        return getattr(self, name) is not getattr(_EMPTY, name)

    def WhichOneof(self, group: str) -> str | None:
        return next((name for name in ("text", "raw", "url", "data") if self.HasField(name)), None)

    @property
    def root(self) -> SpokenPart:
        return self

    @property
    def kind(self) -> str:
        return "text" if self.text is not None else "data" if self.data is not UNSET else "file"

    @property
    def file(self) -> SpokenPart:
        if self.kind != "file":
            raise AttributeError(f"a {self.kind} part has no file")
        return self

    @property
    def bytes(self) -> str | None:
        return None if self.raw is None else base64.b64encode(self.raw).decode()

    @property
    def uri(self) -> str | None:
        return self.url

    @property
    def name(self) -> str:
        return self.filename

    @property
    def mime_type(self) -> str:
        return self.media_type


class SpokenMessage(content.Message, Spoken, frozen=True):
    pass


class SpokenArtifact(content.Artifact, Spoken, frozen=True):
    pass


class SpokenTask(task.Task, Spoken, frozen=True):
    pass


class SpokenStatus(TaskStatus, Spoken, frozen=True):
    pass


class SpokenStatusUpdate(StatusUpdate, Spoken, frozen=True):
    pass


class SpokenArtifactUpdate(ArtifactUpdate, Spoken, frozen=True):
    pass


_EMPTY = content.Part()
_SPOKEN: dict[Any, Any] = {
    content.Part: SpokenPart,
    content.Message: SpokenMessage,
    content.Artifact: SpokenArtifact,
    task.Task: SpokenTask,
    TaskStatus: SpokenStatus,
    StatusUpdate: SpokenStatusUpdate,
    ArtifactUpdate: SpokenArtifactUpdate,
}
_TO_SPOKEN = _SPOKEN | {spoken: spoken for spoken in _SPOKEN.values()}
_TO_PLAIN = {spoken: plain for plain, spoken in _SPOKEN.items()} | {plain: plain for plain in _SPOKEN}


def as_spoken(value: T) -> T:
    """`value` and all that is in it, for code that spells its members as the SDK does."""
    return cast(T, _made_of(value, _TO_SPOKEN))


def as_plain(value: T) -> T:
    """`value`, made of our own types again."""
    return cast(T, _made_of(value, _TO_PLAIN))


def _made_of(value: Any, kinds: dict[Any, Any]) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_made_of(each, kinds) for each in value)
    kind = kinds.get(type(value))
    if kind is None:
        return value
    members = {name: getattr(value, name) for name in kind.__struct_fields__}
    return kind(
        **{name: member if name in _OPAQUE else _made_of(member, kinds) for name, member in members.items()}
    )


def snaked(name: str) -> str:
    """`contextId` -> `context_id`"""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def members(kind: Any, given: dict[str, Any], unused: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a constructor of the SDK was given, as members of `kind`: in either spelling, None for nothing."""
    out = {}
    for name, value in given.items():
        snake = snaked(name)
        if snake not in kind.__struct_fields__ and snake not in unused:
            raise TypeError(f"{kind.__name__} has no {name}")
        if value is not None and snake not in unused:
            out[snake] = tuple(value) if isinstance(value, list) and snake not in _OPAQUE else value
    return out


class Kind(type):
    """A type of the SDK. Called, it makes a value of our model; asked by `isinstance`, it knows them."""

    made: type[Any]

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.made)


class Made(metaclass=Kind):
    """What a type checker takes the values for: their members are there in every spelling."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
