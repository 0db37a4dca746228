"""Parts, messages and tasks as code written against the SDK reads them.

Versions of the SDK differ in how members are spelled (`contextId`, `context_id`), in how parts are wrapped
(`Part(root=TextPart(...))`, `part.root.text`) and in how they are told apart. All of it is understood.
"""

from __future__ import annotations

import base64
from typing import Any, TypeVar, cast

from msgspec import UNSET
from msgspec.structs import replace

from dragoman.model import content, task
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskStatus

T = TypeVar("T")

_OPAQUE = ("data", "metadata")
"""Members that are JSON, and nothing of ours."""


class _Spoken:
    """A value whose members can be read as the SDK spells them."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        if snake == name:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self, snake)


class SpokenPart(content.Part, _Spoken, frozen=True):
    """A part that is also the `root` of itself, and its own `file`."""

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


class SpokenMessage(content.Message, _Spoken, frozen=True):
    pass


class SpokenArtifact(content.Artifact, _Spoken, frozen=True):
    pass


class SpokenTask(task.Task, _Spoken, frozen=True):
    pass


_SPOKEN: dict[Any, Any] = {
    content.Part: SpokenPart,
    content.Message: SpokenMessage,
    content.Artifact: SpokenArtifact,
    task.Task: SpokenTask,
}
_PLAIN: dict[Any, Any] = {spoken: plain for plain, spoken in _SPOKEN.items()}
_AROUND: dict[Any, Any] = {kind: kind for kind in (*_SPOKEN, TaskStatus, StatusUpdate, ArtifactUpdate)}


def as_spoken(value: T) -> T:
    """`value` and all that is in it, for code that spells its members as the SDK does."""
    return cast(T, _made_of(value, _AROUND | _SPOKEN))


def as_plain(value: T) -> T:
    """`value`, made of our own types again."""
    return cast(T, _made_of(value, _AROUND | _PLAIN))


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


def Part(root: content.Part | None = None, **members: Any) -> content.Part:
    """`Part(root=TextPart(text="hi"))`, `Part(TextPart(...))` or `Part(text="hi")`."""
    return root if root is not None else content.Part(**members)


class _Kind(type):
    """A kind of part: called, it makes one; asked by `isinstance`, it knows them."""

    members: tuple[str, ...]

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, content.Part) and any(
            getattr(value, member) is not getattr(_EMPTY, member) for member in cls.members
        )


_EMPTY = content.Part()


class TextPart(metaclass=_Kind):
    members = ("text",)
    kind: str
    text: str

    def __new__(cls, text: str, *, metadata: dict[str, Any] | None = None, **kind: str) -> Any:
        return content.Part(text=text, metadata=metadata or content.NOTHING)


class DataPart(metaclass=_Kind):
    members = ("data",)
    kind: str
    data: Any

    def __new__(cls, data: Any, *, metadata: dict[str, Any] | None = None, **kind: str) -> Any:
        return content.Part(data=data, metadata=metadata or content.NOTHING)


class FilePart(metaclass=_Kind):
    members = ("raw", "url")
    kind: str
    file: SpokenPart

    def __new__(cls, file: content.Part, *, metadata: dict[str, Any] | None = None, **kind: str) -> Any:
        return replace(file, metadata=metadata or content.NOTHING)


class FileWithBytes(metaclass=_Kind):
    """`bytes` is base64, as in the SDK."""

    members = ("raw",)

    def __new__(cls, bytes: str, *, name: str = "", mimeType: str = "", mime_type: str = "") -> Any:
        return content.Part(raw=base64.b64decode(bytes), filename=name, media_type=mimeType or mime_type)


class FileWithUri(metaclass=_Kind):
    members = ("url",)

    def __new__(cls, uri: str, *, name: str = "", mimeType: str = "", mime_type: str = "") -> Any:
        return content.Part(url=uri, filename=name, media_type=mimeType or mime_type)
