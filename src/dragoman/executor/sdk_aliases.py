"""Cards, parts, messages and tasks with the members that they have in the SDK, in the spelling of every version.

Versions of the SDK differ in how members are spelled (`contextId`, `context_id`), in how parts are wrapped
(`Part(root=TextPart(...))`, `part.root.text`) and in how the kind of a part is found. All of these work. Values can be changed, as
those of the SDK, until they are put on a queue or given to an agent: then they are converted to types of `dragoman.model`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import msgspec
from msgspec import UNSET

from dragoman.model import card, content, task
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskStatus

T = TypeVar("T")

_OPAQUE = ("data", "metadata")
"""Members that are plain JSON: they are not converted."""


class SdkValue:
    """A value whose members have the names of every version of the SDK."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        kind, snake = type(self).__name__.removeprefix("Sdk"), snake_case(name)
        if name.startswith("model_dump"):
            raise AttributeError(
                f"{kind} is no pydantic model: its JSON is `msgspec.to_builtins(it)`", name=name
            )
        if snake == name:
            raise AttributeError(f"{kind} has no {name}", name=name)
        return getattr(self, snake)

    def HasField(self, name: str) -> bool:
        """The method of protobuf messages."""
        return getattr(self, name) not in (None, UNSET, "", (), [])

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Any:
        """The method of pydantic models."""
        copy = to_sdk(self)
        for name, value in (update or {}).items():
            setattr(copy, snake_case(name), value)
        return copy

    def CopyFrom(self, other: Any) -> None:
        """The method of protobuf messages."""
        for name in self.__struct_fields__:
            setattr(self, name, to_sdk(getattr(other, name)))


class SdkPart(content.Part, SdkValue, frozen=False):  # type: ignore[misc]
    """A part. It is also its own `root` and its own `file`, as in 0.2 and 0.3."""

    def HasField(self, name: str) -> bool:
        return getattr(self, name) is not getattr(_EMPTY, name)

    def WhichOneof(self, group: str) -> str | None:
        return next((name for name in ("text", "raw", "url", "data") if self.HasField(name)), None)

    @property
    def root(self) -> SdkPart:
        return self

    @property
    def kind(self) -> str:
        return "text" if self.text is not None else "data" if self.data is not UNSET else "file"

    @property
    def file(self) -> SdkPart:
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


class SdkInterface(card.Interface, SdkValue, frozen=False):  # type: ignore[misc]
    @property
    def transport(self) -> str:
        return self.protocol_binding


class SdkCard(card.AgentCard, SdkValue, frozen=False, dict=True, gc=True):  # type: ignore[misc]
    """A card with the members of every version. Those that 1.0 does not have can be read, and have no effect."""

    def __getattr__(self, name: str) -> Any:
        return None if snake_case(name) in LEGACY else super().__getattr__(name)


LEGACY = ("url", "preferred_transport", "additional_interfaces", "protocol_version", "security", "authentication",
          "supports_authenticated_extended_card", "handler")  # fmt: skip
"""Members of older cards, and the handler that serves the card."""

_EMPTY = content.Part()
_SAME: tuple[Any, ...] = (
    card.Skill, card.Extension, card.Capabilities, card.Provider, content.Message, content.Artifact, task.Task, TaskStatus,
    StatusUpdate, ArtifactUpdate,
)  # fmt: skip
"""Types of `dragoman.model` whose members differ only in their spelling."""
_SDK_OF: dict[Any, Any] = {card.Interface: SdkInterface, card.AgentCard: SdkCard, content.Part: SdkPart} | {
    kind: type(kind)(f"Sdk{kind.__name__}", (kind, SdkValue), {}, frozen=False) for kind in _SAME
}
_TO_SDK = _SDK_OF | {sdk: sdk for sdk in _SDK_OF.values()}
_TO_MODEL = {sdk: plain for plain, sdk in _SDK_OF.items()} | {plain: plain for plain in _SDK_OF}


def to_sdk(value: T) -> T:
    """`value`, with all values in it, as types of the SDK."""
    return cast(T, _convert(value, _TO_SDK))


def to_model(value: T) -> T:
    """`value`, with all values in it, as types of `dragoman.model`."""
    return cast(T, _convert(value, _TO_MODEL))


def _convert(value: Any, kinds: dict[Any, Any]) -> Any:
    if isinstance(value, tuple | list):
        many = [_convert(each, kinds) for each in value]
        return many if kinds is _TO_SDK else tuple(many)
    kind = kinds.get(type(value))
    if kind is None:
        return value
    members = {name: getattr(value, name) for name in kind.__struct_fields__}
    for name, member in members.items():
        if name not in _OPAQUE:
            members[name] = _convert(member, kinds)
    sdk = kinds is _TO_SDK
    if "metadata" in members:  # executors change it in place; the model shares one empty value
        members["metadata"] = (
            dict(members["metadata"] or ()) if sdk else members["metadata"] or content.NOTHING
        )
    made = kind(**members)
    if sdk and isinstance(value, SdkCard):
        vars(made).update(vars(value))
    return made


def snake_case(name: str) -> str:
    """`contextId` -> `context_id`"""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def members(kind: Any, given: dict[str, Any], unused: tuple[str, ...] = ()) -> dict[str, Any]:
    """The arguments of a constructor of the SDK as members of `kind`. They may have either spelling; None is left out."""
    out = {}
    for name, value in given.items():
        snake = snake_case(name)
        if snake not in kind.__struct_fields__ and snake not in unused:
            raise TypeError(f"{kind.__name__} has no {name}")
        if value is not None and snake not in unused:
            out[snake] = tuple(value) if isinstance(value, list) and snake not in _OPAQUE else value
    return out


class SdkMeta(type):
    """A type of the SDK. A call creates a value of `dragoman.model`, and `isinstance` is true for such values."""

    made: type[Any]

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.made)


class SdkType(metaclass=SdkMeta):
    """For type checkers: the values have their members in every spelling."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    also: ClassVar[tuple[str, ...]] = ()
    """Members of the SDK's type that are ignored."""

    @classmethod
    def model_validate(cls, value: Any, **how: Any) -> Any:
        """A value of this type, or its JSON. Unknown members are ignored, as in the SDK."""
        if isinstance(value, cls):
            return to_sdk(value)
        if not isinstance(value, Mapping):
            raise TypeError(f"{cls.__name__} is an object, not {value!r:.80}")
        known = {*cls.made.__struct_fields__, *cls.also}
        return cls(**{name: each for name, each in value.items() if snake_case(name) in known})

    @classmethod
    def model_validate_json(cls, text: str | bytes, **how: Any) -> Any:
        return cls.model_validate(msgspec.json.decode(text))


def read_each(kind: type[SdkType], values: Any) -> list[Any]:
    """Values of a type; each may be given as JSON."""
    return [read_as(kind, value) for value in values or ()]


def read_as(kind: type[SdkType], value: Any) -> Any:
    return kind.model_validate(value) if isinstance(value, Mapping) else value
