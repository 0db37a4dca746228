"""Messages of protobuf as the documents of their JSON form, and back. The dialects of JSON read and write those.

Members have their JSON names, enums the names of their values, timestamps their text. Bytes stay bytes. A document has every
text, flag, enum and list of its message, also if it is empty; numbers and messages only if they are there. Unknown members of
a document are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from dragoman.dialects.proto.values import (
    read_moment,
    read_struct,
    read_value,
    write_moment,
    write_struct,
    write_value,
)
from dragoman.dialects.reading import Malformed

Read = Callable[[Any], Any]
Write = Callable[[Any, Any], None]

_NUMBERS = (1, 2, 3, 4, 5, 6, 7, 13, 15, 16, 17, 18)
"""The types of fields that are numbers, as descriptor.proto counts them."""
_KNOWN: dict[str, tuple[Read, Write]] = {
    "google.protobuf.Struct": (read_struct, write_struct),
    "google.protobuf.Value": (read_value, write_value),
    "google.protobuf.Timestamp": (read_moment, write_moment),
}


@cache
def document_reader(descriptor: Any) -> Callable[[Any], dict[str, Any]]:
    """Reads messages of a type. It raises `Malformed`."""
    if descriptor.full_name in _KNOWN:
        return _KNOWN[descriptor.full_name][0]
    empty: dict[str, Any] = {}
    readers: dict[Any, tuple[str, Read | None]] = {}
    for field in descriptor.fields:
        read = _reader(field)
        readers[field] = field.json_name, read
        if field.is_repeated:
            empty[field.json_name] = {} if _is_map(field) else []
        elif not field.has_presence and field.type not in _NUMBERS:
            empty[field.json_name] = field.default_value if read is None else read(field.default_value)

    def read_document(message: Any) -> dict[str, Any]:
        document = empty.copy()
        for field, value in message.ListFields():
            name, read = readers[field]
            try:
                document[name] = value if read is None else read(value)
            except Malformed as wrong:
                raise Malformed(f"{name}.{wrong.path}".rstrip("."), wrong.why) from None
        return document

    return read_document


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _reader(field: Any) -> Read | None:
    """Reads the value of a field. None if that stays as it is."""
    if _is_map(field):
        each = _reader(field.message_type.fields_by_name["value"])
        return dict if each is None else lambda value: {key: each(item) for key, item in value.items()}
    if field.message_type is not None:
        read = document_reader(field.message_type)
        return (lambda values: [read(value) for value in values]) if field.is_repeated else read
    if field.enum_type is not None:
        return partial(_read_enum, {n: value.name for n, value in field.enum_type.values_by_number.items()})
    return list if field.is_repeated else None


def _read_enum(names: dict[int, str], number: int) -> str:
    if number not in names:
        raise Malformed("", f"has the unknown value {number}")
    return names[number]


@cache
def document_writer(descriptor: Any) -> Callable[[Any, dict[str, Any]], None]:
    """Fills empty messages of a type. It raises TypeError or ValueError for what protobuf cannot carry."""
    if descriptor.full_name in _KNOWN:
        return _KNOWN[descriptor.full_name][1]
    writers = {field.json_name: (field.name, _writer(field)) for field in descriptor.fields}

    def write_document(message: Any, document: dict[str, Any]) -> None:
        if not document:
            message.SetInParent()  # an empty one, too, is there
        for member, value in document.items():
            if member in writers:
                name, write = writers[member]
                if write is None:
                    setattr(message, name, value)
                else:
                    write(getattr(message, name), value)

    return write_document


def _writer(field: Any) -> Write | None:
    """Fills the message, list or map in a field. None if the field has a plain value."""
    if _is_map(field):
        inner = field.message_type.fields_by_name["value"].message_type
        return _update if inner is None else partial(_write_map, document_writer(inner))
    if field.message_type is not None:
        write = document_writer(field.message_type)
        return partial(_write_all, write) if field.is_repeated else write
    return _extend if field.is_repeated else None


def _extend(place: Any, values: Any) -> None:
    place.extend(values)


def _update(place: Any, values: Any) -> None:
    place.update(values)


def _write_all(write: Write, place: Any, values: Any) -> None:
    for value in values:
        write(place.add(), value)


def _write_map(write: Write, place: Any, values: Any) -> None:
    for key, value in values.items():
        write(place[key], value)
