"""The SDK's parts: `Part(root=TextPart(text="hi"))`, and as 1.0 has them, `Part(text="hi")`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.executor.spoken import Kind, Made, SpokenPart, as_spoken, members, read_as
from dragoman.model import content

_KIND = ("kind", "type")


class Part(Made):
    made = content.Part

    def __new__(cls, root: Any = None, **given: Any) -> Any:
        if root is not None:
            return read_as(Part, root)
        return as_spoken(content.Part(**members(content.Part, given)))

    @classmethod
    def model_validate(cls, value: Any, **how: Any) -> Any:
        """A part, or its JSON in any version."""
        if not isinstance(value, Mapping) or isinstance(value, content.Part):
            return super().model_validate(value)
        members = {name: each for name, each in value.items() if name not in _KIND}
        if "root" in members:
            return cls.model_validate(members["root"])
        if isinstance(file := members.pop("file", None), Mapping):
            kind: Any = FileWithUri if "uri" in file else FileWithBytes
            return FilePart(file=kind(**file), **members)
        return super().model_validate(members)


class _OneOf(Kind):
    """Parts that hold one of these."""

    holds: tuple[str, ...]

    def __instancecheck__(cls, value: Any) -> bool:
        empty = content.Part()
        return isinstance(value, content.Part) and any(
            getattr(value, name) is not getattr(empty, name) for name in cls.holds
        )


class TextPart(Made, metaclass=_OneOf):
    holds = ("text",)

    def __new__(cls, text: str, **given: Any) -> Any:
        return as_spoken(content.Part(text=text, **members(content.Part, given, _KIND)))


class DataPart(Made, metaclass=_OneOf):
    holds = ("data",)

    def __new__(cls, data: Any, **given: Any) -> Any:
        return as_spoken(content.Part(data=data, **members(content.Part, given, _KIND)))


class FilePart(Made, metaclass=_OneOf):
    holds = ("raw", "url")

    def __new__(cls, file: content.Part, **given: Any) -> Any:
        return replace(file, **members(content.Part, given, _KIND))


class FileWithBytes(Made, metaclass=_OneOf):
    """`bytes` is base64, as in the SDK."""

    holds = ("raw",)

    def __new__(
        cls, bytes: str, *, name: str | None = "", mimeType: str | None = "", mime_type: str | None = ""
    ) -> Any:
        media_type = mimeType or mime_type or ""
        return SpokenPart(raw=base64.b64decode(bytes), filename=name or "", media_type=media_type)


class FileWithUri(Made, metaclass=_OneOf):
    holds = ("url",)

    def __new__(
        cls, uri: str, *, name: str | None = "", mimeType: str | None = "", mime_type: str | None = ""
    ) -> Any:
        return SpokenPart(url=uri, filename=name or "", media_type=mimeType or mime_type or "")
