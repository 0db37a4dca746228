"""What is said: parts, messages, artifacts, and Python values as parts."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Struct, StructMeta
from msgspec.structs import replace

from dragoman.model.ids import new_id

S = TypeVar("S", bound=Struct)


class Wire(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """A frozen value whose own JSON encoding is A2A 1.0's."""


class _Nothing(dict[str, Any]):
    def _refuse(self, *args: Any, **named: Any) -> NoReturn:
        raise TypeError("what was said cannot be changed: make a copy with `msgspec.structs.replace`")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = _refuse
    pop = popitem = clear = _refuse


NOTHING: dict[str, Any] = _Nothing()
"""No metadata. One for all: a dictionary of its own for each piece of a stream would be a third of what it weighs."""


class Role(str, Enum):
    UNSPECIFIED = "ROLE_UNSPECIFIED"
    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"

    @property
    def word(self) -> str:
        """As the versions before 1.0 spell it: `user`."""
        return self.value[5:].lower()

    @classmethod
    def _missing_(cls, value: object) -> Role | None:
        """That spelling is read, and never written: callers mix them."""
        return {"user": cls.USER, "agent": cls.AGENT}.get(value) if isinstance(value, str) else None


class Part(Wire, frozen=True, kw_only=True):
    """One piece of content: exactly one of `text`, `raw` (bytes), `url` and `data` (any JSON value, null included)."""

    text: str | None = None
    raw: bytes | None = None
    url: str | None = None
    data: Any = UNSET
    media_type: str = ""
    filename: str = ""
    metadata: dict[str, Any] = NOTHING

    @property
    def contents(self) -> int:
        """How many content members are set. Anything but 1 is malformed."""
        return (
            (self.text is not None)
            + (self.raw is not None)
            + (self.url is not None)
            + (self.data is not UNSET)
        )


class _WithParts(Wire, frozen=True, kw_only=True):
    """What has parts: a message, an artifact."""

    if TYPE_CHECKING:
        parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return text_of(self.parts)

    @property
    def data(self) -> Any:
        """The value of the first data part; None when there is none."""
        return data_of(self.parts)

    @property
    def files(self) -> tuple[Part, ...]:
        return files_of(self.parts)


class _MadeHere(StructMeta):
    """Fills in what a message that is made by hand may leave out. One that is read from a wire may not."""

    def __call__(cls, *args: Any, **members: Any) -> Any:
        if args:
            if len(args) > 1 or not isinstance(args[0], str) or "parts" in members:
                raise TypeError('a message is Message("text"), or Message(parts=[...])')
            members["parts"] = (Part(text=args[0]),)
        elif type(parts := members.get("parts", ())) is not tuple or not parts or type(parts[0]) is str:
            members["parts"] = _read_parts(parts)
        if "message_id" not in members:
            members["message_id"] = new_id()
        if "role" not in members:
            members["role"] = Role.USER
        return super().__call__(**members)


def _read_parts(given: Any) -> tuple[Part, ...]:
    """The parts of a message that is made by hand: any iterable of parts and texts."""
    if isinstance(given, str | bytes | Part) or not isinstance(given, Iterable):
        raise TypeError(f"parts of a message are a list, not {type(given).__name__}")
    parts = [Part(text=part) if isinstance(part, str) else part for part in given]
    for part in parts:
        if not isinstance(part, Part):
            raise TypeError(f"a part of a message is a Part or a text, not {type(part).__name__}")
    return tuple(parts)


class Message(_WithParts, frozen=True, kw_only=True, metaclass=_MadeHere):
    """One communication between a client (`USER`) and an agent (`AGENT`).

    `Message("text")` and `Message(parts=[...])` make one. Without an id it gets a new one, and without a role it is a
    client's. Without parts it is empty, for `send(message, files=[...])`: an agent refuses a message that is sent so.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            text: str = "",
            /,
            *,
            message_id: str = "",
            role: Role = Role.USER,
            parts: Iterable[Part | str] = (),
            context_id: str = "",
            task_id: str = "",
            metadata: dict[str, Any] = NOTHING,
            extensions: tuple[str, ...] = (),
            reference_task_ids: tuple[str, ...] = (),
        ) -> None: ...

    message_id: str
    role: Role
    parts: tuple[Part, ...]
    context_id: str = ""
    task_id: str = ""
    metadata: dict[str, Any] = NOTHING
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()

    def for_task(self, task: str, context: str) -> Message:
        """The message for a task and a conversation (empty: whatever it says itself). Raises `ValueError` if it names
        others."""
        for given, own, what in ((task, self.task_id, "task"), (context, self.context_id, "context")):
            if given and own and given != own:
                raise ValueError(
                    f"the message says {what}_id={own!r}, and {what}={given!r} was given with it"
                )
        if (task or self.task_id, context or self.context_id) == (self.task_id, self.context_id):
            return self
        return replace(self, task_id=task or self.task_id, context_id=context or self.context_id)


class Artifact(_WithParts, frozen=True, kw_only=True):
    """Something a task produced. Chunks that share an id build up one artifact."""

    artifact_id: str
    parts: tuple[Part, ...]
    name: str = ""
    description: str = ""
    metadata: dict[str, Any] = NOTHING
    extensions: tuple[str, ...] = ()

    def extended_by(self, chunk: Artifact) -> Artifact:
        return replace(
            self,
            parts=self.parts + chunk.parts,
            name=chunk.name or self.name,
            description=chunk.description or self.description,
            metadata={**self.metadata, **chunk.metadata} if chunk.metadata else self.metadata,
            extensions=tuple(dict.fromkeys(self.extensions + chunk.extensions)),
        )


def text_of(parts: tuple[Part, ...]) -> str:
    if len(parts) == 1:
        return parts[0].text or ""
    return "".join([part.text for part in parts if part.text is not None])


def data_of(parts: tuple[Part, ...]) -> Any:
    for part in parts:
        if part.data is not UNSET:
            return part.data
    return None


def files_of(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(part for part in parts if part.raw is not None or part.url is not None)


class GrowingArtifact:
    """An artifact as its chunks arrive; what grows is changed in place, so that a thousand chunks are not a thousand
    copies."""

    __slots__ = ("_extensions", "_head", "_metadata", "_whole", "parts")

    def __init__(self, artifact: Artifact) -> None:
        self._head = artifact
        self._whole: Artifact | None = artifact
        """The artifact as it is now, if it was made since it last grew."""
        self._metadata: dict[str, Any] | None = None
        self._extensions: dict[str, None] | None = None
        self.parts = list(artifact.parts)

    def extend(self, chunk: Artifact) -> None:
        self._whole = None
        for part in chunk.parts:
            if part.text != "":  # which only says that it was the last
                self.parts.append(part)
        if chunk.name or chunk.description:
            head = self._head
            self._head = replace(
                head,
                name=chunk.name or head.name,
                description=chunk.description or head.description,
                parts=(),
            )
        if chunk.metadata:
            if self._metadata is None:
                self._metadata = dict(self._head.metadata)
            self._metadata.update(chunk.metadata)
        if chunk.extensions:
            if self._extensions is None:
                self._extensions = dict.fromkeys(self._head.extensions)
            self._extensions.update(dict.fromkeys(chunk.extensions))

    def copy_to(self, new: GrowingArtifact) -> None:
        """Make `new` the same artifact, which then grows by itself."""
        new._head, new._whole, new.parts = self._head, self._whole, self.parts[:]
        new._metadata = None if self._metadata is None else self._metadata.copy()
        new._extensions = None if self._extensions is None else self._extensions.copy()

    @property
    def head(self) -> Artifact:
        """The artifact without its parts."""
        return self._with(())

    def artifact(self) -> Artifact:
        if self._whole is None:
            self._whole = self._with(tuple(self.parts))
        return self._whole

    def _with(self, parts: tuple[Part, ...]) -> Artifact:
        head = self._head
        return replace(
            head,
            parts=parts,
            metadata=head.metadata if self._metadata is None else dict(self._metadata),
            extensions=head.extensions if self._extensions is None else tuple(self._extensions),
        )


# -- Python values as content -----------------------------------------------------------------------------------------


def file_part(
    source: str | PathLike[str] | bytes | bytearray, *, name: str = "", media_type: str = ""
) -> Part:
    """A file: from bytes, from a path, or by its URL (which whoever gets it fetches)."""
    if isinstance(source, bytes | bytearray):
        kind = media_type or _guess(name) or "application/octet-stream"
        return Part(raw=bytes(source), filename=name, media_type=kind)
    if isinstance(source, str) and "://" in source:
        name = name or urlsplit(source).path.rpartition("/")[2]
        return Part(url=source, filename=name, media_type=media_type or _guess(name))
    path = Path(source)
    name = name or path.name
    kind = media_type or _guess(name) or "application/octet-stream"
    return Part(raw=path.read_bytes(), filename=name, media_type=kind)


def _guess(name: str) -> str:
    return mimetypes.guess_type(name)[0] or ""


def part_of(value: Any, media_type: str = "") -> Part:
    """Text is text, bytes are a file, a part is itself; anything else is data. Raises TypeError."""
    if isinstance(value, str):
        return Part(text=value, media_type=media_type)
    if isinstance(value, Part):
        return _check_part(value)
    if isinstance(value, bytes | bytearray):
        return Part(raw=bytes(value), media_type=media_type or "application/octet-stream")
    return Part(data=plain(value), media_type=media_type)


def parts_of(value: Any) -> tuple[Part, ...]:
    """What a value says: a list with parts in it is each of its members, anything else is one part."""
    if isinstance(value, list | tuple) and any(isinstance(member, Part) for member in value):
        return tuple(part_of(member) for member in value)
    return (part_of(value),)


def _check_part(part: Part) -> Part:
    """A part that was made by hand: what is wrong with it shall be said where it was made."""
    if part.contents != 1:
        raise TypeError("a part has one of text, raw, url and data")
    for member, kind in ((part.text, str), (part.raw, bytes), (part.url, str)):
        if member is not None and not isinstance(member, kind):
            raise TypeError(f"a part's content is {kind.__name__} there, not {type(member).__name__}")
    if not (
        isinstance(part.media_type, str)
        and isinstance(part.filename, str)
        and isinstance(part.metadata, dict)
    ):
        raise TypeError("a part's media type and filename are text, and its metadata is a dict")
    return part


def checked(value: S) -> S:
    """A message or an artifact that was made by hand, as it will be read. Raises TypeError if it could not be."""
    try:
        return msgspec.convert(msgspec.to_builtins(value), type(value))
    except msgspec.ValidationError as error:
        raise TypeError(f"this is no {type(value).__name__}: {error}") from error


def plain(value: Any) -> Any:
    """JSON values of anything that has them. Raises TypeError."""
    match value:
        case Enum():
            return plain(value.value)
        case str() | int() | float() | None:
            return value
        case dict():
            return {key: plain(member) for key, member in value.items()}
        case list() | tuple():
            return [plain(member) for member in value]
    if is_dataclass(value) and not isinstance(value, type):
        # not by msgspec, which leaves out members that it filled in with their default
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json")
    return msgspec.to_builtins(value, enc_hook=_inside)


def _inside(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")
